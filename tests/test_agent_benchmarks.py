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

from dataclasses import replace

import agent as agent_benchmark
import offline as offline_benchmark
import pytest
from learning_tasks import make_task
from testing_utils import DESK, TASKS

from trl_nlac import NLACAgent
from trl_nlac.environments.embedded import TINY_MODEL, make_environment
from trl_nlac.environments.pool import EnvironmentPool


def test_ways_of_acting():
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="text", max_turns=2)
    agent.args.num_eval_episodes, agent.args.num_eval_critiques, agent.args.num_oracle_probes = 4, 0, 0
    pool = EnvironmentPool(lambda: make_environment(DESK))
    cells = {
        way: agent_benchmark.measure(agent, pool, list(TASKS), improvement)
        for way, improvement in agent_benchmark.IMPROVEMENTS.items()
    }
    assert all(len(cell["successes"]) == 16 for cell in cells.values())
    assert cells["refine 1"]["tokens_per_decision"] > 3 * cells["alone"]["tokens_per_decision"]
    summary = agent_benchmark.summarize([cells["alone"], cells["alone"]])
    assert summary["num_episodes"] == 32 and summary["success_rate_high"] < 0.3
    assert summary["tokens_per_decision"] == pytest.approx(cells["alone"]["tokens_per_decision"], abs=1e-3)


def test_learning_from_logs(monkeypatch):
    """All methods run on the same logs; where nothing was won there is nothing to imitate."""
    task = replace(make_task("service_desk_told", 0), final_episodes=1)
    monkeypatch.setattr(offline_benchmark, "make_task", lambda name, seed: task)
    cell = offline_benchmark.run_seed("service_desk_told", 0, num_episodes=16, max_steps=1)
    assert cell["num_episodes"] == 16 and 16 <= cell["num_transitions"] <= 32
    assert ("remark" in cell["sft_successes"]) == (cell["num_successes"] == 0)
    assert all(0 <= cell[method]["success"] < 0.2 for method in ("base", "nlac", "sft_all", "sft_successes"))
