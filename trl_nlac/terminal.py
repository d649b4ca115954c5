# SPDX-License-Identifier: Apache-2.0

"""What others wrote, on its way to a terminal."""

import logging
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm.auto import tqdm

from .secrets import hide_in_text


MAX_TRACEBACK = 20_000  # characters

MAX_SHOWN = 200  # characters
RANK = "[RANK 0] "  # of accelerate's loggers, before a message

# All control characters but newlines and tabs, and those that turn the direction of text around.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Write control characters but newlines and tabs as escapes (`\x1b`), which a terminal shows, not obeys."""
    text = text.replace("\r\n", "\n").encode(errors="backslashreplace").decode()
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def printable_traceback(error: BaseException) -> str:
    """Write the end of the traceback of an error, which can be of foreign code: printable, and without secrets."""
    text = "".join(traceback.format_exception(error))[-2 * MAX_TRACEBACK :]
    return printable(hide_in_text(text))[-MAX_TRACEBACK:]


def shown(value: Any) -> str:
    """Write any value for a message: short, printable, without secrets, and of a hostile object only its type."""
    try:
        text = hide_in_text(repr(value)[: 10 * MAX_SHOWN])  # before it is cut: half a secret cannot be recognized
        return printable(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} [...]")
    except BaseException:
        return f"a {type(value).__name__} that cannot be shown"


def say(line: str) -> None:
    """Print a line that no progress bar shares."""
    from rich.console import Console  # what is printed once in a while is loaded then, and not by what prints nothing

    with tqdm.external_write_mode():
        Console().print(line, highlight=False, markup=False, soft_wrap=True)


class _Warnings(logging.Handler):
    """Prints each warning on lines of its own, which no progress bar shares."""

    def emit(self, record: logging.LogRecord) -> None:
        from rich.console import Console
        from rich.text import Text

        message = printable(hide_in_text(record.getMessage().removeprefix(RANK)))
        with tqdm.external_write_mode(file=sys.stderr):
            text = Text.assemble("\n", ("warning: ", "bold yellow"), message)
            Console(stderr=True, soft_wrap=True).print(text)


@contextmanager
def printed_warnings() -> Iterator[None]:
    """Print the warnings of this package, where nothing else does."""
    logger = logging.getLogger(__name__.partition(".")[0])
    handlers = [] if logger.hasHandlers() else [_Warnings(logging.WARNING)]
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
