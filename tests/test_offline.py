# SPDX-License-Identifier: Apache-2.0

import pytest
import torch
from datasets import Dataset
from helpers.testing_utils import TASKS, make_config, make_logs, make_trainer
from transformers import AutoModelForCausalLM

from trl_nlac import NLACTrainer
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> Dataset:
    return make_logs(tmp_path_factory.mktemp("logs"))


class TestOfflineTraining:
    def test_without_an_environment(self, tmp_path, logs):
        trainer = make_trainer(
            tmp_path,
            {"max_steps": -1, "num_train_epochs": 2, "logging_steps": 1, "log_completions": True, "audit_samples": 1},
            replay_dataset=logs,
            train_dataset=None,
            environment_factory=None,
        )
        before = trainer.model.lm_head.weight.detach().clone()
        trainer.train()
        trainer.save_model()
        history = [log for log in trainer.state.log_history if "loss" in log]
        assert len(history) == 2 * len(logs) // 4  # episodes_per_iteration of an iteration's single step
        assert all(log["critic/loss"] > 0 and log["environment/steps"] == 0 for log in history)
        assert "episode/return" not in history[0] and len(trainer.replay) == 2 * len(logs)
        assert not torch.equal(before, trainer.model.lm_head.weight)
        assert not (tmp_path / "completions").exists() and (tmp_path / "_audit").exists()
        trainer.create_model_card()
        assert "| environment | none |" in (tmp_path / "README.md").read_text()
        with pytest.raises(ValueError, match="`evaluate\\(\\)` requires an `environment_factory`"):
            trainer.evaluate(TASKS)
        AutoModelForCausalLM.from_pretrained(tmp_path)

    def test_logs_before_playing(self, tmp_path, logs):
        trainer = make_trainer(tmp_path, {"max_steps": 1, "max_turns": 2}, replay_dataset=logs)
        assert all(episode.is_log for episode in trainer.replay.episodes)
        trainer.train()
        assert [episode.is_log for episode in trainer.replay.episodes] == [True] * len(logs) + [False] * 4

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"replay_dataset": None}, "There is nothing to learn from: give an `environment_factory`"),
            ({"train_dataset": TASKS}, "`train_dataset` is for playing, and there is no `environment_factory`"),
            ({"reward_funcs": lambda **kwargs: []}, "`reward_funcs` is for playing"),
            ({"eval_dataset": TASKS, "args": {"eval_strategy": "steps"}}, "`eval_dataset` is for playing"),
            ({"args": {"replay_buffer_size": 5}}, "32 transitions do not fit into `replay_buffer_size=5`"),
        ],
    )
    def test_what_does_not_fit(self, tmp_path, logs, arguments, message):
        args = make_config(tmp_path, **arguments.pop("args", {}))
        with pytest.raises(ValueError, match=message):
            NLACTrainer(
                **{"model": TINY_MODEL, "args": args, "prompts": COMPACT_PROMPTS, "replay_dataset": logs, **arguments}
            )
