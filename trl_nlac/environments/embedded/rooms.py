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
Rooms: a hidden house of doors, traps and treasure, with exact values by dynamic programming.

Every room has four doors. A door leads to another room, into a trap (the task is lost) or to the treasure (the task
is won). The agent starts in a given room and may open `horizon` doors. It sees only names: which door of which room
leads where has to be learned, and never changes within one world.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from ...chat.tool_calls import format_tool_call, parse_tool_call
from ...types import Transition
from ..base import StepResult, TextEnvironment
from .dialogues import ROLES_OF_ANY_INSTANCE, RoleDialogue, believed, told
from .names import ROOMS_OF_KNOWN_WORLDS, ROOMS_OF_NEW_WORLDS


DOORS = ("red", "blue", "green", "gold")
TRAP, TREASURE = "trap", "treasure"
TOOL = {
    "type": "function",
    "function": {
        "name": "take",
        "description": "Open a door of the room.",
        "parameters": {
            "type": "object",
            "properties": {"door": {"type": "string", "enum": list(DOORS)}},
            "required": ["door"],
        },
    },
}


@dataclass
class RoomsWorld:
    """
    One house.

    Args:
        doors (`dict[tuple[str, str], str]`):
            Where the door of a room leads: `(room, door) -> room`, `"trap"` or `"treasure"`.
        horizon (`int`, *optional*, defaults to `4`):
            Number of doors that may be opened.
        slip (`float`, *optional*, defaults to `0.0`):
            Probability that a door to a room leads to a uniformly random other room instead.
    """

    doors: dict[tuple[str, str], str]
    horizon: int = 4
    slip: float = 0.0
    _values: dict[tuple[str, int], float] = field(default_factory=dict, repr=False)

    @classmethod
    def draw(cls, rng: random.Random, rooms: list[str], num_treasures: int = 2, trap_rate: float = 0.2, **kwargs):
        """Draw a house over `rooms`, with traps behind `trap_rate` of the doors and `num_treasures` treasures."""
        doors = {
            (room, door): TRAP if rng.random() < trap_rate else rng.choice([r for r in rooms if r != room])
            for room in rooms
            for door in DOORS
        }
        for room in rng.sample(rooms, num_treasures):
            doors[room, rng.choice(DOORS)] = TREASURE
        return cls(doors, **kwargs)

    @classmethod
    def from_seed(cls, seed: int, num_rooms: int = 8, **kwargs) -> "RoomsWorld":
        """
        A house that can be won from every room and that a uniformly random agent wins in 10 to 20 % of the tries. Its
        room names are those that the embedded model has never seen with fixed doors.
        """
        rng = random.Random(f"rooms {seed}")
        rooms = rng.sample(ROOMS_OF_NEW_WORLDS, num_rooms)
        while True:
            world = cls.draw(rng, rooms, **kwargs)
            chance = sum(world.uniform_value(room) for room in rooms) / num_rooms
            if 0.1 <= chance <= 0.2 and all(world.value(room, world.horizon) > 0.99 for room in rooms):
                return world

    @property
    def rooms(self) -> list[str]:
        """Names of all rooms."""
        return list(dict.fromkeys(room for room, _ in self.doors))

    def successors(self, room: str, steps_left: int, door: str) -> dict[str, float]:
        """Distribution of the next observation after opening `door`, as `{observation: probability}`."""
        place = self.doors[room, door]
        others = [other for other in self.rooms if other != room]
        if place in (TRAP, TREASURE) or not self.slip:
            places = {place: 1.0}
        else:
            places = {other: self.slip / len(others) for other in others}
            places[place] += 1 - self.slip
        outcomes: dict[str, float] = {}
        for place, probability in places.items():
            outcome = self._observation(place, steps_left)
            outcomes[outcome] = outcomes.get(outcome, 0.0) + probability
        return outcomes

    @staticmethod
    def _observation(place: str, steps_left: int) -> str:
        if place == TREASURE:
            return "treasure win"
        if place == TRAP:
            return "trap lose"
        return f"{place} {steps_left - 1}" if steps_left > 1 else "late lose"

    def action_value(self, room: str, steps_left: int, door: str) -> float:
        """Q*: the probability of winning when `door` is opened now and every later door is a best one."""
        return sum(
            probability * self.observation_value(observation)
            for observation, probability in self.successors(room, steps_left, door).items()
        )

    def observation_value(self, observation: str) -> float:
        """The probability of winning, with best doors, after `observation`."""
        place, rest = observation.split()
        return {"win": 1.0, "lose": 0.0}[rest] if rest in ("win", "lose") else self.value(place, int(rest))

    def value(self, room: str, steps_left: int) -> float:
        """V*: the probability of winning with best doors."""
        if (room, steps_left) not in self._values:
            self._values[room, steps_left] = max(self.action_value(room, steps_left, door) for door in DOORS)
        return self._values[room, steps_left]

    def best_actions(self, room: str, steps_left: int) -> list[str]:
        """The doors behind which the probability of winning is the largest."""
        return [
            door for door in DOORS if self.action_value(room, steps_left, door) >= self.value(room, steps_left) - 1e-9
        ]

    def uniform_value(self, room: str, steps_left: int | None = None) -> float:
        """The probability that a uniformly random agent wins."""
        steps_left = self.horizon if steps_left is None else steps_left
        total = 0.0
        for door in DOORS:
            for observation, probability in self.successors(room, steps_left, door).items():
                place, rest = observation.split()
                if rest == "win":
                    total += probability
                elif rest != "lose":
                    total += probability * self.uniform_value(place, int(rest))
        return total / len(DOORS)


