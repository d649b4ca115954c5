# SPDX-License-Identifier: Apache-2.0

import gc
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl
from datasets import Dataset
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerFast, TrainerCallback

from benchmarks.tiny_run import StubGenerator, tiny_options
from trl_nlac import NLACConfig, NLACPrompts, NLACTrainer, PrioritizedReplay
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments import StepResult, TextEnvironment
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL, make_environment, make_tasks
from trl_nlac.episodes.conversations import to_dataset
from trl_nlac.episodes.logs import episodes_from_logs
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rewards import EpisodeRewards
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.generation.generator import Completion, Sampling
from trl_nlac.method.batches import MicroBatch
from trl_nlac.method.roles import Roles
from trl_nlac.options.role_options import RoleOptions
from trl_nlac.prompts import BEGUN
from trl_nlac.replay.files import StoredEpisode, read_episodes
from trl_nlac.types import Episode, Turn


# Leave imports out of garbage collection in scripts that tests launch, as conftest.py does in the tests themselves.
gc.freeze()

CHAT_TEMPLATES = Path(trl.__file__).parent / "chat_templates"
DESK, TASKS = make_tasks("service_desk", 0)


def make_config(output_dir, **kwargs) -> NLACConfig:
    """Make a configuration with which the embedded model runs quickly on a CPU."""
    batch_size = kwargs.get("per_device_train_batch_size", 4) * int(os.environ.get("WORLD_SIZE", 1))
    settings = {
        **dict(save_strategy="no", per_device_train_batch_size=4, episodes_per_iteration=batch_size),
        "samples_per_iteration": batch_size * kwargs.get("gradient_accumulation_steps", 1),
        **dict(min_p=0.0, max_steps=2, max_turns=4, audit_samples=0),
    }
    return NLACConfig(**tiny_options(output_dir, **{**settings, **kwargs}))


