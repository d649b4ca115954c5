# SPDX-License-Identifier: Apache-2.0

"""
The first hour of a user: every command that README and quickstart print, as printed, from a clone and from a wheel,
each in a fresh virtual environment. Prints a table with times, and fails where a command does.

make user-hours
make user-hours ARGS='--skip "make test" --ways clone'

Python, and the commands that need a reader's files or a model of the Hub, are run by `tests/test_docs.py` in the same
virtual environment, with small stand-ins. The rest of the shell's commands are run here.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from test_docs import BY_NAME, ROOT, Block, blocks


PAGES = ("README", "quickstart")
OF_DEMO = "the folder is that of the demo"  # why a block is not run by the tests; here there is a demo
ACTIVATE = "source .venv/bin/activate"
OURS = {"PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES"}  # variables that a user does not have
IN_CLONE = ("make ", ACTIVATE, 'pip install -e "')


class Row(NamedTuple):
    way: str
    page: str
    command: str
    outcome: str
    seconds: float = 0.0


def shell_commands(block: Block) -> list[str]:
    if block.language != "bash":
        return []
    commands = [line for line in block.text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    if "not run" in block.comment:
        return commands
    return [command for command in commands if not command.startswith("trl-nlac ")]  # they are of the tests


class Hour:
    def __init__(self, way: str, folder: Path, skipped: list[str], minutes: float):
        self.way, self.folder, self.skipped, self.minutes = way, folder, skipped, minutes
        self.rows: list[Row] = []

    def run(self, page: str, command: str, shown: str = "") -> bool:
        start = time.monotonic()
        has_venv = (self.folder / ".venv" / "bin" / "activate").exists()
        script = f"set -e\n{ACTIVATE if has_venv else ''}\n{command}"
        log = self.folder / f"hour_{len(self.rows)}.log"
        try:
            with log.open("w") as output:
                done = subprocess.run(
                    ["bash", "-c", script],
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=60 * self.minutes,
                    env={name: value for name, value in os.environ.items() if name not in OURS},
                )
            outcome = "ok" if done.returncode == 0 else f"failed ({done.returncode})"
        except subprocess.TimeoutExpired:
            outcome = f"failed (over {self.minutes:g} minutes)"
        row = Row(self.way, page, shown or command, outcome, time.monotonic() - start)
        self.rows.append(row)
        print(f"{row.seconds:7.0f} s  {outcome:9}  {row.way}, {page}: {row.command}", flush=True)
        if outcome != "ok":
            print(log.read_text(errors="replace")[-4000:], flush=True)
        return outcome == "ok"

    def read(self, page: str) -> None:
        shutil.rmtree(self.folder / "runs", ignore_errors=True)  # the demo does not overwrite a run
        for block in blocks(BY_NAME[page]):
            marked = "not run" in block.comment
            for command in shell_commands(block):
                bare = command.partition("#")[0].strip()
                of_clone = self.way != "clone" and (command.startswith(IN_CLONE) or OF_DEMO in block.comment)
                if of_clone or bare in self.skipped or marked and OF_DEMO not in block.comment:
                    reason = "of a clone" if of_clone else "as asked" if bare in self.skipped else "not run"
                    self.rows.append(Row(self.way, page, bare, f"skipped: {reason}"))
                else:
                    self.run(page, command, bare)
        test = f"tests/test_docs.py::test_python_and_commands_run_as_they_are_printed[{page}]"
        offline = "pip install --quiet pytest\nHF_HUB_OFFLINE=1 OMP_NUM_THREADS=1"
        tested = [
            b for b in blocks(BY_NAME[page]) if b.language in ("python", "yaml") or "\ntrl-nlac" in f"\n{b.text}"
        ]
        number = sum("not run" not in block.comment for block in tested)
        self.run(page, f"{offline} python -m pytest -q '{test}'", f"{number} blocks of Python, files and trl-nlac")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=("clone", "wheel"), default=("clone", "wheel"))
    parser.add_argument("--skip", nargs="+", default=[], help="commands to leave out, which the table says")
    parser.add_argument("--minutes", type=float, default=60, help="the longest that a command may take")
    args = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="user_hours_") as name:
        for way in args.ways:
            hour = Hour(way, Path(name) / way, args.skip, args.minutes)
            subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, hour.folder], check=True)
            if way == "wheel":  # the package is not beside the tests, which must find the installed one
                install = 'pip install "$(ls dist/*.whl)[peft,report]"'
                build = (
                    "make .venv/.torch && .venv/bin/pip wheel --no-deps --wheel-dir dist . && rm -rf trl_nlac build"
                )
                hour.run("install", f"{build}\n{ACTIVATE}\n{install}", install)
                hour.run("quickstart", "trl-nlac train --config cpu && trl-nlac report runs/cpu")
            for page in PAGES:
                hour.read(page)
            rows += hour.rows
    width = max(len(row.command) for row in rows)
    for row in rows:
        print(f"{row.way:5}  {row.page:10}  {row.command:{width}}  {row.seconds:6.0f} s  {row.outcome}")
    failed = [row for row in rows if row.outcome.startswith("failed")]
    skipped = sum(row.outcome.startswith("skipped") for row in rows)
    seconds = sum(row.seconds for row in rows)
    print(f"{len(rows) - skipped} commands, {skipped} skipped, {len(failed)} failed, {seconds / 60:.0f} minutes")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
