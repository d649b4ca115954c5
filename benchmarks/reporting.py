# SPDX-License-Identifier: Apache-2.0

"""What all benchmarks record: where they ran, and their results."""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


ROOT = Path(__file__).parents[1]


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser for a script with this docstring, with `--json`."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, help="where to write the figures")
    return made


def alone(script: str, *words: Any, launcher: Sequence[str] = (), **variables: str) -> dict[str, Any]:
    """Run a module of `benchmarks` in a process of its own, and return what it prints last, as JSON."""
    command = [sys.executable, *launcher, "-m", script, *map(str, words)]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1])


def resident_bytes(name: str = "VmRSS") -> int:
    """Return the memory of this process; its peak is `"VmHWM"`. Needs Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def setting(*packages: str, **machine) -> dict[str, Any]:
    """Return the commit of this checkout, the machine, Python and the versions of packages that are installed."""
    return {
        "commit": commit(),
        "machine": {"cpu_count": os.cpu_count(), "platform": platform.platform(), **machine},
        "versions": {package: _version(package) for package in packages},
        "python": platform.python_version(),
    }


def commit(folder: Path = Path(__file__).parent) -> str | None:
    """
    Return the commit of a checkout, with a `+` if files were changed since; `None` where there is none, or no git.
    """
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout.strip() or None
    except FileNotFoundError:
        return None


def write(report: dict[str, Any], path: Path | None) -> None:
    """Write a report as JSON, if there is a path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=2) + "\n")


def run_logged(command: Sequence[str], log: Path, **kwargs) -> bool:
    """Run a command with its output in a file, and return whether it succeeded."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as file:
        return subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, **kwargs).returncode == 0


def table(names: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Format rows as a Markdown table with the names of its columns."""
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def interval(summary: dict[str, Any]) -> str:
    """Format the mean of [`~learning.figures.curves.over_seeds`], with its interval cut at 0 and 1."""
    if summary["low"] is None:
        return f"{summary['mean']:.2f}"
    return f"{summary['mean']:.2f} ({max(0, summary['low']):.2f} to {min(1, summary['high']):.2f})"


def insert(text: str, path: Path, script: str) -> None:
    """Put `text` between the markers for the results of a script (a path below `benchmarks/`) in a Markdown file."""
    start, end = f"<!-- results of benchmarks/{script} -->", "<!-- end of results -->"
    before, found, rest = path.read_text().partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{path} has no lines {start} and {end} to put results between.")
    path.write_text(f"{before}{start}\n{text}\n{end}{after}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
