# SPDX-License-Identifier: Apache-2.0

import asyncio
import random
import threading
import time
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from helpers.testing_utils import Answering, make_roles, play

from trl_nlac.environments import StepResult, TextEnvironment
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rewards import EpisodeRewards
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.evaluation.metrics import episode_metrics
from trl_nlac.replay.prioritized_replay import PrioritizedReplay
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
        episodes = play(tasks, Faulty, timeout=2.0, max_instances=32)
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
        hung, fine = play(tasks, Faulty, timeout=1.0, max_instances=1)
        job = "step" if at else "reset"
        assert hung.failure == f"timeout: TimeoutError: {job} took longer than `environment_timeout=1.0` seconds"
        assert fine.score == 1
        assert len(Faulty.closed) == 2 and Faulty.closed[0] is not Faulty.closed[1]

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
            deadline = time.monotonic() + 20
            while pool.num_left_behind and time.monotonic() < deadline:
                time.sleep(0.05)
            assert not pool.num_left_behind
        finally:
            pool.close()

    def test_coroutines_that_hang_do_not_pile_up(self):
        class Hangs:
            def reset(self, hangs):
                self.hangs = hangs
                return "win"

            async def step(self, action):
                await asyncio.sleep(60 if self.hangs else 0)
                return StepResult("win", 1.0, terminated=True)

        play([{"hangs": False}], Hangs)
        before = threading.active_count()
        pool = EnvironmentPool(Hangs, timeout=0.2)
        tasks = [{"hangs": True}] * 20 + [{"hangs": False}]
        *hung, fine = play_episodes(pool, tasks, make_roles("take red", max_turns=2))
        assert all(episode.failure.startswith("timeout: ") and not episode.turns for episode in hung)
        assert fine.failure is None and fine.score == 1
        deadline = time.monotonic() + 20
        while pool.num_left_behind and time.monotonic() < deadline:
            time.sleep(0.05)
        pool.close()
        assert pool.num_left_behind == 0 and threading.active_count() <= before

    @pytest.mark.parametrize("method", ["reset", "step", "final_reward", "close"])
    @pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
    def test_no_exception_ends_the_run(self, method, is_async):
        class Unprintable(BaseException):
            def __str__(self):
                raise SystemExit("no")

            __repr__ = __str__

        class Raises(TextEnvironment):
            def reset(self, error):
                self.error = error
                return self._call("reset", "win")

            def step(self, action):
                return self._call("step", StepResult("win", 1.0, terminated=True))

            def final_reward(self):
                return self._call("final_reward", 0.0)

            def close(self):
                return self._call("close", None)

            def _call(self, name, result):
                async def answer():
                    if name == method and self.error is not None:
                        raise self.error
                    return result

                if is_async:
                    return answer()
                if name == method and self.error is not None:
                    raise self.error
                return result

        errors = [Unprintable(), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), StopIteration(), None]
        *failed, fine = play([{"error": error} for error in errors], Raises, timeout=20)
        assert fine.failure is None and fine.score == 1
        for episode in failed:
            if method == "close":
                assert episode.failure is None and episode.score == 1
            else:
                assert episode.failure.startswith(method.removeprefix("final_")) and not episode.turns
        if method != "close":
            assert failed[0].failure.endswith("Unprintable: its message cannot be printed: SystemExit")

    def test_messages_of_errors_are_bounded(self):
        class Verbose:
            def reset(self):
                raise ValueError("x" * 10**6)

            def step(self, action):
                pass

        pool = EnvironmentPool(Verbose)
        (episode,) = play_episodes(pool, [{}], make_roles("take red"))
        pool.close()
        assert len(episode.failure) < 3000 and len(pool.last_failure) < 30_000

    @pytest.mark.parametrize(
        "result, kind",
        [
            (None, "observation"),
            (StepResult(7), "observation"),
            (StepResult("fine", reward=float("nan")), "reward"),
            (StepResult("fine", reward="much", terminated=True), "reward"),
            (StepResult("fine", reward="1.0", terminated=True), "reward"),
            (StepResult("fine", reward=b"1", terminated=True), "reward"),
            (StepResult("fine", reward=1e300, terminated=True), "reward"),
            (StepResult("fine", reward=10**400, terminated=True), "reward"),
            (StepResult("fine", reward=1j, terminated=True), "reward"),
            (StepResult("fine", reward=[1.0], terminated=True), "reward"),
            (StepResult("fine", reward=np.ones(3), terminated=True), "reward"),
            (StepResult("fine", reward=1.0, terminated="False"), "observation"),
            (StepResult(None, reward=1.0, terminated=True), "observation"),
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

    def test_text_of_other_types_is_text(self):
        class Text(str):
            def __str__(self):
                raise RuntimeError("no")

            __repr__ = __format__ = encode = __str__

        opening = [{"role": "system", "content": Text("take")}, {"role": "user", "content": Text("win")}]
        environment = Answering(lambda action: StepResult(Text("won"), 1.0, terminated=action == "take blue"), opening)
        (episode,) = play([{}], lambda: environment, make_roles(["take red", "take blue"], max_turns=3))
        assert episode.failure is None and episode.score == 2
        texts = [message["content"] for message in episode.opening] + [turn.next_observation for turn in episode.turns]
        assert texts == ["take", "win", "won", "won"] and {type(text) for text in texts} == {str}

    def test_environments_get_and_give_copies(self):
        class Appending:
            def reset(self, rooms):
                rooms.append("attic")
                self.messages = [{"role": "user", "content": "win"}]
                return self.messages

            def step(self, action):
                self.messages[0]["content"] = "lost"
                self.messages.append({"role": "user", "content": action})
                return StepResult("won", 1.0, terminated=True)

        def greedy(prompts, completions, rooms, **kwargs):
            for texts in (*prompts, *completions, *rooms):
                texts.clear()
            return [0.0] * len(prompts)

        task = {"rooms": ["hall"]}
        for episode in play([task, task], Appending, rewards=EpisodeRewards([greedy])):
            assert episode.opening == ({"role": "user", "content": "win"},) and episode.task == {"rooms": ["hall"]}

    def test_seeds_of_environments_do_not_repeat_the_model_s(self):
        class Seeding:
            def reset(self):
                torch.manual_seed(0)
                return "win"

            def step(self, action):
                torch.manual_seed(0)
                return StepResult("win", 1.0, terminated=True)

        class Drawing(Seeding):
            def reset(self):
                drawn.append(float(torch.rand(())))
                return "win"

            step = Faulty.step

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
        assert set(seeds(Seeding)) <= set(seeds(Drawing))
        assert len(set(drawn)) == 3  # what environments draw is new every time, too

    def test_half_characters(self):
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

    def test_what_an_environment_returns_is_read_in_its_own_thread(self):
        """It cannot end the run, whatever reading it does."""

        class Exits(StepResult):
            @property
            def observation(self):
                raise SystemExit("no")

        class Odd:
            def reset(self, message):
                return [{"role": "user", "content": "win", **message}]

            def step(self, action):
                return object.__new__(Exits)

        odd = (
            {},
            {"meta": {1}},
            {"name": {1}},
            {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {1}}]},
        )
        exits, left_out, *unread = play([{"message": message} for message in odd], Odd)
        for episode in (exits, left_out):  # a key that is in no row of the reader's table is no part of a message
            assert episode.failure == "step: SystemExit: no" and not episode.turns
            assert episode.opening == ({"role": "user", "content": "win"},)
        reasons = ("message 0 has a name, an id or a chain of thought that is not text", "message 0 has a tool call ")
        for episode, reason in zip(unread, reasons, strict=True):
            expected = f"observation: MalformedResult: the messages of `reset` are no conversation: {reason}"
            assert episode.failure.startswith(expected) and not episode.turns

    def test_no_environment_s_number_or_end_is_made_of_text(self):
        class Gym(gymnasium.Env):
            def reset(self, seed=None, options=None):
                return "win", {}

            def step(self, action):
                return "done", 1.0, "False", False, {}

        class Tools:
            def reset(self, **row):
                pass

            def get_reward(self):
                return "1.0"

        (ends,) = play([{}], Gym)
        assert ends.failure.startswith("observation: ") and not ends.terminated
        (pays,) = play([{}], Tools, make_roles("done"))
        assert pays.failure == "reward: MalformedResult: the reward is '1.0', expected a finite number"

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

    @pytest.mark.parametrize("error", [ConnectionError, SystemExit, KeyboardInterrupt])
    def test_reward_functions_that_fail(self, error):
        def judge(completions, **kwargs):
            raise error("no judge")

        episodes = play([{}, {}], Faulty, rewards=EpisodeRewards([judge]))
        for episode in episodes:
            assert "the reward function `judge` failed: no judge" in episode.failure
            assert episode.truncated and len(episode.turns) == 3 and episode.score == 0

    def test_reward_functions_have_a_time_limit(self):
        release = threading.Event()

        async def judge(completions, **kwargs):
            await asyncio.sleep(60)

        def wait(completions, **kwargs):
            release.wait(20)

        for function in (judge, wait):
            for episode in play([{}, {}], Faulty, timeout=1.5, rewards=EpisodeRewards([function])):
                assert episode.failure.startswith("timeout: TimeoutError: the scoring by reward functions took longer")
                assert episode.truncated and len(episode.turns) == 3 and episode.score == 0
        release.set()

    def test_functions_that_take_too_long_keep_their_instances(self):
        release, made = threading.Event(), []

        def wait(completions, **kwargs):
            release.wait(20)

        pool = EnvironmentPool(lambda: made.append(Faulty()) or made[-1], timeout=0.5)
        roles = make_roles("take red", max_turns=8)
        play_episodes(pool, [{}], roles, rewards=EpisodeRewards([wait]))
        play_episodes(pool, [{}], roles)
        release.set()
        pool.close()
        assert len(made) == 2

    @pytest.mark.parametrize("returned", [None, 1.0, "11", [0], [float("inf"), 0], ["1", 0], [1e308] * 2, [[], 0]])
    def test_reward_functions_that_return_no_rewards(self, returned):
        class Judge:
            def __call__(self, completions, **kwargs):
                return returned

        for judge in (Judge(), partial(Judge())):
            for episode in play([{}, {}], Faulty, rewards=EpisodeRewards([judge])):
                assert episode.failure.startswith("reward: EnvironmentFailure: the reward function `Judge` failed: ")
                assert episode.score == 0

    def test_metrics_count_each_kind(self):
        tasks = [{"fault": "exception", "at": 0}, {"fault": "malformed", "at": 1}, {}, {}]
        metrics = episode_metrics(play(tasks, Faulty), success_threshold=1.0)
        assert metrics["environment/failure_rate"] == 0.5
        rates = {kind: metrics[f"environment/{kind}_failure_rate"] for kind in FAILURE_KINDS}
        assert rates == {"reset": 0.25, "observation": 0.25, "step": 0, "reward": 0, "timeout": 0}
        assert metrics["episode/success_rate"] == 1
