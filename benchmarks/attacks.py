# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

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
NAMES = ("fuzz", "kills", "chaos", "round_trips")


def table(reports: dict[str, dict[str, Any]]) -> str:
    """
    Write the table.

    Args:
        reports (`dict[str, dict[str, Any]]`):
            The results of each of `NAMES`.
    """
    rows = [*_of_fuzz(reports["fuzz"]), *_of_kills(reports["kills"])]
    rows += [_of_chaos(reports["chaos"]), _of_round_trips(reports["round_trips"])]
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
    happened = f"{kills['runs']:,} resumed to the end, the same bit for bit, records included"
    attack = f"{kills['kills']} kills with SIGKILL, {kills['while_saving']} of them during a save"
    rows = [[attack, happened, f"{kills['different_runs']}", "`kills.json`"]]
    for kind, counts in damages.items():
        refused = counts.get("refused, the file and the checkpoint before are named", 0)
        same = counts.get("resumed, the same bit for bit", 0)
        happened = f"{refused} refused with the name of the file" + (f", {same} resumed, the same" if same else "")
        others = sum(counts.values()) - refused - same
        rows.append([f"{sum(counts.values())} files of a checkpoint: {kind}", happened, f"{others}", "`kills.json`"])
    return rows


def _of_chaos(report: dict[str, Any]) -> list[str]:
    half, *_, last = [of for of in report["resources"] if 2 * of["episodes"] >= report["episodes"]]
    end = report["at_the_end"]
    happened = (
        f"all accounted for, no reward invented; from the half to the end memory {half['memory_mb']:.0f} to "
        f"{last['memory_mb']:.0f} MB, threads {half['threads']} to {last['threads']}, then {end['threads']}, files "
        f"{half['files']} to {last['files']}"
    )
    attack = f"{report['episodes']:,} episodes with {report['faults']} kinds of faults"
    return [attack, happened, f"{len(report['problems'])}", "`chaos.json`"]


def _of_round_trips(report: dict[str, Any]) -> list[str]:
    read, refused = report["outcomes"]["read"], report["outcomes"].get("refused", 0)
    equal = min(report["came_back_equal"].values())
    happened = f"{equal:,} of {read:,} equal on {len(report['came_back_equal'])} ways, {refused:,} refused by reason"
    attack = f"{report['conversations']:,} random conversations with tools, through every file and product"
    return [attack, happened, f"{report['num_problems']:,}", "`round_trips.json`"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="file into which the table is put")
    args = parser.parse_args()
    text = table({name: json.loads((RESULTS / f"{name}.json").read_text()) for name in NAMES})
    print(text)
    if args.page is not None:
        reporting.insert(text, args.page, "attacks.py")


if __name__ == "__main__":
    main()
