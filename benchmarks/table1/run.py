# SPDX-License-Identifier: Apache-2.0
"""
A row of the paper's table 1: one method with one model on all tasks, before and after training, beside the paper's
figures.

    python -m benchmarks.table1.run --method nlac --config examples/recipes/table1_nlac.yaml \\
        --accelerate_config zero3 --num_processes 8 --oracle_model gpt-4.1

Each task takes four steps, in processes of their own: the base model's success, a preflight that stops a run that
cannot learn (NLAC), training, and the trained model's success. The command can be given again: what is done is kept,
and training goes on from its last checkpoint. Further options are those of the recipe and of the tasks (cell.py). With
--dry_run every step is taken on the CPU, with the tiny model, two tasks and two gradient steps.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import yaml

from benchmarks import reporting
from benchmarks.chat_server import ChatServer
from benchmarks.table1.paper import LABELS, figures_of_paper, row
from benchmarks.table1.tasks import TASKS
from trl_nlac.cli.packaged import find_yaml
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.evaluation.readiness import NO_GO, check_success
from trl_nlac.training.stopping import closing_on_sigterm


ROOT = Path(__file__).parents[2]
# What a recipe says about size, for a dry run.
TINY = {
    **dict(use_cpu=True, bf16=False, use_vllm=False, dtype="float32"),
    **dict(max_steps=2, per_device_train_batch_size=4, gradient_accumulation_steps=1, samples_per_iteration=4),
    **dict(episodes_per_iteration=4, max_completion_length=16, max_generation_batch_size=16, max_rows=2),
    **dict(save_strategy="steps", save_steps=1, num_eval_episodes=1, num_grpo_updates=1, gradient_checkpointing=False),
    **dict(user_model="teacher", max_prompt_length=16384, max_turns=2),
}


def words_of(options: dict) -> list[str]:
    """Write options for a command line."""
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def launch(accelerate: list[str], words: list[str]) -> None:
    """
    Run one step in processes of its own. A signal that ends the row ends them; training saves a checkpoint first.
    """
    command = [sys.executable, "-m", "accelerate.commands.launch", "--quiet", *accelerate]
    command += ["-m", "benchmarks.table1.cell", *words]
    print(f"$ {shlex.join(command)}", flush=True)
    with closing_on_sigterm(), subprocess.Popen(command, cwd=ROOT, start_new_session=True) as step:
        try:
            failed = step.wait()
        except BaseException:
            os.killpg(step.pid, signal.SIGTERM)
            raise
    if failed:
        sys.exit("This step failed, see above. What came before it is kept: give the command again.")


def check_base(success: dict[str, dict], words: list[str]) -> None:
    """
    Check that the base model starts where somebody has measured it (`column=success` each), and end the row if not.
    """
    expected = {name: float(value) for name, _, value in (word.partition("=") for word in words)}
    for name, of in success.items():
        if name in expected:
            check = check_success(of["mean"], of["episodes"], expected[name])
            print(f"{name}: {check.value:.2f}, expected {check.needed}: {check.verdict}", flush=True)
            if check.verdict == NO_GO:
                sys.exit(check.advice)


def write_tiny(folder: Path) -> dict[str, str]:
    """Write a few problems in place of MATH, and the tiny model with room for the rules of τ-bench's companies."""
    problems, model = folder / "dry_run" / "sums.jsonl", folder / "dry_run" / "tiny"
    shutil.copytree(TINY_MODEL, model, dirs_exist_ok=True)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 32768}))
    problems.write_text("".join(f'{{"problem": "{i} + 1", "answer": "{i + 1}"}}\n' for i in range(8)))
    return {"model_name_or_path": str(model), "math_dataset": str(problems)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=list(LABELS), required=True)
    parser.add_argument("--config", required=True, help="recipe: options of NLACConfig and of the model")
    parser.add_argument("--model_name_or_path", help="model in place of the recipe's")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--accelerate_config", default="zero3", help="a file, or the name of one of the package's")
    parser.add_argument("--num_processes", type=int, default=8)
    parser.add_argument("--runs", type=Path, default=Path("runs/table1"), help="folder of all rows")
    parser.add_argument("--expected_success", nargs="+", default=[], metavar="COLUMN=SHARE", help="of the base model")
    parser.add_argument("--ignore_preflight", action="store_true", help="train although a preflight says no-go")
    parser.add_argument("--dry_run", action="store_true", help="take every step on the CPU with the tiny model")
    parser.add_argument("--json", type=Path, help="where to write the row")
    args, others = parser.parse_known_args()
    recipe = yaml.safe_load(Path(args.config).read_text())
    args.model_name_or_path = args.model_name_or_path or recipe.get("model_name_or_path")
    if args.model_name_or_path is None:
        parser.error(f"--model_name_or_path is missing, and --config {args.config} names no model: name one.")
    with ExitStack() as stack:
        if args.dry_run:
            args.accelerate_config, args.num_processes = "cpu", 1
            url = stack.enter_context(ChatServer(lambda messages: "###STOP###").running())  # customers without a wish
            tiny = write_tiny(args.runs.absolute())
            args.model_name_or_path = tiny.pop("model_name_or_path")
            others += words_of({**TINY, "user_base_url": url, **tiny})
        take_row(args, others)


def take_row(args: argparse.Namespace, others: list[str]) -> None:
    """Take all steps of a row, and print it."""
    model = args.model_name_or_path
    file = find_yaml("--accelerate_config", "accelerate_configs", args.accelerate_config)
    accelerate = ["--config_file", file, "--num_processes", str(args.num_processes)]
    of_model = args.runs.absolute() / Path(model).name
    results: dict[str, dict] = {}
    for task in args.tasks:
        folder = of_model / args.method / task
        words = ["--method", args.method, "--task", task, "--config", str(Path(args.config).absolute())]
        words += ["--model_name_or_path", model, *others]

        def take(stage: str, path: Path, *more: str, words: list[str] = words, folder: Path = folder) -> dict:
            """Take a step whose results are kept."""
            if not path.exists():
                aside = ["--output_dir", str(folder.with_name(f"{folder.name}_{stage}"))]
                launch(accelerate, [*words, "--stage", stage, "--results", str(path), *aside, *more])
            return json.loads(path.read_text())

        before = take("evaluate", of_model / "base" / f"{task}.json")["success"]
        check_base(before, args.expected_success)
        if args.method == "nlac":
            checks = take("preflight", folder / "preflight.json")["checks"]
            failed = [check["name"] for check in checks if check["verdict"] == NO_GO]
            if failed and not (args.dry_run or args.ignore_preflight):
                sys.exit(
                    f"The preflight of {task} says no-go: {', '.join(failed)}. Change the recipe and remove "
                    f"{folder / 'preflight.json'}, or go on with --ignore_preflight."
                )
        launch(accelerate, [*words, "--stage", "train", "--output_dir", str(folder)])
        after = take("evaluate", folder / "after.json", "--model_name_or_path", str(folder))["success"]
        for name, of in before.items():
            results[name] = {"before": of, "after": after[name]}
        printed = figures_of_paper(model, args.method)
        reporting.write({"method": args.method, "model": model, "results": results, "paper": printed}, args.json)
    print(row(results, Path(model).name, args.method))


if __name__ == "__main__":
    main()
