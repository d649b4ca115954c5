# SPDX-License-Identifier: Apache-2.0

"""A run and its folder: what a second run, a resume and a foreign checkpoint do to it."""

import json
import logging
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from datasets import Dataset
from helpers.testing_utils import TASKS, Countdown, assert_same, at, make_trained, make_trainer, weights
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL
from trl_nlac.records.lock import locked
from trl_nlac.records.log import read_log
from trl_nlac.training.checkpoint import load_rows
from trl_nlac.training.manifest import write_manifest
from trl_nlac.types import RunRefused


CONFIG = {
    **{"max_steps": 3, "save_strategy": "steps", "save_steps": 1, "logging_steps": 1, "max_turns": 2},
    **{"log_completions": True, "num_completions_to_print": 0, "audit_samples": 1},
}


ADAPTER = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    trainer = make_trained(folder, CONFIG)
    trainer.save_model()
    return folder


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "_lock"]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in files_of(folder)}


def copied(run: Path, folder: Path) -> Path:
    return shutil.copytree(run, folder, ignore=shutil.ignore_patterns("_lock"))


def interrupt() -> None:
    raise KeyboardInterrupt


class TestSecondRun:
    def test_is_refused(self, finished):
        before = contents(finished)
        with pytest.raises(RunRefused, match=r"`output_dir`.*has a run already, see checkpoint-3: resume it"):
            make_trainer(finished, CONFIG).train()
        assert contents(finished) == before

    def test_is_refused_without_a_checkpoint(self, tmp_path):
        config = {"max_steps": 1}
        make_trainer(tmp_path, config).train()
        with pytest.raises(RunRefused, match=r"see training_log.jsonl: choose another folder"):
            make_trainer(tmp_path, config).train()

    def test_remnants_of_a_run_that_nobody_can_resume(self, tmp_path):
        """It was killed before its first checkpoint. They are kept, apart from the new run's."""
        trainer = make_trainer(tmp_path, {**CONFIG, "save_strategy": "no"}, callbacks=[at("step_end", interrupt, 2)])
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        left = (tmp_path / "training_log.jsonl").read_text()
        make_trainer(tmp_path, CONFIG).train()
        logged = [json.loads(line) for line in (tmp_path / "training_log.jsonl").read_text().splitlines()]
        assert [line["step"] for line in logged] == [1, 2, 3, 3]
        aside = tmp_path / "_superseded" / "1"
        assert (aside / "training_log.jsonl").read_text() == left
        assert (aside / "completions" / "completions_00001.parquet").exists()

    def test_overwriting_moves_everything_aside(self, finished, tmp_path):
        run = copied(finished, tmp_path / "run")
        (run / "notes.txt").write_text("mine")
        make_trainer(run, {**CONFIG, "max_steps": 1, "overwrite_output_dir": True}).train()
        assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-1"]
        moved = run / "_superseded" / "1"
        aside = {path.relative_to(moved): path.read_bytes() for path in files_of(moved)}
        assert aside == {path.relative_to(finished): data for path, data in contents(finished).items()}
        assert (run / "notes.txt").exists() and not (run / "model.safetensors").exists()
        steps = [json.loads(line)["step"] for line in (run / "training_log.jsonl").read_text().splitlines()]
        assert steps == [1, 1]

    def test_the_folder_of_a_model(self, tmp_path):
        model = copied(Path(TINY_MODEL), tmp_path / "model")
        before = contents(model)
        with pytest.raises(RunRefused, match=r"has a model already, see model.safetensors: .*overwrite_output_dir"):
            make_trainer(model, {"max_steps": 1}, model=str(model)).train()
        assert contents(model) == before

    def test_at_the_same_time(self, tmp_path):
        (tmp_path / "_incomplete").mkdir()
        with locked(tmp_path), pytest.raises(RunRefused, match="Another run is writing .* now: process"):
            make_trainer(tmp_path, {"max_steps": 1}).train()
        assert (tmp_path / "_incomplete").exists()


def test_an_evaluation_in_the_folder_of_another_run(tmp_path, caplog):
    config = {**CONFIG, "max_steps": 1, "eval_on_start": True, "eval_strategy": "steps", "eval_steps": 1}
    trainer = make_trained(tmp_path, config, eval_dataset=TASKS.select([0, 1]))
    before = contents(tmp_path)
    assert "eval_completions_00000.parquet" in {path.name for path in before}
    other = make_trainer(tmp_path, config, eval_dataset=TASKS.select([2]))
    with caplog.at_level(logging.WARNING):
        assert "eval_episode/return" in other.evaluate()
    assert contents(tmp_path) == before and "this evaluation is not written down" in caplog.text
    trainer.evaluate()
    assert len((tmp_path / "training_log.jsonl").read_bytes()) > len(before[tmp_path / "training_log.jsonl"])


