# SPDX-License-Identifier: Apache-2.0

import asyncio
import threading
import time
from decimal import Decimal
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from helpers.testing_utils import Answering, Countdown, make_roles, play
from helpers.workers import wait_until

from benchmarks.chaos import Unprintable
from trl_nlac.environments import StepResult, TextEnvironment
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rewards import EpisodeRewards
from trl_nlac.episodes.rollout import play_episodes


class TestFaults:
    @pytest.mark.parametrize("reward", [None, "much"])
    def test_final_rewards(self, reward):
        class Env:
            def reset(self, **row):
                pass

            def look(self) -> str:
                """Look around."""
                return "nothing"

            async def get_reward(self):
                return reward

        answers = ['{"name": "look"}', "done"]
        roles = make_roles(answers, max_turns=8)
        (episode,) = play([{"prompt": [{"role": "user", "content": "win"}]}], Env, roles)
        if reward is None:  # no reward, as under TRL
            assert episode.terminated and len(episode.turns) == 2 and episode.score == 0
        else:
            assert episode.failure.startswith("reward: ")
            assert episode.truncated and not episode.terminated and len(episode.turns) == 1

    def test_a_coroutine_that_blocks_its_event_loop_fails_alone(self):
        class Blocking:
            def reset(self, seconds):
                self.seconds = seconds
                return "win"

            async def step(self, action):
                await asyncio.sleep(0.01)
                time.sleep(self.seconds)
                return StepResult("win", 1.0, terminated=True)

        pool = EnvironmentPool({"blocks": Blocking, "fine": Blocking}, timeout=1.5)
        tasks = [{"environment": "blocks", "seconds": 3}] + [{"environment": "fine", "seconds": 0}] * 7
        try:
            for _ in range(2):
                blocked, *others = play_episodes(pool, tasks, make_roles("take red", max_turns=2))
                assert blocked.failure.startswith("timeout: ") and not blocked.turns
                assert [(episode.failure, episode.score) for episode in others] == [(None, 1)] * 7
            assert pool.num_left_behind  # the loop that is still blocked
            wait_until(lambda: not pool.num_left_behind)
        finally:
            pool.close()

    @pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
    @pytest.mark.parametrize(
        ("error", "named"),
        [
            (Unprintable(), "Unprintable: its message cannot be printed: SystemExit"),
            (SystemExit(1), "SystemExit: 1"),
            (KeyboardInterrupt(), "KeyboardInterrupt: "),
            (GeneratorExit(), "GeneratorExit: "),
            (FileNotFoundError("caf\udce9"), "FileNotFoundError: caf\\udce9"),
        ],
    )
    def test_no_exception_ends_the_run(self, error, named, is_async):
        def fail(action):
            raise error

        async def fail_later(action):
            raise error

        (episode,) = play([{}], lambda: Answering(fail_later if is_async else fail), timeout=20)
        assert episode.failure == f"step: {named}" and episode.truncated and not episode.turns

    def test_messages_of_errors_are_bounded(self):
        def fail():
            raise ValueError("x" * 10**6)

        pool = EnvironmentPool(partial(Answering, None, fail))
        (episode,) = play_episodes(pool, [{}], make_roles("take red"))
        pool.close()
        assert len(episode.failure) < 3000 and len(pool.last_failure) < 30_000

    @pytest.mark.parametrize(
        "result, kind",
        [
            (StepResult(7), "observation"),
            (StepResult("fine", reward=b"1", terminated=True), "reward"),
            (StepResult("fine", reward=10**400, terminated=True), "reward"),
            (StepResult("fine", reward=1j, terminated=True), "reward"),
            (StepResult("fine", reward=[1.0], terminated=True), "reward"),
        ],
        ids=repr,
    )
    def test_rewards_are_never_invented(self, result, kind, caplog):
        answers = {"one": StepResult("go on"), "two": result}
        (episode,) = play([{}], lambda: Answering(answers.get), make_roles(["one", "two"], max_turns=5))
        assert episode.failure.startswith(f"{kind}: ") and len(episode.turns) == 1 and episode.score == 0
        assert episode.truncated and not episode.terminated and "truncated" in caplog.text

    @pytest.mark.parametrize("reward", [True, np.float32(1), torch.tensor(1.0), Decimal(1), Fraction(1)], ids=repr)
    def test_rewards_of_other_types_are_numbers(self, reward):
        (episode,) = play([{}], lambda: Answering(StepResult("won", reward, terminated=np.bool_(True))))
        assert episode.terminated is True and type(episode.score) is float and episode.score == 1

    def test_seeds_of_environments_do_not_repeat_the_model_s(self):
        class Seeding:
            def reset(self):
                torch.manual_seed(0)
                return "win"

            def step(self, action):
                torch.manual_seed(0)
                return StepResult("win", 1.0, terminated=True)

        def draw():
            drawn.append(float(torch.rand(())))
            return "win"

        def seeds(environment):
            given = []

            def act(prompts, numbers):
                given.extend(numbers)
                return roles.act(prompts, numbers)

            torch.manual_seed(7)
            roles = make_roles("take red", max_turns=2)
            pool = EnvironmentPool(environment)
            for _ in range(3):
                play_episodes(pool, [{}], roles, act)
            pool.close()
            return given

        drawn = []
        assert len(set(seeds(Seeding))) == 3
        assert set(seeds(Seeding)) <= set(seeds(partial(Answering, StepResult("win", 1.0, terminated=True), draw)))
        assert len(set(drawn)) == 3  # what environments draw is new every time, too

    def test_what_an_environment_returns_is_read_in_its_own_thread(self):
        """It cannot end the run, whatever reading it does."""

        class Exits(StepResult):
            @property
            def observation(self):
                raise SystemExit("no")

        opening = {"role": "user", "content": "win"}
        (episode,) = play([{}], lambda: Answering(object.__new__(Exits), [{**opening, "meta": {1}}]))
        assert episode.failure == "step: SystemExit: no" and not episode.turns
        assert episode.opening == (opening,)  # a key that is in no row of the reader's table is left out

    def test_schemas_of_tools_are_copies(self):
        class Growing(TextEnvironment):
            def __init__(self):
                self.tool_schemas = [{"type": "function", "function": {"name": "look"}}]

            def reset(self):
                self.tool_schemas.append(object())
                return "win"

            def step(self, action):
                return StepResult("done", 1.0, terminated=True)

        for episode in play([{}, {}], Growing):
            assert episode.tools == ({"type": "function", "function": {"name": "look"}},)

    def test_reward_functions_have_a_time_limit(self):
        release = threading.Event()

        async def judge(completions, **kwargs):
            await asyncio.sleep(60)

        def wait(completions, **kwargs):
            release.wait(20)

        for function in (judge, wait):
            for episode in play([{"start": 4}] * 2, Countdown, timeout=1.5, rewards=EpisodeRewards([function])):
                assert episode.failure.startswith("timeout: TimeoutError: the scoring by reward functions took longer")
                assert episode.truncated and len(episode.turns) == 3 and episode.score == 0
        release.set()

    def test_functions_that_take_too_long_keep_their_instances(self):
        release, made = threading.Event(), []

        def wait(completions, **kwargs):
            release.wait(20)

        pool = EnvironmentPool(lambda: made.append(Countdown()) or made[-1], timeout=0.5)
        roles = make_roles("take red", max_turns=8)
        play_episodes(pool, [{"start": 4}], roles, rewards=EpisodeRewards([wait]))
        play_episodes(pool, [{"start": 4}], roles)
        release.set()
        pool.close()
        assert len(made) == 2

    @pytest.mark.parametrize(
        "returned", [None, 1.0, "11", {0: 1, 1: 1}, [0], [float("inf"), 0], ["1", 0], [1e308] * 2, [[], 0]]
    )
    def test_reward_functions_that_return_no_rewards(self, returned):
        class Judge:
            def __call__(self, completions, **kwargs):
                return returned

        for judge in (Judge(), partial(Judge())):
            for episode in play([{"start": 4}] * 2, Countdown, rewards=EpisodeRewards([judge])):
                assert episode.failure.startswith("reward: EnvironmentFailure: the reward function `Judge` failed: ")
                assert episode.score == 0
