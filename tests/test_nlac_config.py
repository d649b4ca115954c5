# SPDX-License-Identifier: Apache-2.0

import dataclasses
import warnings
from pathlib import Path

import pytest
from helpers.testing_utils import make_config
from trl import TrlParser
from trl.trainer.base_config import _BaseConfig

import trl_nlac
from trl_nlac import NLACConfig
from trl_nlac.method.roles import role_samplings


class TestNLACConfig:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"single_step": True, "max_turns": 3}, "`single_step=True` means tasks of one action: set `max_turns=1`"),
            ({"single_step": True, "max_turns": 1, "num_futures": 2}, "`single_step=True` predicts no future"),
            ({"enable_jit_checkpoint": True}, "`enable_jit_checkpoint=True` saves in the middle of a step"),
            ({"accelerator_config": {"split_batches": True}}, "'split_batches': True}` divides batches"),
            ({"accelerator_config": {"dispatch_batches": True}}, "'dispatch_batches': True}` divides batches"),
            ({"auto_find_batch_size": True}, "set `max_tokens_per_batch`"),
            ({"policy_loss_coef": -0.1}, "`policy_loss_coef` must be between 0 and 1,000,000, got -0.1"),
            ({"critic_loss_coef": 0.0, "policy_loss_coef": 0.0}, "trains neither the critic nor the policy"),
            ({"critic_loss_coef": 0.0, "bootstrap": "monte_carlo", "num_futures": 2}, "verdict with `num_futures=2`"),
            ({"max_steps": -3}, "`max_steps` must be not negative, or -1 to train for `num_train_epochs`, got -3"),
            ({"num_train_epochs": -2}, "`num_train_epochs` must be not negative, got -2"),
            ({"dataloader_num_workers": -1}, "`dataloader_num_workers` must be not negative, got -1"),
            ({"save_total_limit": -2}, "`save_total_limit` must be not negative, or None, got -2"),
            ({"per_device_eval_batch_size": -1}, "`per_device_eval_batch_size` must be at least 1, got -1"),
        ],
    )
    def test_options_that_exclude_each_other(self, tmp_path, options, message):
        with pytest.raises(ValueError, match=message):
            make_config(tmp_path, **options)

    def test_no_field_is_dead(self):
        inherited = {field.name for field in dataclasses.fields(_BaseConfig)}
        package = Path(trl_nlac.__file__).parent
        code = "".join(path.read_text() for path in package.rglob("*.py"))
        for field in dataclasses.fields(NLACConfig):
            if field.name not in inherited:
                assert f"args.{field.name}" in code or f"options.{field.name}" in code, field.name

    def test_samples_per_iteration_must_be_divisible(self, tmp_path):
        with pytest.raises(ValueError, match=r"`samples_per_iteration` \(10\) must be divisible .*\(8 ="):
            make_config(tmp_path, samples_per_iteration=10, gradient_accumulation_steps=2)
        assert make_config(tmp_path, samples_per_iteration=16, gradient_accumulation_steps=2).steps_per_iteration == 4

    @pytest.mark.parametrize(
        ("options", "samples", "episodes"),
        [
            ({}, 160, 1),  # eight for each of 20 turns
            ({"max_turns": 3}, 64, 2),  # eight batches
            ({"episodes_per_iteration": 5, "max_turns": 3}, 120, 5),
            ({"samples_per_iteration": 1024}, 1024, 6),
        ],
    )
    @pytest.mark.parametrize("split", [(8, 1), (4, 2), (1, 8)])
    def test_iterations_train_on_each_step_several_times(self, tmp_path, split, options, samples, episodes):
        sizes = dict(zip(("per_device_train_batch_size", "gradient_accumulation_steps"), split, strict=True))
        config = NLACConfig(str(tmp_path), use_cpu=True, bf16=False, **sizes, **options)
        assert (config.samples_per_iteration, config.episodes_per_iteration) == (samples, episodes)

    @pytest.mark.parametrize(
        ("options", "samples", "episodes"),
        [
            ({}, 64, 8),
            ({"samples_per_iteration": 32}, 32, 4),
            ({"episodes_per_iteration": 4}, 64, 4),
            ({"samples_per_iteration": 64, "episodes_per_iteration": 4}, 64, 4),
        ],
    )
    def test_answers_that_are_scored_have_sizes_of_one_turn(self, tmp_path, options, samples, episodes):
        config = NLACConfig(str(tmp_path), use_cpu=True, bf16=False, **options)
        config.check()  # again, as the trainer does
        config.set_single_turn()
        assert (config.samples_per_iteration, config.episodes_per_iteration) == (samples, episodes)
        assert (config.max_turns, config.single_step) == (1, True)

    def test_few_stored_transitions_are_not_sampled_over_and_over(self, tmp_path):
        config = NLACConfig(str(tmp_path), use_cpu=True, bf16=False)
        assert [config.num_samples(stored) for stored in (3, 20, 100)] == [24, 160, 160]
        config.samples_per_iteration = 48
        assert config.num_samples(3) == 48

    def test_sizes_that_were_set_later_stay(self, tmp_path):
        config = NLACConfig(str(tmp_path), use_cpu=True, bf16=False)
        config.samples_per_iteration = 48
        config.set_single_turn()
        assert (config.samples_per_iteration, config.episodes_per_iteration) == (48, 6)

    def test_options_that_were_left_open_follow_those_that_change_later(self, tmp_path):
        config = NLACConfig(str(tmp_path), use_cpu=True, bf16=False)
        config.max_turns = 17
        config.check()
        assert config.samples_per_iteration == 136
        config = NLACConfig(str(tmp_path), use_cpu=True, bf16=False, samples_per_iteration=8)
        config.max_turns = 3
        config.check()
        assert config.samples_per_iteration == 8

    @pytest.mark.parametrize("name", ["reduce_lr_on_plateau", "greedy"])
    def test_a_learning_rate_that_follows_success_falls_when_success_does(self, tmp_path, name):
        every = {"eval_strategy": "steps", "eval_steps": 1, "lr_scheduler_type": name}
        assert make_config(tmp_path, **every).lr_scheduler_kwargs == {"mode": "max"}
        shorter = {"metric_for_best_model": "episode/length", "greater_is_better": False}
        found = make_config(tmp_path, **every, **shorter, lr_scheduler_kwargs={"patience": 3})
        assert found.lr_scheduler_kwargs == {"mode": "min", "patience": 3}
        assert make_config(tmp_path, **every, lr_scheduler_kwargs={"mode": "min"}).lr_scheduler_kwargs["mode"] == "min"

    def test_from_command_line_and_yaml(self, tmp_path):
        (tmp_path / "run.yaml").write_text("max_turns: 7\ngeneration_kwargs: {no_repeat_ngram_size: 3}\n")
        parser = TrlParser((NLACConfig,))
        (config,) = parser.parse_args_and_config(
            ["--config", str(tmp_path / "run.yaml"), "--output_dir", str(tmp_path), "--target_update_rate", "0.5"]
            + ["--use_cpu", "--bf16", "false", "--role_sampling", '{"backup": {"temperature": 0}}']
        )
        assert (config.max_turns, config.target_update_rate) == (7, 0.5)
        assert role_samplings(config)["critic"].generation_kwargs == {"no_repeat_ngram_size": 3}
        assert role_samplings(config)["backup"].temperature == 0


@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": False}, {"gradient_checkpointing_kwargs": {}}])
def test_no_option_is_warned_of_as_deprecated(tmp_path, options):
    """Not the default of TRL either, whose name transformers has changed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        args = NLACConfig(str(tmp_path), use_cpu=True, bf16=False, **options)
    assert args.gradient_checkpointing == options.get("gradient_checkpointing", True)
    assert args.gradient_checkpointing_kwargs == options.get("gradient_checkpointing_kwargs", None)
