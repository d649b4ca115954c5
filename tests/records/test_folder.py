# SPDX-License-Identifier: Apache-2.0

import json
import logging
import math
from types import SimpleNamespace

import pytest
from helpers.records_utils import CONFIG
from helpers.testing_utils import make_trainer
from transformers import TrainerState

from trl_nlac.records.folder import RECORD_FILE, completions_file, kind_of, set_aside
from trl_nlac.records.written_notes import TrainingLogCallback


def test_training_log(tmp_path):
    trainer = make_trainer(tmp_path, CONFIG)
    trainer.evaluate(trainer.train_dataset)
    trainer.train()
    lines = [json.loads(line) for line in (tmp_path / "training_log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2, 4, 4]
    assert "eval_episode/success_rate_low" in lines[0] and "train_runtime" in lines[-1]
    assert [line["environment/steps"] for line in lines if "loss" in line] == [8, 16]
    assert lines[:3] == trainer.state.log_history[:3]


def test_numbers_that_json_does_not_have_are_null_in_the_log(tmp_path):
    args = SimpleNamespace(output_dir=str(tmp_path))
    logs = {"loss": math.nan, "grad_norm": math.inf, "learning_rate": 0.5}
    TrainingLogCallback().on_log(args, TrainerState(global_step=3), None, logs)
    line = '{"step": 3, "loss": null, "grad_norm": null, "learning_rate": 0.5}\n'
    assert (tmp_path / "training_log.jsonl").read_text() == line


@pytest.mark.parametrize(
    "kind, name",
    [
        ("", "completions_00003.parquet"),
        ("eval", "eval_completions_00003.parquet"),
        ("eval_my tasks", "eval_my tasks_completions_00003.parquet"),
        ("eval_räume", "eval_räume_completions_00003.parquet"),
        ("eval_org/name", "eval_org%2Fname_completions_00003.parquet"),
        ("eval_a%2Fb/c", "eval_a%252Fb%2Fc_completions_00003.parquet"),
        ("eval_train[:50%]", "eval_train[:50%25]_completions_00003.parquet"),
    ],
)
def test_names_of_evaluations_in_names_of_files(kind, name):
    path = completions_file("run", 3, kind)
    assert path.name == name and kind_of(RECORD_FILE.fullmatch(name)) == kind


def test_names_of_earlier_versions():
    """They quoted a percent sign only beside a slash."""
    assert kind_of(RECORD_FILE.fullmatch("eval_train[:50%]_completions_00003.parquet")) == "eval_train[:50%]"


class TestSetAside:
    def test_half_a_line_and_other_files(self, tmp_path, caplog):
        log = tmp_path / "training_log.jsonl"
        log.write_text('{"step": 1}\n{"step": 3}\n{"ste')
        (tmp_path / "completions").mkdir()
        (tmp_path / "completions" / "notes.parquet").touch()
        with caplog.at_level(logging.INFO):
            set_aside(tmp_path, 2, 2)
            set_aside(tmp_path, 2, 2)
        assert log.read_text() == '{"step": 1}\n'
        assert (tmp_path / "_superseded" / "1" / "training_log.jsonl").read_text() == '{"step": 3}\n{"ste'
        assert (tmp_path / "completions" / "notes.parquet").exists()

    def test_records_since_the_last_log_are_in_the_checkpoint(self, tmp_path):
        (tmp_path / "completions").mkdir()
        names = [completions_file(tmp_path, step, kind).name for step in (2, 3, 5) for kind in ("", "eval")]
        for name in names:
            (tmp_path / "completions" / name).touch()
        set_aside(tmp_path, 4, recorded=2)
        kept = {path.name for path in (tmp_path / "completions").iterdir()}
        assert kept == {
            "completions_00002.parquet",
            "eval_completions_00002.parquet",
            "eval_completions_00003.parquet",
        }
