# SPDX-License-Identifier: Apache-2.0

"""Roles in messages: any chat model plays them, whatever its tokenizer, and what it says can be kept as text."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..chat.encoder import ChatEncoder
from ..chat.plain_text import PlainText
from ..generation.generator import Completion, Generator, Sampling
from ..types import Message


_START, _END = "<|im_start|>", "<|im_end|>"
_TEMPLATE = (
    "{% for message in messages %}" + _START + "{{ message.role + '\n' + message.content }}" + _END + "{% endfor %}"
    "{% if add_generation_prompt %}" + _START + "assistant\n{% endif %}"
)


class ChatModel(Protocol):
    """A model that answers messages."""

    def answer(
        self, conversations: list[list[Message]], sampling: Sampling, seeds: list[int]
    ) -> list[tuple[str, bool]]:
        """Answer conversations: the text of each answer, and whether it ended before the limit of tokens."""


class LocalChatModel:
    """A model in this process, which answers messages with its own chat template."""

    def __init__(self, generator: Generator, chat: ChatEncoder, model: PreTrainedModel | None = None):
        self.generator = generator
        self.chat = chat
        self.model = model

    def answer(
        self, conversations: list[list[Message]], sampling: Sampling, seeds: list[int]
    ) -> list[tuple[str, bool]]:
        prompts = [[*self.chat.start(messages), *self.chat.prefill] for messages in conversations]
        with self.generator.session(self.model):
            completions = self.generator.generate(prompts, sampling, seeds)
        return [(self.chat.decode(completion.token_ids), completion.finished) for completion in completions]


def transcript_tokenizer() -> PreTrainedTokenizerBase:
    """Make a tokenizer of bytes, whose conversations can be read back as messages by [`read_transcript`]."""
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(bytes_)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_START,
        eos_token=_END,
        pad_token=_END,
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def read_transcript(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> list[Message]:
    """Read the messages of a conversation in tokens of [`transcript_tokenizer`], without the opening of an answer."""
    messages, start = [], None
    for i, token_id in enumerate(token_ids):
        if token_id == tokenizer.bos_token_id:
            start = i + 1
        elif token_id == tokenizer.eos_token_id:
            role, _, content = tokenizer.decode(token_ids[start:i]).partition("\n")
            messages.append({"role": role, "content": content})
    return messages


class TranscriptGenerator:
    """Lets a chat model answer conversations in tokens of [`transcript_tokenizer`]."""

    is_concurrent = False
    max_model_length = math.inf

    def __init__(self, model: ChatModel, tokenizer: PreTrainedTokenizerBase):
        self.model = model
        self.tokenizer = tokenizer
        self._text = PlainText(tokenizer)

    @contextmanager
    def session(self, model: nn.Module) -> Iterator[None]:
        yield

    def any_process(self, wants: bool) -> bool:
        return wants

    def generate(
        self, prompts: list[list[int]], sampling: Sampling, seeds: list[int], bar: tqdm | None = None
    ) -> list[Completion]:
        conversations = [read_transcript(self.tokenizer, prompt) for prompt in prompts]
        completions = []
        for text, finished in self.model.answer(conversations, sampling, seeds):
            token_ids = self._text.encode(text)
            completions.append(
                Completion([*token_ids, *([self.tokenizer.eos_token_id] if finished else [])], finished)
            )
        if bar is not None:
            bar.update(len(completions))
        return completions

    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        raise NotImplementedError("A model that is given messages does not score tokens.")

    def take_metrics(self) -> dict[str, float]:
        return {}
