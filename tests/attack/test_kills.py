# SPDX-License-Identifier: Apache-2.0

"""A run that is killed, or whose checkpoint is damaged, ends as if nothing had been, or says which file is damaged."""

import random
import signal

import pytest

from benchmarks.kills import DAMAGES, KINDS, contents, damage_checkpoints, differences, kill_runs, run
from trl_nlac.records.folder import checkpoints
from trl_nlac.training.manifest import check_manifest


# Checkpoints between two logs, of iterations of two steps; the run ends within one.
SHORT = dict(max_steps=5, save_steps=1, logging_steps=2, eval_steps=3, eval_on_start=False, max_turns=2)


def test_killed_runs_end_like_one_that_was_not(tmp_path):
    found = kill_runs(tmp_path, 2, random.Random(0), longest=1.5, **SHORT)
    assert found["kills"] == 2 and found["differences"] == []


@pytest.mark.slow
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


@pytest.mark.slow
def test_killed_runs_that_play_beside_training_end_like_one_that_was_not(tmp_path):
    """With kept targets. Nothing that was under way is lost, and every episode is counted once."""
    options = {**KINDS["played beside training"], "target_max_age": 4, **SHORT}
    found = kill_runs(tmp_path, 2, random.Random(2), longest=1.5, **options)
    assert found["kills"] == 2 and found["differences"] == []


def test_damaged_files_are_named(tmp_path):
    outcomes = damage_checkpoints(tmp_path, 2, random.Random(1), **SHORT)
    assert outcomes.keys() == set(DAMAGES)
    allowed = {"refused, the file and the checkpoint before are named", "resumed, the same bit for bit"}
    assert all(found.keys() <= allowed for found in outcomes.values()), outcomes
