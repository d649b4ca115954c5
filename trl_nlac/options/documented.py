# SPDX-License-Identifier: Apache-2.0

"""What docstrings say of options: the help of each, and its subject."""

import inspect
import re
from dataclasses import fields
from types import MappingProxyType
from typing import TypeVar


T = TypeVar("T", bound=type)

_SUBJECT = re.compile(r" {4}> Parameters that control (.+)")
_OPTION = re.compile(r" {4}(\w+) \(.+\):")
_REFERENCE = re.compile(r"\[`~?(?:\w+\.)*(\w+)`\]")


def documented(options_class: T) -> T:
    """
    Give each option that a dataclass defines the first sentence of its entry in the docstring as `help`, which parsers
    of arguments show.

    Raises:
        KeyError: If an option has no entry.
    """
    entries = {name: text for of_subject in _entries(options_class).values() for name, text in of_subject.items()}
    for option in fields(options_class):
        if option.name in vars(options_class)["__annotations__"]:
            text = _REFERENCE.sub(r"\1", entries[option.name])
            sentence = re.match(r".*?\.(?= |$)", text)[0]
            option.metadata = MappingProxyType({**option.metadata, "help": sentence.replace("%", "%%")})
    return options_class


def subjects(options_class: type) -> dict[str, list[str]]:
    """Return the names of the options that a docstring lists, by its `> Parameters that control ...` headings."""
    return {subject: list(entries) for subject, entries in _entries(options_class).items()}


def _entries(options_class: type) -> dict[str, dict[str, str]]:
    """Read the text of each option, by subject; an option before the first heading has the subject ''."""
    found: dict[str, dict[str, str]] = {}
    subject, name = "", ""
    for line in inspect.cleandoc(options_class.__doc__).splitlines():  # Python 3.13 has cleaned it already
        if heading := _SUBJECT.fullmatch(line):
            subject, name = heading[1], ""
        elif option := _OPTION.fullmatch(line):
            name = option[1]
            found.setdefault(subject, {})[name] = ""
        elif name and line.startswith(" " * 8):
            found[subject][name] = f"{found[subject][name]} {line.strip()}".strip()
        else:
            name = ""
    return found
