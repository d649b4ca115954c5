# SPDX-License-Identifier: Apache-2.0

"""Odd numbers, options and arguments: refused by name before anything starts, or harmless."""

import datetime
import logging
import random
from functools import partial

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers.testing_utils import Answering, at, make_config, make_episode, make_trainer

from benchmarks import fuzz
from trl_nlac import NLACConfig, PrioritizedReplay
from trl_nlac.environments import StepResult


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def only_config(trial: fuzz.Trial, folder: str) -> NLACConfig:
    return fuzz.make_config(folder, trial.name, trial.label)


@pytest.fixture(scope="module")
def of_options() -> dict[fuzz.Trial, fuzz.Result]:
    return {trial: fuzz.try_it(trial, only_config, trains=False) for trial in fuzz.option_trials()}


class TestFuzz:
    def test_options_are_refused_by_name_or_accepted(self, of_options):
        assert len(of_options) >= 77 * 36
        odd = {trial: result for trial, result in of_options.items() if result.outcome not in ("refused", "trained")}
        assert not odd
        assert 200 < sum(result.outcome == "trained" for result in of_options.values()) < 500

    def test_what_is_accepted_trains(self, of_options):
        """A sample; `benchmarks/fuzz.py` tries all."""
        accepted = [t for t, result in of_options.items() if result.outcome == "trained" and "vllm" not in t.name]
        for trial in random.Random(0).sample(accepted, 5):
            assert fuzz.try_it(trial).outcome in ("refused", "trained"), trial

    def test_arguments_are_refused_by_name_or_accepted(self):
        trials = fuzz.argument_trials()
        assert len(trials) >= 234
        loads = [trial for trial in trials if trial.name in ("model", "peft_config", "quantization_config")]
        for trial in [*loads, *random.Random(0).sample(sorted(set(trials) - set(loads)), 80)]:
            result = fuzz.try_it(trial, trains=False)
            assert result.outcome in ("refused", "trained"), (trial, result)


SMALL = {"per_device_train_batch_size": 4, "samples_per_iteration": 4, "episodes_per_iteration": 4}
NUMBERS = {
    "temperature": (1, 1.0),
    "repetition_penalty": (2, 2.0),
    "top_p": (np.float32(0.5), 0.5),
    "max_turns": (np.int64(2), 2),
    "success_threshold": (np.float64(0.5), 0.5),
    "log_completions": (np.bool_(True), True),
    "reward_weights": ([1, np.float32(2)], [1.0, 2.0]),
    "generation_kwargs": ({"no_repeat_ngram_size": np.int64(3)}, {"no_repeat_ngram_size": 3}),
    "role_sampling": ({"evaluation": {"temperature": 1}}, {"evaluation": {"temperature": 1.0}}),
    "learning_rate": (1, 1.0),
}


class TestNumbers:
    @pytest.mark.parametrize("name", NUMBERS)
    def test_become_those_of_python(self, tmp_path, name):
        given, expected = NUMBERS[name]
        value = vars(make_config(tmp_path, **{name: given}))[name]
        assert value == expected and type(value) is type(expected)
        assert repr(value) == repr(expected)  # within dicts and lists, too

    def test_options_that_change_later_are_checked_by_the_trainer(self, tmp_path):
        config = make_config(tmp_path)
        config.temperature, config.max_turns = 1, np.int64(2)
        make_trainer(tmp_path, args=config)
        assert repr((config.temperature, config.max_turns)) == "(1.0, 2)"
        config.max_turns = "2"
        with pytest.raises(ValueError, match="`max_turns` must be a whole number .*, got '2'"):
            make_trainer(tmp_path, args=config)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"max_turns": 200_000}, "`max_turns` must be between 1 and 100,000, got 200000"),
            ({"samples_per_iteration": None, "max_turns": 90_000}, "`max_turns=90000`, .* 2,880,000 samples"),
            ({"gradient_accumulation_steps": 10**9, "samples_per_iteration": None}, "a global batch size of 4000000"),
            ({"replay_buffer_size": 3, "max_turns": 4}, "`replay_buffer_size` must be at least `max_turns=4`, got 3"),
            ({"generation_kwargs": {"a": object()}}, "`generation_kwargs` must be what JSON can hold"),
            ({"vllm_server_host": "caf\udce9"}, "`vllm_server_host` must be text, got "),
            ({"environment_timeout": 1e-320}, "`environment_timeout` must be between 0.01 and 1,000,000,000, or None"),
            ({"output_dir": b"run"}, "`output_dir` must be a path, or None, got b'run'"),
        ],
    )
    def test_more_than_a_run_can_use(self, tmp_path, options, message):
        with pytest.raises(ValueError, match=message):
            fuzz.NLACConfig(**{**fuzz.options_of_run(str(tmp_path)), **SMALL, **options})

    def test_a_huge_replay_buffer_takes_no_memory(self):
        small, huge = PrioritizedReplay(100, seed=1), PrioritizedReplay(10**9, seed=1)
        for replay in (small, huge):
            replay.add([make_episode(num_turns=3) for _ in range(20)])
            replay.update_priorities(range(60), np.linspace(0.1, 6, 60))
        drawn = [[(sample.transition_id, sample.priority) for sample in r.sample(200)] for r in (small, huge)]
        assert drawn[0] == drawn[1]
        assert small.priority_mean == huge.priority_mean


class TestWeights:
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_that_break_in_training_are_named(self, tmp_path, temperature):
        trainer = make_trainer(tmp_path, {"temperature": temperature})
        weights = [parameter.data for parameter in trainer.model.parameters()]
        trainer.add_callback(at("step_end", lambda: [values.fill_(torch.nan) for values in weights]))
        with pytest.raises(RuntimeError, match="scores of tokens are not finite: its weights are corrupted"):
            trainer.train()

    def test_answers_longer_than_the_context_are_refused_for_every_role(self, tmp_path):
        with pytest.raises(ValueError, match=r"`role_sampling\['critic'\]\['max_tokens'\]=600` leaves no room"):
            make_trainer(tmp_path, {"role_sampling": {"critic": {"max_tokens": 600}}})
        trainer = make_trainer(tmp_path, {"role_sampling": {"critic": {"max_tokens": 100}}})
        assert trainer.args.max_prompt_length == 412  # of 512


class TestTasks:
    def test_dates_are_evaluated_and_not_trained_on(self, tmp_path):
        dates = Dataset.from_list([{"request": "baku", "when": datetime.datetime(2024, 1, 1)}])
        config = {"log_completions": True, "num_completions_to_print": 0}
        wins = partial(Answering, StepResult("done", 1.0, terminated=True), "{request} {when}".format)
        trainer = make_trainer(tmp_path, config, environment_factory=wins, eval_dataset=dates)
        assert trainer.evaluate()["eval_episode/return"] == 1
        with pytest.raises(ValueError, match="`train_dataset` has the column `when` of type timestamp"):
            make_trainer(tmp_path, environment_factory=wins, train_dataset=dates)
