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
refused, and what the refusal tells is the variant of the desk:

- `"told"`: it names the right value of the *first* wrong argument. After two calls the request is lost.
- `"hinted"`: it names the first wrong argument, but no value.
- `"noisy"`: as told, but many refusals name a value that is wrong, of any argument.
- `"delayed"`: first the agent is asked for a time and takes one, as in `take noon`, which is accepted, whatever it is, and another request of
  the same customer follows, which is told. Only when that one is closed it shows whether the time was right: with a wrong
  one it is mostly too late, with the right one rarely.
"""

import random
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..tool_calls import format_tool_call, parse_tool_call
from ..types import Transition
from .base import StepResult, TextEnvironment
from .names import REQUESTS_OF_NEW_DESKS


ARGUMENTS = {
    "team": ("billing", "shipping", "returns", "repairs", "legal", "sales", "stores", "claims"),
    "form": ("amber", "azure", "coral", "ebony", "ivory", "jade", "olive", "ruby"),
    "proof": ("invoice", "receipt", "passport", "photo", "serial", "badge", "ticket", "permit"),
    "time": ("dawn", "morning", "noon", "dusk", "evening", "night", "weekend", "holiday"),
}
VALUES = tuple(ARGUMENTS.values())
TIME = list(ARGUMENTS).index("time")
POSITIONS = {value: i for i, values in enumerate(VALUES) for value in values}
VARIANTS = ("told", "hinted", "noisy", "delayed")

# The tools by their names, with the arguments of each.
SIGNATURES = {"route": ARGUMENTS, "take": {"time": ARGUMENTS["time"]}}

TOOLS = {
    name: {
        "type": "function",
        "function": {
            "name": name,
            "description": {"route": "Route the request.", "take": "Take a time for the request."}[name],
            "parameters": {
                "type": "object",
                "properties": {name: {"type": "string", "enum": list(values)} for name, values in signature.items()},
                "required": list(signature),
            },
        },
    }
    for name, signature in SIGNATURES.items()
}

Call = tuple[str, ...]  # four values, or the time alone


def parse_call(action: str) -> Call | None:
    """
    The values in an action like `route billing amber photo noon` or `take noon`, also written as a tool call, or `None`.
    """
    call = parse_tool_call(action)
    words = action.split() if call is None else [call[0], *map(str, call[1].values())]
    signature = SIGNATURES.get(words[0], {}) if words else {}
    names = list(signature) if call is None else list(call[1])
    if not signature or names != list(signature) or len(words) != 1 + len(names):
        return None
    values = tuple(words[1:])
    return values if all(map(tuple.__contains__, signature.values(), values)) else None


def format_call(call: Call) -> str:
    return " ".join(["take" if len(call) == 1 else "route", *call])


def first_wrong(call: Call, rule: Call) -> int | None:
    """Position of the first argument in which a call breaks a rule."""
    return next((i for i, (value, right) in enumerate(zip(call, rule, strict=True)) if value != right), None)


class DeskState(NamedTuple):
    """Where an episode is: the request at hand, the actions left, and whether the time that was taken was right."""

    request: str
    attempts_left: int
    in_time: bool = True


@dataclass(frozen=True)
class ServiceDesk:
    """
    One desk.

    Args:
        rules (`dict[str, tuple[str, ...]]`):
            The right call of every kind of request.
        attempts (`int`, *optional*, defaults to `2`):
            Number of calls after which an episode is lost.
        names_values (`bool`, *optional*, defaults to `True`):
            Whether a refusal names the right value of the first wrong argument, or the argument alone.
        noise (`float`, *optional*, defaults to `0.0`):
            Share of refusals that name a wrong value instead.
        follow_ups (`dict[str, str]`, *optional*):
            Requests for which a time is taken, each with the request that follows it.
        late_rates (`tuple[float, float]`, *optional*, defaults to `(0.2, 0.9)`):
            How often a follow-up that was closed turns out to be too late: after the right time, and after a wrong one.
    """

    rules: dict[str, Call]
    attempts: int = 2
    names_values: bool = True
    noise: float = 0.0
    follow_ups: dict[str, str] = field(default_factory=dict)
    late_rates: tuple[float, float] = (0.2, 0.9)

    @classmethod
    def draw(cls, rng: random.Random, requests: list[str], variant: str = "told") -> "ServiceDesk":
        """
        Draw the rules of `requests`, of which, in the variant `"delayed"`, the second half follows the first.

        Raises:
            ValueError: If there is no such variant.
        """
        if variant not in VARIANTS:
            raise ValueError(f"`variant` must be one of {', '.join(VARIANTS)}, got {variant!r}.")
        rules = {request: tuple(rng.choice(values) for values in VALUES) for request in requests}
        if variant == "delayed":
            first, then = requests[: len(requests) // 2], requests[len(requests) // 2 :]
            rules.update({request: rules[request][TIME:] for request in first})
            return cls(rules, attempts=3, follow_ups=dict(zip(first, then, strict=True)))
        return cls(rules, names_values=variant != "hinted", noise=0.4 if variant == "noisy" else 0.0)

    @classmethod
    def from_seed(cls, seed: int, num_requests: int | None = None, variant: str = "told") -> "ServiceDesk":
        """
        A desk with names that no embedded model has seen with fixed rules. It takes `num_requests` kinds of requests: by
        default four, or two that are each followed by another.
        """
        rng = random.Random(f"service desk {seed}")
        if num_requests is None:
            num_requests = 2 if variant == "delayed" else 4
        num_rules = 2 * num_requests if variant == "delayed" else num_requests
        return cls.draw(rng, rng.sample(REQUESTS_OF_NEW_DESKS, num_rules), variant)

    @property
    def requests(self) -> list[str]:
        """Kinds of requests that an episode can begin with."""
        return list(self.follow_ups or self.rules)

    @property
    def is_random(self) -> bool:
        return bool(self.noise or self.follow_ups)

    def start(self, request: str) -> DeskState:
        return DeskState(request, self.attempts)

    def first_observation(self, request: str, customer: str = "") -> str:
        """What an episode begins with: the request, who asks, and the number of calls; before it, that a time is needed."""
        words = ["time" if request in self.follow_ups else "", request, customer, str(self.attempts)]
        return " ".join(word for word in words if word)

    def answers(self, state: DeskState, action: str) -> dict[str, float]:
        """Distribution of what the desk says to `action`, as `{observation: probability}`."""
        call, rule, is_last = parse_call(action), self.rules[state.request], state.attempts_left == 1
        rest = "lose" if is_last else str(state.attempts_left - 1)
        if call is None or len(call) != len(rule):
            return {f"refused unreadable {rest}": 1.0}
        if state.request in self.follow_ups:
            return {"late lose" if is_last else f"accepted {self.follow_ups[state.request]} {rest}": 1.0}
        wrong = first_wrong(call, rule)
        if wrong is None:
            late_rate = self.late_rates[not state.in_time] if self.follow_ups else 0.0
            return {"closed win": 1 - late_rate, **({"late lose": late_rate} if late_rate else {})}
        if not self.names_values:
            return {f"refused {list(ARGUMENTS)[wrong]} {rest}": 1.0}
        outcomes = {f"refused needs {rule[wrong]} {rest}": 1 - self.noise}
        misleading = [value for value in POSITIONS if value not in rule] if self.noise else []
        return {**outcomes, **{f"refused needs {value} {rest}": self.noise / len(misleading) for value in misleading}}

    def after(self, state: DeskState, action: str, observation: str) -> DeskState:
        """The state after an answer that did not end the episode."""
        if observation.startswith("accepted"):
            in_time = parse_call(action) == self.rules[state.request]
            return DeskState(self.follow_ups[state.request], state.attempts_left - 1, in_time)
        return state._replace(attempts_left=state.attempts_left - 1)


def has_ended(observation: str) -> bool:
    return observation.endswith((" win", " lose"))


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
        tools = list(TOOLS.values()) if world.follow_ups else [TOOLS["route"]]
        self.tool_schemas = tools if shows_tools else []
        self.takes_seed = world.is_random
        self.oracle = ServiceDeskOracle(world, shows_tools)
        self._rng = random.Random(0)
        self._state = DeskState("", 0)

    def reset(self, request: str, customer: str = "", seed: int = 0, **task) -> str:
        """
        Args:
            request (`str`):
                Kind of the request.
            customer (`str`, *optional*):
                Who asks; it matters nothing.
            seed (`int`, *optional*, defaults to `0`):
                Seed of what is random.
        """
        self._rng = random.Random(seed)
        self._state = self.world.start(request)
        return self.world.first_observation(request, customer)

    def step(self, action: str) -> StepResult:
        answers = self.world.answers(self._state, action)
        observation = self._rng.choices(list(answers), list(answers.values()))[0]
        if has_ended(observation):
            return StepResult(observation, reward=float(observation.endswith("win")), terminated=True)
        self._state = self.world.after(self._state, action, observation)
        return StepResult(observation)


@dataclass(frozen=True)
class ServiceDeskOracle:
    """The truth about one desk, see [`~environments.base.Oracle`]. Quality is the share of right arguments."""

    world: ServiceDesk
    shows_tools: bool = False

    def quality(self, transition: Transition, action: str) -> float:
        call, state = parse_call(action), self._state(transition)
        rule = self.world.rules[state.request]
        if call is None or len(call) != len(rule):
            return 0.0
        return sum(value == right for value, right in zip(call, rule, strict=True)) / len(rule)

    def future_is_right(self, transition: Transition, action: str, future: str) -> bool:
        state, words = self._state(transition), future.split()
        while state.attempts_left:
            told = [
                answer
                for answer in self.world.answers(state, action)
                if words[: len(answer.split())] == answer.split()
            ]
            if not told:
                return False
            words = words[len(told[0].split()) :]
            if has_ended(told[0]):
                return not words
            state = self.world.after(state, action, told[0])
            length = 1 + len(self.world.rules[state.request])
            action, words = " ".join(words[:length]), words[length:]
            if parse_call(action) is None:
                return False
        return False

    def probes(self, number: int, seed: int) -> list[tuple[dict[str, Any], list[str]]]:
        """
        Calls for each request in turn: every second one right, the others wrong from each argument on in turn. Follow-ups
        come after the right time.
        """
        rng, probes = random.Random(seed), []
        places = [(request, None) for request in self.world.requests]
        places += [(follow_up, request) for request, follow_up in self.world.follow_ups.items()]
        for i in range(number):
            request, earlier = places[(i // 2) % len(places)]
            first = (i // 2 // len(places)) % len(self.world.rules[request])
            call = self.world.rules[request] if i % 2 == 0 else self._wrong_call(rng, request, first)
            calls = [call] if earlier is None else [self.world.rules[earlier], call]
            probes.append(({"request": earlier or request}, [self._action(call) for call in calls]))
        return probes

    def _wrong_call(self, rng: random.Random, request: str, first: int) -> Call:
        """Right before the argument `first`, wrong there, random after it."""
        rule = self.world.rules[request]
        values = VALUES[-len(rule) :]
        wrong = [value for value in values[first] if value != rule[first]]
        return (*rule[:first], rng.choice(wrong), *map(rng.choice, values[first + 1 :]))

    def _action(self, call: Call) -> str:
        if not self.shows_tools:
            return format_call(call)
        name = format_call(call).split()[0]
        return format_tool_call(name, dict(zip(SIGNATURES[name], call, strict=True)))

    def _state(self, transition: Transition) -> DeskState:
        episode = transition.episode
        state = self.world.start(episode.first_observation.removeprefix("time ").split()[0])
        for turn in episode.turns[: transition.index]:
            state = self.world.after(state, turn.action, turn.next_observation)
        return state
