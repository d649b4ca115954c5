# SPDX-License-Identifier: Apache-2.0

"""What logs hold, in numbers, and their split by task."""

import json
import random
from collections import Counter, defaultdict
from statistics import mean, median
from typing import Any

from ..chat.message_reader import first_answer
from ..chat.tool_calls import read_calls_of


MAX_TOOLS = 50  # that are told apart: a log can name any number
MAX_NAME = 100  # characters
OTHERS = "(other tools)"

Row = dict[str, Any]  # with the columns of `episodes.logs.episodes_from_logs`


def describe(rows: list[Row], success_threshold: float) -> dict[str, Any]:
    """
    Describe conversations: `conversations`, `tasks`, `cut`, `outcomes` (successes, failures, and the mean, smallest
    and largest outcome), `turns` (mean, median and largest number), and `tools`: of each its name (`tool`), the calls,
    the conversations with such calls, and how many of these succeed, most frequent first, at most `MAX_TOOLS`.
    """
    rewards = [row["reward"] for row in rows]
    turns = [num_turns(row) for row in rows]
    tools: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    called = [[name for message in row["messages"] for name, _ in read_calls_of(message)] for row in rows]
    counts = Counter(name for names in called for name in names)
    shown = {name: name[:MAX_NAME] for name, _ in counts.most_common(MAX_TOOLS)}
    for row, names in zip(rows, called, strict=True):
        names = [shown.get(name, OTHERS) for name in names]
        for name in names:
            tools[name][0] += 1
        for name in set(names):
            tools[name][1] += 1
            tools[name][2] += row["reward"] >= success_threshold
    successes = sum(reward >= success_threshold for reward in rewards)
    columns = ("calls", "conversations", "successes")
    return {
        "conversations": len(rows),
        "tasks": len({task_of(row) for row in rows}),
        "cut": sum(row.get("terminated") is False for row in rows),
        "outcomes": {"successes": successes, "failures": len(rows) - successes}
        | ({"mean": mean(rewards), "smallest": min(rewards), "largest": max(rewards)} if rows else {}),
        "turns": {"mean": mean(turns), "median": median(turns), "largest": max(turns)} if rows else {},
        "tools": [
            {"tool": name, **dict(zip(columns, counts, strict=True))}
            for name, counts in sorted(tools.items(), key=lambda item: -item[1][0])
        ],
    }


def num_turns(row: Row) -> int:
    """Number of the assistant's messages that are actions."""
    return sum(
        message["role"] == "assistant"
        for message in row["messages"][row.get("first_action") or first_answer(row["messages"]) :]
    )


def task_of(row: Row) -> str:
    """What tells the task of a conversation: its `task`, or else what stands before the assistant's first message."""
    task = row.get("task")
    task = json.loads(task) if isinstance(task, str) and task else task
    if task:
        return json.dumps(task, sort_keys=True)
    first = row.get("first_action") or first_answer(row["messages"])
    return json.dumps(row["messages"][:first], sort_keys=True)


def split_by_task(rows: list[Row], share: float, seed: int) -> tuple[list[Row], list[Row], bool]:
    """
    Hold conversations out: all conversations of some tasks, or, where there is one task only, some of its
    conversations. At most a `share` of at least two conversations is held out, unless the smallest task has more; at
    least one is, and at least one is not. Return those to train on, those held out, and whether they are of other
    tasks.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        groups[task_of(row)].append(i)
    is_by_task = len(groups) > 1
    parts = list(groups.values()) if is_by_task else [[i] for i in range(len(rows))]
    random.Random(seed).shuffle(parts)
    number = int(share * len(rows) + 0.5)
    held_out: set[int] = set()
    for part in parts[:-1]:
        if len(held_out) + len(part) <= number:
            held_out.update(part)
    if not held_out:
        held_out.update(min(parts, key=len))
    return (
        [row for i, row in enumerate(rows) if i not in held_out],
        [row for i, row in enumerate(rows) if i in held_out],
        is_by_task,
    )
