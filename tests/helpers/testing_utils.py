# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""Small pieces that several tests share."""

import re
from pathlib import Path

import numpy as np
import torch
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from trl_nlac import NLACConfig, NLACPrompts, NLACTrainer
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL, make_environment, make_tasks
from trl_nlac.generation.base import Completion, Sampling
from trl_nlac.method.roles import Roles
from trl_nlac.types import Episode, Turn


SAMPLING = Sampling(max_tokens=48, temperature=0.0)
CHAT_TEMPLATES = Path(trl.__file__).parent / "chat_templates"
DESK, TASKS = make_tasks("service_desk", 0)


def make_config(output_dir, **kwargs) -> NLACConfig:
    """A configuration in which the embedded model runs quickly on a CPU."""
    settings = dict(
        output_dir=str(output_dir),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        learning_rate=1e-3,
        per_device_train_batch_size=4,
        max_steps=2,
        action_format="text",
        max_completion_length=32,
        max_turns=4,
    )
    return NLACConfig(**{**settings, **kwargs})


def make_trainer(output_dir, config: dict | None = None, **kwargs) -> NLACTrainer:
    """A trainer of the embedded model at a service desk."""
    arguments = dict(
        model=TINY_MODEL,
        args=make_config(output_dir, **(config or {})),
        train_dataset=TASKS,
        environment_factory=lambda: make_environment(DESK),
        prompts=COMPACT_PROMPTS,
    )
    return NLACTrainer(**{**arguments, **kwargs})


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


OPENING = ({"role": "user", "content": "begin"},)


def make_episode(num_turns: int = 2, terminated: bool = True, score: float = 1.0, text: str = "seen") -> Episode:
    """An episode of `num_turns` turns of two prompt tokens and two action tokens each."""
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


class ScriptedGenerator:
    """Says what it is told to, and remembers what it was asked: for tests of who is asked what."""

    def __init__(self, chat: ChatEncoder, answers: list[str | list[int]]):
        self.chat = chat
        self.answers = list(answers)
        self.prompts: list[list[int]] = []
        self.samplings: list[Sampling] = []  # one for each prompt

    def any_process(self, wants: bool) -> bool:
        return wants

    def take_metrics(self) -> dict[str, float]:
        return {}

    def generate(self, prompts, sampling, seeds, bar=None) -> list[Completion]:
        self.prompts += prompts
        self.samplings += [sampling] * len(prompts)
        answers = [self.answers.pop(0) for _ in prompts]
        return [Completion(a if isinstance(a, list) else self.chat.completion(a), True) for a in answers]


def make_roles(answers: list[str], prompts: NLACPrompts = COMPACT_PROMPTS, **kwargs) -> Roles:
    """Roles of the tiny tokenizer whose answers are scripted."""
    chat = ChatEncoder(AutoTokenizer.from_pretrained(TINY_MODEL))
    return make_roles_of(chat, answers, prompts, **kwargs)


def make_roles_of(chat: ChatEncoder, answers: list, prompts: NLACPrompts = COMPACT_PROMPTS, **kwargs) -> Roles:
    """Roles of another tokenizer."""
    names = ["policy", "successor", "backup", "critique", "refine", "correction"]
    samplings = dict.fromkeys(names, Sampling(max_tokens=48))
    generator = ScriptedGenerator(chat, answers)
    return Roles(generator, chat, prompts, samplings, **{"action_format": "text", **kwargs})


def make_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with a chat template that TRL ships, and the template's special tokens."""
    text = (CHAT_TEMPLATES / f"{template}.jinja").read_text()
    special = re.findall(
        r"<\|[^|<>\s']+\|>|<｜[^｜]+｜>|</?(?:start_of_turn|end_of_turn|think|tool_call|tool_response)>", text
    )
    special = sorted({*special, "<bos>", "<pad>", "<|im_end|>", "<|eot_id|>", "<｜end▁of▁sentence｜>"})
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    eos_token = "<｜end▁of▁sentence｜>" if "deepseek" in template else "<|im_end|>"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token=eos_token,
        pad_token="<pad>",
        additional_special_tokens=special,
        chat_template=text,
    )
