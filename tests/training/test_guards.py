# SPDX-License-Identifier: Apache-2.0

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from accelerate import PartialState
from datasets import Dataset
from helpers.testing_utils import (
    RecordingTrainer,
    assert_same,
    at,
    make_tokenizer,
    make_trained,
    make_trainer,
    weights,
)
from transformers import AutoModelForCausalLM

from trl_nlac import NLACTrainer
from trl_nlac.environments import StepResult
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.episodes.failures import check_played
from trl_nlac.method.batches import NLACCollator
from trl_nlac.training import guards
from trl_nlac.training.guards import GradientGuard, LossGuard
from trl_nlac.types import Prompt, TrainingExample, TrainingStopped


CONFIG = dict(max_steps=3, per_device_train_batch_size=8, episodes_per_iteration=8, logging_steps=1)


class Poison:
    """Multiplies the last hidden state of examples that are `chosen` by the sum of their token ids, in training."""

    def __init__(self, trainer: NLACTrainer, chosen: Callable[[int], bool], value: float = torch.nan):
        self.chosen, self.value = chosen, value
        self.places: list[int] = []
        trainer.model.register_forward_pre_hook(self.find, with_kwargs=True)
        trainer.model.get_output_embeddings().register_forward_pre_hook(self)

    def find(self, model, args, kwargs):
        if model.training:
            ids = kwargs["input_ids"][0]
            paths = [path for path in kwargs["prefix_tree"].paths if self.chosen(int(ids[path].sum()))]
            self.places = [path[-2] for path in paths]  # where its last token comes next

    def __call__(self, head, args):
        states = args[0].clone()
        states[0, self.places] = states[0, self.places] * self.value  # and its gradient
        self.places = []
        return (states,)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("loss_type", ["sampled", "distill"])
def test_the_rest_of_the_batch_is_trained_on(tmp_path, caplog, value, loss_type):
    trainer = make_trained(tmp_path, {**CONFIG, "policy_loss_type": loss_type}, RecordingTrainer)
    inputs = trainer.micro_batches[-1]
    row = int((inputs.loss_ids == 0).nonzero()[1, 0])

    def gradient(inputs) -> torch.Tensor:
        trainer.model.zero_grad()
        loss = trainer.compute_loss(trainer.model, inputs)
        loss.backward()
        assert loss.isfinite()
        return torch.cat([parameter.grad.flatten() for parameter in trainer.model.parameters()])

    trainer.model.train()
    without = replace(inputs, weights=inputs.weights.clone())
    without.weights[row] = 0
    expected = gradient(without)
    assert trainer.loss_guard.num_dropped == 0
    before = trainer.replay.priority_mean
    example = inputs.examples[row]
    poisoned = sum([*example.prompt.ids, *example.completion_ids])
    Poison(trainer, lambda ids: ids == poisoned, value)
    actual = gradient(inputs)
    assert trainer.loss_guard.num_dropped == 1
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    assert trainer.replay.priority_mean == pytest.approx(before)
    assert f"The critic loss of transition {example.transition_id} is" in caplog.text and example.transition_id >= 0


def test_only_micro_batches_in_a_row_stop_training(monkeypatch):
    PartialState(cpu=True)
    monkeypatch.setattr(guards, "MAX_NOT_FINITE", 2)
    guard, collate = LossGuard(), NLACCollator(0)
    batch = collate([TrainingExample("critic", Prompt.of([1]), (2,))])

    def compute(loss: float) -> Callable:
        losses = iter([loss, 1.0])  # the second without the example
        return lambda batch: torch.tensor([next(losses)])

    for loss in (torch.nan, 1.0, torch.inf):
        guard.finite_losses(compute(loss), batch, collate)
    assert guard.num_dropped == 2
    with pytest.raises(TrainingStopped, match="2 micro-batches in a row"):
        guard.finite_losses(compute(torch.nan), batch, collate)


