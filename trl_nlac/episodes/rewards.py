# SPDX-License-Identifier: Apache-2.0

"""Reward functions in TRL's form, for environments that give no rewards."""

import json
import logging
import math
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from inspect import signature
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..chat.template_trial import refuse_endless
from ..event_loop import finish
from ..private_names import get_callable_name, get_config_model_id
from ..secrets import hide_secrets
from ..shards import has_gathered_weights, loaded_whole
from ..terminal import shown
from ..types import Message
from .recorder import Recorder, checked_reward
from .text_environment import EnvironmentFailure, describe_error


logger = logging.getLogger(__name__)

RewardFunc = Callable[..., list[float | None]]


def load_rewards(
    reward_funcs: RewardFunc | list[RewardFunc] | None,
    weights: list[float] | None,
    context: Callable[[], dict[str, Any]],
    environment_pays: bool,
    environment_workers: str = "thread",
    processing_classes: PreTrainedTokenizerBase | list[PreTrainedTokenizerBase | None] | None = None,
    device: torch.device | None = None,
    init_kwargs: dict[str, Any] | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
    is_single_step: bool = False,
) -> "EpisodeRewards | None":
    """
    Load the reward functions, and reward models by their names, if there are any. Tokenizers are those of reward
    models, one for each entry of `reward_funcs`. Reward models compute on `device`, or else on the CPU. Those that are
    loaded by name get `init_kwargs`, and so do the tokenizers of all. Functions cannot read environments in other
    processes (`environment_workers`). `context` returns additional arguments for the functions. In a single step tasks
    are prompts, and their answers the whole episodes. Raise a `ValueError` if nothing gives rewards, there are weights
    or tokenizers without functions, a function cannot read what it wants to, or a reward model cannot be loaded.
    """
    if not reward_funcs:
        if weights is not None:
            raise ValueError(f"`reward_weights={weights}` weigh `reward_funcs`, and there are none. Leave them out.")
        if processing_classes is not None:
            raise ValueError("`reward_processing_classes` are of `reward_funcs`, and there are none. Leave them out.")
        if environment_pays:
            return None
        raise ValueError(
            "Nothing gives rewards: the environment defines neither `step` nor `get_reward`, and there are no "
            "`reward_funcs`. Give one of them."
        )
    reward_funcs = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    if processing_classes is None:
        processing_classes = [None] * len(reward_funcs)
    elif not isinstance(processing_classes, list | tuple):
        processing_classes = [processing_classes]
    if len(processing_classes) != len(reward_funcs):
        raise ValueError(
            f"`reward_processing_classes` has {len(processing_classes)} entries for {len(reward_funcs)} reward "
            "functions."
        )
    reward_funcs = [
        RewardModel(one, tokenizer, device, init_kwargs, chat_template_kwargs)
        if isinstance(one, str | PreTrainedModel)
        else one
        for one, tokenizer in zip(reward_funcs, processing_classes, strict=True)
    ]
    for reward_func in reward_funcs if environment_workers != "thread" else []:
        if "environments" in signature(reward_func).parameters:
            raise ValueError(
                f"The reward function `{get_callable_name(reward_func)}` reads `environments`, which "
                f"`environment_workers='{environment_workers}'` keeps in other processes. Use 'thread', or give the "
                "reward in the environment."
            )
    return EpisodeRewards(reward_funcs, weights, context, environment_pays, is_single_step)


