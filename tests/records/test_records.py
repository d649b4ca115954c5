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
import logging
from dataclasses import replace

from helpers.records_utils import CONFIG
from helpers.testing_utils import make_episode, make_trainer


def test_a_log_has_the_kinds_of_failures_that_occurred(tmp_path):
    records = make_trainer(tmp_path, CONFIG).records
    failed = replace(make_episode(), failure="step: it broke")
    for episodes in ([make_episode(), failed], [make_episode()] * 2):
        records.add_episodes(episodes, [0, 1], 0)
    log = records.take(0)
    rates = {name: value for name, value in log.items() if name.endswith("failure_rate")}
    assert rates == {"environment/failure_rate": 0.25, "environment/step_failure_rate": 0.25}
    assert list(log)[0] == "episode/success_rate" and log["reward"] == 1.0 and log["reward_std"] == 0.0


def test_a_fall_of_success_is_reported_across_a_checkpoint(tmp_path, caplog):
    records = make_trainer(tmp_path / "first", CONFIG).records
    resumed = make_trainer(tmp_path / "second", CONFIG).records
    records.add_episodes([make_episode(score=1.0)] * 40, list(range(40)), 0)
    failed = replace(make_episode(score=1.0), failure="step: it broke")
    with caplog.at_level(logging.WARNING):
        records.add_episodes([failed] * 40, list(range(40)), 1)  # not the policy's fault
        assert "Success fell" not in caplog.text
        resumed.load_state_dict(json.loads(json.dumps(records.state_dict())))
        resumed.add_episodes([make_episode(score=0.0)] * 20, list(range(20)), 2)
    assert "Success fell from 1.00 to 0.50 of 40 training episodes" in caplog.text
