# SPDX-License-Identifier: Apache-2.0

"""Supervised samples of the roles in *other* houses, for building an embedded model."""

import random

from benchmarks.tiny_models.dialogues import ROLES_OF_ANY_INSTANCE, RoleDialogue, believed, told
from trl_nlac.environments.embedded.names import ROOMS_OF_KNOWN_WORLDS, ROOMS_OF_NEW_WORLDS
from trl_nlac.environments.embedded.rooms import DOORS, TOOL, RoomsWorld


class RoomsFamily:
    """
    Role data of *other* houses, for building the embedded model: houses with fixed doors and known
    names, and new random houses with the names of [`RoomsWorld.from_seed`]. The latter teach a model the format of the
    roles, but nothing about any particular house.
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
        """Draw the events around one action; `role` decides how skilled the agents are."""
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
    """Draw an episode's `(action, observation)` pairs; each door is a best one with probability `skill`."""
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
