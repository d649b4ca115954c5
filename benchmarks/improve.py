# SPDX-License-Identifier: Apache-2.0

"""
`trl-nlac improve` on logged episodes of a service desk: the base policy plays, and in a share of the episodes an
expert makes the right call; the conversations are written as chat logs, and the command does the rest. Success is that
of held-out customers at the same desk.

python -m benchmarks.improve --learning_rate 3e-3 --json benchmarks/results/improve.json --page docs/source/improve.md

A seed whose folder under --runs has its results is not run again. Other options of the command can be added; the
folder is then another one:

python -m benchmarks.improve --bootstrap implicit

The simpler rival, supervised fine-tuning on the successes among the same conversations, for as many steps:

python -m benchmarks.improve --sft --json benchmarks/results/improve_sft.json
"""

import argparse
import json
import random
import time
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from datasets import Dataset

from benchmarks import reporting
from benchmarks.learning.methods.settings import MIN_P, NLAC, acting_config
from benchmarks.learning.tasks import LearningTask, make_task
from benchmarks.offline import collect, train_sft
from trl_nlac import NLACConfig
from trl_nlac.cli.main import main as command
from trl_nlac.environments.embedded.service_desk import format_call


HERE = Path(__file__).resolve()


@cache
def task_of(name: str, seed: int) -> LearningTask:
    """Make the task once, with all its rehearsal samples."""
    return make_task(name, seed)


def held_out_desk(task: str, seed: int):
    """Make an environment of the task's held-out customers, for the command line."""
    return task_of(task, seed).instances["held_out"].environment_factory()


def expert_row(task: LearningTask, row: dict) -> dict:
    """A conversation of somebody who knows the rules."""
    environment = task.environment_factory()
    messages = [{"role": "user", "content": environment.reset(**row)}]
    action = format_call(environment.world.rules[row["request"]])
    result = environment.step(action)
    messages += [{"role": "assistant", "content": action}, {"role": "user", "content": result.observation}]
    return {"messages": messages, "reward": result.reward, "task": row}


def write_rows(rows, path: Path) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def play(task: LearningTask, acting: NLACConfig, num_episodes: int, expert_share: float) -> list[dict]:
    """Play, and let the expert take a share of the episodes."""
    logs, _ = collect(task, acting, num_episodes)
    rows = [{"messages": row["messages"], "reward": row["reward"], "task": json.loads(row["task"])} for row in logs]
    for i in random.Random(acting.seed).sample(range(len(rows)), round(expert_share * len(rows))):
        rows[i] = expert_row(task, rows[i]["task"])
    return rows


def fine_tune(name: str, seed: int, num_episodes: int, expert_share: float, max_steps: int, folder: Path) -> dict:
    """
    Play, and fine-tune all weights on the successes, with NLAC's learning rate and rehearsal. None of them is held
    out, where the command learns from four fifths.
    """
    task = task_of(name, seed)
    acting = acting_config(task, str(folder), seed)
    rows = play(task, acting, num_episodes, expert_share)
    successes = [row for row in rows if row["reward"] >= acting.success_threshold]
    if not successes:
        raise ValueError(
            f"None of the {num_episodes} conversations was won, so that there is nothing to fine-tune on. Raise "
            "--num_episodes or --expert_share."
        )
    acting = replace(acting, **MIN_P)  # the default, with which the command evaluates
    metrics, seconds = train_sft(task, acting, Dataset.from_list(successes), max_steps)
    success = {key: value for key, value in metrics.items() if key.startswith("episode/success_rate")}
    return {"num_successes": len(successes), **success, "seconds": seconds}


