# SPDX-License-Identifier: Apache-2.0

"""What readers of logs share: the rows that could be read, and why others could not."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..episodes.logs import read_row


# Where rows have their outcome, unless an option names another place.
OUTCOMES = ("reward", "score", "outcome", "success", "passed", "resolved")
_GOOD = ("pass", "passed", "success", "successful", "succeeded", "true", "yes", "resolved", "correct")
_BAD = ("fail", "failed", "failure", "false", "no", "unresolved", "incorrect")
_MAX_REASON = 200  # characters


class UnreadableError(ValueError):
    """Why a row of a log cannot be read."""


@dataclass
class LoggedConversations:
    """Conversations of log files."""

    format: str = ""
    # conversations with the columns of [`~episodes.logs.episodes_from_logs`]
    rows: list[dict[str, Any]] = field(default_factory=list)
    # how many others there are, by the reason why they cannot be read, with N for numbers in it
    unreadable: Counter = field(default_factory=Counter)
    # what was changed or left out in those that can be read, and how often
    notes: Counter = field(default_factory=Counter)

    def add(self, row: dict[str, Any]) -> None:
        """Add a conversation, if it is one that can be trained on."""
        try:
            if row.get("reward") is None:
                raise UnreadableError("it has no outcome")
            self.rows.append(read_row(row))
        except ValueError as error:
            self.refuse(error)

    def refuse(self, reason: object) -> None:
        """Count a conversation that cannot be read."""
        text = " ".join(re.sub(r"\d+", "N", str(reason)).split())
        self.unreadable[text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + "..."] += 1


def find_outcome(row: dict[str, Any], name: str | None) -> float | None:
    """
    Find the outcome of a row: under a name, in which dots lead into structures, or under one of `OUTCOMES`, also of
    the row's `metadata`. `None` if it has none.

    Raises:
        UnreadableError: If it is no outcome, or there are several that differ.
    """
    if name is not None:
        return read_outcome(_at(row, name))
    metadata = row.get("metadata")
    places = (("", row), ("metadata.", metadata if isinstance(metadata, dict) else {}))
    given = {
        f"{before}{known}": place[known]
        for before, place in places
        for known in OUTCOMES
        if place.get(known) is not None
    }
    outcomes = {known: read_outcome(value) for known, value in given.items()}
    if len(set(outcomes.values())) > 1:
        raise UnreadableError(f"it has several outcomes that differ, {', '.join(outcomes)}: choose one with --outcome")
    return next(iter(outcomes.values()), None)


def _at(row: Any, name: str) -> Any:
    """The value of a name with dots; a key that has the dots itself comes first."""
    if not isinstance(row, dict):
        return None
    if name in row:
        return row[name]
    first, dot, rest = name.partition(".")
    return _at(row.get(first), rest) if dot else None


def read_outcome(value: Any) -> float | None:
    """
    Read an outcome: a number, a truth value, or a word such as "passed"; `None` stays.

    Raises:
        UnreadableError: If it is none of these.
    """
    if isinstance(value, str):
        word = value.strip().lower()
        if word in _GOOD or word in _BAD:
            return float(word in _GOOD)
        try:
            value = float(word)
        except ValueError:
            raise UnreadableError("its outcome is a word that means neither success nor failure") from None
    if value is None:
        return None
    if not isinstance(value, bool | int | float) or not abs(value) <= sys.float_info.max:
        raise UnreadableError("its outcome is neither a number, nor true or false")
    return float(value)


def json_values(text: str, found: LoggedConversations) -> Iterator[Any]:
    """
    Read JSON lines, one JSON value, or several after one another, as exporters of spans print them. The items of a
    list come one by one. What is no JSON is counted, and reading goes on at the next line that begins a value.
    """
    for value in _values(text, found):
        if isinstance(value, list):
            yield from value
        else:
            yield value


def _values(text: str, found: LoggedConversations) -> Iterator[Any]:
    decoder, place = json.JSONDecoder(), 0
    while True:
        while place < len(text) and text[place].isspace():
            place += 1
        if place == len(text):
            return
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            found.refuse("it is not JSON")
            # The rest of a broken value of several lines is indented.
            following = re.compile(r"^[{\[]", re.MULTILINE).search(text, text.find("\n", place) + 1 or len(text))
            place = following.start() if following else len(text)
            continue
        yield value
