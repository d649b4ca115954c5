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

import asyncio
import random
import threading
from collections import Counter

import pytest
from helpers.testing_utils import make_roles, play

from trl_nlac.environments import EnvironmentFailure, StepResult
from trl_nlac.episodes.rewards import EpisodeRewards
from trl_nlac.evaluation.metrics import episode_metrics
from trl_nlac.replay.buffer import PrioritizedReplay
from trl_nlac.types import FAILURE_KINDS


NEVER = threading.Event()


class Faulty:
    """Is won after four steps. The task sets its `fault`, and `at` which step."""

    closed: list["Faulty"] = []

    def reset(self, fault=None, at=0):
        self.fault, self.at, self.turn = fault, at, 0
        return self._fault("win")

    def step(self, action):
        self.turn += 1
        observation = self._fault(f"win {self.turn}")
        won = self.turn == 4
        reward = float("nan") if self.fault == "reward" and self.turn == self.at else float(won)
        return StepResult(observation, reward, terminated=won)

    def close(self):
        self.closed.append(self)

    def _fault(self, observation):
        if self.turn == self.at:
            if self.fault == "exception":
                raise RuntimeError("broken")
            if self.fault == "hang":
                NEVER.wait(60)
            if self.fault == "malformed":
                return b"bytes"
        return observation


class TestFaults:
    def test_chaos(self):
        rng = random.Random(0)
        plan = ["exception"] * 25 + ["hang"] * 10 + ["malformed"] * 25 + [None] * 440
        rng.shuffle(plan)
        tasks = [{"fault": fault, "at": rng.randrange(5)} for fault in plan]
        episodes = play(tasks, Faulty, timeout=0.5, max_instances=32)
        replay = PrioritizedReplay(10_000, seed=0)
        replay.add(episodes)
        kinds = Counter(episode.failure.partition(":")[0] for episode in episodes if episode.failure)
        assert kinds["timeout"] == 10 and kinds["observation"] == 25 and kinds["reset"] + kinds["step"] == 25
        played = [episode for episode in episodes if episode.terminated and not episode.failure]
        assert len(played) + sum(kinds.values()) == len(episodes) == 500
        for episode, task in zip(episodes, tasks, strict=True):
            if task["fault"] is None:
                assert episode.score == 1 and len(episode.turns) == 4
            else:
                assert episode.truncated and not episode.terminated
                assert len(episode.turns) == max(0, task["at"] - 1)  # the clean prefix
                assert all(turn.reward == 0 for turn in episode.turns)
        assert len(replay) == sum(len(episode.turns) for episode in episodes)

    @pytest.mark.parametrize("at", [0, 2])
    def test_what_hangs_is_closed_and_replaced(self, at):
        Faulty.closed.clear()
        tasks = [{"fault": "hang", "at": at}, {}]
        hung, fine = play(tasks, Faulty, timeout=0.2, max_instances=1)
        job = "step" if at else "reset"
        assert hung.failure == f"timeout: TimeoutError: {job} took longer than `environment_timeout=0.2` seconds"
        assert fine.score == 1
        assert len(Faulty.closed) == 2 and Faulty.closed[0] is not Faulty.closed[1]

    def test_coroutines_that_hang(self):
        class Slow:
            def reset(self, seconds):
                self.seconds = seconds
                return "win"

            async def step(self, action):
                await asyncio.sleep(self.seconds)
                return StepResult("win", 1.0, terminated=True)

        hung, fine = play([{"seconds": 60}, {"seconds": 0.01}], Slow, timeout=0.2)
        assert hung.failure.startswith("timeout") and not hung.turns
        assert fine.score == 1

    @pytest.mark.parametrize("reward", [None, "nan", "raises", "much"])
    def test_final_rewards(self, reward):
        class Env:
            def reset(self, **row):
                pass

            def look(self) -> str:
                """Look around."""
                return "nothing"

            async def get_reward(self):
                if reward == "raises":
                    raise RuntimeError("the judge is out")
                return reward if reward in (None, "much") else float(reward)

        answers = ['{"name": "look"}', "done"]
        roles = make_roles(answers, max_turns=8)
        (episode,) = play([{"prompt": [{"role": "user", "content": "win"}]}], Env, roles)
        if reward is None:  # no reward, as under TRL
            assert episode.terminated and len(episode.turns) == 2 and episode.score == 0
        else:
            assert episode.failure.startswith("reward: ")
            assert episode.truncated and not episode.terminated and len(episode.turns) == 1

    def test_half_characters(self):
        """They are not valid text, in observations and in errors."""

        class Halves:
            def reset(self, fails):
                self.fails = fails
                return "win"

            def step(self, action):
                if self.fails:
                    raise FileNotFoundError("caf\udce9")
                return StepResult("caf\udce9", 1.0, terminated=True)

        observed, failed = play([{"fails": False}, {"fails": True}], Halves)
        assert observed.failure.startswith("observation: MalformedResult: the observation is not valid text")
        assert failed.failure == "step: FileNotFoundError: caf\\udce9"
        assert not observed.turns and observed.score == 0

    def test_limits_of_the_trainer_are_rewarded_too(self):
        class Env:
            def reset(self):
                self.count = 0

            def look(self) -> int:
                """Look around."""
                self.count += 1
                return self.count

            def get_reward(self):
                return self.count / 10

        (episode,) = play([{}], Env, make_roles('{"name": "look"}', max_turns=3))
        assert episode.truncated and [turn.reward for turn in episode.turns] == [0, 0, 0.3]

    def test_tools_fail_as_observations_or_as_infrastructure(self):
        class Env:
            def reset(self):
                self.count = 0

            def look(self, where: str) -> str:
                """
                Look around.

                Args:
                    where: In which direction.
                """
                self.count += 1
                raise EnvironmentFailure("the server is down") if self.count == 2 else KeyError(where)

            def get_reward(self):
                return 1.0

        calls = [{"where": "up"}, {"here": "up"}, {"where": "up"}]
        answers = [f'{{"name": "look", "arguments": {{"{name}": "up"}}}}' for call in calls for name in call]
        (episode,) = play([{}], Env, make_roles(answers, max_turns=8))
        assert [turn.next_observation for turn in episode.turns][0] == str({"error": "'up'"})
        assert "unexpected keyword argument 'here'" in episode.turns[1].next_observation
        assert episode.failure == "step: EnvironmentFailure: the server is down"
        assert len(episode.turns) == 2 and episode.score == 0

    def test_reward_functions_that_fail(self):
        def judge(completions, **kwargs):
            raise ConnectionError("no judge")

        episodes = play([{}, {}], Faulty, rewards=EpisodeRewards([judge]))
        for episode in episodes:
            assert "the reward function `judge` failed: no judge" in episode.failure
            assert episode.truncated and len(episode.turns) == 3 and episode.score == 0

    def test_metrics_count_each_kind(self):
        tasks = [{"fault": "exception", "at": 0}, {"fault": "malformed", "at": 1}, {}, {}]
        metrics = episode_metrics(play(tasks, Faulty), success_threshold=1.0)
        assert metrics["environment/failure_rate"] == 0.5
        rates = {kind: metrics[f"environment/{kind}_failure_rate"] for kind in FAILURE_KINDS}
        assert rates == {"reset": 0.25, "observation": 0.25, "step": 0, "reward": 0, "timeout": 0}
        assert metrics["episode/success_rate"] == 1
