# SPDX-License-Identifier: Apache-2.0

"""
Odd values for every option of the configuration and every argument of the trainer. Each must be refused by name before
training starts, or the run must train, evaluate and save: one step of a tiny model. Everything else is a defect: an
error that does not name what is odd, one after training started, or a run that hangs.

Trials run in a process of their own, one after the other, each with a limit of time.
"""

import contextlib
import io
import logging
import multiprocessing
import os
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from functools import partial
from inspect import get_annotations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset, DatasetDict, IterableDataset
from peft import LoraConfig, PrefixTuningConfig
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PrinterCallback,
    TrainerCallback,
)
from trl import GRPOConfig

from benchmarks.tiny_run import tiny_options
from trl_nlac import NLACConfig, NLACPrompts, NLACTrainer
from trl_nlac.environments import StepResult
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL, make_environment, make_tasks


OUTCOMES = ("refused", "trained", "refused without name", "died", "hung")
DESK, TASKS = make_tasks("service_desk", 0)


class Unprintable:
    """What has no `repr`."""

    def __repr__(self):
        raise RuntimeError("cannot be printed")


class Text(str):
    """Text that breaks when it is used as anything else."""

    def __str__(self):
        raise RuntimeError("not so")

    __repr__ = __format__ = __str__


PLAIN = (
    *(None, True, False, 0, 1, 2, -1, 10**9, 10**30, 0.5, 1.0, 2.5, -0.5, 1e-320, 1e308),
    *(float("nan"), float("inf"), float("-inf"), 1j, "", "1", "odd", b"1", (1, 2), {1}, Decimal(1), Fraction(1, 2)),
    *([], [1], [float("nan")], {}, {"temperature": "hot"}, {1: 2}, '{"temperature": 1}'),
)
VALUES: dict[str, Any] = {repr(value): value for value in PLAIN}
VALUES |= {
    **{"np.float32": np.float32(0.5), "np.float64": np.float64(1.0), "np.int64": np.int64(2)},
    **{"np.bool": np.bool_(True), "array": np.array([1.0, 2.0]), "tensor": torch.tensor(1.0)},
    **{"control characters": "\x1b[2J\x00", "half a character": "caf\udce9", "subclass of text": Text("odd")},
    **{"function": len, "class": dict, "unprintable": Unprintable()},
}


def reward(completions: list, **kwargs) -> list[float]:
    return [0.5] * len(completions)


class Wins:
    """A text environment that ends after one step."""

    def reset(self, request):
        return "begin"

    def step(self, action):
        return StepResult("done", 1.0, terminated=True)


class Ticket:
    """A TRL environment."""

    def reset(self, request):
        return request

    def close_ticket(self, number: int) -> str:
        """
        Close a ticket.

        Args:
            number: Which.
        """
        return "closed"


def options_of_run(folder: str) -> dict[str, Any]:
    """Options with which every part of a run is at work, but little of it."""
    return tiny_options(
        folder,
        **dict(max_steps=1, per_device_train_batch_size=2, episodes_per_iteration=2, samples_per_iteration=2),
        **dict(max_turns=2, save_strategy="steps", save_steps=1, logging_steps=1, eval_strategy="steps", eval_steps=1),
        **dict(num_eval_critiques=1, log_completions=True, num_completions_to_print=1, audit_samples=1),
    )


def arguments_of_run() -> dict[str, Any]:
    return dict(
        model=TINY_MODEL,
        train_dataset=TASKS,
        eval_dataset=TASKS.select([0]),
        environment_factory=lambda: make_environment(DESK),
        reward_funcs=reward,
        prompts=COMPACT_PROMPTS,
    )


def own_options() -> list[str]:
    """Names of the options that this package defines."""
    own = {n for base in NLACConfig.__mro__ if base.__module__.startswith("trl_nlac.") for n in get_annotations(base)}
    return [option.name for option in fields(NLACConfig) if option.name in own]


