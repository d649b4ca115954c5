# SPDX-License-Identifier: Apache-2.0

"""Playing beside training: nothing is lost or counted twice, and no weights are older than they may be."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers.engine_utils import make_async_trainer
from helpers.testing_utils import (
    Countdown,
    RecordingTrainer,
    assert_same,
    at,
    make_config,
    make_logs,
    make_roles,
    weights,
)
from helpers.workers import wait_until
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.tiny_engine import TinyEngine
from trl_nlac.environments import StepResult, TextEnvironment
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.episodes import rounds
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rewards import EpisodeRewards
from trl_nlac.episodes.rounds import AsyncRollouts
from trl_nlac.generation.engine import SyncedGenerator
from trl_nlac.generation.generator import Sampling
from trl_nlac.method.tally import Tally
from trl_nlac.types import Episode


def logged(trainer, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def starts(number: int) -> Dataset:
    return Dataset.from_dict({"start": [2] * number})


class Played(Countdown):
    """Notes the tasks that were begun."""

    begun: list[int] = []

    def reset(self, number, start, fails_at):
        self.begun.append(number)
        return super().reset(start, fails_at)


class Slow(Countdown):
    def step(self, action):
        time.sleep(0.2)
        return super().step(action)


def test_environments_play_while_the_model_trains(monkeypatch, tmp_path):
    training = threading.Event()

    class Waits:
        def reset(self, number):
            self.number = number
            return f"{number}"

        def step(self, action):
            if self.number >= 4 and not training.wait(20):  # after the first iteration, which waits for its episodes
                raise RuntimeError("training waited for this episode")
            return StepResult("won", 1.0, terminated=True)

    class Training(RecordingTrainer):
        def compute_loss(self, *args, **kwargs):
            if len(self.micro_batches) == 1:  # of the second iteration
                training.set()
            return super().compute_loss(*args, **kwargs)

    tasks = Dataset.from_dict({"number": list(range(12))})
    config = {"max_steps": 3, "shuffle_dataset": False}
    trainer = make_async_trainer(
        monkeypatch, tmp_path, config, trainer_class=Training, train_dataset=tasks, environment_factory=Waits
    )
    trainer.train()
    assert [episode.failure for episode in trainer.replay.episodes] == [None] * 8
    assert [int(episode.task["number"]) for episode in trainer.replay.episodes] == list(range(8))
    assert logged(trainer, "rollout/staleness") == [0.0, 1.0]  # of the first iteration and of the last


@pytest.mark.parametrize("max_staleness", [1, 3])
def test_every_episode_is_counted_once(monkeypatch, tmp_path, max_staleness):
    Played.begun = []
    numbers = list(range(40))
    fails_at = [0 if number == 5 else -1 for number in numbers]
    tasks = Dataset.from_dict({"number": numbers, "start": [2] * 40, "fails_at": fails_at})
    config = {"max_steps": 5, "shuffle_dataset": False, "log_completions": False}
    config |= dict(save_strategy="steps", save_steps=2, eval_strategy="steps", eval_steps=3, num_eval_critiques=0)
    evaluated = Dataset.from_dict({"number": [99], "start": [2], "fails_at": [-1]})
    datasets = {"train_dataset": tasks, "eval_dataset": evaluated}
    trainer = make_async_trainer(monkeypatch, tmp_path, config, max_staleness, environment_factory=Played, **datasets)
    trainer.train()
    stored = [int(episode.task["number"]) for episode in trainer.replay.episodes]
    begun = sorted(number for number in Played.begun if number != 99)
    assert stored == begun == numbers[: len(stored)] and len(stored) == 16  # nothing begins in the last iteration
    failed = [int(episode.task["number"]) for episode in trainer.replay.episodes if episode.failure]
    assert failed == [5] and trainer.num_environment_steps == 2 * len(stored) - 1
    staleness = logged(trainer, "rollout/staleness")
    assert staleness[0] == 0 and max(staleness) <= max_staleness
    assert not [thread for thread in threading.enumerate() if thread.name == "rollouts"]


def test_a_callback_can_generate_while_episodes_are_under_way(monkeypatch, tmp_path):
    def generate():
        with trainer.roles.generator.session(trainer.model):
            trainer.roles.generator.generate([[5, 6]], Sampling(2), [0])

    arguments = {"train_dataset": starts(8), "environment_factory": Slow, "callbacks": [at("step_end", generate)]}
    trainer = make_async_trainer(monkeypatch, tmp_path, {"max_steps": 3}, max_staleness=1, **arguments)
    trainer.train()
    assert len(trainer.replay.episodes) == 2 * 4


def test_the_error_of_a_generator_ends_training(monkeypatch, tmp_path):
    class Losing(RecordingTrainer):
        def compute_loss(self, *args, **kwargs):
            if len(self.micro_batches) == 1:
                self.roles.generator.engine.error = ConnectionError("the server is gone")
            return super().compute_loss(*args, **kwargs)

    arguments = {"trainer_class": Losing, "train_dataset": starts(8), "environment_factory": Slow}
    trainer = make_async_trainer(monkeypatch, tmp_path, {"max_steps": 4}, max_staleness=1, **arguments)
    with pytest.raises(ConnectionError, match="the server is gone"):
        trainer.train()
    assert not [thread for thread in threading.enumerate() if thread.name == "rollouts"]
    wait_until(lambda: not trainer.environments.num_left_behind)  # the steps that were under way


def test_what_is_under_way_is_given_up(monkeypatch, tmp_path):
    class Interrupted(RecordingTrainer):
        def compute_loss(self, *args, **kwargs):
            if len(self.micro_batches) == 1:
                raise KeyboardInterrupt
            return super().compute_loss(*args, **kwargs)

    tasks = Dataset.from_dict({"start": [50] * 8})
    arguments = {"trainer_class": Interrupted, "train_dataset": tasks, "environment_factory": Slow}
    trainer = make_async_trainer(monkeypatch, tmp_path, {"max_steps": 4, "max_turns": 2}, **arguments)
    trainer.args.max_turns = 100  # of the players, from the second iteration
    trainer.rollouts.players.options.max_turns = 2
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert not [thread for thread in threading.enumerate() if thread.name == "rollouts"]


def silent_episodes(tasks: list[dict]) -> list[Episode]:
    return [Episode(task, (), np.zeros(1, np.int32), (), True, False) for task in tasks]


def make_rollouts(monkeypatch, play: Callable, updates: int) -> AsyncRollouts:
    """Make rollouts without a model, which call `play` in place of `play_episodes`."""
    monkeypatch.setattr(rounds, "play_episodes", play)
    generator = SimpleNamespace(share=lambda: None, stop=lambda: None, is_open=True)
    roles, players = (SimpleNamespace(generator=generator, tally=Tally()) for _ in range(2))
    return AsyncRollouts(EnvironmentPool(None), roles, None, players, 4, updates, 0)


def test_environments_that_seed_torch_do_not_repeat_rounds():
    class Seeding(TextEnvironment):
        takes_seed = True

        def reset(self, seed):
            seeds.append(seed)
            torch.manual_seed(0)
            return "win"

        def step(self, action):
            return StepResult("win", 1.0, terminated=True)

    def play(first_step, seed=7):
        seeds.clear()
        roles, players = make_roles("take red", max_turns=2), make_roles("take red", max_turns=2)
        roles.generator.share = lambda: None
        pool = EnvironmentPool(Seeding)
        rollouts = AsyncRollouts(pool, roles, None, players, 1, 1, seed)
        for step in range(first_step, 4):
            rollouts.play([{}], step, waits=True, is_last=False)
        rollouts.play([{}], 4, waits=True, is_last=True)
        rollouts.play([{}], 4, waits=True, is_last=True)  # the first was not enough
        rollouts.stop()
        pool.close()
        return list(seeds)

    seeds = []
    whole = play(0)
    assert len(set(whole)) == 6 and play(2) == whole[2:]
    assert not set(play(0, seed=8)) & set(whole)


def test_reward_functions_score_what_is_played_beside_training():
    roles, players = make_roles([], max_turns=2), make_roles("take red", max_turns=2)
    roles.generator.share = lambda: None
    rewards = EpisodeRewards([lambda completions, **kwargs: [0.5] * len(completions)])
    pool = EnvironmentPool(Countdown)
    rollouts = AsyncRollouts(pool, roles, rewards, players, 1, 1, 7)
    (episode,) = rollouts.play([{"start": 1}], 0, waits=True, is_last=False)
    pool.close()
    assert episode.score == 1.5
    assert roles.tally.metrics["policy/format_rate"] == [1.0] and not players.tally.metrics


def test_a_thread_that_outlives_the_run_takes_nothing_of_the_next(monkeypatch):
    """A reward function that waits for somebody, for example."""
    monkeypatch.setattr(rounds, "STOPPING_SECONDS", 0.2)
    goes_on, played = threading.Event(), []

    def play(pool, tasks, *args, stopping, **kwargs):
        if not played:
            played.append(tasks)
            goes_on.wait(60)
        return silent_episodes(tasks)

    rollouts = make_rollouts(monkeypatch, play, updates=1)
    rollouts.play([{"run": 1}], 0, waits=False, is_last=False)
    while not played:
        time.sleep(0.01)
    rollouts.stop()
    rollouts.play([{"run": 2}], 0, waits=False, is_last=False)
    goes_on.set()
    waiting = threading.Thread(target=rollouts.wait, args=(0, True), daemon=True)
    waiting.start()
    waiting.join(20)
    assert not waiting.is_alive() and [episode.task for episode in rollouts.take()] == [{"run": 2}]


def test_only_rounds_that_would_be_too_old_are_waited_for(monkeypatch):
    """Those of step 0 may be trained on at step 4 at the latest, and an iteration has two steps."""
    ends = threading.Event()

    def play(pool, tasks, *args, **kwargs):
        ends.wait(10)
        return silent_episodes(tasks)

    rollouts = make_rollouts(monkeypatch, play, updates=2)
    rollouts.play([{}], 0, waits=False, is_last=False)
    for step in (0, 2):
        rollouts.wait(step)
        assert rollouts.take() == []
    threading.Timer(0.2, ends.set).start()
    rollouts.wait(4)
    assert len(rollouts.take()) == 1 and rollouts.take_staleness(4) == [4.0]


def test_an_error_takes_no_other_rounds_with_it(monkeypatch, caplog):
    def play(pool, tasks, *args, **kwargs):
        if tasks[0]["run"] == 2:
            raise ConnectionError("the server is gone")
        return silent_episodes(tasks)

    rollouts = make_rollouts(monkeypatch, play, updates=1)
    for run in (1, 2, 3):
        rollouts.play([{"run": run}] * 2, run, waits=False, is_last=False)
        while rollouts._thread is not None:
            time.sleep(0.01)
    rollouts.wait(4, for_all=True)
    assert isinstance(rollouts.lost, ConnectionError) and not rollouts._under_way
    assert "A round of 2 episodes, begun after step 2, is lost: ConnectionError: the server is gone" in caplog.text
    assert [episode.task["run"] for episode in rollouts.take()] == [1, 1, 3, 3]
    assert rollouts.take_staleness(4) == [3.0, 1.0]
    rollouts.play([{"run": 4}], 4, waits=True, is_last=False)
    rollouts.stop()
    assert rollouts.lost is None and not rollouts.are_under_way and rollouts.take_staleness(4) == []


def test_answers_beside_wait_for_their_weights():
    model, tokenizer = AutoModelForCausalLM.from_pretrained(TINY_MODEL), AutoTokenizer.from_pretrained(TINY_MODEL)
    generator = SyncedGenerator(TinyEngine(model, tokenizer), None, [tokenizer.eos_token_id])
    beside = generator.beside()
    prompts, sampling, answers = [tokenizer("baku 2")["input_ids"]], Sampling(8, temperature=0.0), []

    def ask() -> threading.Thread:
        thread = threading.Thread(target=lambda: answers.append(beside.generate(prompts, sampling, [0])))
        thread.start()
        thread.join(0.3)
        return thread

    early = ask()
    assert early.is_alive()  # nothing is shared
    with generator.session(model):
        generator.share()
        early.join(20)
        expected = generator.generate(prompts, sampling, [0])
    ask().join(20)
    assert answers == [expected] * 2  # also between sessions
    embedding = model.get_input_embeddings().weight.data
    embedding.mul_(-1)  # as the target weights are other ones
    with generator.session(model):
        assert generator.generate(prompts, sampling, [0]) != expected
        waiting = ask()
        assert waiting.is_alive()
    assert waiting.is_alive()
    embedding.mul_(-1)
    with generator.session(model):
        waiting.join(20)
    assert answers == [expected] * 3


def test_what_cannot_work_is_refused(monkeypatch, tmp_path):
    for options, message in (
        ({"async_rollouts": True}, "`async_rollouts=True` .*`use_vllm=False`.*Start a server"),
        ({"async_rollouts": True, "use_vllm": True}, "`vllm_mode='colocate'`"),
    ):
        with pytest.raises(ValueError, match=message):
            make_config(tmp_path, **options)
    logs = make_logs(tmp_path / "logs")
    offline = {"train_dataset": None, "environment_factory": None, "replay_dataset": logs}
    with pytest.raises(ValueError, match="`async_rollouts=True` requires an `environment_factory`"):
        make_async_trainer(monkeypatch, tmp_path, **offline)


class Stopped(RecordingTrainer):
    def compute_loss(self, *args, **kwargs):
        if len(self.micro_batches) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().compute_loss(*args, **kwargs)


def test_stopped_and_killed_runs_go_on_as_they_would_have(monkeypatch, tmp_path):
    config = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    whole = make_async_trainer(monkeypatch, tmp_path / "whole", config, max_staleness=1)
    whole.train()
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "whole", killed)  # as it was after two steps
    shutil.rmtree(killed / "checkpoint-4")
    stopped = make_async_trainer(monkeypatch, tmp_path / "stopped", config, max_staleness=1, trainer_class=Stopped)
    with pytest.raises(SystemExit):
        stopped.train()
    assert {path.name for path in (tmp_path / "stopped").glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-3"}
    assert not [thread for thread in threading.enumerate() if thread.name == "rollouts"]
    for folder in ("killed", "stopped"):
        resumed = make_async_trainer(monkeypatch, tmp_path / folder, config, max_staleness=1)
        resumed.train(resume_from_checkpoint=True)
        assert_same(weights(whole.model), weights(resumed.model))
        played = [[episode.token_ids.tolist() for episode in one.replay.episodes] for one in (whole, resumed)]
        assert played[0] == played[1] and len(played[0]) == 3 * 4
        assert whole.num_environment_steps == resumed.num_environment_steps
