# SPDX-License-Identifier: Apache-2.0

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time

import pytest
from datasets import Dataset
from helpers.testing_utils import Countdown, make_roles, make_trained, make_trainer, play
from helpers.workers import make_faulty, wait_until

from trl_nlac import NLACTrainer
from trl_nlac.environments import StepResult
from trl_nlac.episodes import pool as pool_module
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.episodes.rounds import Rollouts
from trl_nlac.types import TrainingStopped


class Instances:
    alive: set["Instances"] = set()
    most = 0

    def __init__(self):
        self.alive.add(self)
        Instances.most = max(self.most, len(self.alive))

    def reset(self, start=0):
        return "win"

    def step(self, action):
        return StepResult("win", 1.0, terminated=True)

    def close(self):
        self.alive.remove(self)


class Breaking(Instances):
    def reset(self, fails=False):
        self.fails = fails
        return "win"

    def step(self, action):
        if self.fails:
            raise RuntimeError("broken")
        return super().step(action)


class SlowlyClosed(Breaking):
    def close(self):
        time.sleep(0.2)
        super().close()


class TestInstances:
    @pytest.fixture(autouse=True)
    def none_is_left(self):
        Instances.alive.clear()
        Instances.most = 0
        yield
        wait_until(lambda: not Instances.alive)  # one that is still being reset is closed afterwards

    def test_max_instances(self):
        assert [episode.score for episode in play([{}] * 20, Instances, max_instances=3)] == [1] * 20
        assert Instances.most == 3

    def test_examples_of_several_environments_do_not_play_at_the_same_time(self):
        playing: set[object] = set()
        most: list[int] = []

        class Licensed(Instances):
            def reset(self):
                playing.add(self)
                most.append(len(playing))
                time.sleep(0.05)
                return super().reset()

            def step(self, action):
                playing.discard(self)
                return super().step(action)

        tasks = [{"environment": name} for name in "abcdab"]
        episodes = play(tasks, dict.fromkeys("abcd", Licensed), max_instances=1)
        assert [episode.score for episode in episodes] == [1] * 6 and most == [1] * 6

    @pytest.mark.parametrize("fault", ["raises", "hangs"])
    def test_those_that_are_closing_count(self, fault):
        class Faulty(SlowlyClosed):
            def step(self, action):
                if fault == "raises":
                    raise RuntimeError("broken")
                time.sleep(1)

        episodes = play([{}] * 3, Faulty, max_instances=1, timeout=0.5)
        assert all(episode.failure for episode in episodes) and Instances.most == 1

    def test_one_whose_close_hangs_counts_for_a_while(self, monkeypatch):
        monkeypatch.setattr(pool_module, "CLOSING_SECONDS", 0.3)
        ends = threading.Event()

        class HangsAtItsEnd(Breaking):
            def close(self):
                if self.fails:
                    ends.wait(20)
                super().close()

        failed, fine = play([{"fails": True}, {"fails": False}], HangsAtItsEnd, max_instances=1)
        ends.set()
        assert failed.failure and fine.score == 1 and Instances.most == 2

    @pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
    def test_training_closes_them(self, tmp_path, error):
        class Failing(NLACTrainer):
            def compute_loss(self, *args, **kwargs):
                raise error("stop")

        tasks = Dataset.from_dict({"start": [0] * 20})
        trainer_class = Failing if error else NLACTrainer
        trainer = make_trainer(
            tmp_path, {"max_steps": 1}, trainer_class, train_dataset=tasks, environment_factory=Instances
        )
        if error is None:
            trainer.train()
            trainer.evaluate(Dataset.from_dict({"start": [0] * 4}))
            assert Instances.most == 4
        else:
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

    @pytest.mark.parametrize(
        "end",
        ["pool; raise KeyboardInterrupt", "pool.discard(pool.acquire(''))"],
        ids=["closes them", "waits for them"],
    )
    def test_the_end_of_the_program(self, tmp_path, end):
        script = tmp_path / "script.py"
        script.write_text(
            "import time\n"
            "from trl_nlac.episodes.pool import EnvironmentPool\n"
            "class Env:\n"
            "    def reset(self): pass\n"
            "    def step(self, action): pass\n"
            "    def close(self):\n"
            "        time.sleep(1)\n"
            "        print('closed', flush=True)\n"
            "pool = EnvironmentPool(Env)\n"
            f"{end}\n"
        )
        finished = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
        assert finished.stdout == "closed\n"

    def test_the_end_of_a_pool_waits_for_those_that_are_closing(self):
        pool = EnvironmentPool(SlowlyClosed)
        pool.release(pool.acquire(""))
        pool.shrink(0)
        pool.close()
        assert not Instances.alive

    def test_an_evaluation_leaves_no_more_than_training_needs(self):
        pool, roles = EnvironmentPool(Instances), make_roles("win")
        rollouts = Rollouts(pool, roles, None)
        first = play_episodes(pool, [{}] * 8, roles)
        second = rollouts.play([{}] * 3, step=0, waits=True, is_last=False)
        assert len(first) == 8 and len(second) == 3
        wait_until(lambda: len(Instances.alive) == 3)
        rollouts.play([{}] * 2, step=1, waits=True, is_last=False)
        assert len(Instances.alive) == 3  # a smaller batch closes none
        pool.close()

    def test_factories_have_a_time_limit(self):
        closed = threading.Event()

        class Slow(Instances):
            def __init__(self):
                time.sleep(0.5)
                super().__init__()

            def close(self):
                super().close()
                closed.set()

        with pytest.raises(TimeoutError, match="`environment_factory` took longer than `environment_timeout=0.1`"):
            EnvironmentPool(Slow, timeout=0.1)
        assert closed.wait(10)  # what is made too late is closed
        with pytest.raises(TimeoutError, match=r"`environment_factory\['slow'\]` took longer"):
            EnvironmentPool({"fast": Instances, "slow": lambda: time.sleep(3)}, timeout=1.0)
        assert EnvironmentPool(Instances, timeout=10).num_left_behind == 0
        gc.collect()


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_factories_that_fail_are_named(error):
    def factory():
        raise error("no docker")

    with pytest.raises(ValueError, match="`environment_factory` .* fails: .*: no docker"):
        EnvironmentPool(factory)
    with pytest.raises(ValueError, match=r"`environment_factory\['a'\]` .* fails: .*: no docker"):
        EnvironmentPool({"a": factory})