def make_config(folder: str, name: str, label: str) -> NLACConfig:
    return NLACConfig(**{**options_of_run(folder), name: VALUES[label]})


def _raising(*args, **kwargs):
    raise ZeroDivisionError("as always")


def _exiting():
    sys.exit(1)


class _Undocumented:
    def reset(self, request):
        return request

    def look(self, where):
        return "nothing"


class _Unresettable:
    reset = 5

    def step(self, action):
        return StepResult("")


def _make_model(change: Callable[[Any], Any]) -> Any:
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
    return change(model) or model


def _set_weight(model, value: float) -> None:
    with torch.no_grad():
        next(model.parameters())[0, 0] = value


def _with_template(template: str | None):
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    tokenizer.chat_template = template
    return tokenizer


def _with_tokens(*tokens: str):
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    tokenizer.add_tokens(list(tokens))
    return tokenizer


def _optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def _lookup(word: str) -> str:
    """
    Look a word up.

    Args:
        word: The word.
    """
    return word


def _returning(value: Any) -> Callable:
    return lambda completions, **kwargs: value


def _dates() -> Dataset:
    return Dataset.from_dict({"request": ["baku"], "when": [np.datetime64("2024-01-01T00:00:00", "s").item()]})


# Values that no argument but a few can have, and those of each argument. They are made when they are tried.
ANY: dict[str, Callable[[], Any]] = {
    **{repr(v): partial(VALUES.get, repr(v)) for v in (True, 0, 1, 2.5, "1", "", b"1", [1], {1}, {})},
    **{"dict": lambda: VALUES["{'temperature': 'hot'}"], "array": lambda: VALUES["array"], "class": lambda: dict},
    **{"unprintable": Unprintable, "object": object, "list of None": lambda: [None]},
}
ARGUMENTS: dict[str, dict[str, Callable[[], Any]]] = {
    "model": {
        "no such folder": lambda: "./no/such/folder",
        "path": lambda: Path(TINY_MODEL),
        "layer": lambda: torch.nn.Linear(2, 2),
        "without a head": lambda: AutoModel.from_pretrained(TINY_MODEL),
        "configuration": lambda: AutoConfig.from_pretrained(TINY_MODEL),
        "on no device": lambda: _make_model(lambda model: model.to("meta")),
        "nan weight": lambda: _make_model(partial(_set_weight, value=float("nan"))),
        "infinite weight": lambda: _make_model(partial(_set_weight, value=float("inf"))),
        "half precision": lambda: _make_model(lambda model: model.bfloat16()),
        "frozen": lambda: _make_model(lambda model: model.requires_grad_(False)),
    },
    "args": {
        "of another trainer": lambda: GRPOConfig("run", use_cpu=True, bf16=False),
        "options": lambda: {"max_turns": 3},
    },
    "train_dataset": {
        "empty": lambda: TASKS.select([]),
        "another column": lambda: Dataset.from_dict({"question": ["?"]}),
        "one more column": lambda: TASKS.add_column("number", list(range(len(TASKS)))),
        "dates": _dates,
        "splits": lambda: DatasetDict({"train": TASKS}),
        "iterable": lambda: IterableDataset.from_generator(lambda: iter([{"request": "baku"}])),
        "rows": lambda: [{"request": "baku"}],
        "as arrays": lambda: Dataset.from_dict({"request": [1, 2]}).with_format("numpy"),
        "of nothing": lambda: Dataset.from_dict({"request": [None, None]}),
        "of numbers": lambda: Dataset.from_dict({"request": [1, 2]}),
    },
    "eval_dataset": {
        "empty": lambda: TASKS.select([]),
        "another column": lambda: Dataset.from_dict({"question": ["?"]}),
        "several": lambda: {"a/b": TASKS.select([0]), "c": TASKS.select([1])},
        "without a name": lambda: {"": TASKS.select([0])},
        "numbered": lambda: {1: TASKS.select([0])},
        "one empty": lambda: {"a": TASKS.select([]), "c": TASKS.select([1])},
        "dates": _dates,
        "rows": lambda: [{"request": "baku"}],
    },
    "environment_factory": {
        "instance": lambda: Wins(),
        "environment": lambda: Wins,
        "tools": lambda: Ticket,
        "undocumented tools": lambda: _Undocumented,
        "reset is a number": lambda: _Unresettable,
        "raises": lambda: _raising,
        "exits": lambda: _exiting,
        "needs arguments": lambda: lambda number: Wins(),
        "returns None": lambda: lambda: None,
        "returns a class": lambda: lambda: Wins,
        "routed": lambda: {"a": Wins},
        "routed to numbers": lambda: {"a": 5},
        "without names": lambda: {5: Wins},
    },
    "processing_class": {
        "without template": lambda: _with_template(None),
        "broken template": lambda: _with_template("{{ messages[99].content.x }}"),
        "new token": lambda: _with_tokens("<new>"),
        "name": lambda: TINY_MODEL,
        "class of tokenizers": lambda: AutoTokenizer,
    },
    "reward_funcs": {
        "name": lambda: "my-org/reward-model",
        "empty list": list,
        "numbers": lambda: [1.0, 2.0],
        "raises": lambda: _raising,
        "partial": lambda: partial(reward, bonus=1),
        "class": lambda: dict,
        **{
            f"returns {value!r}"[:30]: partial(_returning, value)
            for value in (None, 1.0, "11", [1.0], [None, None], [float("inf"), 1.0], [1e308, 1e308], np.ones(2))
        },
    },
    "tools": {
        "empty list": list,
        "function": lambda: _lookup,
        "functions": lambda: [_lookup],
        "undocumented": lambda: [reward],
        "partial": lambda: [partial(_lookup, "a")],
    },
    "prompts": {
        "default": NLACPrompts,
        "options": lambda: {"policy": "Act."},
        "class of prompts": lambda: NLACPrompts,
    },
    "replay_dataset": {
        "empty": lambda: TASKS.select([]),
        "other columns": lambda: TASKS,
        "no reward": lambda: Dataset.from_dict({"messages": [[{"role": "user", "content": "a"}]], "reward": [None]}),
        "text as messages": lambda: Dataset.from_dict({"messages": ["a"], "reward": [1.0]}),
        "infinite reward": lambda: Dataset.from_list(
            [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "reward": 1e300}]
        ),
        "rows": lambda: [{"messages": [], "reward": 1.0}],
    },
    "callbacks": {
        "empty list": list,
        "classes": lambda: [PrinterCallback],
        "callback": PrinterCallback,
        "functions": lambda: [print],
        "not made": lambda: [TrainerCallback],
    },
    "optimizers": {
        "nothing": lambda: (None, None),
        "list": lambda: [None, None],
        "one": lambda: (None,),
        "numbers": lambda: (1, 2),
        "classes": lambda: (torch.optim.SGD, None),
        "optimizer": lambda: (_optimizer(), None),
        "only a schedule": lambda: (None, torch.optim.lr_scheduler.ConstantLR(_optimizer())),
    },
    "peft_config": {
        "adapter": lambda: LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"),
        "no such layer": lambda: LoraConfig(r=2, target_modules=["nothing"], task_type="CAUSAL_LM"),
        "rank 0": lambda: LoraConfig(r=0, target_modules=["q_proj"], task_type="CAUSAL_LM"),
        "prefix": lambda: PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
        "options": lambda: {"r": 2},
    },
    "quantization_config": {
        "options": lambda: {"load_in_4bit": True},
        "without adapter": lambda: BitsAndBytesConfig(load_in_4bit=True),
    },
}
ARGUMENTS = {name: {**ANY, "None": lambda: None, **values} for name, values in ARGUMENTS.items()}


