# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.


"""What the roles should say about *other* service desks, for building and rehearsing an embedded model."""

import itertools
import random
from dataclasses import replace
from typing import NamedTuple

from .dialogues import ROLES_OF_ANY_INSTANCE, RoleDialogue, Steps, believed, told
from .names import (
    CUSTOMERS,
    HELD_OUT_CUSTOMERS,
    REQUESTS_OF_KNOWN_DELAYED_DESKS,
    REQUESTS_OF_KNOWN_DESKS,
    REQUESTS_OF_KNOWN_HINTED_DESKS,
    REQUESTS_OF_NEW_DESKS,
)
from .service_desk import (
    ARGUMENTS,
    NOISE,
    POSITIONS,
    TOOL,
    VALUES,
    Call,
    DeskState,
    ServiceDesk,
    format_call,
    has_ended,
    parse_call,
)


KNOWN_REQUESTS = {
    "told": REQUESTS_OF_KNOWN_DESKS,
    "hinted": REQUESTS_OF_KNOWN_HINTED_DESKS,
    "delayed": REQUESTS_OF_KNOWN_DELAYED_DESKS,
}


class Lesson(NamedTuple):
    """What a course of events teaches about the first call in it: values to use, and a value to avoid."""

    use: tuple[str, ...] = ()
    avoid: str = ""

    @property
    def advice(self) -> str:
        """What was learned, as a critique says it; empty if nothing was."""
        if self.use:
            return " ".join(["use", *self.use])
        return f"avoid {self.avoid}" if self.avoid else ""


def hints(text: str) -> list[str]:
    """Values that the refusals in `text` ask for, in order."""
    words = text.split()
    return [after for word, after in itertools.pairwise(words) if word == "needs" and after in POSITIONS]


def lesson(steps: Steps) -> Lesson:
    """
    What follows from `steps` for the call at their start. Values that refusals ask for are to be used. Where refusals
    name arguments alone, a later call that got further shows which values are right; otherwise the value that was
    refused is to be avoided. A call that was accepted is to blame for being late, and for nothing else; what is too late
    then needs another time.
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


def follow(call: Call, values: list[str] | tuple[str, ...]) -> Call:
    """`call` with each of `values` in the argument that it belongs to."""
    changed = list(call)
    for value in values:
        changed[POSITIONS[value]] = value
    return tuple(changed)


class ServiceDeskFamily:
    """
    Role data of other desks of a variant: a desk with fixed rules over known names, and random rules over the names of
    [`ServiceDesk.from_seed`]. From the latter a model can learn how the roles speak, but nothing about any particular desk.

    Args:
        variant (`str`, *optional*, defaults to `"told"`):
            `"told"`, `"hinted"` or `"delayed"`; for noisy desks, `"told"` has all that can be known beforehand.
        customers (`bool`, *optional*, defaults to `False`):
            Whether requests name a customer.
    """

    def __init__(self, variant: str = "told", customers: bool = False):
        self.variant = variant
        self.customers = CUSTOMERS + HELD_OUT_CUSTOMERS if customers else []
        self.known = ServiceDesk.draw(random.Random("known desk"), KNOWN_REQUESTS[variant], variant=variant)

    def dialogue(self, rng: random.Random, role: str, known: bool) -> RoleDialogue:
        """Draw what happened around one action; `role` decides how skilled the agents in it are."""
        desk = self.known
        if not known:
            desk = ServiceDesk.draw(
                rng, rng.sample(REQUESTS_OF_NEW_DESKS, 1 + (self.variant == "delayed")), self.variant
            )
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
            mended = _heed(rng, call, learned, avoided)
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
    """From `call` to the end of the episode."""
    future: Steps = []
    while True:
        answer = _answer(rng, desk, state, call)
        future.append((format_call(call), answer))
        if has_ended(answer):
            return future
        state = desk.after(state, format_call(call), answer)
        call = _policy(rng, desk, state, knows, future)


def _guess(rng: random.Random, desk: ServiceDesk, state: DeskState, skill: float, history: Steps) -> Call:
    """A call whose arguments are right with probability `skill`, sometimes built on what was just refused."""
    rule = desk.rules[state.request]
    call = _mended(rng, history) if rng.random() < 0.5 else _random_call(rng)
    return tuple(right if rng.random() < skill else value for value, right in zip(call, rule, strict=True))


def _policy(rng: random.Random, desk: ServiceDesk, state: DeskState, knows: bool, history: Steps) -> Call:
    """How a mediocre agent calls: it mends a refused call seven times in ten, and may know much of the rules."""
    knowledge = rng.random() if knows else 1.0
    if knowledge < 0.4:
        return desk.rules[state.request]
    if knowledge < 0.6:
        return _guess(rng, desk, state, 0.8, history)
    return _mended(rng, history) if rng.random() < 0.7 else _random_call(rng)


def _mended(rng: random.Random, history: Steps) -> Call:
    """The last call, if it was refused, changed as its refusal tells; otherwise any."""
    if not history or not history[-1][1].startswith("refused"):
        return _random_call(rng)
    learned = lesson(history[-1:])
    return _heed(rng, parse_call(history[-1][0]), learned, {learned.avoid})


def _heed(rng: random.Random, call: Call, learned: Lesson, avoided: set[str]) -> Call:
    """`call` with the values to use, or any that is not in `avoided` in place of the value to avoid."""
    if not learned.avoid:
        return follow(call, learned.use)
    return follow(call, [rng.choice([v for v in VALUES[POSITIONS[learned.avoid]] if v not in avoided])])


def _random_call(rng: random.Random) -> Call:
    return tuple(map(rng.choice, VALUES))
