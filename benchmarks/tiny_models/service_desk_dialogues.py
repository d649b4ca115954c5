# SPDX-License-Identifier: Apache-2.0

"""Supervised samples of the roles on *other* service desks, for building an embedded model."""

import itertools
import random
from dataclasses import replace
from typing import NamedTuple

from benchmarks.tiny_models.dialogues import ROLES_OF_ANY_INSTANCE, RoleDialogue, Steps, believed, told
from trl_nlac.environments.embedded.names import (
    CUSTOMERS,
    HELD_OUT_CUSTOMERS,
    REQUESTS_OF_KNOWN_DELAYED_DESKS,
    REQUESTS_OF_KNOWN_DESKS,
    REQUESTS_OF_KNOWN_HINTED_DESKS,
    REQUESTS_OF_NEW_DESKS,
)
from trl_nlac.environments.embedded.service_desk import (
    ARGUMENTS,
    NOISE,
    POSITIONS,
    TOOL,
    VALUES,
    Call,
    DeskState,
    ServiceDesk,
    follow,
    format_call,
    has_ended,
    parse_call,
    random_call,
    wrong_call,
)


KNOWN_REQUESTS = {
    "told": REQUESTS_OF_KNOWN_DESKS,
    "hinted": REQUESTS_OF_KNOWN_HINTED_DESKS,
    "delayed": REQUESTS_OF_KNOWN_DELAYED_DESKS,
}


class Lesson(NamedTuple):
    """The lesson of an episode for its first call: values to use, or a value to avoid."""

    use: tuple[str, ...] = ()
    avoid: str = ""

    @property
    def advice(self) -> str:
        """The lesson as written in a critique; empty if there is none."""
        if self.use:
            return " ".join(["use", *self.use])
        return f"avoid {self.avoid}" if self.avoid else ""


def hints(text: str) -> list[str]:
    """Return the values that the refusals in `text` ask for, in order."""
    words = text.split()
    return [after for word, after in itertools.pairwise(words) if word == "needs" and after in POSITIONS]


def lesson(steps: Steps) -> Lesson:
    """
    Return the lesson of `steps` for their first call. Values that refusals ask for should be used. If refusals name
    only arguments, a later call that got further shows which values are right; otherwise the refused value should be
    avoided. An accepted call is to blame only for being late; it then needs another time.
    """
    (action, answer), *_ = steps
    call, last = parse_call(action), steps[-1][1]
    if last.endswith("win"):
        return Lesson()
    if answer.startswith("accepted"):
        return Lesson(use=tuple(hints(last))) if last.startswith("late") else Lesson()
    asked = hints(" ".join(answer for _, answer in steps if answer.startswith("refused")))
    if asked:
        return Lesson(use=tuple(asked))
    refusals = [
        (list(ARGUMENTS).index(answer.split()[1]), parse_call(action))
        for action, answer in steps
        if answer.split()[1] in ARGUMENTS
    ]
    if not refusals:
        return Lesson()
    first, furthest = refusals[0][0], max(refusals, key=lambda refusal: refusal[0])
    return Lesson(use=furthest[1][first : furthest[0]]) if furthest[0] > first else Lesson(avoid=call[first])


