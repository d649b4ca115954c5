# SPDX-License-Identifier: Apache-2.0

"""Supervised samples of the roles on *other* support desks, to build the model of the quickstart."""

import random
import re

from benchmarks.tiny_models.dialogues import ROLES_OF_ANY_INSTANCE, RoleDialogue, Steps, told
from trl_nlac.environments.embedded.service_desk import Call, follow, random_call
from trl_nlac.environments.embedded.support_desk import (
    ATTEMPTS,
    POSITIONS,
    REFUSALS,
    REQUESTS_OF_KNOWN_DESK,
    REQUESTS_OF_NEW_DESKS,
    VALUES,
    SupportDesk,
    format_call,
    has_ended,
    parse_call,
)


ADVICE = ("send it to the {} team", "ask for the {}", "offer a {}", "do it by {}")  # by argument
_REFUSAL = re.compile("|".join(re.escape(refusal).replace(r"\{\}", r"(\w+)") for refusal in REFUSALS))


def named_values(text: str) -> list[str]:
    """Return the right values that the refusals in `text` name, in order, each once."""
    return list(dict.fromkeys("".join(filter(None, found.groups())) for found in _REFUSAL.finditer(text)))


def advice(values: list[str]) -> str:
    """Say in a sentence which values to use; empty if there are none."""
    said = " and ".join(ADVICE[POSITIONS[value]].format(value) for value in values)
    return f"{said[0].upper()}{said[1:]}." if said else ""


class SupportDeskFamily:
    """
    Role data of other desks: one desk with fixed rules and known requests, and random rules with the requests of
    [`SupportDesk.from_seed`]. The latter teach a model the format of the roles, but nothing about any desk. The best
    call is the one that closes the request at once.
    """

    def __init__(self):
        self.known = SupportDesk.draw(random.Random("known support desk"), REQUESTS_OF_KNOWN_DESK)

    def dialogue(self, rng: random.Random, role: str, known: bool) -> RoleDialogue:
        """Draw the events around one action; `role` decides how skilled the agents are."""
        desk = self.known if known else SupportDesk.draw(rng, [rng.choice(REQUESTS_OF_NEW_DESKS)])
        request, history, attempts_left = rng.choice(desk.requests), [], ATTEMPTS
        rule = desk.rules[request]
        if role != "successor" and rng.random() < 0.5:
            earlier = _guess(rng, rule, rng.choice([0, 0.5, 0.8] if known else [0, 0, 0, 0.5]), history)
            answer = desk.answer(request, format_call(earlier), attempts_left)
            if not has_ended(answer):
                history, attempts_left = [(format_call(earlier), answer)], attempts_left - 1
        if role == "policy":
            call = _policy(rng, rule, known, history)
        else:
            skills = [0, 0.5, 0.8] if known or role in ROLES_OF_ANY_INSTANCE else [0, 0, 0, 0.5]
            call = _guess(rng, rule, rng.choice(skills), history)
            if role == "successor" and call == rule:
                call = random_call(rng, VALUES)
        knows = known or (role in ROLES_OF_ANY_INSTANCE and rng.random() < 0.5)
        attempts: list[RoleDialogue] = []
        for _ in range(rng.choice([1, 1, 2, 3]) if role == "refine" else 1):
            future = _play(rng, desk, request, attempts_left, knows, call)
            is_right, values = call == rule, named_values(told(future))
            mended = follow(call, values, POSITIONS)
            attempts.append(
                RoleDialogue(
                    first_observation=desk.first_observation(request),
                    history=history,
                    action=format_call(call),
                    future=future,
                    won=is_right,
                    advice=advice(values),
                    refined_action=format_call(mended),
                    tool={},
                    earlier_attempts=[(attempt.action, attempt.critique) for attempt in attempts],
                )
            )
            if is_right:
                break
            call = mended
        return attempts[-1]


def _play(rng: random.Random, desk: SupportDesk, request: str, attempts_left: int, knows: bool, call: Call) -> Steps:
    """Play from `call` to the end of the episode."""
    future: Steps = []
    while True:
        answer = desk.answer(request, format_call(call), attempts_left)
        future.append((format_call(call), answer))
        if has_ended(answer):
            return future
        attempts_left -= 1
        call = _policy(rng, desk.rules[request], knows, future)


def _guess(rng: random.Random, rule: Call, skill: float, history: Steps) -> Call:
    """Draw a call whose arguments are right with probability `skill`, sometimes based on the last refusal."""
    call = _mended(rng, history) if rng.random() < 0.5 else random_call(rng, VALUES)
    return tuple(right if rng.random() < skill else value for value, right in zip(call, rule, strict=True))


def _policy(rng: random.Random, rule: Call, knows: bool, history: Steps) -> Call:
    """Draw the call of a mediocre agent, which corrects a refused call with probability 0.7 and can know the rules."""
    knowledge = rng.random() if knows else 1.0
    if knowledge < 0.4:
        return rule
    if knowledge < 0.6:
        return _guess(rng, rule, 0.8, history)
    return _mended(rng, history) if rng.random() < 0.7 else random_call(rng, VALUES)


def _mended(rng: random.Random, history: Steps) -> Call:
    """Correct the last call according to its refusal; draw any call if there was none."""
    if not history:
        return random_call(rng, VALUES)
    call, refusal = history[-1]
    return follow(parse_call(call), named_values(refusal), POSITIONS)
