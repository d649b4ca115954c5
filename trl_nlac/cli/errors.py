# SPDX-License-Identifier: Apache-2.0

"""Errors of one line."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb

import yaml


_PACKAGE = f"{__name__.partition('.')[0]}."
_OPTION = re.compile(r"`(\w+)(?:=('[^'`]*'|[\w.+-]+))?`")  # as messages of the package write options and their values


class CommandError(Exception):
    """An error of the user, printed in one line without a traceback."""


def in_flags(message: str, flags: dict[str, str]) -> str:
    """Write options of a message as on the command line: `max_turns=3` as `--max_turns 3`, with its `flags` before."""

    def flag(match: re.Match) -> str:
        if match[1] not in flags:
            return match[0]
        return (flags[match[1]] + shlex.quote(match[2].strip("'")) if match[2] else flags[match[1]]).rstrip(" =")

    return _OPTION.sub(flag, message)


@contextmanager
def one_line_errors(before: str = "") -> Iterator[None]:
    """Turn errors of bad input into a [`CommandError`], whose message can begin with its subject."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError, yaml.YAMLError) as error:
        raise CommandError(before + " ".join(str(error).split())) from error


@contextmanager
def one_line_errors_of_files(name: str) -> Iterator[None]:
    """Turn whatever libraries raise that read the files of a model or a dataset into a named [`CommandError`]."""
    try:
        with one_line_errors(f"{name}: "):
            yield
    except CommandError:
        raise
    except Exception as error:
        first, *_ = str(error).split(". ")
        raise CommandError(f"{name}: {type(error).__name__}: {' '.join(first.split())}") from error


@contextmanager
def known_errors() -> Iterator[None]:
    """
    Turn errors that are no defects into a [`CommandError`]: what this package raises itself, with the options to
    change, what the system refuses, such as a full disk, and a lack of memory.
    """
    try:
        yield
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        first, *others = str(error).splitlines() or [""]
        if type(error).__name__ == "OutOfMemoryError":  # torch's; its module would take seconds to import
            raise CommandError(
                f"{first.partition('. ')[0]}. Lower --per_device_train_batch_size, --max_generation_batch_size, "
                "--max_prompt_length or --max_completion_length."
            ) from error
        *_, (frame, _) = walk_tb(error.__traceback__)  # where it was raised
        if not isinstance(error, OSError) and not frame.f_globals["__name__"].startswith(_PACKAGE):
            raise
        raise CommandError(" ".join([first, *others[-1:]])) from error  # between them is a traceback
