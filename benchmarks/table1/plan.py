# SPDX-License-Identifier: Apache-2.0
"""
What the rows of table 1 cost on GPUs, by estimate: episodes, tokens and hours of every method on every task.

    python -m benchmarks.table1.plan --page docs/source/table1.md

`trl-nlac plan` estimates NLAC's recipes, and its rates are assumed here, too. All its options can be given, such as
`--tflops`, or `--answer_tokens` in place of the lengths below. Training alone is counted, and no evaluation.
"""

import argparse
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks import reporting
from benchmarks.table1.cell import CellArguments
from benchmarks.table1.paper import COLUMNS, LABELS
from benchmarks.table1.tasks import OPTIONS
from trl_nlac.cli.plan import make_parser, make_plan
from trl_nlac.planning.run_plan import Plan
from trl_nlac.planning.time import Phase, trunk_share


RECIPES = Path("examples", "recipes")
MACHINES = {"": "8x80GB", "_lora": "1x80GB"}
TASKS = {**COLUMNS, "tau": "τ-bench"}
# Assumed means, of an instruct model that thinks aloud before it acts.
LENGTHS = {
    "math": {"prompt_tokens": 300, "answer_tokens": 500, "turns": 1},
    "20q": {"prompt_tokens": 1200, "answer_tokens": 100, "turns": 15},
    "tau": {"prompt_tokens": 5000, "answer_tokens": 120, "turns": 15},
}


@dataclass(frozen=True)
class Cost:
    """
    What a method costs on a task.

    Args:
        episodes, environment_steps (`float`):
            What is played.
        generated, read, trained (`float`):
            Tokens, as in [`~planning.time.Phase`].
        gpu_hours (`float`):
            Hours of the run, times its GPUs.
    """

    episodes: float
    environment_steps: float
    generated: float
    read: float
    trained: float
    gpu_hours: float


def as_trained(method: str, plan: Plan) -> Plan:
    """Plan the training of a method. RFT has one loss. GRPO trains on whole episodes, several times on each."""
    if method == "nlac":
        return plan
    with_one_loss = plan.with_options(critic_loss_coef=0.0)
    if method == "rft":
        return with_one_loss
    prompt, _, turns = plan.lengths
    whole = turns * trunk_share(turns) * prompt  # what an episode has before its last answer
    return replace(with_one_loss, rates=replace(plan.rates, prompt_tokens=whole)).with_options(
        samples_per_iteration=plan.args.episodes_per_iteration,
        num_updates_per_generation=CellArguments.num_grpo_updates,
    )


def phases(method: str, plan: Plan) -> list[Phase]:
    """
    Return the phases of an iteration. RFT and GRPO write no targets and refine nothing, and only the policy's weights
    move.
    """
    if method == "nlac":
        return plan.iteration
    rollout, train = plan.iteration[0], as_trained(method, plan).iteration[-1]
    moved = 0 if plan.shape.has_adapters else 2 * plan.shape.parameters
    return [rollout, Phase("sync", 0, 0, 0, moved / plan.rates.bandwidth / 1e9), train]


def cost(method: str, plan: Plan) -> Cost:
    """Estimate what a run costs."""
    found = phases(method, plan)
    iterations = plan.args.max_steps / as_trained(method, plan).args.updates_per_iteration
    episodes = iterations * plan.args.episodes_per_iteration
    return Cost(
        episodes=episodes,
        environment_steps=episodes * plan.lengths.turns,
        generated=iterations * sum(phase.generated for phase in found),
        read=iterations * sum(phase.read for phase in found),
        trained=iterations * sum(phase.trained for phase in found),
        gpu_hours=iterations * sum(phase.seconds for phase in found) / 3600 * plan.sharing.processes,
    )


def plan_of(method: str, kind: str, task: str, words: list[str]) -> Plan:
    """Plan the recipe of a method on a task, as `trl-nlac plan` does."""
    recipe = RECIPES / f"table1_{method}{kind}.yaml"
    args, others = make_parser().parse_known_args(["--gpus", MACHINES[kind], "--config", str(recipe), *words])
    for name, length in LENGTHS[task].items():
        if vars(args)[name] is None:
            vars(args)[name] = length
    plan, _ = make_plan(args, others)
    return plan.with_options(**OPTIONS[task])


def estimate(words: list[str]) -> dict:
    """Estimate the costs of all methods on all tasks, with options of `trl-nlac plan`."""
    report = {}
    for kind, gpus in MACHINES.items():
        plans = {(task, method): plan_of(method, kind, task, words) for task in OPTIONS for method in LABELS}
        rows = [
            {"task": task, "method": method, **asdict(cost(method, plan))} for (task, method), plan in plans.items()
        ]
        report[kind] = {"gpus": gpus, "rows": rows}
    return report


def text(report: dict) -> str:
    """Write the assumed lengths, and the tables."""
    names = ["task", "method", "episodes", "environment steps", "generated tokens", "prefilled tokens"]
    names += ["trained tokens", "GPU hours"]
    lengths = [[TASKS[task], *(f"{length:,}" for length in of.values())] for task, of in LENGTHS.items()]
    tables = [reporting.table(["task", "prompt tokens", "answer tokens", "turns"], lengths) + "\n"]
    for kind, found in report.items():
        rows = []
        for row in found["rows"]:
            played = (f"{row[name]:,.0f}" for name in ("episodes", "environment_steps"))
            tokens = (f"{row[name] / 1e6:,.0f}M" for name in ("generated", "read", "trained"))
            rows.append([TASKS[row["task"]], LABELS[row["method"]], *played, *tokens, f"{row['gpu_hours']:,.0f}"])
        what = "LoRA" if kind else "All weights"
        tables.append(f"{what}, {found['gpus']}:\n\n{reporting.table(names, rows)}\n")
    return "\n".join(tables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the estimates")
    parser.add_argument("--page", type=Path, help="Markdown file in which to replace the results")
    args, words = parser.parse_known_args()
    report = estimate(words)
    reporting.publish(report, text(report), "table1/plan.py", args.json, args.page)


if __name__ == "__main__":
    main()