class ServiceDeskFamily:
    """
    Role data of other desks of a variant: a desk with fixed rules and known names, and random rules with the names of
    [`ServiceDesk.from_seed`]. The latter teach a model the format of the roles, but nothing about any particular desk.
    Noisy desks use `"told"`, as the noise cannot be known beforehand. With `customers`, requests name one.
    """

    def __init__(self, variant: str = "told", customers: bool = False):
        self.variant = variant
        self.customers = CUSTOMERS + HELD_OUT_CUSTOMERS if customers else []
        self.known = ServiceDesk.draw(random.Random("known desk"), KNOWN_REQUESTS[variant], variant=variant)

    def dialogue(self, rng: random.Random, role: str, known: bool) -> RoleDialogue:
        """Draw the events around one action; `role` decides how skilled the agents are."""
        desk = self.known
        if not known:
            num_requests = 1 + (self.variant == "delayed")
            desk = ServiceDesk.draw(rng, rng.sample(REQUESTS_OF_NEW_DESKS, num_requests), self.variant)
        request = rng.choice(desk.requests)
        customer = rng.choice(self.customers) if self.customers else ""
        first_observation = desk.first_observation(request, customer)
        state, history = desk.start(request), []
        for _ in range(desk.attempts - 1):
            if role != "successor" and rng.random() < 0.5:
                earlier = _guess(rng, desk, state, rng.choice([0, 0.5, 0.8] if known else [0, 0, 0, 0.5]), history)
                answer = _answer(rng, desk, state, earlier)
                if has_ended(answer):
                    break
                history.append((format_call(earlier), answer))
                state = desk.after(state, format_call(earlier), answer)

        if role == "policy":
            call = _policy(rng, desk, state, known, history)
        else:
            skills = [0, 0.5, 0.8] if known or role in ROLES_OF_ANY_INSTANCE else [0, 0, 0, 0.5]
            call = _guess(rng, desk, state, rng.choice(skills), history)
            if role == "successor" and has_ended(_answer(rng, desk, state, call)):
                call = _guess(rng, desk, state, 0, [])
        knows = known or (role in ROLES_OF_ANY_INSTANCE and rng.random() < 0.5)
        attempts: list[RoleDialogue] = []
        avoided: set[str] = set()
        for _ in range(rng.choice([1, 1, 2, 3]) if role == "refine" else 1):
            foreseen_desk, num_futures = desk, 1
            if role == "evaluation":
                foreseen_desk, num_futures = replace(desk, noise=NOISE), rng.randint(2, 4)
            futures = [_play(rng, foreseen_desk, state, knows, call) for _ in range(num_futures)]
            future = believed(futures)
            won, learned = future[-1][1].endswith("win"), lesson(future)
            avoided.add(learned.avoid)
            mended = heed(rng, call, learned, avoided)
            attempts.append(
                RoleDialogue(
                    first_observation=first_observation,
                    history=history,
                    action=format_call(call),
                    future=future,
                    won=won,
                    advice=learned.advice,
                    refined_action=format_call(mended),
                    tool=TOOL,
                    earlier_attempts=[(attempt.action, attempt.critique) for attempt in attempts],
                    foreseen=list(map(told, futures)),
                )
            )
            if won:
                break
            call = mended
        return attempts[-1]


def _answer(rng: random.Random, desk: ServiceDesk, state: DeskState, call: Call) -> str:
    answers = desk.answers(state, format_call(call))
    return rng.choices(list(answers), list(answers.values()))[0]


def _play(rng: random.Random, desk: ServiceDesk, state: DeskState, knows: bool, call: Call) -> Steps:
    """Play from `call` to the end of the episode."""
    future: Steps = []
    while True:
        answer = _answer(rng, desk, state, call)
        future.append((format_call(call), answer))
        if has_ended(answer):
            return future
        state = desk.after(state, format_call(call), answer)
        call = _policy(rng, desk, state, knows, future)


def _guess(rng: random.Random, desk: ServiceDesk, state: DeskState, skill: float, history: Steps) -> Call:
    """Draw a call whose arguments are right with probability `skill`, sometimes based on the last refusal."""
    rule = desk.rules[state.request]
    if not desk.names_values and rng.random() < 0.5:  # else the last arguments are seldom the first wrong ones
        return wrong_call(rng, rule, VALUES, rng.randrange(len(rule)))
    call = _mended(rng, history) if rng.random() < 0.5 else random_call(rng, VALUES)
    return tuple(right if rng.random() < skill else value for value, right in zip(call, rule, strict=True))


def _policy(rng: random.Random, desk: ServiceDesk, state: DeskState, knows: bool, history: Steps) -> Call:
    """Draw the call of a mediocre agent, which corrects a refused call with probability 0.7 and can know the rules."""
    knowledge = rng.random() if knows else 1.0
    if knowledge < 0.4:
        return desk.rules[state.request]
    if knowledge < 0.6:
        return _guess(rng, desk, state, 0.8, history)
    return _mended(rng, history) if rng.random() < 0.7 else random_call(rng, VALUES)


def _mended(rng: random.Random, history: Steps) -> Call:
    """Correct the last call according to its refusal; draw any call if it was not refused."""
    if not history or not history[-1][1].startswith("refused"):
        return random_call(rng, VALUES)
    learned = lesson(history[-1:])
    return heed(rng, parse_call(history[-1][0]), learned, {learned.avoid})


def heed(rng: random.Random, call: Call, learned: Lesson, avoided: set[str]) -> Call:
    """Put the values to use into `call`, or replace the value to avoid by any that is not in `avoided`."""
    if not learned.avoid:
        return follow(call, learned.use)
    return follow(call, [rng.choice([v for v in VALUES[POSITIONS[learned.avoid]] if v not in avoided])])