def test_every_environment_has_to_pay():
    class Unpaid:
        def reset(self, **row):
            pass

    assert EnvironmentPool({"a": Countdown, "b": Countdown}).pays
    assert not EnvironmentPool({"a": Countdown, "b": Unpaid}).pays


def test_the_seed_is_no_column_of_a_task(tmp_path):
    EnvironmentPool(make_faulty(tmp_path)).check_task({"at": 1})


def test_a_class_is_no_instance():
    with pytest.raises(TypeError, match="`environment_factory` returned the class Countdown. Return an instance"):
        EnvironmentPool(lambda: Countdown)


def test_trying_a_task_leaves_it_as_it_was():
    class Appending(Countdown):
        def reset(self, rooms):
            rooms.append("attic")
            return "win"

    task = {"rooms": ["hall"]}
    EnvironmentPool(Appending).try_reset(task)
    assert task == {"rooms": ["hall"]}


def test_one_that_fails_while_it_is_lent_makes_room():
    pool = EnvironmentPool(Countdown, max_instances=1)
    with pytest.raises(ConnectionError):
        pool.try_reset({"start": 1, "fails_at": "reset"})
    wait_until(lambda: not pool._num_closing)
    assert pool.acquire("") is not None


def test_instances_share_locks():
    """As under TRL, whose event loop runs all coroutines: asyncio's locks and clients belong to one loop."""

    class Sharing(Countdown):
        seats = asyncio.Semaphore(2)

        async def step(self, action):
            async with self.seats:
                await asyncio.sleep(0.001)
                return super().step(action)

    episodes = play([{"start": 3}] * 8, Sharing, timeout=60)
    assert [(episode.failure, episode.score) for episode in episodes] == [(None, 1.0)] * 8


def test_one_that_was_moved_to_another_event_loop_plays_no_other_episode():
    """What its coroutines wait for belongs to the first loop."""
    pool = EnvironmentPool(Countdown)
    moved = pool.acquire("")
    pool._give_own_loops("")
    pool.release(moved)
    assert pool.acquire("") is not moved


def test_jobs_without_an_instance_leave_no_thread():
    pool, before = EnvironmentPool(None), threading.active_count()
    assert [pool.call(lambda: 1, "counting") for _ in range(3)] == [1] * 3
    wait_until(lambda: threading.active_count() <= before)


class TestSharedInstances:
    def test_they_are_refused(self):
        one = Countdown()
        with pytest.raises(ValueError, match="`environment_factory` returned a Countdown .* in use: .* new instance"):
            play([{"start": 2}] * 2, lambda: one)
        tasks = [{"environment": name, "start": 2} for name in "ab"]
        with pytest.raises(ValueError, match=r"`environment_factory\['[ab]'\]` returned a Countdown"):
            play(tasks, dict.fromkeys("ab", lambda: one))

    def test_one_that_was_given_up_can_come_back(self):
        one = Countdown()
        tasks = [{"start": 2, "fails_at": 1}, {"start": 2}, {"start": 1}]
        episodes = play(tasks, lambda: one, max_instances=1)
        assert [episode.score for episode in episodes] == [0.0, 1.0, 1.0]
        assert [episode.failure is None for episode in episodes] == [False, True, True]


class Wandering(Countdown):
    def __init__(self, folder):
        self.folder = folder

    def reset(self, start):
        os.chdir(self.folder)
        return super().reset(start)

    def step(self, action):
        os.chdir("/")
        return super().step(action)


def test_a_run_stays_in_its_folder(tmp_path, monkeypatch):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere):
        folder.mkdir()
    monkeypatch.chdir(home)
    config = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "audit_samples": 1}
    tasks = Dataset.from_dict({"start": [2] * 4})
    trainer = make_trained("run", config, train_dataset=tasks, environment_factory=lambda: Wandering(elsewhere))
    trainer.save_model()
    assert not list(elsewhere.iterdir())
    assert {"checkpoint-1", "checkpoint-2", "model.safetensors"} <= {path.name for path in (home / "run").iterdir()}


def test_training_stops_when_too_many_instances_hang(tmp_path, monkeypatch):
    class Hanging(Countdown):
        def step(self, action):
            if self.left == 1:
                release.wait(60)
            return super().step(action)

    monkeypatch.setattr("trl_nlac.episodes.player.MAX_LEFT_BEHIND", 2)
    release = threading.Event()
    tasks = Dataset.from_dict({"start": [2] * 4})
    trainer = make_trainer(tmp_path, {"environment_timeout": 1}, train_dataset=tasks, environment_factory=Hanging)
    try:
        with pytest.raises(TrainingStopped, match="4 environments .* still hang"):
            trainer.train()
    finally:
        release.set()
    assert (tmp_path / "checkpoint-0").exists()
