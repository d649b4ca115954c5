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

import json
import math

from helpers.report_utils import training_row, write_log

from trl_nlac.records.log import find_evaluations, read_log


def test_metric_names_of_earlier_versions(tmp_path):
    """An earlier version began the run and this one resumed it: each metric has one name in the log."""
    earlier = {
        "critic/format_rate": 0.1,
        "critique/format_rate": 0.2,
        "critic/optimal_rate": 0.3,
        "refine/optimal_rate": 0.4,
    }
    now = {
        "backup/format_rate": 0.5,
        "critic/format_rate": 0.6,
        "backup/optimal_rate": 0.7,
        "critic/optimal_rate": 0.8,
    }
    without_critiques = {"critic/format_rate": 0.9}  # nothing was refined
    logs = [{"step": i, "loss": 1.0, **log} for i, log in enumerate([earlier, without_critiques, now])]
    path = tmp_path / "training_log.jsonl"
    path.write_text("".join(json.dumps(log) + "\n" for log in logs))
    first, second, third = read_log(path).training
    assert {name: first[name] for name in now} == dict(zip(now, [0.1, 0.2, 0.3, 0.4], strict=True))
    assert second["backup/format_rate"] == 0.9 and "critic/format_rate" not in second
    assert {name: third[name] for name in now} == now


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
        write_log(tmp_path, [training_row(1), {"step": 1, "train_runtime": 5.0}, training_row(2)])
        assert read_log(tmp_path / "training_log.jsonl").seconds is None

    def test_the_time_of_all_sessions(self, tmp_path):
        rows = [training_row(1), {"step": 1, "train_runtime": 36_000.0}, training_row(2)]
        write_log(tmp_path, [*rows, {"step": 2, "train_runtime": 60.0}])
        assert read_log(tmp_path / "training_log.jsonl").seconds == 36_060
