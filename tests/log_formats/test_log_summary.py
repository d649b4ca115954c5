# SPDX-License-Identifier: Apache-2.0

import pytest

from trl_nlac.log_formats.log_summary import describe, split_by_task
from trl_nlac.secrets import hide_secrets


def row(task: str, reward: float, num_turns: int = 2, tool: str | None = None, **others) -> dict:
    messages = [{"role": "user", "content": f"Task {task}."}]
    for _ in range(num_turns):
        calls = {"tool_calls": [{"function": {"name": tool, "arguments": "{}"}}]} if tool else {}
        messages += [{"role": "assistant", "content": "Done.", **calls}]
        messages += [{"role": "tool" if tool else "user", "content": "Seen."}]
    return {"messages": messages, "reward": reward, **others}


def test_description():
    rows = [row("a", 1.0, 2, "find"), row("a", 0.5, 4, "find"), row("b", 0.0, 6, "buy", terminated=False)]
    assert describe(rows, 1.0) == {
        "conversations": 3,
        "tasks": 2,
        "cut": 1,
        "outcomes": {"successes": 1, "failures": 2, "mean": 0.5, "smallest": 0.0, "largest": 1.0},
        "turns": {"mean": 4, "median": 4, "largest": 6},
        "tools": [
            {"tool": "find", "calls": 6, "conversations": 2, "successes": 1},
            {"tool": "buy", "calls": 6, "conversations": 1, "successes": 0},
        ],
    }
    assert describe([], 1.0)["conversations"] == 0


@pytest.mark.parametrize("named", [True, False])
def test_no_task_is_on_both_sides(named):
    rows = [row(str(i % 10), float(i % 3 == 0)) for i in range(40)]
    if named:
        rows = [{**row, "task": {"number": i % 10}, "messages": rows[0]["messages"]} for i, row in enumerate(rows)]
    training, held_out, is_by_task = split_by_task(rows, 0.2, seed=0)
    assert is_by_task and len(training) == 32 and len(held_out) == 8
    of = [{str(row.get("task") or row["messages"][0]) for row in part} for part in (training, held_out)]
    assert not of[0] & of[1] and len(of[1]) == 2
    assert split_by_task(rows, 0.2, seed=1)[1] != held_out


@pytest.mark.parametrize("sizes", [[99, 1], [60, 40], [50, *[5] * 10], [200, *[2] * 20], [7, 9]])
def test_a_large_task_takes_no_more_than_the_share(sizes):
    """Unless the smallest has more."""
    rows = [row(str(i), 1.0) for i, size in enumerate(sizes) for _ in range(size)]
    for seed in range(20):
        training, held_out, is_by_task = split_by_task(rows, 0.2, seed)
        assert is_by_task and len(training) + len(held_out) == len(rows)
        assert min(sizes) <= len(held_out) <= max(round(0.2 * len(rows)), min(sizes))


def test_one_task(tmp_path):
    rows = [row("a", float(i)) for i in range(10)]
    training, held_out, is_by_task = split_by_task(rows, 0.3, seed=0)
    assert not is_by_task and (len(training), len(held_out)) == (7, 3)


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_neither_side_is_empty(share):
    training, held_out, _ = split_by_task([row("a", 1.0), row("b", 0.0)], share, seed=0)
    assert len(training) == len(held_out) == 1


def test_names_of_tools_hide_no_counts(tmp_path):
    """`reset_password` is no secret, and its calls are none."""
    logs = describe([row("a", 1.0, 2, "reset_password")], 1.0)
    assert hide_secrets(logs)["tools"] == [{"tool": "reset_password", "calls": 2, "conversations": 1, "successes": 1}]
