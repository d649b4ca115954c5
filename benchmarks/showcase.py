# SPDX-License-Identifier: Apache-2.0

"""
A critique, its target and a refined action of a real run, as the README shows them.

make demo
python -m benchmarks.showcase runs/quickstart --json benchmarks/results/showcase.json --readme README.md

The critique is one that the critic was sure of and wrong about: it called an action the best one, and the Bellman
target, which repeats what happened, does not. The refined action is the first one after that in the same state whose
critique asked for a change, and which an episode took later with success. Of all such pairs it is the one with the
surest critique. Nothing is edited.
"""

import argparse
import json
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks import reporting


def rows_of(run: Path, files: str) -> list[dict]:
    """Read the rows of a run's tables, in the order of their steps."""
    return [row for path in sorted(run.glob(files)) for row in pq.read_table(path).to_pylist()]


def successes(run: Path) -> list[dict]:
    """Read the first turns of a run's training episodes that succeeded with their first action."""
    rows = rows_of(run, "completions/completions_*.parquet")
    kept = [row for row in rows if row["success"] and len(row["turns"]) == 1]
    return [{"step": row["step"], "observation": row["prompt"], **row["turns"][0]} for row in kept]


def choose(samples: list[dict], won: list[dict]) -> tuple[dict, dict, dict]:
    """
    Choose a mistake of the critic, a refined action, and the success that it led to.

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
    found = [
        (mistake, later, success)
        for mistake in mistakes
        for later in refined
        if later["observation"] == mistake["observation"] and later["step"] > mistake["step"]
        for success in won
        if success["observation"] == later["observation"]
        and success["action"] == later["refined_action"]
        and success["step"] >= later["step"]
    ]
    if not found:
        raise ValueError("The run has no audited mistake of the critic whose state was won with a refined action.")
    return max(found, key=lambda parts: (parts[0]["verdict_score"], -parts[1]["step"], -parts[2]["step"]))


def as_markdown(shown: dict) -> str:
    """Format what was chosen as a table."""
    mistake, refined, success = shown["mistake"], shown["refined"], shown["success"]
    rows = [
        ("The agent reads", mistake["observation"]),
        ("It answers", mistake["action"]),
        ("The critic expects", mistake["critique"]),
        ("The desk answers", mistake["next_observation"]),
        ("The critic is trained to say: what happened, then what it imagines", mistake["target"]),
        (f"{refined['step'] - mistake['step']} training steps later it would answer", refined["attempt"]),
        ("The critic expects", refined["attempt_critique"]),
        ("The agent is trained to answer", refined["refined_action"]),
        (
            f"In an episode of step {success['step']} it answers so, and the desk says",
            success["next_observation"],
        ),
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
    parts = choose(rows_of(args.run, "_audit/*.parquet"), successes(args.run))
    chosen = dict(zip(("mistake", "refined", "success"), parts, strict=True))
    kept = {
        "mistake": ("step", "observation", "action", "critique", "verdict_score", "next_observation", "target"),
        "refined": ("step", "attempt", "attempt_critique", "refined_action"),
        "success": ("step", "action", "next_observation"),
    }
    shown = {
        "command": "python -m benchmarks.showcase runs/quickstart",
        "world": results["world"],
        "world_seed": results["world_seed"],
        **{part: {name: chosen[part][name] for name in names} for part, names in kept.items()},
    }
    reporting.write(shown, args.json)
    if args.readme:
        reporting.insert(as_markdown(shown), args.readme, "showcase.py")


if __name__ == "__main__":
    main()
