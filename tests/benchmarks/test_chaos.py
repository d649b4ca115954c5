# SPDX-License-Identifier: Apache-2.0

import logging

import pytest

from benchmarks import chaos


@pytest.fixture(autouse=True)
def quiet_and_at_home(tmp_path, monkeypatch):
    """Some environments change the folder, the environment variables and the seeds."""
    monkeypatch.setenv("CHAOS", "")
    monkeypatch.chdir(tmp_path)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_every_episode_is_accounted_for():
    report = chaos.run(num_episodes=240, timeout=2.0, rollout_size=80)
    assert report["problems"] == []
    assert report["episodes"] == sum(report["failures"].values()) == 240
    assert report["faults"] >= 30 and all(report["failures"][kind] for kind in ("none", "timeout", "reset", "step"))
    assert report["at_the_end"]["left_behind"] == 0
    first, end = report["resources"][0], report["at_the_end"]
    assert end["files"] <= first["files"] and end["threads"] <= first["threads"]