class RewardModel:
    """
    Scores the conversation of an episode with a model that has one label, as [`~trl.GRPOTrainer`] does. Processes
    score their episodes alone, so each of them has the whole model. Where `device` is `None`, it computes where it is.
    The tokenizer, if it is loaded by the model's name or path, gets `revision` and `trust_remote_code` of
    `init_kwargs`. Raise a `ValueError` if the model or its tokenizer cannot be loaded, it has several labels, or it is
    sharded.
    """

    def __init__(
        self,
        model: str | PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        device: torch.device | None = None,
        init_kwargs: dict[str, Any] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ):
        name = model if isinstance(model, str) else get_config_model_id(model.config)
        # It computes on one device, whatever spreads the model to train.
        init_kwargs = {"dtype": "auto", **(init_kwargs or {}), "num_labels": 1, "device_map": None}
        of_tokenizer = {"trust_remote_code": init_kwargs.get("trust_remote_code", False)}
        try:
            if isinstance(model, str):
                of_tokenizer["revision"] = init_kwargs.get("revision")
                with loaded_whole():
                    model = AutoModelForSequenceClassification.from_pretrained(model, **init_kwargs)
            self.tokenizer = AutoTokenizer.from_pretrained(name, **of_tokenizer) if tokenizer is None else tokenizer
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(
                f"The reward model {name!r} in `reward_funcs` cannot be loaded with "
                f"{shown(hide_secrets(init_kwargs))} (see `model_init_kwargs`): {describe_error(error)}"
            ) from error
        if has_gathered_weights(model):
            raise ValueError(
                f"The reward model {name!r} in `reward_funcs` is sharded (by ZeRO-3 or FSDP2), and processes score "
                "their episodes alone. Give its name instead, with which each process loads the whole model, or load "
                "it before the configuration is made (`NLACConfig`)."
            )
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        if model.config.num_labels != 1 or self.tokenizer.chat_template is None:
            raise ValueError(
                f"The reward model {name!r} in `reward_funcs` has {model.config.num_labels} labels, and its tokenizer "
                f"{'no' if self.tokenizer.chat_template is None else 'a'} chat template: it needs one of each. Give "
                "the tokenizer in `reward_processing_classes`, or write a function."
            )
        model.config.get_text_config().pad_token_id = self.tokenizer.pad_token_id
        self.__name__ = name.split("/")[-1]
        self.chat_template_kwargs = chat_template_kwargs or {}
        refuse_endless(self.tokenizer, self.chat_template_kwargs)
        self.model = model.eval() if device in (None, model.device) else model.to(device).eval()

    @torch.inference_mode()
    def __call__(
        self, prompts: list[str | list[Message]], completions: list[str | list[Message]], **kwargs
    ) -> list[float]:
        """Score conversations, or texts and what follows them, as they are."""
        write = partial(self.tokenizer.apply_chat_template, tokenize=False, **self.chat_template_kwargs)
        texts = [
            prompt + completion if isinstance(prompt, str) else write([*prompt, *completion])
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        options = dict(return_tensors="pt", padding=True, padding_side="right", add_special_tokens=False)
        inputs = self.tokenizer(texts, **options)
        return self.model(**inputs.to(self.model.device)).logits[:, 0].float().tolist()


class Score(NamedTuple):
    """The weighted sum of an episode's rewards, values that functions logged for its row, and why it has no score."""

    reward: float
    notes: dict[str, Any]
    failure: EnvironmentFailure | None = None


@dataclass(eq=False)
class EpisodeRewards:
    """
    Score finished episodes with functions written for [`~trl.GRPOTrainer`]: they are called with the lists `prompts`,
    `completions`, `completion_ids` and `environments`, and with the columns of the dataset that have other names, and
    return one reward per episode. `None` leaves a function out for an episode, and an
    [`~environments.EnvironmentFailure`] that is returned in its place says that this episode cannot be scored.
    Functions can be asynchronous. Weights are 1 if they are `None`. `context` returns additional arguments for the
    functions.

    If the environment does not pay, an episode to which no function gives a reward is reported, once. In a single step
    tasks are prompts, and their answers the whole episodes; functions then get text where the column `prompt` is text,
    and otherwise messages. Raise a `ValueError` if there are not as many weights as functions.
    """

    reward_funcs: list[RewardFunc]
    reward_weights: list[float] | None = None
    context: Callable[[], dict[str, Any]] = dict
    environment_pays: bool = False
    is_single_step: bool = False

    def __post_init__(self):
        weights, number = self.reward_weights, len(self.reward_funcs)
        if weights is not None and len(weights) != number:
            raise ValueError(f"`reward_weights` has {len(weights)} entries for {number} reward functions.")
        names = [get_callable_name(reward_func) for reward_func in self.reward_funcs]
        # With a number where one is not the only of its kind.
        self.names = [f"{n}_{names[: i + 1].count(n)}" if names.count(n) > 1 else n for i, n in enumerate(names)]
        self.reward_weights = weights or [1.0] * number
        self._reports_none = not self.environment_pays

    def score(self, recorders: list[Recorder], environments: list[Any]) -> list[Score]:
        """Score recorded episodes, with the environments of their users and copies of the rest; a call may raise."""
        pairs = [self._as_in_trl(recorder) for recorder in recorders]
        return self(
            prompts=[prompt for prompt, _ in pairs],
            completions=[completion for _, completion in pairs],
            completion_ids=[list(recorder.sampled_ids) for recorder in recorders],
            environments=environments,
            tasks=[deepcopy(recorder.task) for recorder in recorders],
        )

    def _as_in_trl(self, recorder: Recorder) -> tuple[str, str] | tuple[list[Message], list[Message]]:
        """Return prompt and completion of an episode as functions get them: text if the prompt of its task is."""
        prompt = recorder.task.get("prompt")
        if self.is_single_step and isinstance(prompt, str):
            return prompt, "".join(message["content"] for message in recorder.completion_messages)
        return deepcopy(recorder.prompt_messages), deepcopy(recorder.completion_messages)

    def __call__(
        self,
        prompts: list[str] | list[list[Message]],
        completions: list[str] | list[list[Message]],
        completion_ids: list[list[int]],
        environments: list[Any],
        tasks: list[dict[str, Any]],
    ) -> list[Score]:
        """
        Score each episode. Raise [`EnvironmentFailure`] if a function raises, returns something else than one reward
        for each episode, or logs another number of values, or if the sum of an episode's rewards is not finite.
        """
        names = {name: None for task in tasks for name in task if name not in ("prompt", "completion")}
        columns = {name: [task.get(name) for task in tasks] for name in names}
        totals = [0.0] * len(tasks)
        notes: dict[str, list[Any]] = {}
        failures: dict[int, EnvironmentFailure] = {}
        without_reward = set(range(len(tasks)))

        def log_extra(column: str, values: list[Any]) -> None:
            values = _one_for_each(values, len(tasks), f"values in `log_extra({column!r}, ...)`")
            notes[str(column)] = [_noted(value) for value in values]

        for name, reward_func, weight in zip(self.names, self.reward_funcs, self.reward_weights, strict=True):
            try:
                own = {
                    "prompts": prompts,
                    "completions": completions,
                    "completion_ids": completion_ids,
                    "environments": environments,
                    "log_extra": log_extra,
                    **self.context(),
                }
                returned = finish(reward_func(**{**columns, **own}))
                returned = _one_for_each(returned, len(tasks), "rewards")
                failed = {i: reward for i, reward in enumerate(returned) if isinstance(reward, EnvironmentFailure)}
                failures.update({i: failure for i, failure in failed.items() if i not in failures})
                rewards = [None if i in failed else _checked_reward(reward) for i, reward in enumerate(returned)]
                for i, reward in enumerate(rewards):
                    if reward is not None and not math.isnan(reward):
                        without_reward.discard(i)
                        totals[i] = checked_reward(totals[i] + weight * reward)
            except BaseException as error:  # one that calls sys.exit must not end the run
                raise EnvironmentFailure(f"the reward function `{name}` failed: {describe_error(error)}") from error
            notes[f"rewards/{name}"] = rewards
        if self._reports_none and without_reward - failures.keys():
            self._reports_none = False
            functions = ", ".join(self.names)
            logger.warning("None of `reward_funcs` (%s) gave an episode a reward. It counts as 0.", functions)
        return [
            Score(total, {name: notes[name][i] for name in notes}, failures.get(i)) for i, total in enumerate(totals)
        ]


def _one_for_each(values: Any, number: int, what: str) -> list[Any]:
    """Return values as a list; if there is not one for each of `number` episodes, raise a `TypeError`."""
    if isinstance(values, str | bytes | dict) or not isinstance(values, Iterable):
        raise TypeError(f"it gave {type(values).__name__} as {what}, expected one for each of {number} episodes")
    values = list(islice(values, number + 1))
    if len(values) != number:
        raise TypeError(f"it gave {len(values)} {what}, expected one for each of {number} episodes")
    return values


def _checked_reward(reward: Any) -> float | None:
    """Return a reward as a float. `None` and NaN stay: they leave the function out for an episode, as in TRL."""
    if reward is None:
        return None
    is_nan = isinstance(reward, float | np.floating | torch.Tensor) and bool(reward != reward)
    return math.nan if is_nan else checked_reward(reward)


def _noted(value: Any) -> Any:
    """Return what a function logged as JSON can hold it: anything odd as text."""
    try:
        value = json.loads(json.dumps(value.tolist() if isinstance(value, np.generic | torch.Tensor) else value))
        json.dumps(value, ensure_ascii=False).encode()  # fails where a text has half a character
        return value
    except Exception:
        return shown(value)