def make_trainer(folder: str, name: str, label: str) -> NLACTrainer:
    """Make a trainer with an odd argument."""
    arguments = {**arguments_of_run(), name: ARGUMENTS[name][label]()}
    if name != "args":
        arguments["args"] = NLACConfig(**options_of_run(folder))
    return NLACTrainer(**arguments)


class Trial(NamedTuple):
    """A value for an option of the configuration, or for an argument of the trainer."""

    kind: str  # "option" or "argument"
    name: str
    label: str


class Result(NamedTuple):
    """One of `OUTCOMES`, and the error, if there was one."""

    outcome: str
    error: str = ""


def option_trials() -> list[Trial]:
    return [Trial("option", name, label) for name in own_options() for label in VALUES]


def argument_trials() -> list[Trial]:
    return [Trial("argument", name, label) for name, values in ARGUMENTS.items() for label in values]


def prepare(trial: Trial, folder: str) -> NLACTrainer:
    """Make the trainer of a trial."""
    if trial.kind == "argument":
        return make_trainer(folder, trial.name, trial.label)
    return NLACTrainer(**arguments_of_run(), args=make_config(folder, trial.name, trial.label))


def try_it(trial: Trial, prepare: Callable[[Trial, str], Any] = prepare, trains: bool = True) -> Result:
    """Prepare a trial, and train if that is not refused."""
    with _aside() as folder:
        try:
            trainer = prepare(trial, str(Path(folder, "run")))
        except BaseException as error:
            outcome = "refused" if names(error, trial) else "refused without name"
            return Result(outcome, f"{type(error).__name__}: {error}")
        if not trains:
            return Result("trained")
        try:
            trainer.train()
            trainer.save_model()
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            name = f"{type(error).__name__}: {error}"
            return Result("died", f"{name} ({Path(place.filename).name}, line {place.lineno})")
    return Result("trained")


