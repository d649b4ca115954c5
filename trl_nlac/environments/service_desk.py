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

"""
Service desk: hidden rules, calls with several arguments, refusals in words, reward only when all is closed in time.

A request of some kind comes in. The agent routes it with a call of four arguments, each one of eight values: 4,096
possible actions per turn. Every kind of request has one right call, which the agent is never shown. A wrong call is
refused, and the refusal names the right value of the *first* wrong argument. After `attempts` calls the request is
lost.
"""

import itertools
import random
from dataclasses import dataclass
from typing import Any

from ..tool_calls import format_tool_call, parse_tool_call
from ..types import Transition
from .base import StepResult, TextEnvironment
from .dialogues import RoleDialogue
from .names import REQUESTS_OF_KNOWN_DESKS, REQUESTS_OF_NEW_DESKS


ARGUMENTS = {
    "team": ("billing", "shipping", "returns", "repairs", "legal", "sales", "stores", "claims"),
    "form": ("amber", "azure", "coral", "ebony", "ivory", "jade", "olive", "ruby"),
    "proof": ("invoice", "receipt", "passport", "photo", "serial", "badge", "ticket", "permit"),
    "time": ("dawn", "morning", "noon", "dusk", "evening", "night", "weekend", "holiday"),
}
VALUES = tuple(ARGUMENTS.values())
TOOL = {
    "type": "function",
    "function": {
        "name": "route",
        "description": "Route the request.",
        "parameters": {
            "type": "object",
            "properties": {name: {"type": "string", "enum": list(values)} for name, values in ARGUMENTS.items()},
            "required": list(ARGUMENTS),
        },
    },
}
_POSITION = {value: i for i, values in enumerate(VALUES) for value in values}

Call = tuple[str, ...]


def parse_call(action: str) -> Call | None:
    """The arguments of an action like `route billing amber photo noon`, also written as a tool call, or `None`."""
    call = parse_tool_call(action)
    if call is None:
        words = action.split()
    elif call[1].keys() == ARGUMENTS.keys():
        words = [call[0], *(str(call[1][name]) for name in ARGUMENTS)]
    else:
        return None
    if len(words) != len(VALUES) + 1 or words[0] != "route":
        return None
    return tuple(words[1:]) if all(value in values for value, values in zip(words[1:], VALUES, strict=True)) else None


def format_call(call: Call) -> str:
    return " ".join(["route", *call])


def hints(text: str) -> list[str]:
    """Values that the refusals in `text` ask for, in order."""
    words = text.split()
    return [after for word, after in itertools.pairwise(words) if word == "needs" and after in _POSITION]


def follow(call: Call, values: list[str]) -> Call:
    """`call` with each of `values` in the argument that it belongs to."""
    changed = list(call)
    for value in values:
        changed[_POSITION[value]] = value
    return tuple(changed)


@dataclass(frozen=True)
class ServiceDesk:
    """
    One desk.

    Args:
        rules (`dict[str, tuple[str, ...]]`):
            The right call of every kind of request.
        attempts (`int`, *optional*, defaults to `2`):
            Number of calls after which a request is lost.
    """

    rules: dict[str, Call]
    attempts: int = 2

    @classmethod
    def draw(cls, rng: random.Random, requests: list[str], **kwargs) -> "ServiceDesk":
        return cls({request: tuple(rng.choice(values) for values in VALUES) for request in requests}, **kwargs)

    @classmethod
    def from_seed(cls, seed: int, num_requests: int = 4, **kwargs) -> "ServiceDesk":
        """A desk over names of requests that the embedded model has never seen with fixed rules."""
        rng = random.Random(f"service desk {seed}")
        return cls.draw(rng, rng.sample(REQUESTS_OF_NEW_DESKS, num_requests), **kwargs)

    def answer(self, request: str, attempts_left: int, action: str) -> str:
        """What the desk says to `action`."""
        call = parse_call(action)
        if call is None:
            refusal = "refused unreadable"
        else:
            wrong = [right for value, right in zip(call, self.rules[request], strict=True) if value != right]
            if not wrong:
                return "closed win"
            refusal = f"refused needs {wrong[0]}"
        return f"{refusal} {attempts_left - 1}" if attempts_left > 1 else f"{refusal} lose"


class ServiceDeskEnvironment(TextEnvironment):
    """
    Plays one desk. `reset(request=...)` brings in a request of the named kind.

    Args:
        world ([`ServiceDesk`]):
            The desk.
        shows_tools (`bool`, *optional*, defaults to `False`):
            Whether actions are told to the agent as calls of a tool.
    """

    def __init__(self, world: ServiceDesk, shows_tools: bool = False):
        self.world = world
        self.tool_schemas = [TOOL] if shows_tools else []
        self.oracle = ServiceDeskOracle(world, shows_tools)
        self._request, self._attempts_left = "", 0

    def reset(self, request: str, **task) -> str:
        self._request, self._attempts_left = request, self.world.attempts
        return f"{request} {self._attempts_left}"

    def step(self, action: str) -> StepResult:
        observation = self.world.answer(self._request, self._attempts_left, action)
        self._attempts_left -= 1
        last_word = observation.split()[-1]
        return StepResult(observation, reward=float(last_word == "win"), terminated=last_word in ("win", "lose"))


