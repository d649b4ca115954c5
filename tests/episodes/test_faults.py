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
import subprocess
import sys
import threading
from collections import Counter

import pytest
import torch
from datasets import Dataset
from helpers.testing_utils import make_config, make_roles

from trl_nlac import NLACTrainer
from trl_nlac.environments import EnvironmentFailure, StepResult
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL
from trl_nlac.environments.pool import EnvironmentPool
from trl_nlac.episodes.rewards import EpisodeRewards
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.evaluation.metrics import episode_metrics
from trl_nlac.generation.base import Completion
from trl_nlac.replay.buffer import PrioritizedReplay
from trl_nlac.types import FAILURE_KINDS


NEVER = threading.Event()


def make_constant_roles(answer: str = "take red"):
    """Roles that always say the same."""
    roles = make_roles([])
    completion = Completion(roles.chat.completion(answer), True)
    roles.generator.generate = lambda prompts, *args: [completion for _ in prompts]
    return roles


class Faulty:
    """Wins after four steps, and has a fault where its task says so."""

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


def play(tasks, environment=Faulty, roles=None, max_turns=8, rewards=None, **pool):
    pool = EnvironmentPool(environment, **pool)
    try:
        return play_episodes(pool, tasks, roles or make_constant_roles(), max_turns, rewards=rewards)
    finally:
        pool.close()


class TestFaults:
    def test_chaos(self):
        rng = random.Random(0)
        plan = ["exception"] * 25 + ["hang"] * 10 + ["malformed"] * 25 + [None] * 440
        rng.shuffle(plan)
        tasks = [{"fault": fault, "at": rng.randrange(5)} for fault in plan]
        episodes = play(tasks, timeout=0.5, max_instances=32)
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
        hung, fine = play(tasks, timeout=0.2, max_instances=1)
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
        (episode,) = play([{"prompt": [{"role": "user", "content": "win"}]}], Env, make_roles(answers))
        if reward is None:  # no reward, as under TRL
            assert episode.terminated and len(episode.turns) == 2 and episode.score == 0
        else:
            assert episode.failure.startswith("reward: ")
            assert episode.truncated and not episode.terminated and len(episode.turns) == 1

    def test_half_characters(self):
        """They are no text, neither as observations nor within errors."""

        class Halves:
            def reset(self, fails):
                self.fails = fails
                return "win"

            def step(self, action):
                if self.fails:
                    raise FileNotFoundError("caf\udce9")
                return StepResult("caf\udce9", 1.0, terminated=True)

        observed, failed = play([{"fails": False}, {"fails": True}], Halves)
        assert observed.failure.startswith("observation: MalformedResult: the observation is no valid text")
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

        roles = make_constant_roles('{"name": "look"}')
        (episode,) = play([{}], Env, roles, max_turns=3)
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
        (episode,) = play([{}], Env, make_roles(answers))
        assert [turn.next_observation for turn in episode.turns][0] == str({"error": "'up'"})
        assert "unexpected keyword argument 'here'" in episode.turns[1].next_observation
        assert episode.failure == "step: EnvironmentFailure: the server is down"
        assert len(episode.turns) == 2 and episode.score == 0

    def test_reward_functions_that_fail(self):
        def judge(completions, **kwargs):
            raise ConnectionError("no judge")

        episodes = play([{}, {}], rewards=EpisodeRewards([judge]))
        for episode in episodes:
            assert "the reward function `judge` failed: no judge" in episode.failure
            assert episode.truncated and len(episode.turns) == 3 and episode.score == 0

    def test_metrics_count_each_kind(self):
        tasks = [{"fault": "exception", "at": 0}, {"fault": "malformed", "at": 1}, {}, {}]
        metrics = episode_metrics(play(tasks), success_threshold=1.0)
        assert metrics["environment/failure_rate"] == 0.5
        rates = {kind: metrics[f"environment/{kind}_failure_rate"] for kind in FAILURE_KINDS}
        assert rates == {"reset": 0.25, "observation": 0.25, "step": 0, "reward": 0, "timeout": 0}
        assert metrics["episode/success_rate"] == 1


class Instances:
    """Counts its living instances."""

    alive: set["Instances"] = set()
    most = 0

    def __init__(self):
        self.alive.add(self)
        type(self).most = max(self.most, len(self.alive))

    def reset(self, start=0):
        return "win"

    def step(self, action):
        return StepResult("win", 1.0, terminated=True)

    def close(self):
        self.alive.remove(self)


