# SPDX-License-Identifier: Apache-2.0

"""
The pages of the learning benchmark, docs/source/results.md with its plots and docs/source/results_search.md, from the
summary. Fixed text is in the templates; every number in a table and every sentence that depends on one comes from the
JSON.

python -m benchmarks.learning.figures.report --readme README.md
"""

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import jinja2

from benchmarks import reporting
from benchmarks.learning.figures.claims import HOLDS, UNKNOWN, best_final, overlap
from benchmarks.learning.figures.correction import holm
from benchmarks.learning.figures.costs import price, price_of_step
from benchmarks.learning.figures.plots import plot_ablations, plot_critic, plot_task
from benchmarks.learning.figures.search import change_words
from benchmarks.learning.figures.sharpening import REPORT, sentences
from benchmarks.learning.figures.summary import SPENT
from benchmarks.learning.figures.table import (
    COSTS,
    comparison,
    gap,
    label,
    number,
    rate,
    task_label,
    variant,
)
from benchmarks.learning.methods.settings import default_settings
from benchmarks.learning.tasks import TASKS, make_task


HALF = "0.5"  # of the oracle's success
# Pages and their templates.
PAGES = {"results.md": "report.md.jinja", "results_search.md": "report_search.md.jinja"}


# Sentences


def claim_sentence(claim: dict) -> str:
    """Describe the figures of a claim."""
    if claim["verdict"] == UNKNOWN:
        return "Some of its methods have too few cells."
    if claim["claim"] == "complete":
        return "Every method has every seed." if claim["verdict"] == HOLDS else "Missing cells are listed below."
    ours, theirs = claim["nlac"], claim["baseline"]
    if claim["claim"] == "fewer_steps":
        first = {side["method"]: number(side["steps_to_it"]) for side in (ours, theirs)}
        return (
            f"{label(theirs['method'])}, the better of GRPO and RFT, ends at {rate(theirs['success'])} after "
            f"{number(theirs['steps'])} environment steps. Within {number(claim['allowed_steps'])} steps, "
            f"{claim['share']:.0%} of them, {label(ours['method'])} has {rate(ours['success'])}, after "
            f"{number(ours['steps'])}. "
            f"Steps at which the mean curve first had {theirs['success']['mean']:.2f}: "
            + ", ".join(f"{label(method)} {steps}" for method, steps in first.items())
            + (", its end." if theirs["steps_to_it"] >= theirs["steps"] else ".")
        )
    ratio = f", {claim['ratio']:.2f} times as much in the mean" if claim["factor"] > 1 and claim["ratio"] else ""
    if ratio and (by_seed := claim["seed_ratio"]):
        ratio += f" ({by_seed['low']:.2f} to {by_seed['high']:.2f}, paired by seed)"
    rival = ", the best baseline," if claim["claim"] == "higher_success" else ""
    return (
        f"{label(ours['method'])} ends at {rate(ours['success'])} after {number(ours['steps'])} environment steps"
        f"{ratio}; {label(theirs['method'])}{rival} at {rate(theirs['success'])} after {number(theirs['steps'])}."
    )


def leaders(names: list[str], value: Callable[[str], float | None]) -> list[str]:
    """Return the methods with the smallest value, several if they tie."""
    values = {name: value(name) for name in names if value(name) is not None}
    return [name for name in values if values[name] == min(values.values())]


def winners(figures: dict, names: list[str]) -> dict[str, list[str]]:
    """Return the methods with the highest final success, and those that reach half of the oracle's at least cost."""
    return {
        "final": leaders(names, lambda name: -figures[name]["final"]["mean"]),
        **{cost: leaders(names, lambda name, cost=cost: figures[name]["reach"][HALF][cost]) for cost in COSTS},
    }


