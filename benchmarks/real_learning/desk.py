# SPDX-License-Identifier: Apache-2.0

"""
Told service desks in plain English, for real models, with handbooks that the agent reads first, and a teacher that
does, too.

The rules are those of [`~trl_nlac.environments.ServiceDesk`]; only the words differ. The teacher stands for a stronger
model: it answers messages in every role.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.tiny_models.service_desk_dialogues import KNOWN_REQUESTS, follow
from trl_nlac import NLACPrompts
from trl_nlac.environments import ServiceDesk, ServiceDeskEnvironment, StepResult, TextEnvironment
from trl_nlac.environments.embedded.names import HELD_OUT_CUSTOMERS
from trl_nlac.environments.embedded.service_desk import (
    ARGUMENTS,
    NUM_REQUESTS,
    POSITIONS,
    VALUES,
    Call,
    DeskState,
    ServiceDeskOracle,
    format_call,
    has_ended,
    parse_call,
)
from trl_nlac.types import Message, Transition


NAMES = list(ARGUMENTS)
EXAMPLE = tuple(values[-1] for values in VALUES)
NO_CALL = "That is not a call."
NUM_WORDS = 1 + len(ARGUMENTS)  # of a call
UNREADABLE_RATE = 0.1  # of the teacher's calls
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
INSTRUCTIONS = "\n".join(
    [
        "You route the requests of a service desk. An action is a call of five words: route, then a "
        f"{', a '.join(NAMES[:-1])} and a {NAMES[-1]}, for example: {format_call(EXAMPLE)}",
        *(f"A {name} is one of: {', '.join(values)}." for name, values in ARGUMENTS.items()),
        "Every kind of request has one right call.",
    ]
)


def calls_left(number: int) -> str:
    return f"You have {number} call{'s' if number > 1 else ''} left."


def spoken(observation: str) -> str:
    """Say an observation of a told desk in a sentence or two."""
    if observation.startswith("closed"):
        return "The request is closed. The customer is served."
    *words, rest = observation.split()
    end = "The request is lost." if rest == "lose" else calls_left(int(rest))
    if words[-1] == "unreadable":
        return f"{NO_CALL} {end}"
    return f"Refused: the {NAMES[POSITIONS[words[-1]]]} must be {words[-1]}. {end}"


def asked_values(text: str) -> list[str]:
    """Return the values that refusals in `text` ask for, in order."""
    return [value for value in re.findall(r"must be (\w+)", text) if value in POSITIONS]


def request_of(messages: list[Message]) -> str:
    """Return the kind of request that a conversation is about."""
    return re.search(r"asks about the (\w+)\.", "\n".join(message["content"] for message in messages)).group(1)


def written(action: str) -> str:
    """Return an action without the marks that models put around it."""
    return action.strip(" .`\"'")


@dataclass(frozen=True)
class SpokenDeskOracle(ServiceDeskOracle):
    """The ground truth of a desk that is spoken. A future is right if all of its refusals and its end are."""

    def quality(self, transition: Transition, action: str) -> float:
        return super().quality(transition, written(action))

    def future_is_right(self, transition: Transition, action: str, future: str) -> bool:
        state, rest = self._state(transition), future
        call = written(action)
        while True:
            ((answer, _),) = self.world.answers(state, call).items()
            if not rest.startswith(spoken(answer)):
                return False
            rest = rest.removeprefix(spoken(answer)).strip()
            if has_ended(answer):
                return not rest
            state = self.world.after(state, call, answer)
            *words, rest = rest.split(" ", NUM_WORDS)
            call = " ".join(words)
            if parse_call(call) is None:
                return False

    def _state(self, transition: Transition) -> DeskState:
        return DeskState(transition.episode.task["request"], self.world.attempts - transition.index)


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
            more = {"customer": HELD_OUT_CUSTOMERS[0], "desk": desk}
            probes += [({**task, **more}, actions) for task, actions in of_desk[place : place + 2]]
        return probes[:number]

    def _oracle(self, transition: Transition) -> SpokenDeskOracle:
        return SpokenDeskOracle(self.world_of(transition.episode.task["desk"]))


class HandbookDesk(TextEnvironment):
    """
    Plays a desk of each task's own in plain English, with its handbook before the request. `reset` takes the number of
    the desk.
    """

    def __init__(self, world_of: Callable[[int], ServiceDesk] = ServiceDesk.from_seed):
        self.world_of = world_of
        self.oracle = HandbookOracle(world_of)

    def reset(self, desk: int, request: str, customer: str = "", **task) -> list[Message]:
        world = self.world_of(desk)
        self._desk = ServiceDeskEnvironment(world)
        self._desk.reset(request, customer)
        opening = f"{customer.capitalize()} asks about the {request}. {calls_left(world.attempts)}"
        user = {"role": "user", "content": f"{handbook(world)}\n\n{opening}"}
        return [{"role": "system", "content": INSTRUCTIONS}, user]

    def step(self, action: str) -> StepResult:
        result = self._desk.step(written(action))
        return StepResult(spoken(result.observation), reward=result.reward, terminated=result.terminated)


class Reader:
    """
    A teacher that reads the rules in the handbook, and answers in every role, in the form that the prompts ask for. As
    the policy it misreads most values, and some of its calls are none: there is something to learn.
    """

    def __init__(self, prompts: NLACPrompts, seed: int = 0):
        self.prompts = prompts
        self.rng = random.Random(seed)
        self.openings = {role: vars(prompts)[role][:40] for role in ("critique", "successor", "backup", "refine")}
        self.openings["backup_terminated"] = "Your action led to this observation, and"
        self.openings["successor"] = "Your action led to this observation:"

    def answer(self, messages: list[Message]) -> str:
        """Answer a conversation."""
        self.desk = read_handbook("\n".join(message["content"] for message in messages))
        opening, *turns = [message for message in messages if message["role"] != "system"]
        request = request_of([opening])
        seen, call, left = opening["content"], None, self.desk.attempts
        role, state = "policy", DeskState(request, left)
        for turn in turns:
            if turn["role"] == "assistant" and role == "policy":
                state, call, left = DeskState(request, left), parse_call(turn["content"]), left - 1
            elif turn["role"] == "user":
                found = [name for name, text in self.openings.items() if turn["content"].startswith(text)]
                role, seen = (found[0] if found else "policy"), turn["content"]
        said = [turn["content"] for turn in turns if turn["role"] == "assistant"]
        if role == "policy":
            return self._misspelt(format_call(self._act(DeskState(request, left), call, seen)))
        if role == "refine":
            values = [word for word in re.findall(r"\w+", said[-1].partition("Optimality:")[2]) if word in POSITIONS]
            return format_call(follow(call or self._act(state, None, ""), values))
        if role == "critique":
            return self._judge(self._future(state, call))
        if role == "successor":
            return self._continued(DeskState(request, left), call, seen)
        observation = (seen if role == "backup_terminated" else turns[-3]["content"]).split("\n")[1]
        return self._judge(observation if role == "backup_terminated" else f"{observation} {said[-1]}")

    def _misspelt(self, action: str) -> str:
        """Return a call, or sometimes what is no call."""
        if self.rng.random() >= UNREADABLE_RATE:
            return action
        words = action.split()
        place = self.rng.randrange(1, len(words))
        words[place : place + 1] = self.rng.choice([[], [f"{words[place]}s"], ["request"]])
        return " ".join(words)

    def _act(self, state: DeskState, call: Call | None, seen: str) -> Call:
        """Choose a call with some wrong values, or the last one repaired as the refusal asks."""
        if call is not None:
            return follow(call, asked_values(seen))
        return tuple(
            self.rng.choice(values) if self.rng.random() < MISREADING_RATE else right
            for values, right in zip(VALUES, self.desk.rules[state.request], strict=True)
        )

    def _future(self, state: DeskState, call: Call | None) -> str:
        """
        Foresee the answer to a call and what follows up to the end: calls and answers in turn, as the backup joins
        them.
        """
        ((answer, _),) = self.desk.answers(state, format_call(call) if call else "").items()
        told = spoken(answer)
        state = state._replace(attempts_left=state.attempts_left - 1)
        return told if has_ended(answer) else f"{told} {self._continued(state, call, told)}"

    def _continued(self, state: DeskState, call: Call | None, seen: str) -> str:
        repaired = follow(call, asked_values(seen)) if call else self._act(state, None, "")
        return f"{format_call(repaired)} {self._future(state, repaired)}"

    @staticmethod
    def _judge(future: str) -> str:
        asked = asked_values(future)
        advice = [NO_CALL.replace("That is not", "Write")] if future.startswith(NO_CALL) else []
        advice += [f"Use {' and '.join(asked)}."] if asked else []
        return f"Future: {future}\nOptimality: {' '.join(['No.', *advice]) if advice else 'Yes'}"


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
