# SPDX-License-Identifier: Apache-2.0

import json

import pytest
from datasets import Dataset
from helpers.testing_utils import make_roles

from benchmarks.relay.house import RelayHouse
from trl_nlac.environments.embedded import make_environment
from trl_nlac.environments.embedded.rooms import DOORS
from trl_nlac.episodes.logs import episodes_from_logs


@pytest.fixture(params=[(0, 3), (1, 5)], ids=["three floors", "five floors"])
def house(request):
    seed, num_floors = request.param
    return RelayHouse.from_seed(seed, num_floors)


class TestRelayHouse:
    def test_only_the_right_doors_win(self, house):
        for floor in range(1, house.horizon + 1):
            for task in house.tasks(floor):
                room = task["start"]
                assert house.best_actions(room, floor) == [house.right[room]] and house.value(room, floor) == 1
                assert all(house.action_value(room, floor, door) == (door == house.right[room]) for door in DOORS)
                assert house.uniform_value(room, floor) == pytest.approx(0.25**floor)

    def test_play(self, house):
        environment = make_environment(house)
        (task, *_) = house.tasks(house.horizon)
        observation = environment.reset(**task)
        assert observation == f"{task['start']} {house.horizon}"
        for _ in range(house.horizon):
            result = environment.step(f"take {house.right[observation.split()[0]]}")
            observation = result.observation
        assert (observation, result.terminated, result.reward) == ("treasure win", True, 1.0)


class TestLogs:
    def test_no_long_episode_wins_and_every_piece_is_there(self, house):
        copies = [6, *[2] * (house.horizon - 1)]
        logs = house.logs(copies)
        assert len(logs) == 3 * 4 * sum(copies) and logs == house.logs(copies) != house.logs(copies, seed=1)
        tried = set()
        for log in logs:
            task, messages = json.loads(log["task"]), [message["content"] for message in log["messages"]]
            first = messages[1].removeprefix("take ")
            tried.add((task["start"], first))
            assert log["reward"] == (task["steps"] == 1 and first == house.right[task["start"]])
        assert tried == set(house.doors)

    def test_they_can_be_trained_on(self, house):
        roles = make_roles([])
        logs = Dataset.from_list(house.logs([1] * house.horizon))
        episodes = episodes_from_logs(logs, roles.actions, roles.prompts)
        assert [episode.score for episode in episodes] == logs["reward"]
        assert all(episode.turns[-1].next_observation.split()[1] in ("win", "lose") for episode in episodes)
        oracle = make_environment(house).oracle
        assert all(len(episode.turns) <= episode.task["steps"] for episode in episodes)
        assert len(oracle.probes(8, seed=0)) == 8
