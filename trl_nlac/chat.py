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

"""
Messages to token ids, so that a conversation only ever grows at its end.

The tokens of a chat template around the messages (its scaffold) are encoded once per sequence of roles. The messages
between them are encoded as plain text: whatever an observation contains, it never becomes a special token.
"""

from functools import lru_cache
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase


_MARK = "NLACMESSAGE"


class ChatEncoder:
    """
    Encodes conversations with a tokenizer's chat template.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer with a chat template.
        chat_template_kwargs (`dict[str, Any]`, *optional*):
            Further arguments of the chat template.

    Raises:
        ValueError: If the tokenizer has no chat template, or one that changes earlier turns of a conversation.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat_template_kwargs: dict[str, Any] | None = None):
        if tokenizer.chat_template is None:
            raise ValueError(
                "The tokenizer (`processing_class`) has no chat template, which the roles of NLAC need. Set "
                "`tokenizer.chat_template`, or start from an instruction-tuned model."
            )
        self.tokenizer = tokenizer
        self.chat_template_kwargs = chat_template_kwargs or {}
        self._scaffold = lru_cache(maxsize=None)(self._render_scaffold)
        after = self._scaffold(("user", "assistant", "user"))[2]
        if not after or after[0] not in tokenizer.all_special_ids:
            raise ValueError(
                "The chat template of the tokenizer (`processing_class`) does not end an assistant's turn with a "
                "special token, so the end of an action cannot be learned. Use a template that does."
            )
        self.end_of_turn_id: int = after[0]

    def start(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a new conversation, up to where the assistant speaks."""
        return self._join(self._scaffold(tuple(message["role"] for message in messages)), messages)

    def reply(self, last_id: int, content: str) -> list[int]:
        """
        Token ids of a user's message that follows an assistant's turn, up to where the assistant speaks again.

        Args:
            last_id (`int`):
                Last token of the assistant's turn. If that was cut off before its end-of-turn token, that comes first.
            content (`str`):
                The user's message.
        """
        before, after = self._scaffold(("user", "assistant", "user"))[2:]
        if last_id == self.end_of_turn_id:
            before = before[1:]
        return self._join([before, after], [{"content": content}])

    def completion(self, content: str) -> list[int]:
        """Token ids of an assistant's turn with this content, as if the model had sampled it."""
        return [*self._encode(content), self.end_of_turn_id]

    def decode(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=True).strip()

    def _join(self, scaffold: list[list[int]], messages: list[dict[str, str]]) -> list[int]:
        token_ids = list(scaffold[0])
        for message, piece in zip(messages, scaffold[1:], strict=True):
            token_ids += [*self._encode(message["content"]), *piece]
        return token_ids

    def _encode(self, content: str) -> list[int]:
        return self.tokenizer(content.strip(), add_special_tokens=False, split_special_tokens=True)["input_ids"]

    def _render_scaffold(self, roles: tuple[str, ...]) -> list[list[int]]:
        """Token ids before, between and after the messages of these roles."""
        messages = [{"role": role, "content": f"{_MARK}{i}X"} for i, role in enumerate(roles)]
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **self.chat_template_kwargs
            )
        except TemplateError as error:
            raise ValueError(f"The chat template cannot render the roles {list(roles)}: {error}") from error
        pieces = []
        for message in messages:
            piece, mark, text = text.partition(message["content"])
            if not mark or _MARK in piece:
                raise ValueError(
                    f"The chat template drops, repeats or reorders messages of the roles {list(roles)}, so earlier "
                    "turns would change as a conversation grows. Use a template that keeps every turn as it was."
                )
            pieces.append(piece)
        pieces.append(text)
        return [self.tokenizer(piece, add_special_tokens=False)["input_ids"] for piece in pieces]
