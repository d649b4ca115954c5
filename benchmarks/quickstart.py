# SPDX-License-Identifier: Apache-2.0

"""
The quickstart in several worlds: success before and after, environment steps, wall time.

python -m benchmarks.quickstart --json benchmarks/results/quickstart.json

Each cell (world, seed) is a separate run of examples/scripts/nlac_quickstart.py, whose `results.json` is kept under
--runs, so that an interrupted benchmark continues where it stopped.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev

import torch

from benchmarks import reporting


SCRIPT = Path(__file__).parents[1] / "examples" / "scripts" / "nlac_quickstart.py"


def run_cell(world: str, seed: int, runs: Path, threads: int, extra: list[str]) -> dict:
    output_dir = runs / f"{world}_{seed}"
    results = output_dir / "results.json"
    if not results.exists():
        command = [sys.executable, str(SCRIPT), "--world", world, "--world_seed", str(seed), "--seed", str(seed)]
        command += ["--output_dir", str(output_dir), *extra]
        output_dir.mkdir(parents=True, exist_ok=True)
        with open(output_dir / "log.txt", "w") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
            subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT, env=environment)
    return json.loads(results.read_text())


def first_steps_to(evaluations: list[dict], success: float) -> int | None:
    """Return the environment steps at the first evaluation with at least this success."""
    reached = [e["eval_environment/steps"] for e in evaluations if e["eval_episode/success_rate"] >= success]
    return reached[0] if reached else None


def summarize(cells: list[dict]) -> dict:
    rows = []
    for cell in cells:
        before, after = cell["before"], cell["after"]
        row = {
            "seed": cell["world_seed"],
            "seconds": cell["seconds"],
            "environment_steps": after["eval_environment/steps"],
            "steps_to_0.8": first_steps_to(cell["evaluations"], 0.8),
        }
        for name in ("success_rate", "success_rate_low", "success_rate_high"):
            row[name] = {"before": before[f"eval_episode/{name}"], "after": after[f"eval_episode/{name}"]}
        for name in ("future_accuracy", "verdict_yes_rate", "verdict_no_rate", "refined_better_rate"):
            row[name] = {"before": before[f"eval_oracle/{name}"], "after": after[f"eval_oracle/{name}"]}
        row["curve"] = [
            [e["eval_environment/steps"], round(e["eval_episode/success_rate"], 4)] for e in cell["evaluations"]
        ]
        rows.append(row)
    gains = [row["success_rate"]["after"] - row["success_rate"]["before"] for row in rows]
    margin = reporting.T_95[len(gains)] * stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else None
    return {
        "mean_improvement": mean(gains),
        "mean_improvement_95": None if margin is None else [mean(gains) - margin, mean(gains) + margin],
        "num_at_least_0.8": sum(row["success_rate"]["after"] >= 0.8 for row in rows),
        "num_seeds": len(rows),
        "runs": rows,
    }


def as_markdown(report: dict) -> str:
    """Format the runs as a table."""
    names = ["world", "seed", "success before", "after (95 %)", "environment steps", "to 0.8", "seconds"]
    rows = []
    for world, summary in report["worlds"].items():
        for row in summary["runs"]:
            success, low, high = row["success_rate"], row["success_rate_low"], row["success_rate_high"]
            after = f"{success['after']:.2f} ({low['after']:.2f} to {high['after']:.2f})"
            parts = [world.replace("_", " "), str(row["seed"]), f"{success['before']:.2f}", after]
            parts += [str(row["environment_steps"]), str(row["steps_to_0.8"] or "not reached")]
            rows.append([*parts, f"{row['seconds']:.0f}"])
    return reporting.table(names, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/quickstart.json"))
    parser.add_argument("--runs", type=Path, default=Path("runs/benchmark_quickstart"))
    parser.add_argument("--worlds", nargs="+", default=["support_desk", "rooms"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--note", default="", help="a remark about the runs, for the report")
    parser.add_argument("--readme", type=Path, help="Markdown file whose results are replaced by the table")
    args, extra = parser.parse_known_args()
    cells = {
        world: [run_cell(world, seed, args.runs, args.threads, extra) for seed in args.seeds] for world in args.worlds
    }
    report = {
        "command": "python -m benchmarks.quickstart " + " ".join(extra),
        **reporting.setting("torch", "transformers", "trl", "datasets", "accelerate", threads_per_run=args.threads),
        "note": args.note,
        "worlds": {world: summarize(results) for world, results in cells.items()},
    }
    reporting.write(report, args.json)
    if args.readme:
        reporting.insert(as_markdown(report), args.readme, "quickstart.py")
    for world, summary in report["worlds"].items():
        interval = summary["mean_improvement_95"]
        interval = f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
        reached = f"{summary['num_at_least_0.8']} of {summary['num_seeds']} at 0.8 or more"
        print(f"{world}: success improved by {summary['mean_improvement']:.2f}{interval}, {reached}")


if __name__ == "__main__":
    main()
