# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

import math
from pathlib import Path

import pyarrow as pa
import pytest
from helpers.report_utils import make_row, make_sample, make_turn, training_row, write_audit, write_episodes, write_log

from trl_nlac.evaluation.metrics import CriticCalibration
from trl_nlac.report import write_report
from trl_nlac.report.calibration import first_and_last, probability
from trl_nlac.report.charts import (
    MAX_POINTS,
    critic_charts,
    learning_charts,
    role_charts,
    time_charts,
    training_charts,
)
from trl_nlac.report.episodes import MAX_CHARACTERS
from trl_nlac.report.log import TrainingLog, read_log
from trl_nlac.report.run_files import read_episodes


def titles(charts: list) -> list[str]:
    return [chart.title for chart in charts]


class TestLog:
    def test_rows_by_kind(self, tmp_path):
        rows = [
            {"step": 0, "eval_episode/success_rate": 0.1, "eval_environment/steps": 0, "eval_runtime": 3.0},
            {
                "step": 1,
                "loss": math.nan,
                "critic/loss": 0.5,
                "environment/steps": 7,
                "policy/loss": None,
                "note": "x",
            },
            {"step": 2, "loss": 0.5, "environment/steps": 9, "critic/loss": math.inf},
            {"step": 2, "eval_held_out_critic/brier": 0.2, "eval_held_out_environment/steps": 9},
            {"step": 2, "train_runtime": 61.5, "train_loss": 0.4},
        ]
        write_log(tmp_path, rows, end='{"step": 3, "lo')
        log = read_log(tmp_path / "training_log.jsonl")
        assert log.training == [
            {"step": 1, "critic/loss": 0.5, "environment/steps": 7},
            {"step": 2, "loss": 0.5, "environment/steps": 9},
        ]
        assert log.evaluations == {
            "": [{"step": 0, "episode/success_rate": 0.1, "environment/steps": 0}],
            "held_out": [{"step": 2, "critic/brier": 0.2, "environment/steps": 9}],
        }
        assert log.seconds == 61.5 and log.num_unreadable == 1

    def test_resumed_after_its_end(self, tmp_path):
        write_log(tmp_path, [training_row(1), {"step": 1, "train_runtime": 5.0}, training_row(2)])
        assert read_log(tmp_path / "training_log.jsonl").seconds is None


class TestCharts:
    def read(self, tmp_path: Path, rows: list[dict]) -> TrainingLog:
        write_log(tmp_path, rows)
        return read_log(tmp_path / "training_log.jsonl")

    def test_only_what_has_data(self, tmp_path):
        log = self.read(tmp_path, [training_row(step, **{"critic/loss": 0.5}) for step in range(1, 4)])
        (chart,) = training_charts(log)
        assert chart.title == "Losses" and [series.name for series in chart.series] == ["critic"]
        assert chart.series[0].x == [10, 20, 30] and chart.series[0].y == [0.5] * 3
        assert not [*learning_charts(log), *role_charts(log), *critic_charts(log), *time_charts(log)]

    def test_success_with_its_interval(self, tmp_path):
        evaluation = {"success_rate": 0.5, "success_rate_low": 0.3, "success_rate_high": 0.7, "return": 0.4}
        rows = [
            training_row(1, **{"episode/success_rate": 0.25}),
            {"step": 1, "eval_environment/steps": 10, **{f"eval_episode/{k}": v for k, v in evaluation.items()}},
        ]
        success, returns = learning_charts(self.read(tmp_path, rows))
        assert [(series.name, series.style, series.y) for series in success.series] == [
            ("training", "faint", [0.25]),
            ("evaluation", "line", [0.5]),
        ]
        assert success.series[1].low == [0.3] and success.series[1].high == [0.7] and "95 %" in success.note
        assert returns.title == "Return" and returns.series[0].low is None

    def test_several_datasets_and_pass_k(self, tmp_path):
        rows = [
            {"step": 1, f"eval_{name}_environment/steps": 10, f"eval_{name}_episode/pass^{k}": 1 / k}
            for name in ("seen", "unseen_rooms")
            for k in (1, 2)
        ]
        (chart,) = learning_charts(self.read(tmp_path, rows))
        assert [series.name for series in chart.series] == [
            *("pass^1 seen", "pass^2 seen", "pass^1 unseen_rooms", "pass^2 unseen_rooms")
        ]
        assert len({series.color for series in chart.series}) == 4

    def test_roles_and_oracle(self, tmp_path):
        metrics = {"policy/format_rate": 1.0, "own_role/format_rate": 0.5, "health/backup_fidelity": 0.9}
        metrics |= {"refine/changed_rate": 0.3, "oracle/future_accuracy": 0.6}
        log = self.read(tmp_path, [training_row(1, **metrics), {"step": 1, "eval_oracle/future_accuracy": 0.7}])
        assert titles(role_charts(log)) == ["Answers in their format", "Health", "Verdicts"]
        assert [series.name for series in role_charts(log)[0].series] == ["policy", "own_role"]
        assert titles(critic_charts(log)) == ["Against the truth, training"]  # the other has no environment steps
        assert [series.name for series in critic_charts(log)[0].series] == ["future accuracy"]

    def test_shares_of_time_are_stacked(self, tmp_path):
        seconds = {"time/rollout": 6.0, "time/target": 3.0, "time/sync": 1.0, "time/train": 100.0}
        stacked, gradient_steps = time_charts(self.read(tmp_path, [training_row(1), training_row(2, **seconds)]))
        assert [(series.name, series.x, series.y) for series in stacked.series] == [
            ("rollout", [20], [0.6]),
            ("target", [20], [0.3]),
            ("sync", [20], [0.1]),
        ]
        assert [series.low for series in stacked.series] == [[0], [0.6], [pytest.approx(0.9)]]
        assert stacked.series[-1].high == [pytest.approx(1)]
        assert gradient_steps.series[0].y == [100]

    def test_failures_only_if_there_are_any(self, tmp_path):
        metrics = {"environment/failure_rate": 0.0, "environment/reset_failure_rate": 0.0}
        rows = [training_row(1, **metrics), training_row(2, **{**metrics, "environment/failure_rate": 0.5})]
        assert time_charts(self.read(tmp_path, rows[:1])) == []
        (chart,) = time_charts(self.read(tmp_path, rows))
        assert [series.name for series in chart.series] == ["failure rate"]

    def test_long_curves_are_means_of_neighbours(self, tmp_path):
        number = 5 * MAX_POINTS - 1
        log = self.read(tmp_path, [training_row(step, **{"replay/size": 2 * step}) for step in range(number)])
        (series,) = training_charts(log)[0].series
        assert len(series.x) == len(series.y) == MAX_POINTS
        assert series.x[:2] == [20, 70] and series.y[:2] == [4, 14]


