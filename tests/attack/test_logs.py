# SPDX-License-Identifier: Apache-2.0

"""Logs that were cut, or that somebody wrote to hurt: they are read in linear time, and each row is counted once."""

import json
import random
import time

import pytest
from helpers.log_samples import ANSWER, ASKED, SAID, TEXT, chat_span, otlp, read, score

from trl_nlac.gateway import parsed_json
from trl_nlac.gateway.parsed_json import MAX_DEPTH, is_deep, parse_json
from trl_nlac.log_formats.log_summary import MAX_TOOLS, describe
from trl_nlac.log_formats.logged import LoggedConversations, json_values, listed


ROW = {"messages": [*ASKED, SAID], "reward": 1}


def values(text: str) -> tuple[list, LoggedConversations]:
    found = LoggedConversations()
    return list(json_values(text, found)), found


# Of a number of rows, a text that was cut or is hostile.
TEXTS = {
    "a list without an end": lambda number: "[\n" + "".join(f"{json.dumps(ROW)},\n" for _ in range(number)),
    "a list on its first line": lambda number: "[" + "".join(f"{json.dumps(ROW)},\n" for _ in range(number)),
    "an indented list": lambda number: json.dumps([ROW] * number, indent=2).rstrip("]"),
    "opened again and again": lambda number: "[0,\n" * number,
    "opened on one line": lambda number: "[" * number,
    "objects that are opened": lambda number: '{"a":\n' * number,
    "lines that are no JSON": lambda number: "nonsense\n" * number,
    "beginnings of rows": lambda number: '{"messages": [{"role": "us\n' * number,
    "texts that are opened": lambda number: '["\n' * number,
    "white space": lambda number: "{\n" + " " * number * 20,
    "rows behind a broken one": lambda number: '{"mess\n' + f"{json.dumps(ROW)}\n" * number,
}


@pytest.mark.parametrize("text", TEXTS)
def test_linear_time(text):
    def seconds(number: int) -> float:
        written = TEXTS[text](number)
        start = time.process_time()
        values(written)
        return time.process_time() - start

    seconds(100)
    assert seconds(40_000) < 20 * seconds(4_000) + 0.5


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("begins", ["[", "[\n"])
def test_a_row_is_counted_once(tmp_path, indent, begins):
    row = json.dumps(ROW, indent=indent)
    whole = begins + f",\n{'' if indent is None else ' '}".join([row] * 10) + "]\n"
    for length in random.Random(0).sample(range(len(whole)), 40) + [len(whole) - 3, len(whole) - 2]:
        found = read(tmp_path, whole[:length]) if length > len(row) + 3 else None
        if found is None:
            continue
        complete = whole[:length].count(row)
        assert len(found.rows) == complete
        assert found.unreadable.total() <= 1 and (found.notes or found.unreadable)
    found = read(tmp_path, whole)
    assert len(found.rows) == 10 and not found.unreadable and not found.notes
    found = read(tmp_path, "\n".join([json.dumps(ROW)] * 5 + ['{"messages": [', "no JSON"] + [json.dumps(ROW)] * 5))
    assert len(found.rows) == 10 and found.unreadable == {"it is not JSON": 1}


def nested(levels: int) -> list | str:
    value = "x"
    for _ in range(levels):
        value = [value]
    return value


def test_one_limit_of_levels(monkeypatch):
    assert not is_deep(nested(MAX_DEPTH)) and is_deep(nested(MAX_DEPTH + 1)) and is_deep(nested(50_000))
    assert len(parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)) == 1
    for levels in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(ValueError, match=f"more than {MAX_DEPTH} levels"):
            parse_json("[" * levels + "]" * levels)
    # A parser that goes deeper, as that of Python 3.13.
    monkeypatch.setattr(parsed_json.json, "loads", lambda text: nested(9000))
    with pytest.raises(ValueError, match="levels"):
        parse_json("")


def test_reasons_and_names_are_bounded(tmp_path):
    rows = [
        {"messages": [{"role": "user", "content": [{"type": "".join(map(chr, (97 + i % 26, 97 + i // 26)))}]}, SAID]}
        for i in range(400)
    ]
    found = read(tmp_path, "\n".join(json.dumps({**row, "reward": 1}) for row in rows))
    assert found.unreadable.total() == 400 and len(found.unreadable) <= 21
    for i in range(5000):
        found.refuse("a" * (i + 1))
    assert len(found.unreadable) <= 21 and found.unreadable.total() == 5400
    events = [score(1.0, "a" * 1000 + "".join(chr(97 + int(digit)) for digit in str(i))) for i in range(2000)]
    with pytest.raises(ValueError, match="and 1,990 more: choose one with --outcome") as raised:
        read(tmp_path, json.dumps(otlp(chat_span("t1", 1, [*TEXT], [ANSWER], events))))
    assert len(str(raised.value)) < 1000
    assert listed(["a", "b"]) == "a, b" and listed([]) == ""
    calls = [
        {"id": "c", "type": "function", "function": {"name": f"{i}" + "n" * 1000, "arguments": "{}"}}
        for i in range(500)
    ]
    described = describe([{"messages": [*ASKED, {"role": "assistant", "tool_calls": calls}], "reward": 1.0}], 1.0)
    assert len(described["tools"]) == MAX_TOOLS + 1 and sum(tool["calls"] for tool in described["tools"]) == 500
    assert max(len(tool["tool"]) for tool in described["tools"]) <= 100