def test_too_many_in_a_row_stop_training_and_the_whole_step_is_taken_again(tmp_path):
    config = {**CONFIG, "max_steps": 19, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
    config |= {"samples_per_iteration": 32, "max_turns": 2}
    stopped = make_trainer(tmp_path, config)
    before = weights(stopped.model)
    Poison(stopped, lambda ids: ids > 0)
    with pytest.raises(RuntimeError, match="10 micro-batches in a row"):
        stopped.train()
    assert (tmp_path / "checkpoint-2" / "trainer_state.json").exists()
    assert stopped.state.global_step == 2  # of the third step, two of four micro-batches were computed
    assert stopped.state.log_history[0]["nonfinite_losses"] > 0
    assert_same(before, weights(stopped.model))
    resumed, places = make_trainer(tmp_path, {**config, "max_steps": 9}), []
    iterate, step = resumed._iteration, resumed.training_step
    resumed._iteration = lambda tasks: places.append(len(steps) % 4) or iterate(tasks)
    steps: list[int] = []
    resumed.training_step = lambda *args: (step(*args), steps.append(resumed.state.global_step))[0]
    resumed.train(resume_from_checkpoint=True)
    assert len(steps) == 4 * 7 and places == [0]  # the next iteration begins with a step


def test_corrupted_weights_are_not_saved(tmp_path):
    trainer = make_trainer(tmp_path, {**CONFIG, "max_steps": 9})
    Poison(trainer, lambda ids: True)
    with pytest.raises(RuntimeError, match="the weights are probably corrupted"):
        trainer.train()
    assert not list(tmp_path.glob("checkpoint-*"))


class TestGradients:
    """The losses are finite, and the gradients of the steps `from_step` to `to_step` are not."""

    CONFIG = {**CONFIG, "max_steps": 3, "per_device_train_batch_size": 2, "episodes_per_iteration": 2, "max_turns": 2}
    CONFIG |= {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 1, "weight_decay": 0.1}

    def make(self, output_dir, from_step: int, to_step: int, **config) -> NLACTrainer:
        trainer = make_trainer(output_dir, {**self.CONFIG, **config})
        self.seen = []

        def spoil(gradient: torch.Tensor) -> torch.Tensor:
            is_spoiled = from_step <= trainer.state.global_step + 1 <= to_step
            return gradient * torch.inf if is_spoiled else gradient

        trainer.model.get_input_embeddings().weight.register_hook(spoil)
        trainer.add_callback(at("step_end", lambda: self.seen.append(weights(trainer.model))))
        return trainer

    @pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
    def test_a_step_is_left_out(self, tmp_path, caplog, max_grad_norm):
        trainer = self.make(tmp_path, 2, 2, max_grad_norm=max_grad_norm)
        trainer.train()
        first, second, third = self.seen
        assert_same(first, second)
        assert any(not value.equal(second[name]) for name, value in third.items())
        assert all(value.isfinite().all() for value in third.values())
        logs = [log["nonfinite_gradients"] for log in trainer.state.log_history if "loss" in log]
        assert logs == [0, 1, 1] and "after step 1: the weights stay as they are" in caplog.text
        resumed = make_trainer(tmp_path, {**self.CONFIG, "max_steps": 4})
        resumed.train(resume_from_checkpoint=True)
        assert resumed.state.log_history[-2]["nonfinite_gradients"] == 1

    def test_too_many_in_a_row_stop_training_with_a_checkpoint(self, tmp_path):
        trainer = self.make(tmp_path, 2, 99, max_steps=15, save_strategy="no")
        with pytest.raises(RuntimeError, match="10 optimizer steps in a row had gradients that are not finite"):
            trainer.train()
        assert trainer.state.global_step == 11 and (tmp_path / "checkpoint-11" / "trainer_state.json").exists()
        assert_same(self.seen[0], self.seen[-1])

    def test_only_steps_in_a_row_stop_training(self, monkeypatch):
        monkeypatch.setattr(guards, "MAX_NOT_FINITE", 2)
        guard = GradientGuard()
        for norm in (torch.inf, 1.0, torch.nan):
            guard.skips(norm, 0)
            guard.check()
        guard.skips(torch.inf, 0)
        with pytest.raises(TrainingStopped, match="2 optimizer steps in a row"):
            guard.check()

    def test_weights_that_are_not_finite_do_not_replace_a_checkpoint(self, tmp_path):
        trainer = self.make(tmp_path, 99, 99)

        values = trainer.model.get_input_embeddings().weight.data
        trainer.add_callback(at("step_end", lambda: values[0, :1].fill_(torch.inf), 2))
        with pytest.raises(RuntimeError, match="not finite at step 2, so they are not saved; earlier checkpoints"):
            trainer.train()
        assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]


class TestFailureRate:
    def test_a_broken_environment_stops_the_run_with_a_checkpoint(self, tmp_path):
        class Worse:
            episodes = 0

            def reset(self, start):
                type(self).episodes += 1
                self.is_first = True
                return "baku 2"

            def step(self, action):
                if self.is_first:
                    self.is_first = False
                    return StepResult("refused needs amber 1")
                if self.episodes > 40:
                    raise ConnectionError("the server is gone")
                return StepResult("win", 1.0, terminated=True)

        def make(output_dir, **kwargs):
            config = {"max_steps": 50, "episodes_per_iteration": 20, **kwargs}
            tasks = Dataset.from_dict({"start": [0] * 20})
            return make_trainer(output_dir, config, train_dataset=tasks, environment_factory=Worse)

        trainer = make(tmp_path)
        with pytest.raises(RuntimeError, match=r"is saved\. The environment failed in 60% of the last 100") as caught:
            trainer.train()
        step = trainer.state.global_step
        assert 'raise ConnectionError("the server is gone")' in str(caught.value)
        checkpoint = tmp_path / f"checkpoint-{step}"
        assert step == 4 and str(checkpoint) in str(caught.value)
        assert len(trainer.replay.episodes) == 100  # with those of the last iteration
        assert trainer.num_environment_steps == len(trainer.replay) == 40 * 2 + 60

        Worse.episodes = -1000
        resumed = make(tmp_path, max_steps=step + 2)
        resumed.train(resume_from_checkpoint=str(checkpoint))
        assert resumed.state.global_step == step + 2
        assert len(resumed.replay.episodes) == 100 + 2 * 20

    def test_failures_are_counted_once(self, tmp_path):
        config = {"max_steps": 1, "episodes_per_iteration": 12, "save_strategy": "steps", "save_steps": 1}
        trainer = make_trained(tmp_path, config)
        trainer.args.max_steps = 2
        trainer.train(resume_from_checkpoint=True)
        assert len(trainer.player.failures.failed) == 24


