# SPDX-License-Identifier: Apache-2.0

from pathlib import Path

import pytest
from helpers.report_utils import training_row, write_log

from trl_nlac.records.log import TrainingLog, read_log
from trl_nlac.report.charts import (
    MAX_POINTS,
    axis_of,
    comparison_charts,
    critic_charts,
    learning_charts,
    role_charts,
    time_charts,
    training_charts,
)


def titles(charts: list) -> list[str]:
    return [chart.title for chart in charts]


class TestCharts:
    def read(self, tmp_path: Path, rows: list[dict]) -> TrainingLog:
        write_log(tmp_path, rows)
        return read_log(tmp_path / "training_log.jsonl")

    def test_only_charts_with_data(self, tmp_path):
        log = self.read(tmp_path, [training_row(step, **{"critic/loss": 0.5}) for step in range(1, 4)])
        (chart,) = training_charts(log)
        assert chart.title == "Losses" and [series.name for series in chart.series] == ["critic"]
        assert chart.series[0].x == [10, 20, 30] and chart.series[0].y == [0.5] * 3
        assert not [*learning_charts(log), *role_charts(log), *critic_charts(log), *time_charts(log)]

    def test_a_run_on_logs_alone_is_over_optimizer_steps(self, tmp_path):
        metrics = {"critic/loss": 0.5, "time/target": 1.0, "health/backup_fidelity": 0.9}
        rows = [training_row(step, **{**metrics, "environment/steps": 0}) for step in (2, 4)]
        rows.append({"step": 4, "eval_environment/steps": 0, "eval_episode/success_rate": 0.5})
        log = self.read(tmp_path, rows)
        assert axis_of(log) == "optimizer steps"
        for chart in [*training_charts(log), *time_charts(log), *role_charts(log)]:
            assert [series.x for series in chart.series] == [[2, 4]], chart.title  # and the number is no rate
        assert learning_charts(log)[0].series[0].x == [4]
        played = self.read(tmp_path, [training_row(step, **{"critic/loss": 0.5}) for step in (2, 4)])
        assert axis_of(played) == "environment steps" and axis_of(played, log) == "optimizer steps"
        losses = next(c for c in comparison_charts({"one": played, "two": log}) if c.title == "Critic loss")
        assert [series.x for series in losses.series] == [[2, 4], [2, 4]]
        losses = next(c for c in comparison_charts({"one": played, "two": played}) if c.title == "Critic loss")
        assert losses.series[0].x == [20, 40]

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
        assert titles(role_charts(log)) == ["Answers in the right format", "Health", "Verdicts"]
        assert [series.name for series in role_charts(log)[0].series] == ["policy", "own_role"]
        # The evaluation has no environment steps.
        assert titles(critic_charts(log)) == ["Compared with the oracle, training"]
        assert [series.name for series in critic_charts(log)[0].series] == ["future right"]

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

    def test_tokens_of_each_role(self, tmp_path):
        rows = [
            training_row(step, **{"tokens/generated": 9 * step, "tokens/trained": 70, "tokens/prefilled/act": 8})
            | {"tokens/generated/act": 2 * step, "tokens/generated/critic": 7 * step}
            for step in (1, 2)
        ]
        (chart,) = time_charts(self.read(tmp_path, rows))
        assert [(series.name, series.color, series.y) for series in chart.series] == [
            ("acting", "grey", [2, 4]),
            ("critic", "blue", [7, 14]),
        ]

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