def parse_door(action: str) -> str | None:
    """The door of an action like `take red`, also written as a tool call, or `None`."""
    call = parse_tool_call(action)
    words = action.split() if call is None else [call[0], *map(str, call[1].values())]
    return words[1] if len(words) == 2 and words[0] == "take" and words[1] in DOORS else None


class RoomsEnvironment(TextEnvironment):
    """
    Plays one house. `reset(start=...)` begins in the named room.

    Args:
        world ([`RoomsWorld`]):
            The house.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the slips, if the world has any.
        shows_tools (`bool`, *optional*, defaults to `False`):
            Whether actions are told to the agent as calls of a tool.
    """

    def __init__(self, world: RoomsWorld, seed: int = 0, shows_tools: bool = False):
        self.world = world
        self.tool_schemas = [TOOL] if shows_tools else []
        self.oracle = RoomsOracle(world, shows_tools)
        self._rng = random.Random(seed)
        self._room, self._steps_left = "", 0

    def reset(self, start: str, **task) -> str:
        self._room, self._steps_left = start, self.world.horizon
        return f"{start} {self._steps_left}"

    def step(self, action: str) -> StepResult:
        door = parse_door(action)
        if door is None:  # nothing moves, but time passes
            observation = self.world._observation(self._room, self._steps_left)
        else:
            outcomes = self.world.successors(self._room, self._steps_left, door)
            observation = self._rng.choices(list(outcomes), list(outcomes.values()))[0]
        place, rest = observation.split()
        if rest in ("win", "lose"):
            return StepResult(observation, reward=float(rest == "win"), terminated=True)
        self._room, self._steps_left = place, int(rest)
        return StepResult(observation)


@dataclass(frozen=True)
class RoomsOracle:
    """The truth about one house, see [`~environments.base.Oracle`]."""

    world: RoomsWorld
    shows_tools: bool = False

    def quality(self, transition: Transition, action: str) -> float:
        """The probability of winning after `action` with best doors from then on; 0 for what is no door."""
        door = parse_door(action)
        return self.world.action_value(*_where(transition), door) if door else 0.0

    def future_is_right(self, transition: Transition, action: str, future: str) -> bool:
        """Whether `future` is, word by word, an episode that can follow `action`, to its end."""
        room, steps_left = _where(transition)
        words = [*_words(parse_door(action)), *future.split()]
        while len(words) >= 4:
            door, observation = parse_door(" ".join(words[:2])), " ".join(words[2:4])
            if door is None or observation not in self.world.successors(room, steps_left, door):
                return False
            if words[3] in ("win", "lose"):
                return len(words) == 4
            room, steps_left, words = words[2], int(words[3]), words[4:]
        return False

    def probes(self, number: int, seed: int) -> list[tuple[dict[str, Any], list[str]]]:
        """Random walks; every second one ends with a best door, the others with one that is not."""
        rng, probes = random.Random(seed), []
        while len(probes) < number:
            start = room = rng.choice(self.world.rooms)
            steps_left, actions = self.world.horizon, []
            for _ in range(rng.randrange(self.world.horizon - 1)):
                door = rng.choice(DOORS)
                observation = next(iter(self.world.successors(room, steps_left, door)))
                place, rest = observation.split()
                if rest in ("win", "lose"):
                    break
                room, steps_left = place, int(rest)
                actions.append(self._action(door))
            best = self.world.best_actions(room, steps_left)
            wanted = best if len(probes) % 2 == 0 else [door for door in DOORS if door not in best]
            if wanted and self.world.value(room, steps_left) > 0:
                probes.append(({"start": start}, [*actions, self._action(rng.choice(wanted))]))
        return probes

    def _action(self, door: str) -> str:
        return format_tool_call("take", {"door": door}) if self.shows_tools else f"take {door}"


