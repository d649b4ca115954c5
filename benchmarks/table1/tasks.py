# SPDX-License-Identifier: Apache-2.0
"""The tasks of table 1 (paper, section 6.1), as arguments of a trainer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset

from trl_nlac import NLACPrompts
from trl_nlac.environments import math, tau_bench, twenty_questions
from trl_nlac.environments.math import MathEnvironment
from trl_nlac.environments.tau_bench import TauBenchEnvironment
from trl_nlac.environments.twenty_questions import ChatOracle, RuleOracle, TwentyQuestionsEnvironment


# Options of NLACConfig that belong to a task. 20 questions may take up to five unreadable answers besides.
OPTIONS: dict[str, dict[str, Any]] = {
    "math": {"single_step": True, "max_turns": 1, "action_format": "text"},
    "20q": {"max_turns": 25, "action_format": "react"},
    "tau": {"max_turns": 30, "action_format": "react"},
}
MATH_PROMPTS = NLACPrompts(
    policy="You solve mathematical problems. Answer in exactly this form:\n{action_format}",
    format_text="<the solution, step by step, with the final answer in \\boxed{} at its end>",
)


@dataclass
class TaskOptions:
    """
    What the tasks need besides a model. Without an oracle model a table answers in 20 questions, where the paper has
    GPT-4.1; without files its objects are those of the table, where the paper has 1,000 and 500 of THINGS. Addresses
    that are not given are OpenAI's.
    """

    math_dataset: str = field(
        default="DigitalLearningGmbH/MATH-lighteval", metadata={"help": "Dataset on the Hub, or JSONL file."}
    )
    oracle_model: str | None = field(default=None, metadata={"help": "Chat model that answers in 20 questions."})
    oracle_base_url: str | None = field(default=None, metadata={"help": "Address of its endpoint."})
    train_objects: str | None = field(default=None, metadata={"help": "File with objects to train on."})
    eval_objects: str | None = field(default=None, metadata={"help": "File with objects to evaluate on."})
    user_model: str = field(default="gpt-4.1", metadata={"help": "Model that plays the customers of τ-bench."})
    user_base_url: str | None = field(default=None, metadata={"help": "Address of a server for it."})
    max_rows: int | None = field(default=None, metadata={"help": "Number of tasks to train and to evaluate on."})


@dataclass(frozen=True)
class Task:
    """
    A task of the table: what to train on, what to evaluate on by column, and the options and prompts that belong to
    it.
    """

    train_dataset: Dataset
    eval_dataset: dict[str, Dataset]
    environment_factory: Callable | dict[str, Callable]
    options: dict[str, Any]
    prompts: NLACPrompts | None = None


def _math(options: TaskOptions) -> Task:
    train, held_out = math.make_tasks(options.math_dataset, options.max_rows or 500)
    return Task(_few(train, options), {"math": held_out}, MathEnvironment, OPTIONS["math"], MATH_PROMPTS)


def _twenty_questions(options: TaskOptions) -> Task:
    oracle = RuleOracle()
    if options.oracle_model is not None:
        oracle = ChatOracle(options.oracle_model, options.oracle_base_url)
    return Task(
        _few(_objects(options.train_objects, "train"), options),
        {"20q": _few(_objects(options.eval_objects, "eval"), options)},
        partial(TwentyQuestionsEnvironment, oracle),
        OPTIONS["20q"],
    )


def _tau_bench(options: TaskOptions) -> Task:
    """Train on retail alone. The paper's 2,500 scenarios to train on and 500 to evaluate on are not public."""
    company = partial(TauBenchEnvironment, user_model=options.user_model, user_base_url=options.user_base_url)
    return Task(
        _few(tau_bench.make_tasks("retail", "train"), options),
        {name: _few(tau_bench.make_tasks(name, "test"), options) for name in ("retail", "airline")},
        {
            f"{name}_{split}": partial(company, name, split)
            for name, split in (("retail", "train"), ("retail", "test"), ("airline", "test"))
        },
        OPTIONS["tau"],
    )


TASKS = {"math": _math, "20q": _twenty_questions, "tau": _tau_bench}


def _few(rows: Dataset, options: TaskOptions) -> Dataset:
    return rows if options.max_rows is None else rows.select(range(min(options.max_rows, len(rows))))


def _objects(path: str | None, split: str) -> Dataset:
    if path is None:
        return twenty_questions.make_tasks(split)
    names = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    return Dataset.from_dict({"object": [name for name in names if name]})
