# SPDX-License-Identifier: Apache-2.0

import json
import sys
from dataclasses import replace

import pytest


pytest.importorskip("scipy")

from benchmarks.learning.figures.tables import SETTINGS_OF_RELAY, Tables
from benchmarks.relay import run
from trl_nlac.episodes.recorder import replay_actions
from trl_nlac.types import Transition


class TestRun:
    @pytest.fixture(autouse=True)
    def short_evaluations(self, monkeypatch):
        make = run.relay
        monkeypatch.setattr(run, "relay", lambda *args: replace(make(*args), final_episodes=4))

    @pytest.mark.parametrize(
        "method", [pytest.param("explicit", marks=pytest.mark.slow), "hindsight", "scalar_forgetful", "sft"]
    )
    def test_cell(self, method, tmp_path, monkeypatch):
        words = ["--methods", method, "--seeds", "1", "--max_steps", "4", "--cells", str(tmp_path / "cells")]
        monkeypatch.setattr(sys, "argv", ["run.py", *words, "--runs", str(tmp_path / "runs"), "--in_process"])
        run.main()
        cell = json.loads((tmp_path / "cells" / "logs_4_3_floors" / method / "1.json").read_text())
        assert set(cell["success"]["sampled"]) == set(cell["success"]["greedy"]) == {"floor_1", "floor_2", "floor_3"}
        assert [point["gradient_steps"] for point in cell["curve"]] == [1, 2, 3, 4]
        assert cell["costs"]["gradient_steps"] == 4 and cell["costs"]["trained_tokens"] > 0
        assert (cell["costs"]["generated_tokens"] == 0) == (method == "sft")
        assert ("critic" in cell) == (method in run.ARMS)
        row = Tables([], relay=[{"set": "logs_4_3_floors", **cell}]).relay().splitlines()[-1]
        assert row.startswith(f"| logs | {SETTINGS_OF_RELAY[method]} | 1 |")
        if method in run.ARMS:  # nobody comes to the highest floor from above
            reached = [floor for floor, kinds in cell["critic"].items() if "reached" in kinds["right"]]
            assert reached == ["floor_1", "floor_2"]
        if method == "explicit":  # what ended well is told as it ended
            assert cell["critic"]["floor_1"]["right"]["targets"] > 0.9 > cell["critic"]["floor_1"]["wrong"]["targets"]

    def test_forgetful_states(self, tmp_path):
        """Without history, a room is the same state however it was reached: pieces of episodes can be joined."""
        task = run.relay(1, 3)
        trainer, player = run.make_trainer(task, "forgetful", 1, tmp_path, 4)
        player.environments.close()
        environment = task.instances["floor_1"].environment_factory()
        house, actions, prompts = environment.world, trainer.roles.actions, trainer.roles.prompts
        for row in house.tasks(2):
            down = f"take {house.right[row['start']]}"
            below = house.doors[row["start"], house.right[row["start"]]]
            reached = Transition(replay_actions(environment, row, [down, "take red"], actions, prompts), 1)
            start = {"start": below, "steps": 1}
            first = Transition(replay_actions(environment, start, ["take red"], actions, prompts), 0)
            assert reached.state_action.ids == first.state_action.ids

    def test_playing_begins_with_the_logs(self, tmp_path, monkeypatch):
        words = ["--methods", "explicit", "--seeds", "0", "--plays", "--budget", "16", "--in_process"]
        words += ["--cells", str(tmp_path / "cells"), "--runs", str(tmp_path / "runs")]
        monkeypatch.setattr(sys, "argv", ["run.py", *words])
        run.main()
        (path,) = (tmp_path / "cells").rglob("*.json")
        cell = json.loads(path.read_text())
        assert set(cell["success"]["sampled"]) == {"floor_1", "floor_2", "floor_3"}
        assert cell["method"] == "explicit" and cell["curve"][-1]["environment_steps"] >= 16
        assert cell["costs"]["environment_steps"] >= 16 and cell["costs"]["trained_tokens"] > 0
        assert (
            Tables([], relay=[{"set": "play", **cell}]).relay().splitlines()[-1].startswith("| plays | NLAC, explicit")
        )
