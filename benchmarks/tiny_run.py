# SPDX-License-Identifier: Apache-2.0

"""Runs that take seconds: options of the embedded model, a tokenizer of bytes, and a generator without a model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trl_nlac.generation.generator import Completion, Sampling


def tiny_options(output_dir: str | Path, **changes) -> dict[str, Any]:
    """Return options of [`NLACConfig`] with which the embedded model trains quickly on a CPU, with changes."""
    options = dict(
        output_dir=str(output_dir),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
        learning_rate=1e-3,
        num_updates_per_generation=1,
        examples="given",
        bootstrap="implicit",
        action_format="text",
        max_completion_length=32,
    )
    return {**options, **changes}


def byte_tokenizer(chat_template: str, **special) -> PreTrainedTokenizerFast:
    """Make a tokenizer of bytes with a chat template and special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=chat_template, clean_up_tokenization_spaces=False, **special
    )


class StubGenerator:
    """A generator without a model, whose classes say what they [`answer`]."""

    is_concurrent = False

    @contextmanager
    def session(self, model: Any) -> Iterator[None]:
        yield

    def any_process(self, wants: bool) -> bool:
        return wants

    def take_metrics(self) -> dict[str, float]:
        return {}

    def answer(self, prompt: list[int]) -> Completion:
        raise NotImplementedError

    def generate(self, prompts: list[list[int]], sampling: Sampling, seeds: list[int], bar=None) -> list[Completion]:
        return [self.answer(prompt) for prompt in prompts]
