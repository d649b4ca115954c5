# SPDX-License-Identifier: Apache-2.0

"""
Service desk: hidden rules, calls with several arguments, refusals in words, and a reward only for a closed request.

The agent routes a request with a call of four arguments, each with eight possible values: 4,096 actions per turn.
Every kind of request has one right call, which the agent is never shown. A wrong call is refused, and the variant of
the desk decides what the refusal reveals:

- `"told"`: the right value of the *first* wrong argument. After two calls the request is lost.
- `"hinted"`: the name of the first wrong argument, but no value.
- `"noisy"`: as `"told"`, but many refusals name a wrong value, of any argument.
- `"delayed"`: any call is accepted, and another request of the same customer follows, which is as `"told"`. Only when
  that one is closed does the *time* of the first call matter: with a wrong time it is always too late, with the right
  one sometimes. A customer who is too late names a time that would have been right, but is often mistaken.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...chat.tool_calls import format_tool_call, parse_tool_call
from ...episodes.text_environment import StepResult, TextEnvironment
from ...types import Transition
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
NUM_REQUESTS = 4  # kinds of requests
NOISE = 0.4  # in noisy desks
VARIANTS = ("told", "hinted", "noisy", "delayed")

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

Call = tuple[str, ...]


def parse_call(action: str) -> Call | None:
    """Return the values of an action like `route billing amber photo noon` or the same tool call, or `None`."""
    call = parse_tool_call(action)
    if call is None:
        name, *values = action.split() or [""]
    else:
        name, values = call[0], [str(value) for value in call[1].values()]
        if list(call[1]) != list(ARGUMENTS):
            return None
    if name != "route" or len(values) != len(VALUES) or not all(map(tuple.__contains__, VALUES, values)):
        return None
    return tuple(values)


def format_call(call: Call) -> str:
    """Format `call` as an action that [`parse_call`] reads."""
    return " ".join(["route", *call])


def random_call(rng: random.Random, values: tuple[tuple[str, ...], ...]) -> Call:
    """Draw any call."""
    return tuple(map(rng.choice, values))


def follow(call: Call, values: Iterable[str], positions: dict[str, int] = POSITIONS) -> Call:
    """Put each of `values` into the argument of `call` that it belongs to, by default of this desk."""
    changed = list(call)
    for value in values:
        changed[positions[value]] = value
    return tuple(changed)


def first_wrong(call: Call, rule: Call) -> int | None:
    """Return the position of the first argument of a call that breaks a rule; `None` if none does."""
    return next((i for i, (value, right) in enumerate(zip(call, rule, strict=True)) if value != right), None)


def wrong_call(rng: random.Random, rule: Call, values: tuple[tuple[str, ...], ...], first: int) -> Call:
    """Draw a call that keeps `rule` before the argument `first`, breaks it there and is random after it."""
    wrong = [value for value in values[first] if value != rule[first]]
    return (*rule[:first], rng.choice(wrong), *random_call(rng, values[first + 1 :]))


def named_values(right: str, misleading: list[str], noise: float) -> dict[str, float]:
    """Return the distribution of the named value: the right one, or with probability `noise` a misleading one."""
    return {right: 1 - noise, **(dict.fromkeys(misleading, noise / len(misleading)) if noise else {})}


class DeskState(NamedTuple):
    """State of an episode: the current request, the calls left, and the previous request with its call."""

    request: str
    attempts_left: int
    earlier: tuple[str, Call] | None = None


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
            Share of refusals that name a wrong value instead, of any argument.
        follow_ups (`dict[str, str]`, *optional*):
            Requests that accept every call, each with the request that follows it.
        late_rate (`float`, *optional*, defaults to `0.4`):
            Probability of being too late with the right time.
        late_noise (`float`, *optional*, defaults to `0.6`):
            Share of late customers that name a wrong time, whichever time was chosen.
    """

    rules: dict[str, Call]
    attempts: int = 2
    names_values: bool = True
    noise: float = 0.0
    follow_ups: dict[str, str] = field(default_factory=dict)
    late_rate: float = 0.4
    late_noise: float = 0.6

    @classmethod
    def draw(cls, rng: random.Random, requests: list[str], variant: str = "told") -> "ServiceDesk":
        """
        Draw the rules of `requests`. In the variant `"delayed"`, the second half of them follows the first.

        Raises:
            ValueError: If there is no such variant.
        """
        if variant not in VARIANTS:
            raise ValueError(f"`variant` must be one of {', '.join(VARIANTS)}, got {variant!r}.")
        rules = {request: random_call(rng, VALUES) for request in requests}
        if variant == "delayed":
            first, then = requests[: len(requests) // 2], requests[len(requests) // 2 :]
            return cls(rules, attempts=3, follow_ups=dict(zip(first, then, strict=True)))
        return cls(rules, names_values=variant != "hinted", noise=NOISE if variant == "noisy" else 0.0)

    @classmethod
    def from_seed(cls, seed: int, num_requests: int | None = None, variant: str = "told") -> "ServiceDesk":
        """
        Draw a desk whose names no embedded model has seen with fixed rules. It has `num_requests` kinds of requests:
        by default four; two if each is followed by another, or if every value must be found by trial and error.
        """
        rng = random.Random(f"service desk {seed}")
        if num_requests is None:
            num_requests = 2 if variant in ("hinted", "delayed") else NUM_REQUESTS
        num_rules = 2 * num_requests if variant == "delayed" else num_requests
        return cls.draw(rng, rng.sample(REQUESTS_OF_NEW_DESKS, num_rules), variant)

    @property
    def requests(self) -> list[str]:
        """Kinds of requests that an episode can begin with."""
        return list(self.follow_ups or self.rules)

    def start(self, request: str) -> DeskState:
        """Return the first state of an episode with this kind of request."""
        return DeskState(request, self.attempts)

    def first_observation(self, request: str, customer: str = "") -> str:
        """Return the first observation: the request, the customer and the number of calls."""
        return " ".join(word for word in (request, customer, str(self.attempts)) if word)

    def answers(self, state: DeskState, action: str) -> dict[str, float]:
        """Return the distribution of the desk's answer to `action`, as `{observation: probability}`."""
        call, rule = parse_call(action), self.rules[state.request]
        rest = "lose" if state.attempts_left == 1 else str(state.attempts_left - 1)
        if call is None:
            return {f"refused unreadable {rest}": 1.0}
        if state.request in self.follow_ups:
            return {f"accepted {self.follow_ups[state.request]} {rest}": 1.0}
        wrong = first_wrong(call, rule)
        if wrong is None:
            return self._closing_answers(state)
        if not self.names_values:
            return {f"refused {list(ARGUMENTS)[wrong]} {rest}": 1.0}
        misleading = [value for value in POSITIONS if value not in rule]
        named = named_values(rule[wrong], misleading, self.noise)
        return {f"refused needs {value} {rest}": probability for value, probability in named.items()}

    def _closing_answers(self, state: DeskState) -> dict[str, float]:
        if state.earlier is None:
            return {"closed win": 1.0}
        request, call = state.earlier
        right = self.rules[request][TIME]
        late_rate = self.late_rate if call[TIME] == right else 1.0
        wrong = [value for value in VALUES[TIME] if value != right]
        named = named_values(right, wrong, self.late_noise)
        late = {f"late needs {value} lose": late_rate * probability for value, probability in named.items()}
        return {**({"closed win": 1 - late_rate} if late_rate < 1 else {}), **late}

    def after(self, state: DeskState, action: str, observation: str) -> DeskState:
        """Return the state after an answer that did not end the episode."""
        if observation.startswith("accepted"):
            earlier = (state.request, parse_call(action))
            return DeskState(self.follow_ups[state.request], state.attempts_left - 1, earlier)
        return state._replace(attempts_left=state.attempts_left - 1)


def has_ended(observation: str) -> bool:
    """Whether the request was won or lost with `observation`."""
    return observation.endswith((" win", " lose"))


class ServiceDeskEnvironment(TextEnvironment):
    """
    Plays one desk. `reset(request=...)` starts with a request of the named kind; a `customer` who asks has no effect,
    and a `seed` is that of random answers. With `shows_tools` the agent is given a tool schema for its actions.
    """

    def __init__(self, world: ServiceDesk, shows_tools: bool = False):
        self.world = world
        self.tool_schemas = [TOOL] if shows_tools else []
        self.takes_seed = bool(world.noise or world.follow_ups)  # the same call can get different answers
        self.oracle = ServiceDeskOracle(world, shows_tools)
        self._rng = random.Random(0)
        self._state = DeskState("", 0)

    def reset(self, request: str, customer: str = "", seed: int = 0, **task) -> str:
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
    """
    The ground truth of one desk, see [`~episodes.text_environment.Oracle`]. Quality is the share of right arguments;
    if another request follows the call, only the time counts.
    """

    world: ServiceDesk
    shows_tools: bool = False

    def quality(self, transition: Transition, action: str) -> float:
        """Return the share of right arguments among those that count; 0 for invalid calls."""
        call, state = parse_call(action), self._state(transition)
        if call is None:
            return 0.0
        rule, counts = self.world.rules[state.request], self._counting(state.request)
        return sum(call[i] == rule[i] for i in counts) / len(counts)

    def future_is_right(self, transition: Transition, action: str, future: str) -> bool:
        """Whether `future` is, word for word, an episode that can follow `action`, up to its end."""
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
            length = 1 + len(VALUES)
            action, words = " ".join(words[:length]), words[length:]
            if parse_call(action) is None:
                return False
        return False

    def probes(self, number: int, seed: int) -> list[tuple[dict[str, Any], list[str]]]:
        """
        Make calls for each request in turn: every second one is right, the others are wrong from one argument on, each
        argument in turn. Follow-ups come after a call with the right time.
        """
        rng, probes = random.Random(seed), []
        places = [(request, None) for request in self.world.requests]
        places += [(follow_up, request) for request, follow_up in self.world.follow_ups.items()]
        for i in range(number):
            request, earlier = places[(i // 2) % len(places)]
            counts = self._counting(request)
            first = counts[(i // 2 // len(places)) % len(counts)]
            rule = self.world.rules[request]
            call = rule if i % 2 == 0 else wrong_call(rng, rule, VALUES, first)
            calls = [call] if earlier is None else [self.world.rules[earlier], call]
            probes.append(({"request": earlier or request}, [self._action(call) for call in calls]))
        return probes

    def _counting(self, request: str) -> list[int]:
        """Return the positions of the arguments that count."""
        return [TIME] if request in self.world.follow_ups else list(range(len(VALUES)))

    def _action(self, call: Call) -> str:
        if not self.shows_tools:
            return format_call(call)
        return format_tool_call("route", dict(zip(ARGUMENTS, call, strict=True)))

    def _state(self, transition: Transition) -> DeskState:
        episode = transition.episode
        state = self.world.start(episode.first_observation.split()[0])
        for turn in episode.turns[: transition.index]:
            if turn.action:  # otherwise it could not be read and never reached the desk
                state = self.world.after(state, turn.action, turn.next_observation)
        return state
