# SPDX-License-Identifier: Apache-2.0

"""Supervised samples of the roles at *other* relay desks, for building an embedded model."""

import random

from benchmarks.learning.relay_desk import RelayDesk
from benchmarks.tiny_models.dialogues import ROLES_OF_ANY_INSTANCE, RoleDialogue, Steps
from benchmarks.tiny_models.service_desk_dialogues import Lesson, heed
from trl_nlac.environments.embedded.names import REQUESTS_OF_KNOWN_DELAYED_DESKS, REQUESTS_OF_NEW_DESKS
from trl_nlac.environments.embedded.service_desk import TOOL, VALUES, Call, format_call, random_call


class RelayFamily:
    """
    Role data of a desk with fixed calls and known names, and of random ones with the names of
    [`RelayDesk.from_seed`], which teach a model the format of the roles, but nothing about any particular desk.
    """

    def __init__(self, num_floors: int = 3):
        self.num_floors = num_floors
        self.known = RelayDesk.draw(
            random.Random("known relay desk"), REQUESTS_OF_KNOWN_DELAYED_DESKS[: 2 * num_floors]
        )

    def dialogue(self, rng: random.Random, role: str, known: bool) -> RoleDialogue:
        """Draw the events around one action; `role` decides how skilled the agents are."""
        desk = self.known
        if not known:
            desk = RelayDesk.draw(rng, rng.sample(REQUESTS_OF_NEW_DESKS, 2 * self.num_floors))
        knows = known or role in ROLES_OF_ANY_INSTANCE
        floors = desk.floors[1:] if role == "successor" else desk.floors
        request = rng.choice(rng.choice(floors))
        call = rng.choice(desk.calls[request]) if role == "successor" else _policy(rng, desk, request, knows)
        attempts: list[RoleDialogue] = []
        avoided: set[str] = set()
        for _ in range(rng.choice([1, 1, 2, 3]) if role == "refine" else 1):
            future = _play(rng, desk, request, call, knows)
            won = future[-1][1].endswith("win")
            if role != "successor" and future[0][1].startswith("accepted") and rng.random() < 0.15:
                future, won = future[:1], True  # a piece that is a success of its own
            learned = _lesson(future)
            avoided.add(learned.avoid)
            mended = heed(rng, call, learned, avoided)
            attempts.append(
                RoleDialogue(
                    first_observation=f"accepted {request}",
                    history=[],
                    action=format_call(call),
                    future=future,
                    won=won,
                    advice=learned.advice,
                    refined_action=format_call(mended),
                    tool=TOOL,
                    earlier_attempts=[(attempt.action, attempt.critique) for attempt in attempts],
                )
            )
            if won:
                break
            call = mended
        return attempts[-1]


def _lesson(steps: Steps) -> Lesson:
    """
    Return the lesson of `steps` for their first call. A refusal says what to use. An accepted call is to blame for a
    request that was closed dead, and not for a later call that was refused.
    """
    (action, answer), *_ = steps
    if answer.startswith("refused"):
        return Lesson(use=(answer.split()[2],))
    return Lesson(avoid=action.split()[1]) if steps[-1][1] == "closed lose" else Lesson()


def _play(rng: random.Random, desk: RelayDesk, request: str, call: Call, knows: bool) -> Steps:
    """Play from `call` to the end."""
    steps: Steps = []
    while True:
        answer = desk.answer(rng, request, call)
        steps.append((format_call(call), answer))
        if not answer.startswith("accepted"):
            return steps
        request = answer.split()[1]
        call = _policy(rng, desk, request, knows)


def _policy(rng: random.Random, desk: RelayDesk, request: str, knows: bool) -> Call:
    """Draw the call of a mediocre agent. Whoever does not know the desk guesses."""
    if knows and rng.random() < 0.75:
        return rng.choices(desk.calls[request], [2, 1])[0]
    if knows:  # some arguments are right
        return tuple(
            rng.choice([right, *values]) for right, values in zip(desk.calls[request][0], VALUES, strict=True)
        )
    return random_call(rng, VALUES)