def winner_sentences(task: dict, names: list[str]) -> list[str]:
    """Describe which methods have the highest final success, and which reach half of the oracle's at least cost."""
    figures = task["methods"]
    won = winners(figures, names)
    ends = [
        f"{label(name)}, {rate(figures[name]['final'])} after {number(figures[name]['spent']['environment_steps'])} "
        "environment steps"
        for name in won["final"]
    ]
    sentences = [f"Highest final success: {'; '.join(ends)}."]
    if not won["environment_steps"]:
        return [*sentences, "No method brings most of its seeds to half of the oracle's success."]
    for cost, words in COSTS.items():
        costs = [
            f"{label(name)}, {number(reached[cost])} ({reached['num_seeds']} of {figures[name]['num_seeds']} seeds)"
            for name in won[cost]
            for reached in [figures[name]["reach"][HALF]]
        ]
        sentences.append(f"Fewest {words} to half of the oracle's success: {'; '.join(costs)}.")
    return sentences


def choice(task: dict, names: list[str]) -> str:
    """Describe which method to choose for which aim."""
    wanted: dict[str, list[str]] = {}
    for aim, methods in winners(task["methods"], names).items():
        for figures in [task["methods"][methods[0]]] if methods else []:
            if aim == "final":
                spent = [number(task["methods"][name]["spent"]["environment_steps"]) for name in methods]
                steps = " or ".join(dict.fromkeys(spent))
                words = f"highest final success ({figures['final']['mean']:.2f} after {steps} environment steps)"
            else:
                words = f"fewest {COSTS[aim]} ({number(figures['reach'][HALF][aim])})"
            wanted.setdefault(" or ".join(map(label, methods)), []).append(words)
    return "; ".join(f"{methods}: {', '.join(words)}" for methods, words in wanted.items()) + "."


def prices(tasks: dict[str, dict]) -> str:
    """Format from which price of an environment step, in generated tokens, NLAC costs less than each other method."""
    rivals = ("hindsight", "rft", "grpo", "scalar")
    rows = []
    for name, task in tasks.items():
        figures = task["methods"]
        if "nlac" in figures:
            ours = figures["nlac"]["reach"]
            theirs = [figures[rival]["reach"] if rival in figures else None for rival in rivals]
            rows.append([task_label(name), *(price(price_of_step(ours, of)) if of else "–" for of in theirs)])
    return reporting.table(["task", *(f"costs less than {label(rival)}" for rival in rivals)], rows)


def cuts(names: Iterable[str]) -> str:
    """List, for each of the tiny models' tasks, the methods that leave out unlikely tokens."""
    methods = ("nlac", "hindsight", "grpo", "rft", "scalar")
    found = []
    for name in [name for name in names if name in TASKS]:
        task = make_task(name, seed=0)
        cut = [label(method) for method in methods if default_settings(task, method).get("min_p")]
        found.append(f"- {task_label(name)}: {', '.join(cut) or 'none'}")
    return "\n".join(found)


def spent(task: dict) -> str:
    """Format the costs of training of every method on a task as a table."""
    rows = [
        [label(method), *(number(costs[c]) if c in costs else "–" for c in SPENT), str(costs["num_other_runs"])]
        for method, costs in task["costs"].items()
    ]
    return reporting.table(["method", *(cost.replace("_", " ") for cost in SPENT), "other runs"], rows)


def defeats(task: dict, names: list[str], settings: list[str]) -> list[str]:
    """Describe where a baseline is ahead of NLAC, in the setting of NLAC with the highest final success."""
    figures, common = task["methods"], task["common_budget"]
    settings = [name for name in ("nlac", *settings) if name in figures]
    if not settings:
        return []
    nlac = best_final(figures, settings)
    sentences = []
    for name in [name for name in names if name not in settings]:
        ours, theirs = figures[nlac], figures[name]
        spent = [side["spent"]["environment_steps"] for side in (theirs, ours)]
        pairs = {
            "final success": (theirs["final"], ours["final"], *spent),
            "success on the way": (theirs["at_common_budget"], ours["at_common_budget"], common, common),
            "the unseen domain": (theirs["unseen_domain"]["after"], ours["unseen_domain"]["after"], *spent),
        }
        if ours["at_common_budget"] == ours["final"] and theirs["at_common_budget"] == theirs["final"]:
            del pairs["success on the way"]  # it is the final success
        for where, (high, low, their_steps, our_steps) in pairs.items():
            if where == "the unseen domain" and high and low and overlap(high, low):
                continue  # no method is trained there, so only clear differences count
            if high and low and round(high["mean"], 2) > round(low["mean"], 2):
                verb, intervals = ("is ahead of", "overlap") if overlap(high, low) else ("beats", "do not overlap")
                sentences.append(
                    f"{label(name)} {verb} {label(nlac)} in {where}: {rate(high)} after {number(their_steps)} "
                    f"environment steps, {rate(low)} after {number(our_steps)}; the intervals {intervals}."
                )
        for cost, words in COSTS.items():
            less, more = theirs["reach"][HALF][cost], ours["reach"][HALF][cost]
            if less is not None and (more is None or less <= more):
                many = f"as many {words} as" if less == more else f"fewer {words} than"
                sentences.append(
                    f"{label(name)} needs {many} {label(nlac)} to half of the oracle's success: "
                    f"{number(less)}, {number(more)}."
                )
    return sentences


