# SPDX-License-Identifier: Apache-2.0

"""
Rooms: a hidden house of doors, traps and treasure, with exact values by dynamic programming.

Every room has four doors. A door leads to another room, into a trap (the task is lost) or to the treasure (the task
is won). The agent starts in a given room and can open `horizon` doors. It sees only names: where each door leads must
be learned, and never changes within one world.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from ...chat.tool_calls import format_tool_call, parse_tool_call
from ...episodes.text_environment import StepResult, TextEnvironment
from ...types import Transition
from .names import ROOMS_OF_NEW_WORLDS


DOORS = ("red", "blue", "green", "gold")
TRAP, TREASURE = "trap", "treasure"
MAX_DRAWS = 500  # of houses; for those of the default size, a handful is enough
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
            Number of doors that can be opened.
        slip (`float`, *optional*, defaults to `0.0`):
            Probability that a door to a room leads to another room, drawn uniformly, instead.
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
    def from_seed(cls, seed: int, num_rooms: int = 8, slip: float = 0.0, **kwargs) -> "RoomsWorld":
        """
        Draw a house that, without slips, can be won from every room and that a uniformly random agent then wins 10 to
        20 % of the time. The embedded model has never seen its room names with fixed doors.

        Raises:
            ValueError: If no such house is found.
        """
        rng = random.Random(f"rooms {seed}")
        rooms = rng.sample(ROOMS_OF_NEW_WORLDS, num_rooms)
        for _ in range(MAX_DRAWS):
            world = cls.draw(rng, rooms, **kwargs)
            chance = sum(world.uniform_value(room) for room in rooms) / num_rooms
            if 0.1 <= chance <= 0.2 and all(world.value(room, world.horizon) > 0.99 for room in rooms):
                return cls(world.doors, world.horizon, slip)
        raise ValueError(
            f"None of {MAX_DRAWS} houses with num_rooms={num_rooms} and {kwargs} can be won from every room and is "
            "won by chance 10 to 20 % of the time. Choose another `num_treasures`, `trap_rate` or `horizon`."
        )

    @property
    def rooms(self) -> list[str]:
        """Names of all rooms."""
        return list(dict.fromkeys(room for room, _ in self.doors))

    def successors(self, room: str, steps_left: int, door: str) -> dict[str, float]:
        """Return the distribution of the next observation after opening `door`, as `{observation: probability}`."""
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
        """Return Q*: the probability of winning if `door` is opened now and every later door is a best one."""
        return sum(
            probability * self.observation_value(observation)
            for observation, probability in self.successors(room, steps_left, door).items()
        )

    def observation_value(self, observation: str) -> float:
        """Return the probability of winning, with best doors, after `observation`."""
        place, rest = observation.split()
        return {"win": 1.0, "lose": 0.0}[rest] if rest in ("win", "lose") else self.value(place, int(rest))

    def value(self, room: str, steps_left: int) -> float:
        """Return V*: the probability of winning with best doors."""
        if (room, steps_left) not in self._values:
            self._values[room, steps_left] = max(self.action_value(room, steps_left, door) for door in DOORS)
        return self._values[room, steps_left]

    def best_actions(self, room: str, steps_left: int) -> list[str]:
        """Return the doors with the largest probability of winning."""
        return [
            door for door in DOORS if self.action_value(room, steps_left, door) >= self.value(room, steps_left) - 1e-9
        ]

    def uniform_value(self, room: str, steps_left: int | None = None) -> float:
        """Return the probability that a uniformly random agent wins."""
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
    """Return the door of an action like `take red` or the same tool call; `None` if there is none."""
    call = parse_tool_call(action)
    words = action.split() if call is None else [call[0], *map(str, call[1].values())]
    return words[1] if len(words) == 2 and words[0] == "take" and words[1] in DOORS else None


class RoomsEnvironment(TextEnvironment):
    """
    Plays one house. `reset(start=..., steps=...)` begins in the named room; `steps` doors can be opened, by default as
    many as the horizon of the house. If doors can slip, it also takes a `seed`. With `shows_tools` the agent is given
    a tool schema for its actions.
    """

    def __init__(self, world: RoomsWorld, shows_tools: bool = False):
        self.world = world
        self.tool_schemas = [TOOL] if shows_tools else []
        self.takes_seed = bool(world.slip)
        self.oracle = RoomsOracle(world, shows_tools)
        self._rng = random.Random(0)
        self._room, self._steps_left = "", 0

    def reset(self, start: str, steps: int | None = None, seed: int = 0, **task) -> str:
        self._rng = random.Random(seed)
        self._room, self._steps_left = start, self.world.horizon if steps is None else steps
        return f"{start} {self._steps_left}"

    def step(self, action: str) -> StepResult:
        door = parse_door(action)
        if door is None:  # the agent stays, but time passes
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
    """The ground truth of one house, see [`~episodes.text_environment.Oracle`]."""

    world: RoomsWorld
    shows_tools: bool = False

    def quality(self, transition: Transition, action: str) -> float:
        """Return the probability of winning after `action`, with best doors from then on; 0 for invalid actions."""
        door = parse_door(action)
        return self.world.action_value(*_where(transition), door) if door else 0.0

    def future_is_right(self, transition: Transition, action: str, future: str) -> bool:
        """Whether `future` is, word for word, an episode that can follow `action`, up to its end."""
        room, steps_left = _where(transition)
        words = ["take", parse_door(action) or "nothing", *future.split()]
        while len(words) >= 4:
            door, observation = parse_door(" ".join(words[:2])), " ".join(words[2:4])
            if door is None or observation not in self.world.successors(room, steps_left, door):
                return False
            if words[3] in ("win", "lose"):
                return len(words) == 4
            room, steps_left, words = words[2], int(words[3]), words[4:]
        return False

    def probes(self, number: int, seed: int) -> list[tuple[dict[str, Any], list[str]]]:
        """Draw random walks; every second one ends with a best door, the others with a worse one."""
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


def _where(transition: Transition) -> tuple[str, int]:
    """Return the room and the steps left. Answers that could not be read never reached the house."""
    episode = transition.episode
    told = [turn.next_observation for turn in episode.turns[: transition.index] if turn.action]
    room, steps_left = [episode.first_observation, *told][-1].split()
    return room, int(steps_left)
