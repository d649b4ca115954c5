# SPDX-License-Identifier: Apache-2.0

"""What a run was told and what it warned of, as the page shows it."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..records.folder import SETTINGS, WARNINGS
from ..terminal import printable
from .episodes import clipped


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """The options of a run, as text."""

    model: str | None = None
    chosen: dict[str, str] = field(default_factory=dict)  # options that are not at their defaults
    others: dict[str, str] = field(default_factory=dict)


@dataclass
class Times:
    """How often a warning was given, or an environment failed, and the steps of the first and the last time."""

    count: int
    first: int
    last: int


def read_settings(run: Path) -> Settings:
    """Read the options of a run; they are empty if it did not write them, or if they cannot be read."""
    if not (run / SETTINGS).is_file():
        return Settings()
    try:
        found = json.loads((run / SETTINGS).read_text(encoding="utf-8"))
        chosen, others = (
            {str(k): clipped(v if isinstance(v, str) else json.dumps(v)) for k, v in found[part].items()}
            for part in ("chosen", "others")
        )
        return Settings(str(found["model"]), chosen, others)
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError) as error:
        logger.warning("%s", printable(f"{run / SETTINGS} cannot be read: {error}"))
    return Settings()


def read_warnings(run: Path) -> dict[str, Times]:
    """Read the warnings of a run, in the order of their first time. Lines that cannot be read are left out."""
    found: dict[str, Times] = {}
    for step, message in _warnings(run / WARNINGS):
        warned = found.setdefault(clipped(message), Times(0, step, step))
        warned.count += 1
        warned.last = step
    return found


def _warnings(path: Path) -> Iterator[tuple[int, str]]:
    for line in path.read_bytes().split(b"\n") if path.is_file() else []:
        try:
            row = json.loads(line)
            yield int(row["step"]), str(row["message"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            continue
