# SPDX-License-Identifier: Apache-2.0

"""
The relay house: rooms on floors, and logs in which the pieces of every way out are there and no long episode wins.

On each floor one door of four leads down, on the first to the treasure; the others lead to other rooms of the floor.
Whoever starts on floor k can open k doors, so that only the right ones win. In the logs every door of every room is
tried from a start on its own floor, and then wrong doors are opened. What an episode returned says nothing about doors
above the first floor; what a critic can join from pieces of several episodes says everything.
"""

import json
import random
from dataclasses import dataclass, field
from typing import Any

from trl_nlac.environments.embedded.names import ROOMS_OF_NEW_WORLDS
from trl_nlac.environments.embedded.rooms import DOORS, TREASURE, RoomsEnvironment, RoomsWorld


@dataclass
class RelayHouse(RoomsWorld):
    """A house of floors."""

    # rooms of each floor, from the first. The horizon is their number.
    floors: list[list[str]] = field(default_factory=list)
    right: dict[str, str] = field(default_factory=dict)  # door of each room that leads down, or to the treasure

    @classmethod
    def from_seed(cls, seed: int, num_floors: int = 3, num_rooms: int = 3) -> "RelayHouse":
        """Draw a house with so many rooms on each floor, whose names no embedded model has seen with fixed doors."""
        rng = random.Random(f"relay {seed}")
        names = rng.sample(ROOMS_OF_NEW_WORLDS, num_floors * num_rooms)
        floors = [names[i * num_rooms : (i + 1) * num_rooms] for i in range(num_floors)]
        right = {room: rng.choice(DOORS) for room in names}
        doors = {}
        for below, rooms in zip([[TREASURE], *floors], floors, strict=False):
            for room in rooms:
                others = [other for other in rooms if other != room]
                for door in DOORS:
                    doors[room, door] = rng.choice(below if door == right[room] else others)
        return cls(doors, horizon=num_floors, floors=floors, right=right)

    def tasks(self, floor: int) -> list[dict[str, Any]]:
        """Return the starts of a floor, which must be won without a wrong door. The first floor is 1."""
        return [{"start": room, "steps": floor} for room in self.floors[floor - 1]]

    def logs(self, copies: list[int], seed: int = 0) -> list[dict[str, Any]]:
        """
        Return conversations in which every door is tried first, as often as `copies` says for its floor, and no door
        after it is right: `task`, `messages` and `reward`, see [`~episodes.logs.episodes_from_logs`].
        """
        rng, logs = random.Random(f"logs {seed}"), []
        for floor, number in enumerate(copies, 1):
            tried = [(task, door) for task in self.tasks(floor) for door in DOORS for _ in range(number)]
            logs += [self._play(task, door, rng) for task, door in tried]
        rng.shuffle(logs)
        return logs

    def _play(self, task: dict[str, Any], door: str, rng: random.Random) -> dict[str, Any]:
        environment = RoomsEnvironment(self)
        messages = [{"role": "user", "content": environment.reset(**task)}]
        while True:
            result = environment.step(f"take {door}")
            messages.append({"role": "assistant", "content": f"take {door}"})
            messages.append({"role": "user", "content": result.observation})
            if result.terminated:
                return {"task": json.dumps(task), "messages": messages, "reward": result.reward}
            room = result.observation.split()[0]
            door = rng.choice([other for other in DOORS if other != self.right[room]])
