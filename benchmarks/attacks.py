# SPDX-License-Identifier: Apache-2.0

"""
What is attacked, and what happens: odd values for every option (fuzz), runs that are killed and checkpoints that are
damaged (kills), environments with every kind of fault (chaos), and conversations on their way through every file and
product (round_trips).

    python -m benchmarks.attacks fuzz kills chaos round_trips --page docs/SECURITY.md

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


def read_reports(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Read the results that there are, by the name of the attack."""
    paths = {name: folder / f"{name}.json" for name in ROWS}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


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


def _of_round_trips(report: dict[str, Any]) -> list[list[str]]:
    read, refused = report["outcomes"]["read"], report["outcomes"].get("refused", 0)
    equal = min(report["came_back_equal"].values())
    happened = f"{equal:,} of {read:,} equal on {len(report['came_back_equal'])} ways, {refused:,} refused by reason"
    attack = f"{report['conversations']:,} random conversations with tools, through every file and product"
    return [[attack, happened, f"{report['num_problems']:,}", "`round_trips.json`"]]


ROWS = {"fuzz": _of_fuzz, "kills": _of_kills, "chaos": _of_chaos, "round_trips": _of_round_trips}


def run(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run one attack, and return its report."""
    start = time.perf_counter()
    report = import_module(f"benchmarks.{name}").attack(**options)
    seconds = round(time.perf_counter() - start, 1)
    return {**options, "seconds": seconds, **report, **reporting.setting("torch", "transformers", "trl", "datasets")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--page", type=Path, help="file into which the table is put")
    parser.add_argument("attacks", nargs="*", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--damages", type=int, default=60, help="damaged files of each kind")
    parser.add_argument("--episodes", type=int, default=2000, help="of chaos")
    parser.add_argument("--conversations", type=int, default=10_000)
    parser.add_argument("--only", nargs="*", default=[], help="names of options and arguments for the fuzz")
    args = parser.parse_args()
    if unknown := set(args.attacks) - ROWS.keys():
        parser.error(f"There is no attack {', '.join(unknown)}: name some of {', '.join(ROWS)}.")
    options = {
        "fuzz": {"only": args.only},
        "kills": {"kills": args.kills, "damages": args.damages},
        "chaos": {"episodes": args.episodes},
        "round_trips": {"conversations": args.conversations},
    }
    logging.disable(logging.WARNING)
    reports = read_reports(args.results)
    for name in args.attacks:
        reports[name] = run(name, options[name])
        reporting.write(reports[name], args.results / f"{name}.json")
    text = table({name: reports[name] for name in ROWS if name in reports})
    print(text)
    if args.page is not None:
        reporting.insert(text, args.page, "attacks.py")


if __name__ == "__main__":
    main()