class RecordingTrainer(NLACTrainer):
    """Keeps the micro-batches of which it computes the loss."""

    def __init__(self, *args, **kwargs):
        self.micro_batches: list[MicroBatch] = []
        super().__init__(*args, **kwargs)

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.micro_batches.append(inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def losses(self) -> list[list[str]]:
        return [[example.loss for example in batch.examples] for batch in self.micro_batches]


def make_trainer(
    output_dir, config: dict | None = None, trainer_class: type[NLACTrainer] = NLACTrainer, **kwargs
) -> NLACTrainer:
    """Make a trainer of the embedded model at a service desk."""
    arguments = dict(
        model=TINY_MODEL,
        args=make_config(output_dir, **(config or {})),
        train_dataset=TASKS,
        environment_factory=lambda: make_environment(DESK),
        prompts=COMPACT_PROMPTS,
    )
    return trainer_class(**{**arguments, **kwargs})


def make_trained(output_dir, *args, **kwargs) -> NLACTrainer:
    trainer = make_trainer(output_dir, *args, **kwargs)
    trainer.train()
    return trainer


def at(event: str, act: Callable[[], Any], step: int | None = None) -> TrainerCallback:
    """Make a callback that acts at an event, such as "step_end", of every step or of one."""

    def call(self, args, state, control, **kwargs):
        if step in (None, state.global_step):
            act()

    return type("At", (TrainerCallback,), {f"on_{event}": call})()


def make_logs(output_dir) -> Dataset:
    """Play the base policy, and return its conversations."""
    trainer = make_trainer(output_dir, {"max_steps": 4, "max_turns": 2, "learning_rate": 0.0})
    trainer.train()
    return to_dataset(trainer.replay.episodes, trainer.roles.actions)


def saved_episodes(replay: PrioritizedReplay) -> list[StoredEpisode]:
    """Return the episodes of a buffer, oldest first, as it saves them."""
    with tempfile.TemporaryDirectory() as folder:
        replay.save(folder)
        return list(read_episodes(Path(folder) / "episodes.parquet"))


def priorities_of(replay: PrioritizedReplay) -> np.ndarray:
    """Return the priorities of the stored transitions, oldest first."""
    return np.concatenate([stored.priorities for stored in saved_episodes(replay)])


def targets_of(replay: PrioritizedReplay) -> list[str | None]:
    """Return the kept targets of the stored transitions, oldest first, as JSON."""
    return [target for stored in saved_episodes(replay) for target in stored.targets]


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


OPENING = ({"role": "user", "content": "begin"},)


def make_episode(num_turns: int = 2, terminated: bool = True, score: float = 1.0, text: str = "seen") -> Episode:
    """Make an episode of `num_turns` turns with two prompt tokens and two action tokens each."""
    turns = tuple(
        Turn(4 * i + 2, 2, f"act {i}", f"{text} {i}", score if i == num_turns - 1 else 0.0) for i in range(num_turns)
    )
    return Episode(
        task={"name": text},
        opening=OPENING,
        token_ids=np.arange(4 * num_turns, dtype=np.int32),
        turns=turns,
        terminated=terminated,
        truncated=not terminated,
    )


class Countdown(TextEnvironment):
    """Counts down, whatever the action. Fails in `reset`, or when it reaches `fails_at`."""

    def reset(self, start, fails_at=None):
        if fails_at == "reset":
            raise ConnectionError("no line")
        self.left, self.fails_at = start, fails_at
        return f"{start}"

    def step(self, action):
        self.left -= 1
        if self.left == self.fails_at:
            raise TimeoutError("too slow")
        return StepResult(f"{self.left}", reward=float(self.left == 0), terminated=self.left == 0)


class Answering:
    """An environment that begins every episode alike or by a function of its task, and answers actions so, too."""

    def __init__(self, result: Any, opening: Any = "begin"):
        self.result, self.opening = result, opening

    def reset(self, **task):
        return self.opening(**task) if callable(self.opening) else self.opening

    def step(self, action):
        return self.result(action) if callable(self.result) else self.result


class ScriptedGenerator(StubGenerator):
    """Returns scripted answers and records its prompts, for tests of the roles' prompts."""

    def __init__(self, chat: ChatEncoder, answers: list[str | list[int] | Completion] | str):
        self.chat = chat
        self.answers = answers if isinstance(answers, str) else list(answers)
        self.prompts: list[list[int]] = []
        self.samplings: list[Sampling] = []  # one for each prompt
        self.batch_sizes: list[int] = []  # one for each call
        self.begun = [chat.beginning(begin("")) for begin in BEGUN.values()]

    def generate(self, prompts, sampling, seeds, bar=None) -> list[Completion]:
        completions = []
        for prompt in prompts:
            if self.chat.decode(prompt[-12:]).rstrip().endswith(("Optimality:", "Instead,")):
                completions.append(Completion([self.chat.end_of_turn_id], True))
                continue
            asked, begun = self.split(prompt)
            self.prompts.append(asked)
            self.samplings.append(replace(sampling, max_tokens=sampling.max_tokens + len(begun)))
            answer = self.answers if isinstance(self.answers, str) else self.answers.pop(0)
            completions.append(self._completion(answer, begun))
        self.batch_sizes.append(len(prompts))
        return completions

    def split(self, prompt: list[int]) -> tuple[list[int], list[int]]:
        begun = next((begun for begun in self.begun if prompt[-len(begun) :] == begun), [])
        return prompt[: len(prompt) - len(begun)], begun

    def score(self, prompts, completions) -> list[float]:
        return [float("yes" in self.chat.decode(token_ids).lower()) for token_ids in completions]

    def _completion(self, answer: str | list[int] | Completion, begun: list[int] = ()) -> Completion:
        if not isinstance(answer, Completion):
            answer = Completion(self.chat.completion(answer) if isinstance(answer, str) else answer, True)
        is_begun = answer.token_ids[: len(begun)] == begun
        return replace(answer, token_ids=answer.token_ids[len(begun) :]) if is_begun else answer


def make_roles(answers: list | str, prompts: NLACPrompts = COMPACT_PROMPTS, **kwargs) -> Roles:
    """Make roles with the tiny tokenizer and scripted answers."""
    chat = ChatEncoder(AutoTokenizer.from_pretrained(TINY_MODEL))
    return make_roles_of(chat, answers, prompts, **kwargs)


def make_roles_of(chat: ChatEncoder, answers: list | str, prompts: NLACPrompts = COMPACT_PROMPTS, **kwargs) -> Roles:
    """Make roles with another tokenizer and scripted answers."""
    options = RoleOptions(**{"action_format": "text", "max_completion_length": 48, **kwargs})
    return Roles(ScriptedGenerator(chat, answers), chat, prompts, options)


def play(
    tasks: list[dict],
    environment: Callable | dict[str, Callable],
    roles: Roles | None = None,
    max_turns: int = 8,
    rewards: EpisodeRewards | None = None,
    **pool_kwargs,
) -> list[Episode]:
    """Play the tasks in a pool that is closed afterwards; without `roles`, every action is the same."""
    pool = EnvironmentPool(environment, **pool_kwargs)
    try:
        return play_episodes(pool, tasks, roles or make_roles("take red", max_turns=max_turns), rewards=rewards)
    finally:
        pool.close()


def read_logs(dataset: Dataset, roles: Roles, *args, **kwargs) -> list[Episode]:
    return episodes_from_logs(dataset, roles.actions, roles.prompts, *args, **kwargs)


# What the tokenizers of models have as tokens of their own, and which of these their configurations flag as ordinary.
_TAGS = re.compile(
    r"""<\|[^|<>\s']+\|>|<\|\w+>|<\w+\|>|<\|"\|>|<｜[^｜]+｜>|<atem:\w+>|\[gMASK\]|<sop>|<end_of_utterance>"""
    r"""|</?(?:start_of_turn|end_of_turn|think|tool_call|tool_response|arg_key|arg_value)>"""
)
_THINK, _CALL, _RESPONSE = (
    ("<think>", "</think>"),
    ("<tool_call>", "</tool_call>"),
    ("<tool_response>", "</tool_response>"),
)
_DEEPSEEK = ("<｜User｜>", "<｜Assistant｜>", *_THINK)
_ORDINARY = {
    "cohere": ("<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"),
    "deepseek": (
        *_DEEPSEEK,
        *(f"<｜tool▁{part}｜>" for part in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")),
    ),
    "glm4moe": (*_THINK, *_CALL, *_RESPONSE, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "nemotron": (*_THINK, *_CALL, *_RESPONSE),
    "qwen2_5": _CALL,
    "qwen3": (*_THINK, *_CALL, *_RESPONSE),
}
# What is no token at all, though the template contains it.
_NO_TOKENS = {"qwen2_5": _RESPONSE}
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """
    Make a byte-level tokenizer with a chat template that TRL ships, and the tokens that models with this template
    have, flagged as special or ordinary as theirs are. Like theirs, it joins punctuation with line breaks after it.
    """
    text = (CHAT_TEMPLATES / f"{template}.jinja").read_text()
    family = next((name for name in _ORDINARY if template.startswith(name)), "")
    return make_tokenizer_of(
        text,
        ordinary=_ORDINARY.get(family, ()),
        plain=_NO_TOKENS.get(family, ()),
        eos_token="<｜end▁of▁sentence｜>" if "deepseek" in template else "<|im_end|>",
    )


def make_tokenizer_of(
    template: str, ordinary: Iterable[str] = (), plain: Iterable[str] = (), eos_token: str = "<|im_end|>"
) -> PreTrainedTokenizerFast:
    """Make a byte-level tokenizer with a chat template; tags in it are tokens, but for those that are `plain` text."""
    tags = {*_TAGS.findall(template), "<bos>", "<pad>", "<|im_end|>", "<|eot_id|>", "<｜end▁of▁sentence｜>"} - {*plain}
    special = sorted(tags - {*ordinary})
    return PreTrainedTokenizerFast(
        tokenizer_object=_train_tokenizer(template, tuple(special), tuple(sorted(tags - {*special}))),
        bos_token="<bos>",
        eos_token=eos_token,
        pad_token="<pad>",
        additional_special_tokens=special,
        chat_template=template,
    )


@cache
def _train_tokenizer(text: str, special: tuple[str, ...], ordinary: tuple[str, ...]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, in_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    marks = ("", ".", '"', "}", ")", "}}", '"}', ":")
    endings = [f"a{mark}{space}" for mark in marks for space in ("\n", "\n\n")]
    tokenizer.train_from_iterator([*endings * 200, _TAGS.sub(" ", text)], trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in ordinary])
    return tokenizer
