# SPDX-License-Identifier: Apache-2.0

"""What readers of logs share: the rows that could be read, and why others could not."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..episodes.logs import read_row
from ..gateway.parsed_json import MAX_DEPTH, is_deep


# Where rows have their outcome, unless an option names another place.
OUTCOMES = ("reward", "score", "outcome", "success", "passed", "resolved")
_GOOD = ("pass", "passed", "success", "successful", "succeeded", "true", "yes", "resolved", "correct")
_BAD = ("fail", "failed", "failure", "false", "no", "unresolved", "incorrect")
_MAX_REASON = 200  # characters
_MAX_REASONS = 20
_MAX_NAME = 50  # characters
_MAX_NAMES = 10
_OTHERS = "other reasons"
_CUT = "a list has no end, so that the file may be cut"
_BEGINNING = re.compile(r"^(?=[{\[])", re.MULTILINE)  # the rest of a value of several lines is indented
_BETWEEN = re.compile(r"[\s,\]]*")  # what stands between the items of a list that is read item by item
_SPACE = re.compile(r"\s*")


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
        text = text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + "..."
        is_new = text not in self.unreadable and len(self.unreadable) >= _MAX_REASONS
        self.unreadable[_OTHERS if is_new else text] += 1

    def shallow(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Yield what code can follow, and count what has more levels."""
        for row in rows:
            if is_deep(row):
                self.refuse(f"it has more than {MAX_DEPTH} levels of lists and objects")
            else:
                yield row


def find_outcome(row: dict[str, Any], name: str | None) -> float | None:
    """
    Find the outcome of a row: under a name, in which dots lead into structures, or under one of `OUTCOMES`, also of
    the row's `metadata`. `None` if it has none. Raise [`UnreadableError`] if it is no outcome, or there are several
    that differ.
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
    """Read a number, a truth value, or a word such as "passed"; `None` stays; else an [`UnreadableError`]."""
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


def listed(names: Iterable[str]) -> str:
    """List names that others chose: the first ones, and how many more there are."""
    first = [name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}..." for name in names]
    more = len(first) - _MAX_NAMES
    return ", ".join(first[:_MAX_NAMES]) + (f" and {more:,} more" if more > 0 else "")


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
    """From the first value that is broken on, each line that begins one is read by itself, with what is indented."""
    decoder, place = json.JSONDecoder(), 0
    try:
        while (place := _SPACE.match(text, place).end()) < len(text):
            value, place = decoder.raw_decode(text, place)
            yield value
        return
    except (ValueError, RecursionError):
        pass
    for part in _BEGINNING.split(text[place:]):
        place = 0
        if part.startswith("[") and not _is_json(part):
            found.notes[_CUT] += 1
            place = 1
        while (place := _BETWEEN.match(part, place).end()) < len(part):
            try:
                value, place = decoder.raw_decode(part, place)
            except (ValueError, RecursionError):
                found.refuse("it is not JSON")
                break
            yield value


def _is_json(text: str) -> bool:
    try:
        json.loads(text.rstrip(" \t\r\n,"))
    except (ValueError, RecursionError):
        return False
    return True
