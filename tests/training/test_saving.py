# SPDX-License-Identifier: Apache-2.0

import os
import shutil
from pathlib import Path

import pytest
from datasets import Dataset
from helpers.testing_utils import TASKS, assert_same, at, make_trained, make_trainer, weights
from transformers import AutoModelForCausalLM, AutoTokenizer, EarlyStoppingCallback, TrainerCallback

from trl_nlac import NLACPrompts, NLACTrainer
from trl_nlac.environments import StepResult
from trl_nlac.environments.embedded import COMPACT_PROMPTS


EVERY_STEP = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}


class Outage(TrainerCallback):
    def __init__(self, environment_class: type):
        self.environment_class = environment_class

    def on_step_begin(self, args, state, control, **kwargs):
        self.environment_class.is_down = False

    def on_step_end(self, args, state, control, **kwargs):
        self.environment_class.is_down = state.global_step == 2


class TestSaving:
    def test_saved_model_is_complete(self, tmp_path):
        trainer = make_trained(tmp_path)
        trainer.save_model()
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert_same(weights(loaded), weights(trainer.model))
        assert AutoTokenizer.from_pretrained(tmp_path).chat_template == trainer.processing_class.chat_template
        assert NLACPrompts.from_file(tmp_path / "nlac_prompts.json") == COMPACT_PROMPTS

    def test_no_checkpoint_is_deleted_under_its_name(self, tmp_path, monkeypatch):
        """A process that is killed during a deletion leaves no part of a checkpoint under the name of one."""
        deleted, rmtree = [], shutil.rmtree

        def observed(path, *args, **kwargs):
            deleted.append([child.name for child in Path(path).iterdir()] if Path(path).is_dir() else [])
            assert not Path(path).name.startswith("checkpoint-")
            rmtree(path, *args, **kwargs)

        monkeypatch.setattr(shutil, "rmtree", observed)
        config = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
        make_trainer(tmp_path, config).train()
        assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-4"]
        assert [names for names in deleted if names and names[0].startswith("deleted-")] == [
            ["deleted-checkpoint-1"],
            ["deleted-checkpoint-2"],
        ]
        assert not (tmp_path / "_incomplete").exists()

    def test_the_scale_of_a_loss_that_is_not_scaled_any_more(self, tmp_path, caplog):
        """A checkpoint of a run with `fp16`, which this machine cannot train."""
        config = {"save_strategy": "steps", "save_steps": 1}
        make_trainer(tmp_path, {**config, "max_steps": 1}).train()
        (tmp_path / "checkpoint-1" / "scaler.pt").write_bytes(b"whatever")
        trainer = make_trainer(tmp_path, {**config, "max_steps": 2})
        trainer.train(resume_from_checkpoint=True)
        assert trainer.state.global_step == 2 and "scaler.pt" in caplog.text and "fp16=False" in caplog.text

    def test_the_best_checkpoint_is_by_success(self, tmp_path):
        config = {**EVERY_STEP, "max_steps": 2, "max_turns": 2, "load_best_model_at_end": True}
        trainer = make_trained(tmp_path, config, eval_dataset=TASKS.select([0]))
        metric = "eval_episode/success_rate"
        rates = [log[metric] for log in trainer.state.log_history if metric in log]
        assert trainer.state.best_metric == max(rates) and trainer.state.best_model_checkpoint
        several = {"easy": TASKS.select([0]), "hard": TASKS.select([1])}
        with pytest.raises(ValueError, match="Write one before the metric: 'easy_episode/success_rate'"):
            make_trainer(tmp_path / "several", config, eval_dataset=several)
        make_trainer(tmp_path / "named", {**config, "metric_for_best_model": "hard_return"}, eval_dataset=several)
        for loss in ("loss", "eval_loss", "eval_hard_loss"):
            with pytest.raises(ValueError, match=f"`metric_for_best_model='{loss}'` is a loss"):
                make_trainer(tmp_path / "loss", {**config, "metric_for_best_model": loss}, eval_dataset=several)

    @pytest.mark.parametrize(("failing", "share"), [("reset", 0.75), ("reset", 1.0), ("step", 1.0)])
    def test_an_evaluation_in_which_environments_fail(self, tmp_path, caplog, failing, share):
        """It is not compared with others, and costs neither patience nor learning rate."""

        class Desk:
            is_down, asked = False, 0

            def reset(self, customer):
                self.ask("reset")
                return "What do you need?"

            def step(self, action):
                self.ask("step")
                return StepResult("Done.", reward=float(not Desk.is_down), terminated=True)

            def ask(self, method: str):
                Desk.asked += method == failing
                if Desk.is_down and method == failing and (share == 1 or Desk.asked % 4):
                    raise ConnectionError("the server is gone")

        tasks = Dataset.from_dict({"customer": list(range(4))})
        config = {**EVERY_STEP, "max_steps": 5, "load_best_model_at_end": True}
        trainer = make_trained(
            tmp_path,
            {**config, "lr_scheduler_type": "reduce_lr_on_plateau"},
            train_dataset=tasks,
            eval_dataset=tasks,
            environment_factory=Desk,
            callbacks=[Outage(Desk), EarlyStoppingCallback(early_stopping_patience=2)],
        )
        assert trainer.state.global_step == 4 and trainer.state.best_global_step == 1  # two without an improvement
        assert f"not compared with others: the environment failed in {share:.0%} of its" in caplog.text

    def test_only_the_run_s_own_folder_is_uploaded(self, tmp_path, monkeypatch):
        """Not that of the target weights: an upload would save them over the policy."""
        trainer = make_trained(tmp_path / "run", {"max_steps": 1})
        uploads: list[str] = []
        monkeypatch.setattr(trainer, "push_to_hub", lambda **kwargs: uploads.append(kwargs["commit_message"]))
        trainer.args.push_to_hub = True
        with trainer.target_weights.swapped_into(trainer.model):
            trainer.save_model(str(tmp_path / "average"))
        assert (tmp_path / "average" / "model.safetensors").exists() and not uploads
        trainer.save_model()
        trainer.save_model(str(tmp_path / "run"))
        assert uploads == ["Model save", "Model save"]

    def test_a_history_keeps_the_evaluation_before_training(self, tmp_path):
        trainer = make_trainer(tmp_path, {"max_steps": 1}, eval_dataset=TASKS.select([0]))
        trainer.evaluate()
        trainer.create_model_card()
        assert "\n| only | 0 | " in (tmp_path / "README.md").read_text()
        trainer.train()
        trainer.evaluate()
        trainer.create_model_card()
        steps = [log["step"] for log in trainer.state.log_history if "eval_episode/success_rate" in log]
        assert steps == [0, 1]
        card = (tmp_path / "README.md").read_text()
        assert "\n| first | 0 | " in card and f"\n| last | {trainer.num_environment_steps} | " in card

    def test_a_wrong_clock(self, tmp_path):
        ahead = at("save", lambda: os.utime(tmp_path / "checkpoint-1", (2e9, 2e9)), 1)
        config = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
        make_trainer(tmp_path, config, callbacks=[ahead]).train()
        assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]

    def test_the_best_checkpoint_of_a_moved_run(self, tmp_path):
        config = {**EVERY_STEP, "max_steps": 2, "max_turns": 2, "load_best_model_at_end": True}
        config |= {"metric_for_best_model": "eval_steps", "greater_is_better": False, "save_total_limit": 1}

        class Counting(NLACTrainer):
            def evaluation_loop(self, *args, **kwargs):
                output = super().evaluation_loop(*args, **kwargs)
                return output._replace(metrics={**output.metrics, "eval_steps": float(self.state.global_step)})

        def make(folder, **changes):
            return make_trainer(folder, {**config, **changes}, Counting, eval_dataset=TASKS.select([0]))

        make(tmp_path / "run").train()
        (tmp_path / "run").rename(tmp_path / "moved")
        trainer = make(tmp_path / "moved", max_steps=4)
        trainer.train(resume_from_checkpoint=True)
        assert trainer.state.best_model_checkpoint == str(tmp_path / "moved" / "checkpoint-1")
        # With a limit of one transformers deletes the last checkpoint at the end, as it is not the best.
        assert [path.name for path in (tmp_path / "moved").glob("c*-*")] == ["checkpoint-1"]
        best = AutoModelForCausalLM.from_pretrained(tmp_path / "moved" / "checkpoint-1")
        assert_same(weights(trainer.model), weights(best))