class TestEpisodes:
    def show(self, run: Path, **kwargs) -> list[dict]:
        return read_episodes(run, **kwargs).shown

    @pytest.mark.parametrize(
        ("changes", "outcome"),
        [
            ({}, "success"),
            ({"success": True, "truncated": True}, "success"),
            ({"success": False}, "failure"),
            ({"success": False, "truncated": True}, "cut"),
            ({"success": False, "truncated": True, "failure": "step: it broke"}, "broken"),
        ],
    )
    def test_outcomes(self, tmp_path, changes, outcome):
        write_episodes(tmp_path, [make_row(**changes)])
        (episode,) = self.show(tmp_path)
        assert episode["outcome"] == outcome and episode.get("failure") == changes.get("failure")

    @pytest.mark.parametrize(
        ("success", "failure", "verdict", "wrong"),
        [
            (True, None, False, True),
            (False, None, True, True),
            (True, None, True, False),
            (False, None, False, False),
            (False, None, None, False),
            (False, "timeout: 60 seconds", True, False),  # that says nothing about the critic
        ],
    )
    def test_wrong_verdicts(self, tmp_path, success, failure, verdict, wrong):
        turns = [make_turn(0), make_turn(1, verdict=verdict, critique="It is so.")]
        write_episodes(tmp_path, [make_row(success=success, failure=failure, turns=turns)], kind="eval")
        (episode,) = self.show(tmp_path)
        assert episode["wrong"] == wrong and [turn["wrong"] for turn in episode["turns"]] == [False, wrong]

    def test_audited_samples_join_their_turns(self, tmp_path):
        write_episodes(tmp_path, [make_row(3, process=0), make_row(3, process=1), make_row(4)])
        write_audit(
            tmp_path, [make_sample(3, turn=1, step=8), make_sample(3, turn=1, step=8, process=1, verdict=False)]
        )
        write_audit(tmp_path, [make_sample(3, turn=1, step=12)], step=20)
        first, second, other = self.show(tmp_path)
        assert [len(turn["samples"]) for turn in first["turns"]] == [0, 2]
        assert first["audited"] and second["audited"] and not other["audited"]
        assert first["wrong"] and not second["wrong"]  # critique and target disagree, or not
        sample = first["turns"][1]["samples"][0]
        assert sample["step"] == 8 and sample["wrong"] and sample["refined_action"] == "better idea"
        assert "policy_loss" not in sample  # it was not finite
        assert first["turns"][1]["text"].startswith("Thought") and "observation" not in first["turns"][1]

    def test_audited_samples_alone(self, tmp_path):
        write_audit(tmp_path, [make_sample(5, turn=2), make_sample(5, turn=0, step=6), make_sample(6)])
        found = read_episodes(tmp_path)
        episode, other = found.shown
        assert episode["outcome"] == "unknown" and episode["step"] == 4 and episode["number"] == 5
        assert [(turn["number"], turn["observation"]) for turn in episode["turns"]] == [
            (0, "before 0"),
            (2, "before 2"),
        ]
        assert other["number"] == 6 and found.num_train == 2 and found.num_eval == 0

    def test_datasets_and_columns_of_rewards(self, tmp_path):
        columns = {"style": pa.float64(), "words": pa.list_(pa.string()), "nothing": pa.string()}
        write_episodes(tmp_path, [make_row(style=1 / 3, words=["a", "b"])], kind="eval_held_out", **columns)
        (episode,) = self.show(tmp_path)
        assert episode["split"] == "eval" and episode["dataset"] == "held_out"
        assert episode["extra"] == {"style": "0.33333", "words": "['a', 'b']"}

    def test_long_texts_are_clipped(self, tmp_path):
        text = "start" + "x" * 2 * MAX_CHARACTERS + "end"
        write_episodes(tmp_path, [make_row(turns=[make_turn(text=text)])])
        shown = self.show(tmp_path)[0]["turns"][0]["text"]
        assert shown.startswith("start") and shown.endswith("end") and len(shown) < MAX_CHARACTERS + 60
        assert f"{len(text) - MAX_CHARACTERS:,} characters left out" in shown

    def test_a_choice_of_many(self, tmp_path):
        for step in (10, 20, 30):
            write_episodes(tmp_path, [make_row(i, step) for i in range(40)], step, kind="eval")
            write_episodes(tmp_path, [make_row(10 * step + i, step) for i in range(100)], step)
        write_audit(tmp_path, [make_sample(100), make_sample(399), make_sample(7, step=25)])
        found = read_episodes(tmp_path, limit=60)
        assert found.num_eval == 120 and found.num_train == 301
        evaluations = [episode for episode in found.shown if episode["split"] == "eval"]
        training = [episode for episode in found.shown if episode["split"] == "train"]
        assert [episode["number"] for episode in evaluations] == list(range(10, 40))
        assert {episode["step"] for episode in evaluations} == {30}
        assert sorted(episode["number"] for episode in training if episode["audited"]) == [7, 100, 399]
        steps = [episode["step"] for episode in training if not episode["audited"]]
        assert [steps.count(step) for step in (10, 20, 30)] == [9, 9, 9]
        assert [episode["step"] for episode in found.shown] == sorted(episode["step"] for episode in found.shown)

    def test_evaluations_leave_the_room_that_training_needs(self, tmp_path):
        write_episodes(tmp_path, [make_row(i) for i in range(80)], kind="eval")
        write_episodes(tmp_path, [make_row(i) for i in range(5)])
        splits = [episode["split"] for episode in self.show(tmp_path, limit=60)]
        assert splits.count("eval") == 55 and splits.count("train") == 5

    def test_a_half_written_file(self, tmp_path):
        write_episodes(tmp_path, [make_row(1)], step=10)
        write_episodes(tmp_path, [make_row(2)], step=20)
        path = tmp_path / "completions/completions_00020.parquet"
        path.write_bytes(path.read_bytes()[:200])
        found = read_episodes(tmp_path)
        assert [episode["number"] for episode in found.shown] == [1] and found.unreadable == [path.name]
        assert path.name in write_report(tmp_path).read_text()


