# SPDX-License-Identifier: Apache-2.0

"""A run that is killed, or whose checkpoint is damaged, ends as if nothing had been, or says which file is damaged."""

import random

import pytest
from helpers.engine_utils import train_beside

from benchmarks.kills import DAMAGES, contents, damage_checkpoints, differences, kill_runs, make_trainer, train


# Checkpoints between two logs, of iterations of two steps; the run ends within one.
SHORT = {
    **{"max_steps": 5, "save_steps": 1, "logging_steps": 2, "eval_steps": 3, "eval_on_start": False},
    **{"max_turns": 2},
}


def test_killed_runs_end_like_one_that_was_not(tmp_path):
    """Weights, target weights, replay buffer, log, episodes and audit, bit for bit."""
    found = kill_runs(tmp_path, 2, random.Random(0), longest=1.5, **SHORT)
    assert found["kills"] == 2 and found["differences"] == []


@pytest.mark.slow
def test_killed_runs_that_play_beside_training_end_like_one_that_was_not(tmp_path):
    """With kept targets. Nothing that was under way is lost, and every episode is counted once."""
    options = {"target_max_age": 4, **SHORT}
    found = kill_runs(tmp_path, 2, random.Random(2), longest=1.5, train=train_beside, **options)
    assert found["kills"] == 2 and found["differences"] == []


def test_records_of_a_resumed_run(tmp_path):
    """From every checkpoint, also from one between two logs and from the last one, before the run has ended."""
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
    """Of every kind, a lost manifest among them."""
    outcomes = damage_checkpoints(tmp_path, 2, random.Random(1), **SHORT)
    assert outcomes.keys() == set(DAMAGES)
    allowed = {"refused, the file and the checkpoint before are named", "resumed, the same bit for bit"}
    assert all(found.keys() <= allowed for found in outcomes.values()), outcomes