def test_without_logs_episodes_are_written_down_all_the_same(tmp_path):
    trainer = make_trained(tmp_path, {**CONFIG, "logging_strategy": "no"})
    found = sorted(path.name for path in (tmp_path / "completions").iterdir())
    assert found == [f"completions_0000{step}.parquet" for step in (0, 1, 2)]
    assert all(len(values) == 1 for values in trainer.records.metrics.values())  # those of the last step
    assert not any(load_rows(tmp_path / "checkpoint-3", 0, 1).values())


def test_a_run_from_the_start_after_an_error(tmp_path):
    trainer = make_trainer(tmp_path, {**CONFIG, "save_strategy": "no", "samples_per_iteration": 8})
    iterate, prepare, iterations = trainer._iteration, trainer._prepare_inputs, []
    trainer._iteration = lambda tasks: iterations.append(trainer.state.global_step) or iterate(tasks)
    trainer._prepare_inputs = lambda examples: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    trainer._prepare_inputs = prepare
    trainer.train()
    assert iterations == [0, 0, 2]


class TestResume:
    def test_going_back_sets_later_steps_aside(self, finished, tmp_path):
        run = copied(finished, tmp_path / "run")
        other = make_trainer(run, {**CONFIG, "max_steps": 2})
        other.train(resume_from_checkpoint=str(run / "checkpoint-1"))
        assert sorted(path.name for path in run.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
        aside = run / "_superseded" / "1"
        assert {path.name for path in aside.iterdir()} >= {"checkpoint-2", "checkpoint-3", "completions", "_audit"}
        for name in ("checkpoint-3/model.safetensors", "completions/completions_00003.parquet"):
            assert (aside / name).read_bytes() == (finished / name).read_bytes()
        again = make_trainer(run, CONFIG)
        again.train(resume_from_checkpoint=True)
        assert again.state.global_step == 3
        again.train(resume_from_checkpoint=str(run / "checkpoint-2"))
        assert (run / "_superseded" / "2" / "checkpoint-3").exists() and (aside / "checkpoint-3").exists()

    @pytest.mark.parametrize("max_steps", [3, 2])
    def test_nothing_is_left_to_train(self, finished, max_steps, caplog):
        before = contents(finished)
        trainer = make_trainer(
            finished,
            {**CONFIG, "max_steps": max_steps, "eval_on_start": True, "eval_strategy": "steps"},
            eval_dataset=TASKS,
        )
        with caplog.at_level(logging.WARNING):
            output = trainer.train(resume_from_checkpoint=True)
        assert "Nothing is left to train" in caplog.text and trainer.had_ended
        assert contents(finished) == before and output.global_step == 3
        *_, end = map(json.loads, (finished / "training_log.jsonl").read_text().splitlines())
        assert output.training_loss == output.metrics["train_loss"] == pytest.approx(end["train_loss"])
        whole = make_trainer(finished / "unused", CONFIG, model=str(finished))
        assert_same(weights(trainer.model), weights(whole.model))

    @pytest.mark.parametrize("max_steps", [5, 3], ids=["early", "whole"])
    def test_a_run_that_ended_early_or_kept_its_best_checkpoint(self, tmp_path, max_steps):
        """Starting it again trains nothing; with more steps it goes on from there."""

        class Early(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                control.should_training_stop = state.global_step >= 3

        class FirstIsBest(TrainerCallback):
            def on_evaluate(self, args, state, control, metrics, **kwargs):
                metrics["eval_steps"] = float(state.global_step)

        every = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
        config = {**every, "max_steps": max_steps, "load_best_model_at_end": True, "save_total_limit": 1}
        config |= {"metric_for_best_model": "steps", "greater_is_better": False}

        def make(**changes):
            callbacks = [Early(), FirstIsBest()]
            return make_trainer(tmp_path, {**config, **changes}, eval_dataset=TASKS.select([0]), callbacks=callbacks)

        make().train()
        assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]
        before = contents(tmp_path)
        for newest in (True, get_last_checkpoint(str(tmp_path))):
            again = make()
            again.train(resume_from_checkpoint=newest)
            assert again.had_ended and contents(tmp_path) == before
        more = make(max_steps=6)
        more.train(resume_from_checkpoint=True)
        assert not more.had_ended and more.state.global_step == 3

    def test_a_run_whose_every_log_has_a_running_time(self, tmp_path):
        """With this option of transformers; only the last log says that training has ended."""
        config = {**CONFIG, "include_num_input_tokens_seen": "all"}
        with pytest.raises(KeyboardInterrupt):
            make_trainer(tmp_path, config, callbacks=[at("step_begin", interrupt, 2)]).train()
        assert "train_runtime" in (tmp_path / "training_log.jsonl").read_text()
        assert read_log(tmp_path / "training_log.jsonl").seconds is None
        again = make_trainer(tmp_path, config)
        again.train(resume_from_checkpoint=True)
        assert not again.had_ended and again.state.global_step == 3
        seconds = read_log(tmp_path / "training_log.jsonl").seconds
        assert seconds == again.state.log_history[-1]["train_seconds"]
        assert seconds > again.state.log_history[-1]["train_runtime"]  # of the last session

    def test_into_a_folder_with_a_run_of_its_own(self, finished, tmp_path):
        run = copied(finished, tmp_path / "run")
        with pytest.raises(RunRefused, match="has a run already"):
            make_trainer(run, CONFIG).train(resume_from_checkpoint=str(finished / "checkpoint-1"))

    def test_no_checkpoint(self, tmp_path):
        with pytest.raises(RunRefused, match="`resume_from_checkpoint` is True, and .* has no checkpoint"):
            make_trainer(tmp_path, CONFIG).train(resume_from_checkpoint=True)


def with_a_new_word():
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    tokenizer.add_tokens(["unheard-of"])
    return tokenizer


class TestForeignCheckpoint:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"prompts": replace(COMPACT_PROMPTS, refine="Better: {action_format}")},
                r"refine of the prompts \(changed\)",
            ),
            ({"action_format": "react"}, r"action_format of the options \('text', now 'react'\)"),
            (
                {"environment_factory": Countdown, "train_dataset": Dataset.from_dict({"start": [2] * 8})},
                r"name of the environment \('\w+', now 'Countdown'\)",
            ),
            ({"optim": "adafactor"}, r"name of the optimizer \('adamw_torch\w*', now 'adafactor'\)"),
            ({"peft_config": ADAPTER}, r"type of the adapter \('none', now 'LORA'\)"),
            ({"processing_class": with_a_new_word()}, r"vocabulary of the tokenizer \(changed\)"),
        ],
        ids=["prompts", "options", "environment", "optimizer", "adapter", "vocabulary"],
    )
    def test_is_refused(self, finished, tmp_path, changes, message):
        options = {name: value for name, value in changes.items() if name in ("action_format", "optim")}
        others = {name: value for name, value in changes.items() if name not in options}
        trainer = make_trainer(tmp_path, {**CONFIG, **options}, **others)
        with pytest.raises(RunRefused, match=rf"checkpoint-2 is of another run.*state.json: .*{message}.*new run"):
            trainer.train(resume_from_checkpoint=str(finished / "checkpoint-2"))
        assert not (tmp_path / "training_log.jsonl").exists()

    def test_an_adapter_of_another_rank_or_scale(self, tmp_path):
        make_trainer(tmp_path, {**CONFIG, "max_steps": 1}, peft_config=ADAPTER).train()
        config = {**CONFIG, "max_steps": 2}
        for part, other in {"shape": {"r": 4}, "scale": {"lora_alpha": 64}}.items():
            with pytest.raises(RunRefused, match=rf"{part} of the adapter \(changed\)"):
                make_trainer(tmp_path, config, peft_config=replace(ADAPTER, **other)).train(
                    resume_from_checkpoint=True
                )
        make_trainer(tmp_path, config, peft_config=ADAPTER).train(resume_from_checkpoint=True)

    def test_an_adapter_of_another_base_model(self, tmp_path, caplog):
        """A checkpoint of an adapter lacks the weights of the base model, so that no shape tells them apart."""
        make_trainer(tmp_path / "run", {**CONFIG, "max_steps": 1}, peft_config=ADAPTER).train()
        (tmp_path / "link").symlink_to(TINY_MODEL)
        other = shutil.copytree(TINY_MODEL, tmp_path / "other")
        for steps, model in ((2, tmp_path / "link"), (3, other)):
            caplog.clear()
            config = {**CONFIG, "max_steps": steps}
            trainer = make_trainer(tmp_path / "run", config, model=str(model), peft_config=ADAPTER)
            trainer.train(resume_from_checkpoint=True)
            warned = rf"checkpoint-{steps - 1} was trained on the base model '.*', and the run resumes on '{other}'"
            assert bool(re.search(warned, caplog.text)) == (model == other)

    def test_another_optimizer_in_place_of_one_that_was_deleted(self, finished, tmp_path):
        """As the page on checkpoints describes it."""
        run = copied(finished, tmp_path / "run")
        for name in ("optimizer.pt", "scheduler.pt"):
            (run / "checkpoint-3" / name).unlink()
        write_manifest(run / "checkpoint-3")
        trainer = make_trainer(run, {**CONFIG, "max_steps": 4, "optim": "sgd", "learning_rate": 1e-4})
        trainer.train(resume_from_checkpoint=True)
        assert trainer.state.global_step == 4 and trainer.state.log_history[-2]["learning_rate"] <= 1e-4

    def test_no_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="There is no checkpoint nowhere: no such folder"):
            make_trainer(tmp_path, CONFIG).train(resume_from_checkpoint="nowhere")
