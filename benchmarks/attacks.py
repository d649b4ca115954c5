# SPDX-License-Identifier: Apache-2.0

"""
The table of what was attacked and what happened, from the results of the benchmarks that attack, for SECURITY.md.

python -m benchmarks.attacks --page SECURITY.md
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks import reporting


RESULTS = Path(__file__).parent / "results"


def read_reports() -> dict[str, dict[str, Any]]:
    """Read the results that there are, by the name of the benchmark."""
    paths = {name: RESULTS / f"{name}.json" for name in ROWS}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def table(reports: dict[str, dict[str, Any]]) -> str:
    """
    Write the table.

    Args:
        reports (`dict[str, dict[str, Any]]`):
            Results by the name of the benchmark.
    """
    rows = [row for name, report in reports.items() for row in ROWS[name](report)]
    lines = ["| attack | what happened | otherwise | results |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _of_fuzz(report: dict[str, Any]) -> list[list[str]]:
    rows = []
    for kind, what in (("option", "options of `NLACConfig`"), ("argument", "arguments of `NLACTrainer`")):
        part = report[kind]
        found = part["outcomes"]
        others = part["trials"] - found["refused"] - found["trained"]
        happened = f"{found['refused']:,} refused by name before training, {found['trained']:,} trained"
        attack = f"{part['trials']:,} odd values for {part['names']} {what}"
        rows.append([attack, happened, f"{others:,}", "`fuzz.json`"])
    return rows


def _of_kills(report: dict[str, Any]) -> list[list[str]]:
    kills, damages = report["kills"], report["damages"]
    equal = kills["runs"] - kills["different_runs"]
    happened = f"resumed until they ended, {equal} of {kills['runs']} runs equal an undisturbed one, records included"
    attack = f"{kills['kills']} kills with SIGKILL, {kills['while_saving']} of them during a save"
    rows = [[attack, happened, f"{kills['different_runs']}", "`kills.json`"]]
    for kind, counts in damages.items():
        refused = counts.get("refused, the file and the checkpoint before are named", 0)
        same = counts.get("resumed, the same bit for bit", 0)
        happened = f"{refused} refused with the name of the file" + (f", {same} resumed, the same" if same else "")
        others = sum(counts.values()) - refused - same
        rows.append([f"{sum(counts.values())} files of a checkpoint: {kind}", happened, f"{others}", "`kills.json`"])
    return rows


def _of_chaos(report: dict[str, Any]) -> list[list[str]]:
    half, *_, last = [of for of in report["resources"] if 2 * of["episodes"] >= report["episodes"]]
    end = report["at_the_end"]
    fine = report["episodes"] - len({problem["number"] for problem in report["problems"]})
    happened = (
        f"{fine:,} accounted for, with no turn or reward that was not given; from the half to the end memory "
        f"{half['memory_mb']:.0f} to {last['memory_mb']:.0f} MB, threads {half['threads']} to {last['threads']}, then "
        f"{end['threads']}, files {half['files']} to {last['files']}"
    )
    attack = f"{report['episodes']:,} episodes with {report['faults']} kinds of faults"
    return [[attack, happened, f"{len(report['problems'])}", "`chaos.json`"]]


def _of_round_trips(report: dict[str, Any]) -> list[list[str]]:
    read, refused = report["outcomes"]["read"], report["outcomes"].get("refused", 0)
    equal = min(report["came_back_equal"].values())
    happened = f"{equal:,} of {read:,} equal on {len(report['came_back_equal'])} ways, {refused:,} refused by reason"
    attack = f"{report['conversations']:,} random conversations with tools, through every file and product"
    return [[attack, happened, f"{report['num_problems']:,}", "`round_trips.json`"]]


ROWS = {"fuzz": _of_fuzz, "kills": _of_kills, "chaos": _of_chaos, "round_trips": _of_round_trips}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="file into which the table is put")
    args = parser.parse_args()
    text = table(read_reports())
    print(text)
    if args.page is not None:
        reporting.insert(text, args.page, "attacks.py")


if __name__ == "__main__":
    main()
