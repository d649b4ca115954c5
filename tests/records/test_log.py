# SPDX-License-Identifier: Apache-2.0

import math

from helpers.report_utils import training_row, write_log

from trl_nlac.records.log import find_evaluations, read_log


def test_a_reward_function_is_no_evaluation():
    log = {"step": 3, "eval_rewards/my_episode/mean": 0.5, "eval_new_rewards/critic/std": 0.1}
    assert find_evaluations([log]) == {}
    found = find_evaluations([{**log, "eval_new_episode/return": 0.5}])
    assert found == {"new": [{"step": 3, "episode/return": 0.5}]}


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
        assert log.seconds == 61.5 and log.unreadable == [6]

    def test_resumed_after_its_end(self, tmp_path):
        write_log(tmp_path, [training_row(1), {"step": 1, "train_runtime": 5.0, "train_loss": 0.4}, training_row(2)])
        assert read_log(tmp_path / "training_log.jsonl").seconds is None

    def test_the_time_of_all_sessions(self, tmp_path):
        rows = [training_row(1), {"step": 1, "train_runtime": 36_000.0, "train_loss": 0.4}, training_row(2)]
        write_log(tmp_path, [*rows, {"step": 2, "train_runtime": 60.0, "train_loss": 0.4}])
        assert read_log(tmp_path / "training_log.jsonl").seconds == 36_060
