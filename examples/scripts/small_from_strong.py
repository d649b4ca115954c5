# SPDX-License-Identifier: Apache-2.0

# /// script
# dependencies = ["trl-nlac[peft]"]
# ///
r"""
Make a small model better from the logs of a strong one, and find out whether its critic should intervene:

1. The strong model answers customers of a shop in a plain loop, which logs chat messages as OpenAI has them.
2. `trl-nlac improve` trains the small model on them, failures included, and plays other customers before and after.
3. `trl-nlac calibrate --pilot` plays these with and without refinement, and says whether to enable it.

On a CPU, within hours:

python examples/scripts/small_from_strong.py \
    --strong_model Qwen/Qwen2.5-1.5B-Instruct --model HuggingFaceTB/SmolLM2-135M-Instruct --output_dir runs/small

A test run, with the package's tiny model in both places, which learns nothing here:

python examples/scripts/small_from_strong.py \
    --strong_model trl_nlac/tiny_model --model trl_nlac/tiny_model \
    --num_logs 4 --num_tasks 2 --max_steps 1 --max_completion_length 16
"""

import json
import random
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import pipeline
from trl import TrlParser

from trl_nlac.cli.main import main as trl_nlac
from trl_nlac.environments import StepResult


MAX_TURNS = 4
CITIES = ["Lagos", "Lima", "Lisbon", "Ljubljana", "London", "Lusaka", "Luxembourg", "Lyon"]
INSTRUCTIONS = 'Write "look up NUMBER" to look up an order or a parcel, or else the city alone.'


@dataclass
class Arguments:
    """
    Arguments of this script.

    Args:
        strong_model (`str`, *optional*, defaults to `"Qwen/Qwen2.5-1.5B-Instruct"`):
            Model whose conversations are logged.
        model (`str`, *optional*, defaults to `"HuggingFaceTB/SmolLM2-135M-Instruct"`):
            Model to improve.
        num_logs (`int`, *optional*, defaults to `300`):
            Number of customers that the strong model answers.
        num_tasks (`int`, *optional*, defaults to `100`):
            Number of held-out customers, and of the pilot's.
        max_steps (`int`, *optional*, defaults to `200`):
            Number of training steps.
        max_completion_length (`int`, *optional*, defaults to `64`):
            Largest number of tokens of an answer.
        output_dir (`str`, *optional*, defaults to `"runs/small"`):
            Folder for all that is written.
    """

    strong_model: str = field(default="Qwen/Qwen2.5-1.5B-Instruct", metadata={"help": "Model to log."})
    model: str = field(default="HuggingFaceTB/SmolLM2-135M-Instruct", metadata={"help": "Model to improve."})
    num_logs: int = field(default=300, metadata={"help": "Number of customers in the logs."})
    num_tasks: int = field(default=100, metadata={"help": "Number of held-out customers."})
    max_steps: int = field(default=200, metadata={"help": "Number of training steps."})
    max_completion_length: int = field(default=64, metadata={"help": "Largest number of tokens of an answer."})
    output_dir: str = field(default="runs/small", metadata={"help": "Folder for all that is written."})


class Shop:
    """A customer asks where an order is. The order leads to a parcel, and the parcel to a city."""

    def reset(self, order: str, parcel: str, city: str) -> str:
        self.records = {order: f"Sent as parcel {parcel}.", parcel: f"In {city}."}
        self.city = city
        return f"In which city is order {order}? {INSTRUCTIONS}"

    def step(self, action: str) -> StepResult:
        if asked := re.search(r"look up (\w+)", action, re.IGNORECASE):
            return StepResult(self.records.get(asked[1], f"There is no {asked[1]}."))
        is_right = action.strip(" .\n") == self.city
        return StepResult("Thank you." if is_right else "That is wrong.", float(is_right), terminated=True)


def make_tasks(number: int, seed: int) -> list[dict[str, str]]:
    rng = random.Random(seed)
    return [
        {"order": f"A{rng.randrange(10**4)}", "parcel": f"P{rng.randrange(10**4)}", "city": rng.choice(CITIES)}
        for _ in range(number)
    ]


def play(answer, task: dict[str, str]) -> dict[str, Any]:
    """Let a model answer a customer, and return the conversation and its reward. Nothing here knows the package."""
    shop = Shop()
    messages = [{"role": "user", "content": shop.reset(**task)}]
    reward, is_over = 0.0, False
    while not is_over and len(messages) < 2 * MAX_TURNS:
        messages = answer(messages)[0]["generated_text"]
        result = shop.step(messages[-1]["content"])
        messages.append({"role": "user", "content": result.observation})
        reward, is_over = result.reward, result.terminated
    return {"task": task["order"], "messages": messages, "reward": reward}


def write_lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def run(*words: str) -> None:
    if trl_nlac(list(words)):
        sys.exit(1)


def main():
    (args,) = TrlParser(Arguments).parse_args_and_config()
    output, improved = Path(args.output_dir), str(Path(args.output_dir, "improved"))
    answer = pipeline("text-generation", model=args.strong_model, max_new_tokens=args.max_completion_length)
    rows = [play(answer, task) for task in make_tasks(args.num_logs, seed=0)]
    print(f"{args.strong_model} answers {sum(row['reward'] for row in rows):.0f} of {len(rows)} customers rightly.")
    logs = write_lines(output / "logs.jsonl", rows)
    held_out = write_lines(output / "held_out.jsonl", make_tasks(args.num_tasks, seed=1))

    shop, num_tasks = ["--environment_factory", f"{__file__}:Shop"], str(args.num_tasks)
    training = ["--model_name_or_path", args.model, "--output_dir", improved, "--action_format", "text"]
    training += ["--max_turns", str(MAX_TURNS), "--eval_dataset_name", held_out, "--num_tasks", num_tasks]
    training += ["--max_steps", str(args.max_steps), "--max_completion_length", str(args.max_completion_length)]
    run("improve", logs, *training, *shop)
    pilot = ["--pilot", num_tasks, "--refine", "1", "--dataset_name", held_out]
    run("calibrate", f"{improved}/model", *pilot, *shop)
    print(f"The report is {improved}/report.html. Next: trl-nlac serve {improved}/model")


if __name__ == "__main__":
    main()
