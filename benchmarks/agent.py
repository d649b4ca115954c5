# SPDX-License-Identifier: Apache-2.0

"""
What an agent gains from its critic when it acts: success and tokens per decision, of the base model and after
training, alone, with refinement, and with a choice among candidates.

python -m benchmarks.agent --json benchmarks/results/agent.json --page docs/source/agent.md

The agent of each world is trained by examples/scripts/nlac_quickstart.py for fewer steps than it needs, so that there
is something to gain. Its folder under --runs is kept with the measurements, so that an interrupted benchmark continues
where it stopped. Arguments after `--` are passed to that script.
"""

import argparse
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks import reporting
from benchmarks.learning.figures.seeds import over_seeds
from trl_nlac import NLACAgent
from trl_nlac.environments.embedded import TINY_MODEL, make_environment, make_tasks
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.options.role_options import RoleOptions


SCRIPT = Path(__file__).parents[1] / "examples" / "scripts" / "nlac_quickstart.py"
IMPROVEMENTS = {
    "alone": {},
    "refine 1": {"refine": 1},
    "refine 2": {"refine": 2},
    "candidates 4": {"num_candidates": 4},
    "candidates 4, refine 1": {"num_candidates": 4, "refine": 1},
}


def train(world: str, seed: int, runs: Path, max_steps: int, extra: list[str]) -> Path:
    """Train an agent, unless it was trained before, and return its folder."""
    output_dir = runs / f"{world}_{seed}"
    if not (output_dir / "results.json").exists():
        output_dir.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(SCRIPT), "--world", world, "--world_seed", str(seed), "--seed", str(seed)]
        command += ["--max_steps", str(max_steps), "--output_dir", str(output_dir), *extra]
        with open(output_dir / "log.txt", "w") as log:
            subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    return output_dir


def measure(
    agent: NLACAgent, pool: EnvironmentPool, tasks: list[dict], num_episodes: int, seed: int, improvement: dict
) -> dict:
    """Measure the success and costs of one way of acting."""
    tokens, start = agent.roles.tally.num_generated_tokens, time.perf_counter()
    seen = agent.evaluate(pool, tasks, num_episodes, num_critiques=0, num_probes=0, seed=seed, **improvement)
    successes = [success for _, success in seen.outcomes]
    decisions = sum(len(episode.turns) for episode in seen.episodes)
    return {
        "success": sum(successes) / len(successes),
        "tokens_per_decision": (agent.roles.tally.num_generated_tokens - tokens) / decisions,
        "seconds_per_decision": (time.perf_counter() - start) / decisions,
    }


def measure_world(world: str, seed: int, trained: Path, num_episodes: int) -> dict[str, dict]:
    """Measure all ways of acting of both models in one world."""
    options = vars(RoleOptions.from_pretrained(str(trained)))
    instance, tasks = make_tasks(world, seed)
    pool = EnvironmentPool(lambda: make_environment(instance))
    ways = {}
    try:
        for label, model in {"base": TINY_MODEL, "trained": str(trained)}.items():
            agent = NLACAgent.from_pretrained(model, **options)
            for way, improvement in IMPROVEMENTS.items():
                ways[f"{label}, {way}"] = measured = measure(agent, pool, list(tasks), num_episodes, seed, improvement)
                print(
                    f"{world} {seed}, {label}, {way}: {measured['success']:.3f}, "
                    f"{measured['tokens_per_decision']:.0f} tokens",
                    flush=True,
                )
    finally:
        pool.close()
    return ways


def as_markdown(report: dict) -> str:
    """Format the ways of acting as a table."""
    rows = []
    for name, measured in report["ways"].items():
        model, _, way = name.partition(", ")
        gain, gained = measured["gain"], ""
        if way != "alone" and gain["low"] is not None:
            gained = f"{gain['mean']:+.2f} ({gain['low']:+.2f} to {gain['high']:+.2f})"
        success, tokens = reporting.interval(measured["success"]), measured["tokens_per_decision"]["mean"]
        rows.append([model, way, success, gained, f"{tokens:.0f}"])
    names = ["model", "actions", "success (95 %)", "gain over alone (95 %)", "tokens per decision"]
    return reporting.table(names, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=["service_desk", "rooms"], default="service_desk")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--max_steps", type=int, default=100, help="optimizer steps of training")
    parser.add_argument("--num_episodes", type=int, default=64, help="episodes of each task")
    parser.add_argument("--runs", type=Path, default=Path("runs/agent"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, help="Markdown file whose results are replaced by the table")
    args, extra = parser.parse_known_args()
    worlds = {}
    for seed in args.seeds:
        trained = train(args.world, seed, args.runs, args.max_steps, [word for word in extra if word != "--"])
        path = trained / f"ways_{args.num_episodes}.json"
        measure = partial(measure_world, args.world, seed, trained, args.num_episodes)
        worlds[str(seed)] = ways = reporting.kept(path, measure)
        for name, measured in ways.items():  # in the same world
            measured["gain"] = measured["success"] - ways[f"{name.partition(',')[0]}, alone"]["success"]
    names = list(next(iter(worlds.values())))
    report = {
        "world": args.world,
        "max_steps": args.max_steps,
        "num_episodes": args.num_episodes,
        "ways": {
            name: {
                measure: over_seeds({seed: ways[name][measure] for seed, ways in worlds.items()})
                for measure in ("success", "gain", "tokens_per_decision", "seconds_per_decision")
            }
            for name in names
        },
        **reporting.setting("torch", "transformers", "trl"),
    }
    reporting.publish(report, as_markdown(report), "agent.py", args.json, args.page)


if __name__ == "__main__":
    main()
