# SPDX-License-Identifier: Apache-2.0

"""Arguments of the trainer, checked before anything is loaded: every error names the argument and its value."""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import pyarrow as pa
import torch
from accelerate.logging import get_logger
from accelerate.utils import is_peft_model
from datasets import Dataset, IterableDataset
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin, TrainerCallback, TrainingArguments
from transformers.training_args import OptimizerNames
from transformers.utils.quantization_config import QuantizationConfigMixin

from ..nlac_config import NLACConfig
from ..options.checks import is_json
from ..prompts import NLACPrompts
from ..terminal import shown


logger = get_logger(__name__)

# Options of transformers about losses and batches that this trainer computes and makes itself.
_UNUSED = (
    *("batch_eval_metrics", "bf16_full_eval", "eval_accumulation_steps", "fp16_full_eval", "label_smoothing_factor"),
    "train_sampling_strategy",
)


def plays_prompts(environment_factory: Any, tools: Any, reward_funcs: Any, train_dataset: Dataset | None) -> bool:
    """Whether tasks are prompts and their answers are scored by functions, as in [`~trl.GRPOTrainer`]."""
    is_scored = bool(reward_funcs) and train_dataset is not None and "prompt" in train_dataset.column_names
    return environment_factory is None and not tools and is_scored


@contextmanager
def named(argument: str) -> Iterator[None]:
    """Name an argument in a `ValueError`, for whatever the libraries raise about it but a lack of memory."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ValueError(f"{argument} cannot be used: {type(error).__name__}: {error}") from error


def check_arguments(arguments: dict[str, Any]) -> None:
    """Raise a `ValueError` for a `rollout_func`; a `TypeError` for other types, or for places as in GRPOTrainer."""
    if arguments["rollout_func"] is not None:
        raise ValueError(
            "`rollout_func` is not taken: it returns tokens and log-probabilities, and this trainer plays by itself. "
            "Give an `environment_factory`: a class with `reset` and `step`, or `AgentEnvironment(run_agent)` for an "
            "agent that you have."
        )
    is_reward = callable(arguments["args"]) or isinstance(arguments["args"], str | list | tuple)
    if is_reward or isinstance(arguments["train_dataset"], TrainingArguments):
        raise TypeError(
            f"`args` must be {_EXPECTED['args'][1]}, got {shown(arguments['args'])}. The arguments of `NLACTrainer` "
            "are in another order than those of `GRPOTrainer`: name them, as in `NLACTrainer(model, reward_funcs=..., "
            "args=..., train_dataset=...)`."
        )
    check_types(**{name: value for name, value in arguments.items() if name in _EXPECTED})


def check_types(**arguments: Any) -> None:
    """Check arguments one by one, by name; a `TypeError` if one has another type."""
    for name, value in arguments.items():
        if isinstance(value, IterableDataset):
            raise TypeError(
                f"`{name}` is an `IterableDataset`, whose rows cannot be counted or drawn again. Load them: "
                "`Dataset.from_list(list(dataset.take(1000)))`."
            )
        is_valid, expected = _EXPECTED[name]
        if not is_valid(value):
            raise TypeError(f"`{name}` must be {expected}, got {shown(value)}.")


def check_best_metric(args: NLACConfig, eval_dataset: Dataset | dict[str, Dataset] | None) -> None:
    """Raise a `ValueError` if `metric_for_best_model` is the loss, or names none of several datasets."""
    metric = args.metric_for_best_model
    if metric is not None and re.fullmatch(r"(.+_)?loss", metric):
        raise ValueError(
            f"`metric_for_best_model={metric!r}` is a loss, and an evaluation plays: it has none. Leave it out for "
            "'episode/success_rate', or name another metric, such as 'episode/return'."
        )
    if metric is None or not isinstance(eval_dataset, dict):
        return
    if not any(metric.removeprefix("eval_").startswith(f"{name}_") for name in eval_dataset):
        raise ValueError(
            f"`metric_for_best_model={metric!r}` names none of the evaluation datasets {', '.join(eval_dataset)}. "
            f"Write one before the metric: '{next(iter(eval_dataset), '')}_{metric.removeprefix('eval_')}'."
        )


def check_optimizer(args: NLACConfig) -> None:
    """Raise a `ValueError` if the optimizer trains other weights than those to be played with and saved."""
    name = OptimizerNames(args.optim).value
    if name.startswith("schedule_free"):
        raise ValueError(
            f"`optim={name!r}` takes gradients at other weights than those that it averages for use, between which it "
            "would have to be switched before every rollout. Choose another, such as 'adamw_torch', with "
            "`lr_scheduler_type='constant'`; the target weights are an average, too."
        )


def warn_of_unused(args: NLACConfig) -> None:
    """Warn of options of transformers that are set, and that this trainer has no use for."""
    defaults = {option.name: option.default for option in fields(args) if option.name in _UNUSED}
    if unused := [name for name in _UNUSED if name in defaults and vars(args)[name] != defaults[name]]:
        logger.warning(f"Options without a use here are ignored: {', '.join(f'`{name}`' for name in unused)}.")


def check_tasks(
    train_dataset: Dataset | None,
    eval_dataset: Dataset | dict[str, Dataset] | None,
    check_task: Callable[[dict[str, Any]], None],
) -> None:
    """
    Check datasets of tasks. Those of `train_dataset` are stored in the replay buffer, as JSON. `check_task` raises a
    `ValueError` if a row does not fit its environment; it is called with the first row of each dataset. Raise a
    `ValueError` if a dataset is empty, has a column that JSON cannot hold, or has a row that does not fit.
    """
    several = eval_dataset if isinstance(eval_dataset, dict) else {}
    datasets = {"`train_dataset`": train_dataset, "`eval_dataset`": None if several else eval_dataset}
    datasets.update({f"`eval_dataset[{name!r}]`": dataset for name, dataset in several.items()})
    for name, dataset in datasets.items():
        if dataset is not None:
            if len(dataset) == 0:
                raise ValueError(f"{name} is empty. Give it one row for each task.")
            if dataset is train_dataset:
                _check_columns(name, dataset)
            for row in first_rows(dataset):
                try:
                    check_task(row)
                except ValueError as error:
                    raise ValueError(f"A task of {name} has the columns {list(row)}. {error}") from error


def first_rows(dataset: Dataset, is_routed: bool = True) -> list[dict[str, Any]]:
    """Return the first row, if there is one. If `is_routed`, that of each environment that the dataset names."""
    is_routed = is_routed and "environment" in dataset.column_names
    names = list(dataset["environment"]) if is_routed else [None] * len(dataset)
    return [dataset[names.index(name)] for name in dict.fromkeys(names)]


def _check_columns(name: str, dataset: Dataset) -> None:
    row = dataset[0]
    for column, kind in zip(dataset.column_names, dataset.features.arrow_schema.types, strict=True):
        # A dataset can be formatted, as arrays for example.
        if not (_is_stored(kind) and is_json(row.get(column))):
            form = dataset.format["type"]
            if _is_stored(kind) and form not in (None, "custom"):
                raise ValueError(
                    f"{name} gives its column `{column}` in the format {form!r}, and tasks are stored as JSON, which "
                    f"cannot hold that. Give {name} as it is, `.with_format(None)`."
                )
            raise ValueError(
                f"{name} has the column `{column}` of type {kind} (first value: {shown(row.get(column))}). Tasks are "
                "stored as JSON, which cannot hold it. Make it text or numbers, and read it in `reset`."
            )


def _is_stored(kind: pa.DataType) -> bool:
    """Whether JSON holds values of a type of Arrow."""
    if isinstance(kind, pa.BaseExtensionType):
        return _is_stored(kind.storage_type)
    if isinstance(kind, pa.StructType):
        return all(_is_stored(field.type) for field in kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _is_stored(kind.value_type)
    is_number = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return is_number or is_text or pa.types.is_null(kind)


def _optional(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: value is None or isinstance(value, kinds)


def _list_of(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or isinstance(value, list | tuple) and all(map(is_valid, value))


def _is_model(value: Any) -> bool:
    if isinstance(value, torch.nn.Module):
        return isinstance(value, PreTrainedModel) or is_peft_model(value)
    return isinstance(value, str) and value != ""


def _is_reward(value: Any) -> bool:
    return callable(value) or isinstance(value, str) and value != ""


def _is_dataset_or_several(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and name and isinstance(one, Dataset) for name, one in value.items())
    return value is None or isinstance(value, Dataset)


def _is_callback(value: Any) -> bool:
    return isinstance(value, TrainerCallback) or isinstance(value, type) and issubclass(value, TrainerCallback)


def _are_optimizers(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    return _optional(torch.optim.Optimizer)(value[0]) and _optional(LRScheduler)(value[1])


def _is_peft_config(value: Any) -> bool:
    if value is None:
        return True
    from peft import PeftConfig

    return isinstance(value, PeftConfig)


_is_tokenizer = _optional(PreTrainedTokenizerBase)
_DATASET = (_optional(Dataset), "a `datasets.Dataset`, or None")
# Whether a value is one of an argument's, and what is expected.
_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": (_is_model, "the name or path of a model, a `PreTrainedModel` or a `PeftModel`"),
    "args": (_optional(NLACConfig), "an `NLACConfig`, or None"),
    "train_dataset": _DATASET,
    "eval_dataset": (_is_dataset_or_several, "a `datasets.Dataset`, a dict of them by name, or None"),
    "processing_class": (_optional(PreTrainedTokenizerBase, ProcessorMixin), "a tokenizer, a processor, or None"),
    "reward_funcs": (
        lambda value: _is_reward(value) or _list_of(_is_reward)(value),
        "a function, a model or its name, a list of them, or None",
    ),
    "reward_processing_classes": (
        lambda value: _is_tokenizer(value) or _list_of(_is_tokenizer)(value),
        "a tokenizer, a list of them, or None",
    ),
    "tools": (_list_of(inspect.isroutine), "a list of functions, or None"),
    "prompts": (_optional(NLACPrompts), "`NLACPrompts`, or None"),
    "replay_dataset": _DATASET,
    "callbacks": (_list_of(_is_callback), "a list of `TrainerCallback`, or None"),
    "optimizers": (_are_optimizers, "a pair: an optimizer or None, and a learning rate scheduler or None"),
    "peft_config": (_is_peft_config, "a `PeftConfig`, or None"),
    "quantization_config": (_optional(QuantizationConfigMixin), "a `BitsAndBytesConfig`, or None"),
}
