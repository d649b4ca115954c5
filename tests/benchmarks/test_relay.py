# SPDX-License-Identifier: Apache-2.0

import json
import sys
from dataclasses import replace

import pytest


pytest.importorskip("jinja2")

from benchmarks.relay import report, run
from trl_nlac.episodes.recorder import replay_actions
from trl_nlac.types import Transition


def make_cells(method: str, successes: list[list[float]], targets: float | None = None) -> list[dict]:
    """Make a cell for each house, with the success on each floor, the same when greedy."""
    cells = []
    for seed, of_floors in enumerate(successes):
        floors = {f"floor_{i}": value for i, value in enumerate(of_floors, 1)}
        cell = {"method": method, "seed": seed, "plays": False, "steps": 1000, "floors": len(floors)}
        cell |= {"success": {"sampled": floors, "greedy": floors}, "costs": {"gradient_steps": 10, "seconds": 5.0}}
        cell |= {"machine": {"cpu_count": 2}, "versions": {}, "python": "3.11"}
        if targets is not None:
            asked = {"right": {"critic": 0.5, "targets": targets + 0.01 * seed}, "wrong": {"critic": 0, "targets": 0}}
            cell["critic"] = dict.fromkeys(floors, asked)
        cells.append(cell)
    return cells


MONTE_CARLO = make_cells("monte_carlo", [[1.0, 0.25, 0.06], [0.98, 0.3, 0.1], [1.0, 0.275, 0.08]], targets=0.0)


class TestVerdict:
    @pytest.mark.parametrize(
        ("successes", "targets", "expected"),
        [
            ([[1.0, 0.6, 0.5], [1.0, 0.66, 0.55], [1.0, 0.63, 0.5]], 0.8, report.SUPPORTED),
            ([[1.0, 0.6, 0.1], [1.0, 0.66, 0.1], [1.0, 0.63, 0.1]], 0.8, report.BETWEEN),
            ([[1.0, 0.3, 0.1], [1.0, 0.32, 0.1], [1.0, 0.31, 0.1]], 0.8, report.LABELS_RIGHT),
            ([[1.0, 0.3, 0.1], [1.0, 0.32, 0.1], [1.0, 0.31, 0.1]], 0.1, report.REFUTED),
            ([[0.8, 0.6, 0.5], [1.0, 0.66, 0.55], [0.9, 0.63, 0.5]], 0.8, report.UNTESTED),
        ],
    )
    def test_rule(self, successes, targets, expected):
        cells = [*make_cells("explicit", successes, targets), *MONTE_CARLO, *make_cells("sft", [[1.0, 0.2, 0.0]])]
        summary = report.summarize(cells)
        found = summary["phases"]["logs_1000_3"]["verdicts"]["with history"]
        assert found["verdict"] == expected
        expected_gap = sum(of_floors[1] for of_floors in successes) / 3 - 0.275
        assert found["differences"]["floor_2"]["mean"] == pytest.approx(expected_gap, abs=1e-3)
        text = report.text(summary)
        assert f"**{expected}**" in text and "| SFT on successes | 1 | 1.00 | 0.20 | 0.00 |" in text
        first, second, third = successes[0]
        assert f"| SFT on successes | {first - 1:+.2f} | {second - 0.2:+.2f} | {third:+.2f} |" in text

    @pytest.mark.parametrize("num_houses", [1, 2])
    def test_few_houses_are_not_judged(self, num_houses):
        cells = make_cells("explicit", [[1.0, 0.6, 0.5]] * num_houses, 0.8)
        cells += make_cells("monte_carlo", [[1.0, 0.2, 0.0]] * num_houses, 0.0)
        verdict = report.summarize(cells)["phases"]["logs_1000_3"]["verdicts"]["with history"]["verdict"]
        assert verdict == "not judged yet: it needs 3 houses"


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
        assert ("critic" in cell) == ("best" in cell["success"]) == (method in run.ARMS)
        floors = {"floor_1", "floor_2", "floor_3"}
        assert cell["success"].get("best", {}).keys() in ({*floors}, set())
        text = report.text(report.summarize([cell]))
        assert ("best of four by the critic's verdict scores" in text) == (method in run.ARMS)
        if method in run.ARMS:  # nobody comes to the highest floor from above
            reached = [floor for floor, kinds in cell["critic"].items() if "reached" in kinds["right"]]
            assert reached == ["floor_1", "floor_2"]
            row = next(line for line in text.splitlines() if line.startswith("|") and line.count(" / ") == 8)
            assert row.split(" | ")[6] == "–"
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
        assert "Playing 16 environment steps, beginning with the logs" in report.text(report.summarize([cell]))
