# SPDX-License-Identifier: Apache-2.0

import itertools

import pytest
import torch
from helpers.method_utils import probe_qualities, replayed
from helpers.testing_utils import make_roles, play

from trl_nlac.environments import RoomsWorld
from trl_nlac.environments.embedded import make_environment
from trl_nlac.environments.embedded.rooms import DOORS


def brute_force_value(world: RoomsWorld, room: str) -> float:
    """Return the best share of wins of any fixed sequence of doors: in a house without slips, the optimal value."""
    best = 0.0
    for doors in itertools.product(DOORS, repeat=world.horizon):
        environment = make_environment(world)
        environment.reset(start=room)
        for door in doors:
            result = environment.step(f"take {door}")
            if result.terminated:
                best = max(best, result.reward)
                break
    return best


class TestRooms:
    @pytest.mark.parametrize("seed", range(3))
    def test_values(self, seed):
        world = RoomsWorld.from_seed(seed)
        for room in world.rooms:
            assert world.value(room, world.horizon) == brute_force_value(world, room) == 1

    def test_houses_with_slips(self):
        plain, world = RoomsWorld.from_seed(0), RoomsWorld.from_seed(0, slip=0.3)
        assert world.doors == plain.doors and world.slip == 0.3
        assert min(world.value(room, 4) for room in world.rooms) < 0.99
        start, door = next(key for key, place in world.doors.items() if place not in ("trap", "treasure"))
        environment = make_environment(world)
        assert environment.takes_seed and not make_environment(plain).takes_seed

        def first_room(environment, seed):
            environment.reset(start=start, seed=seed)
            return environment.step(f"take {door}").observation

        reached = [first_room(environment, seed) for seed in range(20)]
        assert reached == [first_room(make_environment(world), seed) for seed in range(20)] and len(set(reached)) > 2
        roles = make_roles(f"take {door}", max_turns=1)
        torch.manual_seed(0)
        episodes = play([{"start": start}] * 20, lambda: make_environment(world), roles)
        assert len({episode.turns[0].next_observation for episode in episodes}) > 2

    def test_houses_that_cannot_be_found(self):
        with pytest.raises(ValueError, match="houses with num_rooms=8 and {'trap_rate': 1.0} .* Choose another"):
            RoomsWorld.from_seed(0, trap_rate=1.0)

    def test_wasted_time(self):
        environment = make_environment(RoomsWorld.from_seed(0))
        room = environment.world.rooms[0]
        assert environment.reset(start=room) == f"{room} 4"
        assert environment.step("open the door").observation == f"{room} 3"
        for _ in range(2):
            environment.step("?")
        result = environment.step("?")
        assert (result.observation, result.terminated, result.reward) == ("late lose", True, 0.0)

    def test_oracle(self):
        world = RoomsWorld.from_seed(0)
        environment = make_environment(world)
        room, door = next(key for key, place in world.doors.items() if place == "treasure")
        other = next(other for other in DOORS if world.doors[room, other] not in ("trap", "treasure"))
        [transition] = replayed(environment, {"start": room}, [f"take {door}"])
        oracle = environment.oracle
        assert oracle.quality(transition, f"take {door}") == 1
        assert oracle.quality(transition, "take black") == 0
        assert oracle.future_is_right(transition, f"take {door}", "treasure win")
        assert not oracle.future_is_right(transition, f"take {door}", "trap lose")
        next_room = world.doors[room, other]
        assert not oracle.future_is_right(transition, f"take {other}", f"{next_room} 3")  # without its end
        assert not oracle.future_is_right(transition, f"take {other}", f"{next_room} 2 take red trap lose")
        walk = f"{next_room} 3"
        assert not oracle.future_is_right(transition, f"take {other}", walk + " take red late lose")

    def test_probes_are_half_best(self):
        environment = make_environment(RoomsWorld.from_seed(0))
        assert probe_qualities(environment, 40).count(1) == 20
