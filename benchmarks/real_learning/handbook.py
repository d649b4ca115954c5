# SPDX-License-Identifier: Apache-2.0

"""
Spoken desks that differ from task to task, with handbooks that the agent reads first, and a teacher that does, too.
"""

import random
import re
from collections.abc import Callable
from typing import Any

from benchmarks.real_learning.desk import SpokenDesk, SpokenDeskOracle, Teacher, asked_values, request_of
from benchmarks.tiny_models.service_desk_dialogues import KNOWN_REQUESTS, follow
from trl_nlac import NLACPrompts
from trl_nlac.environments import ServiceDesk, StepResult, TextEnvironment
from trl_nlac.environments.embedded.service_desk import NUM_REQUESTS, VALUES, Call, DeskState, format_call, parse_call
from trl_nlac.types import Message, Transition


MISREADING_RATE = 0.6  # of the teacher's values as the policy
RULE = "About the {request}: {call}"
# The judgements of a critic that first writes down the rule that it judges by.
QUOTING_PROMPTS = NLACPrompts(
    **{
        name: prompt.replace("\nFuture: ", "\nHandbook: <the line about this kind of request>\nFuture: ")
        for name, prompt in vars(NLACPrompts()).items()
        if name in ("critique", "backup", "backup_terminated")
    }
)


def handbook(world: ServiceDesk) -> str:
    """Write down the rules of a desk, a line for each kind of request."""
    rules = [RULE.format(request=request, call=format_call(call)) for request, call in world.rules.items()]
    return "\n".join(["The handbook of this desk:", *rules])


def read_handbook(text: str) -> ServiceDesk:
    """Return the desk whose handbook stands in `text`."""
    found = re.findall(RULE.format(request=r"(\w+)", call=r"(route(?: \w+){4})"), text)
    return ServiceDesk({request: parse_call(call) for request, call in found})


def known_desk(number: int) -> ServiceDesk:
    """Return a desk of the warm-up. Desks that are drawn from a seed have none of its kinds of requests."""
    rng = random.Random(f"known desk {number}")
    return ServiceDesk.draw(rng, rng.sample(KNOWN_REQUESTS["told"], NUM_REQUESTS))


class HandbookOracle:
    """The ground truth of desks with handbooks."""

    def __init__(self, world_of: Callable[[int], ServiceDesk]):
        self.world_of = world_of

    def quality(self, transition: Transition, action: str) -> float:
        return self._oracle(transition).quality(transition, action)

    def future_is_right(self, transition: Transition, action: str, future: str) -> bool:
        return self._oracle(transition).future_is_right(transition, action, future)

    def probes(self, number: int, seed: int) -> list[tuple[dict[str, Any], list[str]]]:
        """Make two calls at each of as many desks as it takes, one right and one wrong."""
        probes = []
        for desk in range(seed, seed + (number + 1) // 2):
            of_desk = SpokenDeskOracle(self.world_of(desk)).probes(2 * len(VALUES) * NUM_REQUESTS, seed)
            place = 2 * ((desk - seed) % (len(VALUES) * NUM_REQUESTS))  # another request and another argument each
            probes += [({**task, "desk": desk}, actions) for task, actions in of_desk[place : place + 2]]
        return probes[:number]

    def _oracle(self, transition: Transition) -> SpokenDeskOracle:
        return SpokenDeskOracle(self.world_of(transition.episode.task["desk"]))


class HandbookDesk(TextEnvironment):
    """
    Plays a spoken desk of each task's own, with its handbook before the request. `reset` takes the number of the desk.
    """

    def __init__(self, world_of: Callable[[int], ServiceDesk] = ServiceDesk.from_seed):
        self.world_of = world_of
        self.oracle = HandbookOracle(world_of)
        self._desk: SpokenDesk | None = None

    def reset(self, desk: int, request: str, customer: str = "", **task) -> list[Message]:
        self._desk = SpokenDesk(self.world_of(desk))
        system, opening = self._desk.reset(request, customer)
        return [system, {**opening, "content": f"{handbook(self._desk.world)}\n\n{opening['content']}"}]

    def step(self, action: str) -> StepResult:
        return self._desk.step(action)


class Reader(Teacher):
    """
    A teacher that reads the rules in the handbook. As the policy it misreads most values: there is something to learn.
    """

    def answer(self, messages: list[Message]) -> str:
        self.desk = read_handbook("\n".join(message["content"] for message in messages))
        return super().answer(messages)

    def _act(self, state: DeskState, call: Call | None, seen: str) -> Call:
        if call is not None:
            return follow(call, asked_values(seen))
        return tuple(
            self.rng.choice(values) if self.rng.random() < MISREADING_RATE else right
            for values, right in zip(VALUES, self.desk.rules[state.request], strict=True)
        )


class QuotingReader(Reader):
    """A teacher that quotes the rule before it judges, and advises the call that the rule names."""

    def answer(self, messages: list[Message]) -> str:
        text = super().answer(messages)
        future, tag, verdict = text.partition("\nOptimality: ")
        if not tag:
            return text
        request = request_of(messages)
        call = format_call(self.desk.rules[request])
        judgement = verdict if verdict == "Yes" else f"No. Call {call}."
        return f"Handbook: {RULE.format(request=request, call=call)}\n{future}{tag}{judgement}"
