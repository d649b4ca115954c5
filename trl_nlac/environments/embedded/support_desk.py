# SPDX-License-Identifier: Apache-2.0

"""
Support desk: what the quickstart plays. Customers write in English, and the agent routes each request with one call.

A call has four arguments with eight possible values each: 4,096 actions per turn. Every kind of request has one right
call, which the agent is never shown. A wrong call is refused with the right value of its *first* wrong argument:

    My kettle never arrived. Two calls left.
    route(team="sales", proof="photo", remedy="refund", day="Monday")
    Refused: the shipping team handles this. One call left.
    route(team="shipping", proof="photo", remedy="refund", day="Monday")
    Refused: this customer needs the invoice first. The customer gave up.
"""

import random
import re
from dataclasses import dataclass
from typing import Any

from ...episodes.text_environment import StepResult, TextEnvironment
from ...types import Transition
from .service_desk import Call, first_wrong, random_call, wrong_call


ARGUMENTS = {
    "team": ("billing", "shipping", "returns", "repairs", "legal", "sales", "warehouse", "insurance"),
    "proof": ("invoice", "receipt", "passport", "photo", "warranty", "contract", "ticket", "label"),
    "remedy": ("refund", "replacement", "repair", "discount", "voucher", "callback", "visit", "loan"),
    "day": ("today", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
}
VALUES = tuple(ARGUMENTS.values())
POSITIONS = {value: i for i, values in enumerate(VALUES) for value in values}
# What a refusal says about the right value of each argument, and what a critique advises.
REFUSALS = (
    "Refused: the {} team handles this.",
    "Refused: this customer needs the {} first.",
    "Refused: this customer wants a {}.",
    "Refused: it must be done by {}.",
)
UNREADABLE = "Refused: this is not a call of route."
CLOSED = "Closed: the customer is happy."
LOST = "The customer gave up."
CALLS_LEFT = {2: "Two calls left.", 1: "One call left."}
ATTEMPTS = 2

ITEMS = """
alarm apron backpack balloon basket bathrobe bench bicycle binder blanket blender bookcase bowl bracelet broom bucket
cabinet calendar camera candle carpet chair clock coat compass cooker couch cup curtain desk dishwasher doorbell drawer
drill drum dryer fan flute fork freezer fridge glove guitar hammer hammock hat headset heater helmet jacket kettle
keyboard kite ladder lamp lantern laptop mattress microwave mirror monitor mower mug necklace notebook oven pan piano
pillow printer projector puzzle quilt radio raincoat razor router saw scarf scooter shelf shirt shovel sofa
speaker stool stove suitcase sweater table tablet telescope tent toaster towel tripod
""".split()
PROBLEMS = (
    "never arrived",
    "arrived broken",
    "came too late",
    "has a missing part",
    "has the wrong colour",
    "has the wrong size",
    "was charged twice",
    "went to a neighbour",
)


# One request for each item, in a random order that is always the same.
_rng = random.Random("requests")
_REQUESTS = _rng.sample([f"My {item} {_rng.choice(PROBLEMS)}." for item in ITEMS], len(ITEMS))
# "Known" requests belong to the desk that the embedded model was trained on. Desks drawn from a seed use "new" ones,
# whose rules differ in every desk.
REQUESTS_OF_KNOWN_DESK, REQUESTS_OF_NEW_DESKS = _REQUESTS[:48], _REQUESTS[48:96]


def parse_call(action: str) -> Call | None:
    """Return the values of an action like `route(team="billing", proof="photo", ...)`, or `None` if it is no call."""
    call = re.fullmatch(r"\s*route\((.*)\)\s*", action, re.DOTALL)
    arguments = re.findall(r'\s*(\w+)\s*=\s*"([^"]*)"\s*(?:,|$)', call[1]) if call else []
    if [name for name, _ in arguments] != list(ARGUMENTS):
        return None
    values = tuple(value for _, value in arguments)
    return values if all(map(tuple.__contains__, VALUES, values)) else None


def format_call(call: Call) -> str:
    """Format `call` as an action that [`parse_call`] reads."""
    arguments = ", ".join(f'{name}="{value}"' for name, value in zip(ARGUMENTS, call, strict=True))
    return f"route({arguments})"


def has_ended(observation: str) -> bool:
    """Whether the request was closed or lost with `observation`."""
    return observation.endswith((CLOSED, LOST))


@dataclass(frozen=True)
class SupportDesk:
    """One desk: the right call of every kind of request."""

    rules: dict[str, Call]

    @classmethod
    def draw(cls, rng: random.Random, requests: list[str]) -> "SupportDesk":
        """Draw the rules of `requests`."""
        return cls({request: random_call(rng, VALUES) for request in requests})

    @classmethod
    def from_seed(cls, seed: int, num_requests: int = 4) -> "SupportDesk":
        """Draw a desk with `num_requests` kinds of requests, none of which the embedded model has fixed rules for."""
        rng = random.Random(f"support desk {seed}")
        return cls.draw(rng, rng.sample(REQUESTS_OF_NEW_DESKS, num_requests))

    @property
    def requests(self) -> list[str]:
        """Kinds of requests."""
        return list(self.rules)

    def first_observation(self, request: str) -> str:
        """Return the first observation: the request and the number of calls."""
        return f"{request} {CALLS_LEFT[ATTEMPTS]}"

    def answer(self, request: str, action: str, attempts_left: int) -> str:
        """Return the desk's answer to `action`."""
        call, rule = parse_call(action), self.rules[request]
        rest = CALLS_LEFT[attempts_left - 1] if attempts_left > 1 else LOST
        if call is None:
            return f"{UNREADABLE} {rest}"
        wrong = first_wrong(call, rule)
        if wrong is None:
            return CLOSED
        return f"{REFUSALS[wrong].format(rule[wrong])} {rest}"


class SupportDeskEnvironment(TextEnvironment):
    """Plays one desk. `reset(request=...)` starts with a request of the named kind."""

    def __init__(self, world: SupportDesk):
        self.world = world
        self.oracle = SupportDeskOracle(world)
        self._request, self._attempts_left = "", 0

    def reset(self, request: str, **task) -> str:
        self._request, self._attempts_left = request, ATTEMPTS
        return self.world.first_observation(request)

    def step(self, action: str) -> StepResult:
        observation = self.world.answer(self._request, action, self._attempts_left)
        self._attempts_left -= 1
        if has_ended(observation):
            return StepResult(observation, reward=float(observation == CLOSED), terminated=True)
        return StepResult(observation)


@dataclass(frozen=True)
class SupportDeskOracle:
    """The truth of one desk, see [`~episodes.text_environment.Oracle`]. Quality is the share of right arguments."""

    world: SupportDesk

    def quality(self, transition: Transition, action: str) -> float:
        """Return the share of right arguments; 0 for what is no call."""
        call, rule = parse_call(action), self.world.rules[self._request(transition)]
        return sum(map(str.__eq__, call, rule)) / len(rule) if call else 0.0

    def future_is_right(self, transition: Transition, action: str, future: str) -> bool:
        """Whether `future` is, word for word, an episode that can follow `action`, up to its end."""
        request, rest = self._request(transition), future.strip()
        # What could not be read as an action never reached the desk.
        used = sum(bool(turn.action) for turn in transition.episode.turns[: transition.index])
        for attempts_left in range(ATTEMPTS - used, 0, -1):
            answer = self.world.answer(request, action, attempts_left)
            if not rest.startswith(answer):
                return False
            rest = rest.removeprefix(answer).strip()
            if has_ended(answer):
                return not rest
            action, bracket, rest = rest.partition(")")
            action, rest = action + bracket, rest.strip()
            if parse_call(action) is None:
                return False
        return False

    def probes(self, number: int, seed: int) -> list[tuple[dict[str, Any], list[str]]]:
        """Make calls for each request in turn: every second one is right, the others wrong from one argument on."""
        rng, probes, requests = random.Random(seed), [], self.world.requests
        for i in range(number):
            request = requests[(i // 2) % len(requests)]
            call = rule = self.world.rules[request]
            if i % 2:
                call = wrong_call(rng, rule, VALUES, (i // 2 // len(requests)) % len(VALUES))
            probes.append(({"request": request}, [format_call(call)]))
        return probes

    def _request(self, transition: Transition) -> str:
        return transition.episode.first_observation.removesuffix(f" {CALLS_LEFT[ATTEMPTS]}")
