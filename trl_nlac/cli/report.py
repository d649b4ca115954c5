# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac report`: a page about a run, or one that compares runs."""

import time
from pathlib import Path

from ..records.folder import TRAINING_LOG
from ..records.log import read_log
from ..report import write_comparison, write_report
from .errors import CommandError, one_line_errors
from .parsers import report_parser


SECONDS = 10  # between two looks at a run that goes on


def run(words: list[str]) -> None:
    args = report_parser().parse_args(words)
    logs = [Path(folder, TRAINING_LOG) for folder in args.runs]
    path = None
    while True:
        seen = [_version(log) for log in logs]
        is_over = not args.follow or all(read_log(log).seconds is not None for log in logs)
        if path is None and args.follow and not all(seen):
            if missing := [folder for folder in args.runs if not Path(folder).is_dir()]:
                raise CommandError(f"{missing[0]!r}: there is no such folder.")
            print("Waiting for the first log of the run.", flush=True)
            while not all(map(_version, logs)):
                time.sleep(1)
            continue
        refresh = None if is_over else SECONDS
        with one_line_errors():
            if len(args.runs) == 1:
                written = write_report(args.runs[0], args.output, refresh)
            else:
                written = write_comparison(args.runs, *([args.output] if args.output else []), refresh=refresh)
        if path is None:
            print(f"Open {written}" + ("" if is_over else ": it follows the run. Ctrl-C ends this."), flush=True)
        path = written
        if is_over:
            return
        while [_version(log) for log in logs] == seen:
            time.sleep(1)


def _version(log: Path) -> tuple[int, int] | None:
    """Size and time of a log; `None` if there is none."""
    if not log.is_file():
        return None
    found = log.stat()
    return found.st_size, found.st_mtime_ns
