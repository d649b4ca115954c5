# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac init`: an environment, tasks and a recipe, to be changed into one's own."""

import json
import shlex
from pathlib import Path

from .errors import CommandError
from .parsers import init_parser


ENVIRONMENT = '''\
from trl_nlac.environments import StepResult


class GuessTheNumber:
    """Replace it with your task. An observation that says why an action failed teaches most."""

    def reset(self, number):
        """Begin a task, a row of tasks.jsonl, and return the first observation."""
        self.number = number
        return "Guess a number from 1 to 20. Your action is the number alone."

    def step(self, action):
        """Take the action of the agent, a text, and return what follows."""
        if not action.isdecimal():
            return StepResult("That is not a number.")
        guess = int(action)
        if guess == self.number:
            return StepResult("Right!", reward=1.0, terminated=True)
        return StepResult("Higher." if guess < self.number else "Lower.")
'''
RECIPE = """\
model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
environment_factory: my_environment.py:GuessTheNumber
dataset_name: tasks.jsonl
output_dir: runs/first

max_turns: 6
max_completion_length: 128
max_steps: 200
logging_steps: 4
"""
FILES = {
    "my_environment.py": ENVIRONMENT,
    "tasks.jsonl": "".join(json.dumps({"number": number}) + "\n" for number in range(1, 21)),
    "run.yaml": RECIPE,
}


def run(words: list[str]) -> None:
    folder = Path(init_parser().parse_args(words).folder)
    if folder.exists() and not folder.is_dir():
        raise CommandError(f"{str(folder)!r} is a file. Name a folder.")
    if found := [name for name in FILES if (folder / name).exists()]:
        raise CommandError(f"{str(folder)!r} has {', '.join(found)} already. Name another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        with open(folder / name, "x", encoding="utf-8") as written:
            written.write(text)
    print(f"Wrote {', '.join(FILES)}. Train, and look at the run:\n")
    print(f"cd {shlex.quote(str(folder))}\ntrl-nlac train --config run.yaml\ntrl-nlac report runs/first\n")
    print("Without a GPU add --use_cpu --bf16 False to the second line.")