def _words(door: str | None) -> list[str]:
    return ["take", door or "nothing"]


def _where(transition: Transition) -> tuple[str, int]:
    """The room and the steps left; an answer that could not be read has never come to the house, and nothing moved."""
    episode = transition.episode
    told = [turn.next_observation for turn in episode.turns[: transition.index] if turn.action]
    room, steps_left = [episode.first_observation, *told][-1].split()
    return room, int(steps_left)


class RoomsFamily:
    """
    Role data of *other* houses, for building and rehearsing the embedded model: houses with fixed doors over known
    names, and fresh random houses over the names of [`RoomsWorld.from_seed`]. From the latter a model can learn how
    the roles speak, but nothing about any particular house.
    """

    def __init__(self, num_rooms: int = 8, num_known: int = 12):
        rng = random.Random("known rooms")
        self.num_rooms = num_rooms
        self.known = []
        for i in range(num_known):
            rooms = ROOMS_OF_KNOWN_WORLDS[i * num_rooms : (i + 1) * num_rooms]
            while True:
                world = RoomsWorld.draw(rng, rooms)
                if world.value(rooms[0], 4) == 1 and world.uniform_value(rooms[0]) < 0.3:
                    break
            self.known.append(world)

    def dialogue(self, rng: random.Random, role: str, known: bool) -> RoleDialogue:
        """Draw what happened around one action; `role` decides how skilled the agents in it are."""
        if known:
            world = rng.choice(self.known)
        else:
            rooms = rng.sample(ROOMS_OF_NEW_WORLDS, self.num_rooms)
            world = RoomsWorld.draw(rng, rooms, num_treasures=rng.choice([2, 2, 6]))
        room, steps_left = world.rooms[0], world.horizon
        if rng.random() < 0.5:
            room, steps_left = rng.choice(world.rooms), rng.randint(1, world.horizon)
        first_observation = f"{room} {steps_left}"
        walk = _walk(world, rng, 0.0 if rng.random() < 0.6 else 0.7, room, steps_left)
        history = walk[: rng.randrange(len(walk))]
        if history:
            room, steps_left = history[-1][1].split()[0], int(history[-1][1].split()[1])

        skill = 0.5 if known or role in ROLES_OF_ANY_INSTANCE else 0.0
        best = world.best_actions(room, steps_left) if world.value(room, steps_left) else []
        attempts: list[RoleDialogue] = []
        for _ in range(rng.choice([1, 1, 2, 3]) if role == "refine" else 1):
            untried = [door for door in DOORS if f"take {door}" not in [attempt.action for attempt in attempts]]
            door = rng.choice(untried)
            if known and best and role != "refine" and rng.random() < 0.5:
                door = rng.choice(best)
            num_futures = rng.randint(2, 4) if role == "evaluation" else 1
            futures = [_walk(world, rng, skill, room, steps_left, door) for _ in range(num_futures)]
            future = believed(futures)
            won = future[-1][1].endswith("win")
            better = [other for other in untried if other != door]
            if known and rng.random() < 0.5:
                better = [other for other in better if other in best] or better
            attempts.append(
                RoleDialogue(
                    first_observation=first_observation,
                    history=history,
                    action=f"take {door}",
                    future=future,
                    won=won,
                    advice="" if won else f"avoid {door}",
                    refined_action=f"take {door if won else rng.choice(better)}",
                    tool=TOOL,
                    earlier_attempts=[(attempt.action, attempt.critique) for attempt in attempts],
                    foreseen=list(map(told, futures)),
                )
            )
            if won:
                break
        return attempts[-1]


def _walk(world, rng, skill, room, steps_left, first_door=None) -> list[tuple[str, str]]:
    """`(action, observation)` pairs to the end of the episode; each door is a best one with probability `skill`."""
    steps, door = [], first_door
    while True:
        if door is None:
            skilled = rng.random() < skill and world.value(room, steps_left)
            door = rng.choice(world.best_actions(room, steps_left) if skilled else DOORS)
        outcomes = world.successors(room, steps_left, door)
        observation = rng.choices(list(outcomes), list(outcomes.values()))[0]
        steps.append((f"take {door}", observation))
        place, rest = observation.split()
        if rest in ("win", "lose"):
            return steps
        room, steps_left, door = place, int(rest), None
