# SPDX-License-Identifier: Apache-2.0

"""
NLAC against baselines and its own ablations: success against environment steps.

Each cell (task, method, seed) is a process and a JSON file below --cells, so that what was interrupted goes on, and
any cell can be run again, also with other settings, `--role_sampling` as JSON that is merged with the method's own:

python -m benchmarks.learning.run --tasks service_desk_told --methods nlac hindsight --seeds 0 1 --cells runs/cells
python -m benchmarks.learning.run --tasks service_desk_told --methods nlac --samples_per_iteration 128 \\
    --role_sampling '{"critic": {"temperature": 0.5}}' --cells runs/others

Without --cells only the cells that the published table lacks are run. Then `python -m benchmarks.cells learning table
runs/learning_cells` adds them to it, and `python -m benchmarks.learning.figures` writes the pages.
"""

import argparse
import json
import os
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import reporting
from benchmarks.cells import read_cells
from benchmarks.learning.figures.tables import METHODS, Tables
from benchmarks.learning.methods import nlac
from benchmarks.learning.methods.base import at_the_start, play_base
from benchmarks.learning.methods.settings import (
    ABLATIONS,
    ABLATIONS_BY_TASK,
    ACTING,
    LONG,
    NO_MIN_P,
    OF_ACTING,
    OF_BASELINES,
    SELF_DISTILLATIONS,
    SLOW,
    TRAINERS,
    UNANCHORED,
    acting_config,
    default_settings,
    merge_settings,
)
from benchmarks.learning.playing import Player
from benchmarks.learning.tasks import (
    GUESS_THE_NUMBER,
    HANDBOOK,
    OUTSIDE_THE_TABLE,
    RELAY_DESK,
    RELAY_PIECES,
    TASKS,
    make_task,
)


ROOT = Path(__file__).parents[2]
CELLS = Path("runs/learning_cells")  # those that the table lacks
SEEDS = (0, 1, 2, 3, 4)
IDENTITY = ("task", "method", "seed")
# Environment steps that a method can spend on a task, and the factors of those that cost less per step and learn more
# slowly, or are run until their curves are flat. Ablations have NLAC's budget.
BUDGETS = {
    "service_desk_told": 800,
    "service_desk_hinted": 1600,
    "service_desk_noisy": 800,
    "service_desk_delayed": 1200,
    "rooms": 1000,
    HANDBOOK: 4000,
    GUESS_THE_NUMBER: 2000,
    RELAY_DESK: 800,
    RELAY_PIECES: 800,
}
BUDGET_FACTORS = {
    **dict.fromkeys(("grpo", "rft", *UNANCHORED, *SLOW), 5),
    **dict.fromkeys(LONG, 20),
}
NUM_EVALUATIONS = 16
MIN_PS = (0.0, 0.05)  # with --temperatures, the same for every method


def read(value: str) -> Any:
    """Read a setting of the command line: JSON, or else a string."""
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def read_settings(words: list[str]) -> dict[str, Any]:
    """
    Read `--name value` pairs of the command line. A name without a value is true; a value without a name is refused.
    """
    settings: dict[str, Any] = {}
    for before, word in zip(["", *words], words, strict=False):
        if word.startswith("--"):
            settings[word.removeprefix("--")] = True
        elif before.startswith("--"):
            settings[before.removeprefix("--")] = read(word)
        else:
            raise ValueError(f"{word!r} in {' '.join(words)!r} has no name. Give settings as `--name value`.")
    return settings


def budget_of(task: str, method: str) -> int:
    """Return the environment steps that a method can spend on a task."""
    return BUDGETS[task] * BUDGET_FACTORS.get(method, 1)


def cell_path(cells: Path, task: str, method: str, seed: int) -> Path:
    """Return the file of a cell."""
    return cells / task / method / f"{seed}.json"


def decode(player: Player, temperatures: list[float], num_episodes: int) -> list[dict[str, Any]]:
    """Measure the success of a trained policy at several temperatures, with and without leaving out tokens."""
    decoded = []
    for name, temperature, min_p in product(("held_out", "train"), temperatures, MIN_PS):
        if name in player.task.instances and (temperature > 0 or min_p == MIN_PS[0]):
            sampling = replace(player.roles.samplings["evaluation"], temperature=temperature, min_p=min_p)
            metrics = player.evaluate(name, num_episodes, sampling)
            success = metrics["episode/success_rate"]
            decoded.append({"instances": name, "temperature": temperature, "min_p": min_p, "success": success})
    return decoded