@pytest.mark.parametrize(
    ("empty", "stops"),
    [
        ([1], False),
        ([2], True),
        ([2, 0], False),  # the other process plays
        ([9, 0], False),
        ([0, 10], True),
        ([2, 1], False),
        ([3, 2], True),
    ],
)
def test_stops_where_nothing_is_played(empty, stops):
    reasons = [(number, f"of process {i}" if number else "") for i, number in enumerate(empty)]
    with pytest.raises(RuntimeError, match=f"of process {empty.index(max(empty))}") if stops else nullcontext():
        check_played(reasons)


class TestIdle:
    CONFIG = {**CONFIG, "max_steps": 20, "max_completion_length": 2}

    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch):
        monkeypatch.setattr(guards, "MAX_IDLE_ITERATIONS", 3)

    def test_a_run_that_cannot_learn_stops_with_a_checkpoint_and_the_cause(self, tmp_path):
        trainer = make_trainer(tmp_path, self.CONFIG)
        with pytest.raises(RuntimeError, match=r"3 consecutive iterations\.") as caught:
            trainer.train()
        step = trainer.state.global_step
        checkpoint = tmp_path / f"checkpoint-{step}"
        assert step == 2 and str(checkpoint) in str(caught.value)
        assert re.search(r"\d+% of the answers are cut off", str(caught.value))
        assert "`max_completion_length` (2)" in str(caught.value)
        logs = [entry for entry in trainer.state.log_history if "critic/num_examples" in entry]
        assert [(entry["critic/num_examples"], entry["policy/num_examples"]) for entry in logs] == [(0, 0)] * 2

        resumed = make_trainer(tmp_path, {**self.CONFIG, "max_steps": step + 2, "max_completion_length": 96})
        resumed.train(resume_from_checkpoint=str(checkpoint))
        assert resumed.state.global_step == step + 2
        assert resumed.state.log_history[-2]["critic/num_examples"] > 0

    def test_one_loss_is_enough(self, tmp_path, caplog):
        config = {"role_sampling": {"critic": {"max_tokens": 2}}, "max_completion_length": 96}
        trainer = make_trained(tmp_path, {**self.CONFIG, **config, "max_steps": 5})
        assert caplog.text.count("The policy loss had no example in 3 consecutive iterations") == 1
        assert "The critic loss" not in caplog.text and trainer.idle.num_iterations == {"critic": 0, "policy": 5}
        logs = [entry for entry in trainer.state.log_history if "critic/num_examples" in entry]
        assert all(entry["critic/num_examples"] > 0 and not entry["policy/num_examples"] for entry in logs)

    def test_a_short_run_says_that_nothing_was_trained(self, tmp_path, caplog):
        trainer = make_trained(tmp_path, {**self.CONFIG, "max_steps": 1})
        assert "Nothing was trained: there was not one example. 100% of the answers" in caplog.text
        assert not trainer.idle.has_trained

    def test_a_loss_without_a_coefficient_does_not_count(self, tmp_path):
        config = {"role_sampling": {"critic": {"max_tokens": 2}}, "max_completion_length": 96}
        trainer = make_trainer(tmp_path, {**self.CONFIG, **config, "critic_loss_coef": 0.0})
        with pytest.raises(RuntimeError, match="3 consecutive iterations"):
            trainer.train()


class TestThoughts:
    def test_a_template_that_thinks_needs_room(self, tmp_path, caplog):
        config = {"max_completion_length": 256, "max_prompt_length": 256}
        model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
        for name, off in (("qwen3", True), ("deepseek_r1_distill", False)):
            caplog.clear()
            make_trainer(tmp_path, config, model=model, processing_class=make_tokenizer(name))
            assert "`max_completion_length` (256 tokens)" in caplog.text
            assert ("`chat_template_kwargs={'enable_thinking': False}`" in caplog.text) == off
        for name, more in (("qwen2_5", {}), ("qwen3", {"chat_template_kwargs": {"enable_thinking": False}})):
            caplog.clear()
            make_trainer(tmp_path, {**config, **more}, model=model, processing_class=make_tokenizer(name))
            assert "max_completion_length" not in caplog.text
