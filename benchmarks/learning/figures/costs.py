# SPDX-License-Identifier: Apache-2.0


"""
What NLAC's tokens buy: costs to a share of the oracle's success, which roles generate, and from which price of an
environment step, in generated tokens, NLAC costs less than a baseline.

python -m benchmarks.learning.figures.costs --cells benchmarks/results/learning benchmarks/results/learning_savings \\
    benchmarks/results/learning_baselines --json benchmarks/results/learning_costs.json \\
    --page docs/source/nlac_trainer.md --readme README.md

The cells of what saves tokens have a folder of their own:

python -m benchmarks.learning.run --tasks service_desk_told service_desk_hinted --seeds 0 1 2 \\
    --methods nlac nlac_keeps_targets nlac_keeps_best nlac_stored_actions nlac_two_updates nlac_frugal \\
    nlac_frugal_two_updates nlac_kept_two_updates nlac_kept_three_updates nlac_kept_four_updates \\
    --cells benchmarks/results/learning_savings
"""

import argparse
from collections import Counter
from pathlib import Path
from statistics import mean

from benchmarks import reporting
from benchmarks.learning.figures.seeds import LEAST_SEEDS, difference, of_cells
from benchmarks.learning.figures.summary import CELLS, LEVELS, SPENT, final_success, latest, reach
from benchmarks.learning.figures.table import label, number, rate, task_label
from benchmarks.learning.methods.settings import SAVINGS, SELF_DISTILLATION


LEVEL = max(LEVELS)  # of the oracle's success, to which costs are shown
TASKS = ("service_desk_told", "service_desk_hinted", "service_desk_noisy")  # on which savings were measured
METHODS = ("nlac", *SAVINGS)
RIVALS = ("hindsight", SELF_DISTILLATION, "rft", "grpo")


def break_even(ours: dict, theirs: dict) -> float | None:
    """
    Return the price of an environment step, in generated tokens, from which `ours` costs less than `theirs`: 0 if at
    any price, `None` if at none.

    Args:
        ours (`dict`), theirs (`dict`):
            Costs to the same success, from [`~learning.figures.summary.reach`]. The second reaches it.
    """
    if ours["environment_steps"] is None:
        return None
    steps = theirs["environment_steps"] - ours["environment_steps"]
    tokens = ours["generated_tokens"] - theirs["generated_tokens"]
    if steps <= 0:
        return 0.0 if steps == 0 and tokens < 0 else None
    return round(max(0.0, tokens / steps), 1)


def price_of_step(ours: dict[str, dict], theirs: dict[str, dict]) -> dict:
    """
    Return the price of [`break_even`] to the highest share of the oracle's success that `theirs` reaches, and that
    share; `None` if it reaches none. `is_clear` says whether `ours` needs fewer steps in the seeds that reach it with
    both, by the 95 % interval of the difference, or `None` if there are too few of them to tell.
    """
    levels = [level for level, reached in theirs.items() if reached["environment_steps"] is not None]
    if not levels:
        return {"level": None, "price": None, "is_clear": None}
    level = max(levels, key=float)
    steps = difference(theirs[level], ours[level])
    is_clear = None if steps is None or len(steps["seeds"]) < LEAST_SEEDS else steps["low"] > 0
    return {"level": level, "price": break_even(ours[level], theirs[level]), "is_clear": is_clear}


def role_shares(cells: list[dict]) -> dict[str, float]:
    """Return the share of each role in the generated tokens of all cells; empty if a cell does not count them."""
    if not all(cell.get("tokens") for cell in cells):
        return {}
    generated = Counter()
    for cell in cells:
        roles = {name.removeprefix("generated/"): n for name, n in cell["tokens"].items() if "generated/" in name}
        generated.update(roles)
    return {role: round(tokens / generated.total(), 3) for role, tokens in generated.most_common()}


def figures(cells: list[dict]) -> dict:
    """Return the costs of one method on a task. What earlier cells did not count is missing."""
    ends = [cell["points"][-1] for cell in cells]
    return {
        "seeds": [cell["seed"] for cell in cells],
        "final": of_cells(cells, final_success),
        "spent": {cost: mean(end[cost] for end in ends) for cost in SPENT if all(cost in end for end in ends)},
        "reach": {str(level): reach(cells, level * cells[0]["oracle_success"]) for level in LEVELS},
        "role_shares": role_shares(cells),
    }