class TestCalibration:
    def test_bins(self):
        verdicts = [(-4.0, False), (-3.9, False), (-3.8, True), (0.0, True), (8.0, True), (800.0, True)]
        ((evaluation,),) = first_and_last({("", 5): verdicts})
        assert [(bin.count, bin.happened) for bin in evaluation.bins] == [(3, pytest.approx(1 / 3)), (1, 1), (2, 1)]
        assert evaluation.bins[0].foretold == pytest.approx(sum(probability(s) for s, _ in verdicts[:3]) / 3)
        assert 0 <= evaluation.bins[0].low < 1 / 3 < evaluation.bins[0].high <= 1
        scores, successes = [score for score, _ in verdicts], [float(success) for _, success in verdicts]
        expected = CriticCalibration(keep_in_memory=True).compute(scores=scores, successes=successes)
        assert evaluation.brier == expected["brier"] and evaluation.auroc == expected["auroc"]

    def test_first_and_newest(self):
        verdicts = {
            ("", 20): [(1.0, True)],
            ("", 0): [(0.0, True)],
            ("", 10): [(2.0, True)],
            ("far", 10): [(2.0, True)],
        }
        steps = [[(e.dataset, e.step) for e in evaluations] for evaluations in first_and_last(verdicts)]
        assert steps == [[("", 0), ("", 20)], [("far", 10)]]
        assert first_and_last(verdicts)[1][0].auroc is None

    def test_only_evaluations_that_were_played(self, tmp_path):
        judged = [make_turn(verdict=True, verdict_score=2.0), make_turn(1)]
        write_episodes(tmp_path, [make_row(turns=judged)], step=10)
        assert read_episodes(tmp_path).verdicts == {}
        rows = [make_row(turns=judged, success=False), make_row(1, turns=judged, failure="reset: no"), make_row(2)]
        write_episodes(tmp_path, rows, step=10, kind="eval")
        assert read_episodes(tmp_path).verdicts == {("", 10): [(2.0, False)]}
