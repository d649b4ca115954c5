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
A critique, its target and a refined action of a real run, as the README shows them.

make demo
python -m benchmarks.showcase runs/quickstart --json benchmarks/results/showcase.json --readme README.md

The critique is the one that the critic was surest of and wrong about: it called an action the best one, and the
Bellman target, which repeats what happened, does not. The refined action is the first one after that in the same state
whose critique asked for a change. Nothing is edited.
"""

import argparse
import json
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks import reporting


def audited(run: Path) -> list[dict]:
    """Read the audited samples of a run, in the order of their steps."""
    return [row for path in sorted(run.glob("_audit/*.parquet")) for row in pq.read_table(path).to_pylist()]


def choose(samples: list[dict]) -> tuple[dict, dict]:
    """
    Choose a mistake of the critic and a refined action.

    Raises:
        ValueError: If the run has no such samples.
    """
    mistakes = [
        sample
        for sample in samples
        if sample["verdict"] and sample["target_verdict"] is False and sample["next_observation"] in sample["target"]
    ]
    refined = [
        sample
        for sample in samples
        if sample["attempt_verdict"] is False and sample["attempt"] != sample["refined_action"]
    ]
    pairs = [
        (mistake, later)
        for mistake in mistakes
        for later in refined
        if later["observation"] == mistake["observation"] and later["step"] > mistake["step"]
    ]
    if not pairs:
        raise ValueError("The run has no audited mistake of the critic with a refined action in the same state later.")
    return max(pairs, key=lambda pair: (pair[0]["verdict_score"], -pair[1]["step"]))


def as_markdown(shown: dict) -> str:
    """Format what was chosen as a table."""
    mistake, refined = shown["mistake"], shown["refined"]
    rows = [
        ("The agent reads", mistake["observation"]),
        ("It answers", mistake["action"]),
        ("The critic expects", mistake["critique"]),
        ("The desk answers", mistake["next_observation"]),
        ("The critic is trained to say", mistake["target"]),
        (f"{refined['step'] - mistake['step']} training steps later it would answer", refined["attempt"]),
        ("The critic expects", refined["attempt_critique"]),
        ("The agent is trained to answer", refined["refined_action"]),
    ]
    written = [f"| {name} | {text.replace('|', chr(92) + '|').replace(chr(10), '<br>')} |" for name, text in rows]
    return "\n".join(["| | |", "|---|---|", *written])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="output folder of the quickstart")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/showcase.json"))
    parser.add_argument("--readme", type=Path, help="Markdown file whose results are replaced by the table")
    args = parser.parse_args()
    results = json.loads((args.run / "results.json").read_text())
    mistake, refined = choose(audited(args.run))
    kept = {
        "mistake": ("step", "observation", "action", "critique", "verdict_score", "next_observation", "target"),
        "refined": ("step", "attempt", "attempt_critique", "refined_action"),
    }
    shown = {
        "command": "python -m benchmarks.showcase runs/quickstart",
        "world": results["world"],
        "world_seed": results["world_seed"],
        "mistake": {name: mistake[name] for name in kept["mistake"]},
        "refined": {name: refined[name] for name in kept["refined"]},
    }
    reporting.write(shown, args.json)
    if args.readme:
        reporting.insert(as_markdown(shown), args.readme, "showcase.py")


if __name__ == "__main__":
    main()
