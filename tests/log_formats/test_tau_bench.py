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

from trl_nlac.log_formats.reading import read_logs


def read(folder, value):
    (folder / "results.json").write_text(json.dumps(value, indent=2))
    return read_logs([folder / "results.json"], lambda path: None)


def run(task_id: int, reward: float, **others) -> dict:
    """One run, as `run.py` of τ-bench writes it."""
    call = {
        "function": {"arguments": '{"order_id": "#W1"}', "name": "get_order_details"},
        "id": "call_a",
        "type": "function",
    }
    return {
        "task_id": task_id,
        "reward": reward,
        "info": {"task": {"user_id": "mei_1", "actions": [], "instruction": "You want ..."}, "user_cost": 0.01},
        "traj": [
            {"role": "system", "content": "# Retail agent policy"},
            {"role": "user", "content": "I want to return my order."},
            {"content": None, "role": "assistant", "tool_calls": [call], "function_call": None},
            {"role": "tool", "tool_call_id": "call_a", "name": "get_order_details", "content": '{"status": "sent"}'},
            {"content": "It is on its way back.", "role": "assistant", "tool_calls": None, "function_call": None},
            {"role": "user", "content": "###STOP###"},
        ],
        "trial": 0,
        **others,
    }  # fmt: skip


def test_runs(tmp_path):
    failed = run(2, 0.0, info={"error": "RateLimitError", "traceback": "..."}, traj=[])
    found = read(tmp_path, [run(0, 1.0), run(1, 0.0), failed, {"task_id": 3, "traj": None, "reward": 1.0}, "text"])
    assert found.format == "results of τ-bench"
    assert [(row["reward"], row["task"]) for row in found.rows] == [(1.0, {"task_index": 0}), (0.0, {"task_index": 1})]
    assert [message["role"] for message in found.rows[0]["messages"]] == [
        *("system", "user", "assistant", "tool", "assistant", "user")
    ]
    assert found.unreadable == {
        "an error ended the run, so its reward of N is none": 1,
        "its messages are no list of messages": 1,
        "it is no run of τ-bench": 1,
    }


def simulation(reward, reason: str = "user_stop", messages: list | None = None) -> dict:
    said = {"role": "assistant", "turn_idx": 2, "timestamp": "2026-01-01T00:00:00", "cost": 0.0, "is_audio": False}
    call = {"id": "c1", "name": "get_customer", "arguments": {"phone": "555"}, "requestor": "assistant"}
    own = {"id": "c2", "name": "toggle_data", "arguments": {}, "requestor": "user"}
    return {
        "id": "s1",
        "task_id": "[mobile_data_issue]",
        "termination_reason": reason,
        "reward_info": None if reward is None else {"reward": reward, "reward_breakdown": {"DB": reward}},
        "messages": messages
        or [
            {**said, "content": "Hi! How can I help you today?", "tool_calls": None},
            {"role": "user", "content": "My data is slow.", "tool_calls": None},
            {**said, "content": None, "tool_calls": [call]},
            {"id": "c1", "role": "tool", "content": '{"plan": "A"}', "requestor": "assistant", "error": False},
            {**said, "content": "Please toggle your data.", "tool_calls": None},
            {"role": "user", "content": None, "tool_calls": [own]},
            {"id": "c2", "role": "tool", "content": "Data is on.", "requestor": "user", "error": False},
            {"role": "user", "content": "Done, thanks. ###STOP###", "tool_calls": None},
        ],
        "trial": 0,
    }


def test_simulations_of_the_second_version(tmp_path):
    """The agent sees neither the calls of the user's own tools nor their results."""
    results = {
        "timestamp": "2026-01-01",
        "info": {"environment_info": {"domain_name": "telecom", "policy": "# Telecom policy"}},
        "tasks": [],
        "simulations": [
            *(
                simulation(1.0),
                simulation(0.0, "max_steps"),
                simulation(None),
                simulation(0.0, "infrastructure_error"),
            ),
            {"id": "s2", "messages": None},
        ],
    }
    found = read(tmp_path, results)
    assert found.format == "results of τ²-bench"
    assert [(row["reward"], row["terminated"]) for row in found.rows] == [(1.0, True), (0.0, False)]
    roles = ["system", "user", "assistant", "tool", "assistant", "user"]
    assert [message["role"] for message in found.rows[0]["messages"]] == roles
    assert found.rows[0]["messages"][3]["tool_call_id"] == "c1"
    assert found.rows[0]["messages"][-1]["content"] == "Done, thanks. ###STOP###"
    assert found.unreadable.total() == 3 and found.unreadable["it has no outcome"] == 1