@dataclass(frozen=True)
class ServiceDeskOracle:
    """The truth about one desk, see [`~environments.base.Oracle`]. Quality is the share of right arguments."""

    world: ServiceDesk
    shows_tools: bool = False

    def quality(self, transition: Transition, action: str) -> float:
        call, (request, _) = parse_call(action), _where(transition, self.world)
        if call is None:
            return 0.0
        rule = self.world.rules[request]
        return sum(value == right for value, right in zip(call, rule, strict=True)) / len(rule)

    def future_is_right(self, transition: Transition, action: str, future: str) -> bool:
        request, attempts_left = _where(transition, self.world)
        words = future.split()
        while attempts_left:
            answer = self.world.answer(request, attempts_left, action).split()
            if words[: len(answer)] != answer:
                return False
            words, attempts_left = words[len(answer) :], attempts_left - 1
            if answer[-1] in ("win", "lose"):
                return not words
            action, words = " ".join(words[: 1 + len(VALUES)]), words[1 + len(VALUES) :]
            if parse_call(action) is None:
                return False
        return False

    def probes(self, number: int, seed: int) -> list[tuple[dict[str, Any], list[str]]]:
        """First calls: every second one right, the others wrong from each argument on in turn."""
        rng, probes, requests = random.Random(seed), [], list(self.world.rules)
        for i in range(number):
            request = requests[(i // 2) % len(requests)]
            call = self.world.rules[request]
            if i % 2:
                first_wrong = (i // 2 // len(requests)) % len(VALUES)
                wrong = [value for value in VALUES[first_wrong] if value != call[first_wrong]]
                call = (
                    *call[:first_wrong],
                    rng.choice(wrong),
                    *(rng.choice(values) for values in VALUES[first_wrong + 1 :]),
                )
            arguments = dict(zip(ARGUMENTS, call, strict=True))
            action = format_tool_call("route", arguments) if self.shows_tools else format_call(call)
            probes.append(({"request": request}, [action]))
        return probes


def _where(transition: Transition, world: ServiceDesk) -> tuple[str, int]:
    return transition.episode.first_observation.split()[0], world.attempts - transition.index


class ServiceDeskFamily:
    """
    Role data of *other* desks, for building and rehearsing the embedded model: a desk with fixed rules over known
    names, and random rules over the names of [`ServiceDesk.from_seed`]. From the latter a model can learn how the
    roles speak, but nothing about any particular desk.
    """

    def __init__(self):
        self.known = ServiceDesk.draw(random.Random("known desk"), REQUESTS_OF_KNOWN_DESKS)

    def dialogue(self, rng: random.Random, role: str, known: bool) -> RoleDialogue:
        """Draw what happened around one action; `role` decides how skilled the agents in it are."""
        desk = self.known if known else ServiceDesk.draw(rng, [rng.choice(REQUESTS_OF_NEW_DESKS)])
        request = rng.choice(list(desk.rules))
        rule = desk.rules[request]
        history, attempts_left = [], desk.attempts
        if role != "successor" and rng.random() < 0.5:
            earlier = _guess(rng, rule, rng.choice([0, 0.5, 0.8] if known else [0, 0, 0, 0.5]), [])
            if earlier != rule:
                history = [(format_call(earlier), desk.answer(request, attempts_left, format_call(earlier)))]
                attempts_left -= 1

        if role == "policy":
            call = _policy(rng, rule, known, history)
        else:
            skills = [0, 0.5, 0.8] if known or role in ("backup", "refine") else [0, 0, 0, 0.5]
            call = _guess(rng, rule, rng.choice(skills), history)
            if role == "successor" and call == rule:
                call = _guess(rng, rule, 0, [])
        attempts: list[RoleDialogue] = []
        for _ in range(rng.choice([1, 1, 2, 3]) if role == "refine" else 1):
            future = self._play(rng, desk, request, known, call, attempts_left)
            won = future[-1][1].endswith("win")
            needed = [] if won else hints(" ".join(answer for _, answer in future))
            attempts.append(
                RoleDialogue(
                    first_observation=f"{request} {desk.attempts}",
                    history=history,
                    action=format_call(call),
                    future=future,
                    won=won,
                    advice="" if won else " ".join(["use", *needed]),
                    refined_action=format_call(follow(call, needed)),
                    tool=TOOL,
                    earlier_attempts=[(attempt.action, attempt.critique) for attempt in attempts],
                )
            )
            if won:
                break
            call = follow(call, needed)
        return attempts[-1]

    @staticmethod
    def _play(rng, desk, request, known, call, attempts_left) -> list[tuple[str, str]]:
        """`(action, observation)` pairs from `call` to the end of the episode."""
        future = []
        while True:
            answer = desk.answer(request, attempts_left, format_call(call))
            future.append((format_call(call), answer))
            if answer.split()[-1] in ("win", "lose"):
                return future
            attempts_left -= 1
            call = _policy(rng, desk.rules[request], known, future)


def _guess(rng: random.Random, rule: Call, skill: float, history: list[tuple[str, str]]) -> Call:
    """A call whose arguments are right with probability `skill`, sometimes built on what was just refused."""
    call = tuple(rng.choice(values) for values in VALUES)
    if history and rng.random() < 0.5:
        call = follow(parse_call(history[-1][0]), hints(history[-1][1]))
    return tuple(right if rng.random() < skill else value for value, right in zip(call, rule, strict=True))


def _policy(rng: random.Random, rule: Call, known: bool, history: list[tuple[str, str]]) -> Call:
    """How a mediocre agent calls: it knows half of the known rules, and mends a refused call seven times in ten."""
    if known and rng.random() < 0.5:
        return rule
    if history and rng.random() < 0.7:
        return follow(parse_call(history[-1][0]), hints(history[-1][1]))
    return tuple(rng.choice(values) for values in VALUES)
