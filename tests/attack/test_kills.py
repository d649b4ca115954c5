# SPDX-License-Identifier: Apache-2.0

"""A run that is killed, or whose checkpoint is damaged, ends as if nothing had been, or says which file is damaged."""

import os
import random
import signal

import pytest
from transformers import TrainerCallback

from benchmarks.kills import (
    DAMAGES,
    KINDS,
    contents,
    damage_checkpoints,
    differences,
    kill_runs,
    make_trainer,
    run,
    train,
)
from benchmarks.tiny_engine import BESIDE, load_tiny_engine
from trl_nlac.records.folder import checkpoints
from trl_nlac.training import build
from trl_nlac.training.manifest import check_manifest


# Checkpoints between two logs, of iterations of two steps; the run ends within one.
SHORT = dict(max_steps=5, save_steps=1, logging_steps=2, eval_steps=3, eval_on_start=False, max_turns=2)


def test_killed_runs_end_like_one_that_was_not(tmp_path):
    found = kill_runs(tmp_path, 2, random.Random(0), longest=1.5, **SHORT)
    assert found["kills"] == 2 and found["differences"] == []


def test_storms_of_signals(tmp_path):
    """
    That last longer than a launcher's, from the first step or a save on: a whole checkpoint and an end, or an end at
    once, where the process could see no signal for a while.
    """
    options, storm = {**SHORT, "save_total_limit": 9}, [signal.SIGTERM, signal.SIGINT] * 50
    assert run(tmp_path / "whole", **options) == 0
    for when in ("after", "saves"):
        assert run(tmp_path / when, (when, 0.0, storm), **options) != 0
        saved = list(checkpoints(tmp_path / when).values())
        assert len(saved) <= 1
        for checkpoint in saved:
            check_manifest(checkpoint)
        assert run(tmp_path / when, **options) == 0
        assert differences(contents(tmp_path / when), contents(tmp_path / "whole")) == []


def test_a_stopped_run_that_plays_beside_training_ends_like_one_that_was_not(tmp_path, monkeypatch):
    """From a checkpoint within an iteration, where the other has none: log, tokens and episodes, too."""
    monkeypatch.setattr(build, "load_generator", load_tiny_engine)
    options = {**BESIDE, "max_steps": 6, "save_steps": 6, "logging_steps": 1, "eval_strategy": "no"}

    class Stop(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    train(tmp_path / "whole", **options)
    trainer = make_trainer(tmp_path / "stopped", **options)
    trainer.add_callback(Stop())
    with pytest.raises(SystemExit):
        trainer.train()
    assert checkpoints(tmp_path / "stopped").keys() == {3}
    train(tmp_path / "stopped", **options)
    assert differences(contents(tmp_path / "stopped"), contents(tmp_path / "whole")) == []


@pytest.mark.slow
def test_killed_runs_that_play_beside_training_end_like_one_that_was_not(tmp_path):
    """With kept targets. Nothing that was under way is lost, and every episode is counted once."""
    options = {**KINDS["played beside training"], "target_max_age": 4, **SHORT}
    found = kill_runs(tmp_path, 2, random.Random(2), longest=1.5, **options)
    assert found["kills"] == 2 and found["differences"] == []


def test_records_of_a_resumed_run(tmp_path):
    train(tmp_path / "whole", **SHORT)
    expected = contents(tmp_path / "whole")
    assert {"completions/completions_00005.parquet", "_audit/audit_00005_process0.parquet"} <= expected.keys()
    for step in (3, 1):  # the later one becomes a branch that is given up
        trainer = make_trainer(tmp_path / "whole", **SHORT)
        trainer.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        trainer.save_model()
        assert differences(contents(tmp_path / "whole"), expected) == []
        assert trainer.state.log_history[-1]["train_loss"] > 0


def test_damaged_files_are_named(tmp_path):
    outcomes = damage_checkpoints(tmp_path, 2, random.Random(1), **SHORT)
    assert outcomes.keys() == set(DAMAGES)
    allowed = {"refused, the file and the checkpoint before are named", "resumed, the same bit for bit"}
    assert all(found.keys() <= allowed for found in outcomes.values()), outcomes
