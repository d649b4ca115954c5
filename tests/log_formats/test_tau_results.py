# SPDX-License-Identifier: Apache-2.0

import pytest
from helpers.log_samples import read, run, simulation


def test_runs(tmp_path):
    failed = run(2, 0.0, info={"error": "RateLimitError", "traceback": "..."}, traj=[])
    found = read(
        tmp_path, [run(0, 1.0), run(1, 0.0), failed, {"task_id": 3, "traj": None, "reward": 1.0}, "text"], indent=2
    )
    assert found.format == "results of τ-bench"
    assert [(row["reward"], row["task"]) for row in found.rows] == [(1.0, {"task_index": 0}), (0.0, {"task_index": 1})]
    assert [message["role"] for message in found.rows[0]["messages"]] == [
        *("system", "user", "assistant", "tool", "assistant", "user")
    ]
    assert found.unreadable == {
        "an error ended the run, so its reward of N is none": 1,
        "there is no list of messages with a `role` each": 1,
        "it is no run of τ-bench": 1,
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
    found = read(tmp_path, results, indent=2)
    assert found.format == "results of τ²-bench"
    assert [(row["reward"], row["terminated"]) for row in found.rows] == [(1.0, True), (0.0, False)]
    roles = ["system", "assistant", "user", "assistant", "tool", "assistant", "user"]
    assert [message["role"] for message in found.rows[0]["messages"]] == roles
    assert found.rows[0]["messages"][4]["tool_call_id"] == "c1"
    assert found.rows[0]["messages"][-1]["content"] == "Done, thanks. ###STOP###"
    assert found.unreadable.total() == 3 and found.unreadable["it has no outcome"] == 1


@pytest.mark.parametrize(
    "results", [[run(0, 1.0, judged=0.25)], {"simulations": [{**simulation(1.0), "judged": 0.25}]}], ids=["τ", "τ²"]
)
def test_another_outcome(tmp_path, results):
    assert [row["reward"] for row in read(tmp_path, results, outcome="judged", indent=2).rows] == [0.25]
