# SPDX-License-Identifier: Apache-2.0

"""
What is attacked, and what happens: odd values for every option (fuzz), runs that are killed and checkpoints that are
damaged (kills), and environments with every kind of fault (chaos).

    python -m benchmarks.attacks fuzz kills chaos --page docs/SECURITY.md

Results are kept in benchmarks/results/. The table is made from them, also without running anything.
"""

import argparse
import json
import logging
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import reporting


RESULTS = Path(__file__).parent / "results"


def read_reports() -> dict[str, dict[str, Any]]:
    """Read the results by the name of the attack."""
    return {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in ROWS}


def table(reports: dict[str, dict[str, Any]]) -> str:
    """Write the table of results by the name of the attack."""
    rows = [row for name, report in reports.items() for row in ROWS[name](report)]
    return reporting.table(["attack", "what happened", "otherwise", "results"], rows)


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
    of_kinds, damages = report["kills"], report["damages"]
    names = ("kills", "SIGKILL", "SIGTERM", "while_saving", "runs", "different_runs")
    kills = {name: sum(kind.get(name, 0) for kind in of_kinds.values()) for name in names}
    equal = kills["runs"] - kills["different_runs"]
    happened = f"resumed until they ended, {equal} of {kills['runs']} runs equal an undisturbed one, records included"
    attack = (
        f"{kills['kills']} kills, {kills['SIGKILL']} with SIGKILL and {kills['SIGTERM']} with SIGTERM, "
        f"{kills['while_saving']} during a save, of {len(of_kinds)} kinds of runs: {', '.join(of_kinds)}"
    )
    rows = [[attack, happened, f"{kills['different_runs']}", "`kills.json`"]]
    counts = sum(map(Counter, damages.values()), Counter())
    refused = counts["refused, the file and the checkpoint before are named"]
    same = counts["resumed, the same bit for bit"]
    happened = f"{refused} refused with the name of the file, {same} resumed, the same"
    attack = f"{counts.total()} files of a checkpoint: {', '.join(damages)}"
    return [*rows, [attack, happened, f"{counts.total() - refused - same}", "`kills.json`"]]


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


ROWS = {"fuzz": _of_fuzz, "kills": _of_kills, "chaos": _of_chaos}


def run(name: str) -> dict[str, Any]:
    """Run one attack, and return its report."""
    start = time.perf_counter()
    report = import_module(f"benchmarks.{name}").attack()
    seconds = round(time.perf_counter() - start, 1)
    return {"seconds": seconds, **report, **reporting.setting("torch", "transformers", "trl", "datasets")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="file into which the table is put")
    parser.add_argument("attacks", nargs="*", help=f"of {', '.join(ROWS)}")
    args = parser.parse_args()
    if unknown := set(args.attacks) - ROWS.keys():
        parser.error(f"There is no attack {', '.join(unknown)}: name some of {', '.join(ROWS)}.")
    logging.disable(logging.WARNING)
    for name in args.attacks:
        reporting.write(run(name), RESULTS / f"{name}.json")
    text = table(read_reports())
    print(text)
    if args.page is not None:
        reporting.insert(text, args.page, "attacks.py")


if __name__ == "__main__":
    main()