def run_cell(task_name: str, method: str, seed: int, args: argparse.Namespace, words: list[str]) -> dict:
    """Train and evaluate one cell, with the settings that `words` change."""
    changes = read_settings(words)
    setting = reporting.setting("torch", "transformers", "trl", "accelerate")  # before the checkout may change
    task = make_task(task_name, seed)
    if args.base_model:
        task = replace(task, model=args.base_model)
    budget = args.budget or budget_of(task_name, method)
    interval = max(1, budget // NUM_EVALUATIONS)
    trains = method not in ("base", "base_refined")
    settings = merge_settings(default_settings(task, method) if trains else NO_MIN_P, changes)
    acting_settings = {name: settings.pop(name) for name in list(settings) if name in OF_ACTING}
    acting = acting_config(task, str(args.runs / task_name / method / str(seed)), seed, **acting_settings)
    if not trains:
        player = play_base(task, acting, refines=method == "base_refined")
        points, before, tokens = [at_the_start(player.evaluate())], None, {}
    else:
        curve = TRAINERS.get(method, nlac.train)(task, acting, budget, interval, **settings)
        player, points, before, tokens = curve.player, curve.points, curve.before, curve.tokens
    final = {name: player.evaluate(name, num_episodes=task.final_episodes) for name in task.instances}
    return {
        "task": task_name,
        "method": method,
        "seed": seed,
        "model": Path(task.model).name,
        "sampling": {name: vars(acting)[name] for name in ("temperature", "top_p", "top_k", "min_p")},
        "settings": settings,
        "acting": {name: value for name, value in {**ACTING, **acting_settings}.items() if name not in settings},
        "command": " ".join(
            [f"python -m benchmarks.learning.run --tasks {task_name} --methods {method} --seeds {seed}"]
            + ([f"--base_model {args.base_model}"] if args.base_model else [])
            + ([f"--temperatures {' '.join(map(str, args.temperatures))}"] if args.temperatures else [])
            + ([f"--budget {budget}"] if budget != budget_of(task_name, method) else [])
            + ([shlex.join(words)] if words else [])
        ),
        "budget": budget,
        "interval": interval,
        "oracle_success": task.oracle_success,
        **setting,
        "points": points,
        "tokens": tokens,
        **({"swaps": curve.swaps} if trains and curve.swaps else {}),
        "before": before or {name: final[name] for name in task.unseen},
        "final": final,
        **({"decoded": decode(player, args.temperatures, task.final_episodes)} if args.temperatures else {}),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS, *OUTSIDE_THE_TABLE], default=list(TASKS))
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=[*METHODS, *ABLATIONS, *OF_BASELINES, *SELF_DISTILLATIONS],
        help="by default all methods of the table, and the ablations of each task",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--cells", type=Path, help=f"folder of the cells; by default {CELLS}, for the table")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--budget", type=int, help="environment steps in place of the task's budget")
    parser.add_argument("--base_model", help="another build of the tiny model: a folder")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[], help="evaluate at these, too")
    parser.add_argument("--jobs", type=int, default=1, help="number of cells that run at the same time")
    parser.add_argument("--rerun", action="store_true", help="run existing cells again")
    parser.add_argument(
        "--quick", action="store_true", help="one desk, three methods, a quarter of the steps; takes minutes"
    )
    parser.add_argument("--in_process", action="store_true", help=argparse.SUPPRESS)
    args, rest = parser.parse_known_args()
    if args.quick and not args.in_process:
        args.tasks, args.methods, args.seeds = ["service_desk_told"], ["nlac", "hindsight", "base"], [0]
        args.budget, args.cells = args.budget or 200, args.cells or Path("runs/learning_quick")
    published = set()
    if args.cells is None:
        if rest or args.budget or args.base_model or set(args.tasks) & set(OUTSIDE_THE_TABLE):
            parser.error(f"The table has the settings of the code: add --cells, a folder for {' '.join(sys.argv[1:])}")
        args.cells = CELLS
        published = {tuple(cell[name] for name in IDENTITY) for cell in read_cells("learning", "table")}
    cells = [
        (task, method, seed)
        for seed in args.seeds
        for task in args.tasks
        for method in args.methods or (*METHODS, *ABLATIONS_BY_TASK.get(task, ()))
    ]
    if args.in_process:
        [(task, method, seed)] = cells
        report = run_cell(task, method, seed, args, rest)
        reporting.write(report, cell_path(args.cells, task, method, seed))
        return

    # With another number of threads sums differ in their last bits, and after some hundred updates so do samples.
    env = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run(cell: tuple[str, str, int]) -> bool:
        """Run a cell, unless it exists, and return whether it exists afterwards."""
        task, method, seed = cell
        if not args.rerun and (cell in published or cell_path(args.cells, *cell).exists()):
            return True
        command = [sys.executable, "-m", "benchmarks.learning.run", "--in_process", *sys.argv[1:]]
        command += ["--tasks", task, "--methods", method, "--seeds", str(seed), "--cells", str(args.cells)]
        command += ["--budget", str(args.budget or budget_of(task, method))]
        log = args.runs / task / method / str(seed) / "log.txt"
        done = reporting.run_logged(command, log, env=env, cwd=ROOT)
        print(f"{task} {method} {seed}: {'done' if done else f'failed, see {log}'}", flush=True)
        return done

    with ThreadPoolExecutor(args.jobs) as pool:
        done = list(pool.map(run, cells))
    paths = [path for path in (cell_path(args.cells, *cell) for cell in cells) if path.exists()]
    if paths:
        print(Tables([{"set": "table", **json.loads(path.read_text())} for path in paths]).of_set("table"))
    if not all(done):
        sys.exit(f"{done.count(False)} of {len(cells)} cells failed, see their logs.")


if __name__ == "__main__":
    main()