def improve(
    name: str, seed: int, num_episodes: int, expert_share: float, max_steps: int, folder: Path, options: list[str]
) -> dict:
    """Play, write logs, and improve on them."""
    task = task_of(name, seed)
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    rows = play(task, acting_config(task, str(folder / "acting"), seed), num_episodes, expert_share)
    playing = time.perf_counter() - start
    settings = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in NLAC.items()}
    words = {
        "model_name_or_path": task.model,
        "output_dir": folder / "improved",
        "max_steps": max_steps,
        "max_turns": task.max_turns,
        "action_format": task.action_format,
        "max_completion_length": 64,
        "max_generation_batch_size": 512,
        "logging_steps": 20,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "seed": seed,
        "environment_factory": f"{HERE}:held_out_desk",
        "environment_kwargs": json.dumps({"task": name, "seed": seed}),
        "dataset_name": write_rows(task.instances["held_out"].rows, folder / "tasks.jsonl"),
        "rehearsal_dataset": write_rows(task.rehearsal, folder / "rehearsal.jsonl"),
        "num_eval_episodes": task.final_episodes,
        **settings,
    }
    command_line = ["improve", write_rows(rows, folder / "logs.jsonl")]
    command_line += [word for name, value in words.items() for word in (f"--{name}", str(value))] + options
    code = command(command_line)
    if code:
        raise SystemExit(code)
    measured = {"playing_seconds": playing, **json.loads((folder / "improved" / "improve.json").read_text())}
    measured.update(model=Path(task.model).name, files=[Path(file).name for file in measured["files"]])
    for when in ("before", "after"):
        del measured[when]["findings"]  # they are in the folder
    return measured


def time_first_report(model: Path, logs: Path, folder: Path) -> dict:
    """Time the first report with another model, without training."""
    words = ["--model_name_or_path", str(model), "--output_dir", str(folder), "--only_report"]
    if command(["improve", str(logs), *words]):
        raise SystemExit(1)
    report = json.loads((folder / "improve.json").read_text())
    kept = {
        "model": model.name,
        "conversations": report["logs"]["conversations"],
        "critic": report["before"]["critic"],
    }
    return {**kept, "seconds": report["seconds"]["first_report"]}


def table(seeds: dict[str, dict]) -> str:
    """Format what the command changed on each desk."""
    names = ["desk", "success before", "after (95 %)", "Brier before", "after", "agreement before", "after"]
    names += ["first report", "all"]
    rows = []
    for seed, cell in seeds.items():
        before, after = cell["before"], cell["after"]
        rate, low, high = (after["environment"][f"episode/success_rate{end}"] for end in ("", "_low", "_high"))
        parts = [seed, f"{before['environment']['episode/success_rate']:.2f}", f"{rate:.2f} ({low:.2f} to {high:.2f})"]
        parts += [f"{when['critic'][name]:.2f}" for name in ("brier", "agreement") for when in (before, after)]
        parts += [f"{cell['seconds'][name]:.0f} s" for name in ("first_report", "all")]
        rows.append(parts)
    return reporting.table(names, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="service_desk_told")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--num_episodes", type=int, default=256, help="logged episodes")
    parser.add_argument("--expert_share", type=float, default=0.25, help="share of them that an expert played")
    parser.add_argument("--max_steps", type=int, default=200, help="gradient steps")
    parser.add_argument("--sft", action="store_true", help="fine-tune on the successes instead")
    parser.add_argument("--report_model", type=Path, help="another model, with which the first report is timed, too")
    parser.add_argument("--runs", type=Path, default=Path("runs/improve"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, help="Markdown file whose results are replaced by the table")
    args, others = parser.parse_known_args()
    if args.sft and (args.page or args.report_model or others):
        given = f": {' '.join(others)}" if others else ""
        parser.error(f"--sft takes neither --page nor --report_model nor options of the command{given}")
    cells = {}
    for seed in args.seeds:
        options = (args.task, seed, args.num_episodes, args.expert_share, args.max_steps)
        name = f"{args.task}_{args.num_episodes}_{args.expert_share}_{args.max_steps}_{seed}"
        folder = args.runs / "_".join([name, *(["sft"] if args.sft else []), *(word.strip("-") for word in others)])
        measure = partial(fine_tune, *options, folder) if args.sft else partial(improve, *options, folder, others)
        cells[str(seed)] = reporting.kept(folder / "results.json", measure)
        if args.report_model:
            cells[str(seed)]["first_report"] = time_first_report(
                args.report_model, folder / "logs.jsonl", folder / "first_report"
            )
    setting = reporting.setting("torch", "transformers", "trl", "peft")
    shared = {name: vars(args)[name] for name in ("task", "num_episodes", "expert_share", "max_steps")}
    report = {**shared, "options": others, "seeds": cells, **setting}
    print(json.dumps(report, indent=2))
    reporting.write(report, args.json)
    if args.page:
        reporting.insert(table(cells), args.page, "improve.py")


if __name__ == "__main__":
    main()