class TestInstances:
    @pytest.fixture(autouse=True)
    def none_is_left(self):
        Instances.alive.clear()
        Instances.most = 0
        yield
        assert not Instances.alive

    def test_max_instances(self):
        assert [episode.score for episode in play([{}] * 20, Instances, max_instances=3)] == [1] * 20
        assert Instances.most == 3

    def test_max_instances_over_several_environments(self):
        tasks = [{"environment": name} for name in "abcab"]
        play(tasks, dict.fromkeys("abc", Instances), max_instances=2)
        assert Instances.most == 3  # one of each is made to be looked at

    def test_an_exception_of_the_model(self):
        roles = make_roles([])  # has nothing to say
        with pytest.raises(IndexError):
            play([{}] * 3, Instances, roles)

    @pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
    def test_training_closes_them(self, tmp_path, error):
        trainer = NLACTrainer(
            model=TINY_MODEL,
            args=make_config(tmp_path, max_steps=1),
            train_dataset=Dataset.from_dict({"start": [0] * 4}),
            environment_factory=Instances,
            prompts=COMPACT_PROMPTS,
        )
        if error is None:
            trainer.train()
            trainer.evaluate(Dataset.from_dict({"start": [0] * 4}))
            assert Instances.most == 4
        else:
            trainer.compute_loss = lambda *args, **kwargs: (_ for _ in ()).throw(error("stop"))
            with pytest.raises(error):
                trainer.train()

    def test_trl_environments_close_themselves_underscored(self):
        class TRLEnv:
            def __init__(self):
                self.inner = Instances()

            def reset(self):
                pass

            def look(self) -> str:
                """Look around."""
                return "win"

            def get_reward(self):
                return 1.0

            async def _close(self):
                self.inner.close()

        assert play([{}], TRLEnv, make_roles(["done"]))[0].score == 1

    def test_the_end_of_the_program_closes_them(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text(
            "from trl_nlac.environments.pool import EnvironmentPool\n"
            "class Env:\n"
            "    def reset(self): pass\n"
            "    def step(self, action): pass\n"
            "    def close(self): print('closed', flush=True)\n"
            "pool = EnvironmentPool(Env)\n"
            "raise KeyboardInterrupt\n"
        )
        finished = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
        assert finished.stdout == "closed\n"


class TestFailureRate:
    def test_a_broken_environment_stops_the_run_with_a_checkpoint(self, tmp_path):
        class Worse:
            """Fails from the ninth episode on."""

            episodes = 0

            def reset(self, start):
                type(self).episodes += 1
                return "win"

            def step(self, action):
                if self.episodes > 8:
                    raise ConnectionError("the server is gone")
                return StepResult("win", 1.0, terminated=True)

        def make(output_dir, **kwargs):
            config = dict(max_steps=50, max_environment_failure_rate=0.5, environment_failure_window=12)
            return NLACTrainer(
                model=TINY_MODEL,
                args=make_config(output_dir, **{**config, **kwargs}),
                train_dataset=Dataset.from_dict({"start": [0] * 4}),
                environment_factory=Worse,
                prompts=COMPACT_PROMPTS,
            )

        trainer = make(tmp_path)
        with pytest.raises(RuntimeError, match=r"failed in 67% of the last 12 episodes.*is 0.5") as caught:
            trainer.train()
        step = trainer.state.global_step
        assert 'raise ConnectionError("the server is gone")' in str(caught.value)
        checkpoint = tmp_path / f"checkpoint-{step}"
        assert step == 3 and str(checkpoint) in str(caught.value)

        Worse.episodes = -1000
        resumed = make(tmp_path, max_steps=step + 2)
        resumed.train(resume_from_checkpoint=str(checkpoint))
        assert resumed.state.global_step == step + 2
        assert len(resumed.replay) > 8

    def test_few_failures_do_not(self, tmp_path):
        tasks = Dataset.from_dict({"fault": [None, None, None, "exception"], "at": [0, 0, 0, 1]})
        trainer = NLACTrainer(
            model=TINY_MODEL,
            args=make_config(tmp_path, max_steps=4, environment_failure_window=4, logging_steps=1),
            train_dataset=tasks,
            environment_factory=Faulty,
            prompts=COMPACT_PROMPTS,
        )
        trainer.train()
        logs = [entry for entry in trainer.state.log_history if "environment/failure_rate" in entry]
        assert [entry["environment/failure_rate"] for entry in logs] == [0.25] * 4
        assert torch.isfinite(torch.tensor([entry["loss"] for entry in logs])).all()