def costs(cells: list[dict]) -> dict:
    """Return the costs of NLAC, of its savings and of the baselines, and the prices at which they are equal."""
    by_method: dict[str, dict[str, list[dict]]] = {}
    for cell in sorted(cells, key=lambda cell: cell["seed"]):
        by_method.setdefault(cell["task"], {}).setdefault(cell["method"], []).append(cell)
    tasks = {}
    for task in TASKS:
        of_task = by_method.get(task, {})
        methods = {name: figures(of_task[name]) for name in (*METHODS, *RIVALS) if name in of_task}
        prices = {
            name: {
                rival: price_of_step(methods[name]["reach"], methods[rival]["reach"])
                for rival in RIVALS
                if rival in methods
            }
            for name in METHODS
            if name in methods
        }
        tasks[task] = {"methods": methods, "prices": prices}
    return {"level": LEVEL, "tasks": tasks, "machines": reporting.machines(cells)}


def price(figures: dict) -> str:
    """Format a price of [`price_of_step`], with a question mark if it is not clear that it needs fewer steps."""
    level, value = figures["level"], figures["price"]
    if level is None:
        return "it learns too little"
    words = "never" if value is None else "always" if value == 0 else f"above {value:,.0f}"
    return f"{words}{'?' if value and figures['is_clear'] is False else ''} (to {level})"


def table(report: dict) -> str:
    """Format the costs as a table."""
    names = ["task", "method", "seeds", "final success", "generated tokens", f"steps to {report['level']}"]
    names += ["tokens to it", "seconds", *(f"costs less than {label(rival)}" for rival in RIVALS)]
    rows = []
    for task, of_task in report["tasks"].items():
        for name, method in of_task["methods"].items():
            reached, prices = method["reach"][str(LEVEL)], of_task["prices"].get(name, {})
            parts = [
                *(task_label(task), label(name), str(len(method["seeds"])), rate(method["final"])),
                number(method["spent"]["generated_tokens"]),
                *(number(reached[cost]) for cost in ("environment_steps", "generated_tokens", "seconds")),
                *(price(prices[rival]) if rival in prices else "–" for rival in RIVALS),
            ]
            rows.append(parts)
    return reporting.table(names, rows)


def fewest_tokens(methods: dict[str, dict]) -> str:
    """Name the savings that need the fewest tokens of those that lose at most 0.01 of NLAC's success."""
    least = methods["nlac"]["final"]["mean"] - 0.01
    kept = [name for name in SAVINGS if name in methods and methods[name]["final"]["mean"] >= least]
    return min(kept, key=lambda name: methods[name]["spent"]["generated_tokens"])


def benefit_and_cost(report: dict) -> str:
    """Format what NLAC gains over others on the told desk, and what it costs, as a short table."""
    methods = report["tasks"]["service_desk_told"]["methods"]
    fewest = fewest_tokens(methods)
    options = ", ".join(f"`{name}={value}`" for name, value in SAVINGS[fewest].items())
    words = {"nlac": "NLAC, every target and refined action written anew", fewest: f"NLAC, with {options}"}
    words |= {"hindsight": "Hindsight: NLAC that reads what followed in place of a learned critic", "grpo": "GRPO"}
    words |= {"rft": "RFT (rejection fine-tuning)", SELF_DISTILLATION: "Self-distillation, without a critic"}
    rows = []
    for name in words:
        spent, final = methods[name]["spent"], methods[name]["final"]["mean"]
        costs = [round(spent["environment_steps"]), round(spent["generated_tokens"], -3), round(spent["seconds"])]
        rows.append([words[name], f"{final:.2f}", *map(number, costs), str(len(methods[name]["seeds"]))])
    names = ["method", "success", "environment steps", "generated tokens", "CPU seconds", "seeds"]
    return reporting.table(names, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, nargs="+", default=[CELLS], help="folders of cells; a later one counts")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--page", type=Path, help="Markdown file whose results are replaced by the table")
    parser.add_argument("--readme", type=Path, help="Markdown file whose results are replaced by a short table")
    args = parser.parse_args()
    report = costs(latest(reporting.read_cells(*args.cells)))
    reporting.publish(report, table(report), "learning/figures/costs.py", args.json, args.page)
    if args.readme:
        reporting.insert(benefit_and_cost(report), args.readme, "learning/figures/costs.py")


if __name__ == "__main__":
    main()