def has_critic(figures: dict) -> bool:
    """Whether the critic of a method was examined."""
    return any(stage for stages in figures["critic"].values() for stage in stages.values())


def ablation_verdict(difference: dict | None, corrected: float = 1.0) -> str:
    """Classify the interval of a difference to plain NLAC; bold if it is clear after a correction, too."""
    if difference is None or difference["low"] is None or difference["low"] <= 0 <= difference["high"]:
        return "not clear"
    word = "worse" if difference["high"] < 0 else "better"
    return f"**{word}**" if corrected < 0.05 else word


def correct_ablations(tasks: dict[str, dict]) -> dict[tuple[str, str, str], float]:
    """Return the corrected p-value of every difference in the table of ablations, by task, method and figure."""
    return holm(
        {
            (task, method, name): differences[name]
            for task, of in tasks.items()
            for method, differences in of["ablations"].items()
            for name in ("success", "area")
        }
    )


def render(summary: dict, sharpened: dict) -> dict[str, str]:
    """Return the text of each page, given the summary and the report of [`~learning.figures.sharpening`]."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    words = (label, task_label, variant, number, rate, gap)
    words += (claim_sentence, winner_sentences, choice, prices, cuts, spent, defeats)
    words += (ablation_verdict, has_critic, change_words)
    sharpness = [sentence for task, of in sharpened["tasks"].items() for sentence in sentences(task, of)]
    variables = {**summary, "sharpness": sharpness, "COSTS": COSTS, "corrected": correct_ablations(summary["tasks"])}
    variables |= {function.__name__: function for function in words}
    return {page: environment.get_template(template).render(variables) for page, template in PAGES.items()}


def write_plots(summary: dict, images: Path) -> None:
    """Write every plot to a folder, as PNG and SVG."""
    tasks, methods = summary["tasks"], summary["methods"]
    for name, task in tasks.items():
        if task["methods"]:
            plot_task(name, task, methods, summary["settings"], images / f"learning_{name}")
    if any(curve for task in tasks.values() for curve in task["critic_curves"].values()):
        plot_critic(tasks, images / "learning_critic")
    if any(task["ablations"] for task in tasks.values()):
        plot_ablations(tasks, images / "learning_ablations")


def write_pages(summary: dict, sharpened: dict, folder: Path) -> None:
    """Write the pages and their images to `folder`."""
    write_plots(summary, folder / "images")
    for page, text in render(summary, sharpened).items():
        (folder / page).write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/learning.json"))
    parser.add_argument("--docs", type=Path, default=Path("docs/source"))
    parser.add_argument("--readme", type=Path, help="Markdown file whose results are replaced by the comparison")
    parser.add_argument(
        "--plots", type=Path, help="write only the plots, to this folder: the pages are about the tiny models"
    )
    args = parser.parse_args()
    summary = json.loads(args.json.read_text())
    if args.plots:
        write_plots(summary, args.plots)
        return
    write_pages(summary, json.loads(REPORT.read_text()), args.docs)
    if args.readme:
        reporting.insert(comparison(summary), args.readme, "learning/figures/report.py")


if __name__ == "__main__":
    main()