def names(error: BaseException, trial: Trial) -> bool:
    """Whether a refusal names the option or argument, and a value that is short."""
    if not isinstance(error, ValueError | TypeError | ImportError | TimeoutError):
        return False
    message = str(error)
    if f"`{trial.name}" not in message:
        return False
    value = VALUES.get(trial.label)
    if isinstance(value, bool | int | float | np.generic) and not isinstance(value, np.bool_):
        number = value.item() if isinstance(value, np.generic) else value
        shown = {repr(value), repr(number), f"{number:,}", *([repr(float(number))] if abs(number) < 1e300 else [])}
        return any(text in message for text in shown)
    return True


@contextlib.contextmanager
def _aside() -> Iterator[str]:
    """Be in a folder of its own, and print nothing."""
    home, unseen = os.getcwd(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(unseen), contextlib.redirect_stderr(unseen):
                yield folder
        finally:
            os.chdir(home)


def _be_quiet() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")


def summary(results: dict[Trial, Result]) -> dict[str, Any]:
    """Count the outcomes, and list all that is a defect."""
    counts = Counter(result.outcome for result in results.values())
    return {
        "names": len({trial.name for trial in results}),
        "trials": len(results),
        "outcomes": {outcome: counts[outcome] for outcome in OUTCOMES},
        "defects": [
            {**trial._asdict(), **result._asdict()}
            for trial, result in results.items()
            if result.outcome not in ("refused", "trained")
        ],
    }


def attack(timeout: float = 120.0) -> dict[str, Any]:
    """Try all values; after `timeout` seconds a trial hangs."""
    trials, results = option_trials() + argument_trials(), {}
    context = multiprocessing.get_context("spawn")
    pool = context.Pool(1, _be_quiet)
    for i, trial in enumerate(trials, start=1):
        try:
            results[trial] = pool.apply_async(try_it, (trial,)).get(timeout)
        except multiprocessing.TimeoutError:  # it hangs, or has ended its process
            results[trial] = Result("hung")
            pool.terminate()
            pool = context.Pool(1, _be_quiet)
        if results[trial].outcome not in ("refused", "trained"):
            print(f"{i}/{len(trials)} {trial}: {results[trial]}", flush=True)
    pool.terminate()
    return {
        kind: summary({trial: result for trial, result in results.items() if trial.kind == kind})
        for kind in ("option", "argument")
    }
