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

"""A server with OpenAI's interface: completions of prompts as tokens, such as vLLM's, or chat with messages."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from openai import APIConnectionError, AsyncOpenAI
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..event_loop import finish
from ..types import Message
from .base import Completion, Sampling
from .engine import Adapter, forced, score_by_token


_OPENAI = ("max_tokens", "temperature", "top_p", "seed", "logprobs", "echo")
# Parameters that are not in OpenAI's own API and need not be sent with these values.
_DEFAULTS = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "detokenize": False}


class Endpoint:
    """
    A model on a server.

    Args:
        base_url (`str`):
            URL of the server, with `/v1`.
        model (`str`):
            Name of the model. If the server has a single model under another name, that one is used.
        max_concurrency (`int`):
            Maximum number of concurrent requests.
        served_model_name (`str`, *optional*):
            Name of the model on the server.
        **client_kwargs:
            Arguments of `openai.AsyncOpenAI`, such as `api_key`, `timeout` (s) and `max_retries`.

    Raises:
        ConnectionError: If no server answers.
        ValueError: If it serves several models, but none with that name.
    """

    def __init__(
        self, base_url: str, model: str, max_concurrency: int, served_model_name: str | None = None, **client_kwargs
    ):
        api_key = os.environ.get("OPENAI_API_KEY", "EMPTY")  # most local servers need none
        self.client = AsyncOpenAI(base_url=base_url, **{"api_key": api_key, **client_kwargs})
        self._slots = asyncio.Semaphore(max_concurrency)
        served = finish(self._list_models())
        names = [found["id"] for found in served]
        wanted = served_model_name or model
        if wanted not in names and (served_model_name is not None or len(names) != 1):
            raise ValueError(
                f"The server at `backend={base_url!r}` serves {', '.join(names)}, but not {wanted!r}. Name one of "
                "these with `backend_kwargs={'served_model_name': ...}`."
            )
        (described,) = [found for found in served if found["id"] == wanted] or served
        self.model = described["id"]
        self.max_model_length = described.get("max_model_len") or sys.maxsize  # only vLLM reports it
        self.is_vllm = described["owned_by"] == "vllm"

    async def _list_models(self) -> list[dict[str, Any]]:
        async with self._connected():
            return [found.model_dump() async for found in self.client.models.list()]

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        try:
            yield
        except APIConnectionError as error:  # after `max_retries`
            url = str(self.client.base_url).rstrip("/")
            raise ConnectionError(
                f"No server answers at `backend={url!r}`: {error} Start one, for example with `vllm serve`, or raise "
                f"`backend_kwargs={{'timeout': ...}}`, which is {self.client.timeout} (s)."
            ) from error


class ChatEndpoint(Endpoint):
    """A model on a server that is given messages, so that its tokenizer need not be known."""

    def answer(
        self, conversations: list[list[Message]], sampling: Sampling, seeds: list[int]
    ) -> list[tuple[str, bool]]:
        """
        Answer conversations, all at once. Of `sampling`, only the temperature, `top_p` and the length are sent, which
        every server knows.

        Args:
            conversations (`list[list[dict[str, Any]]]`):
                Messages of each conversation.
            sampling ([`~generation.base.Sampling`]):
                How to sample.
            seeds (`list[int]`):
                Seed of each answer; servers need not heed it.

        Returns:
            `list[tuple[str, bool]]`: the text of each answer, and whether it ended before the limit of tokens.
        """

        async def ask(messages: list[Message], seed: int) -> tuple[str, bool]:
            async with self._slots, self._connected():
                answer = await self.client.chat.completions.create(
                    model=self.model,
                    messages=messages,
                    max_completion_tokens=sampling.max_tokens,
                    temperature=sampling.temperature,
                    top_p=sampling.top_p,
                    seed=seed % 2**31,
                )
            return answer.choices[0].message.content or "", answer.choices[0].finish_reason == "stop"

        return finish(_together(ask, conversations, seeds))


class EndpointEngine(Endpoint):
    """
    A model on a server that accepts prompts as tokens; all completions are requested at once.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizes the answers of servers that do not return tokens.
        *args, **kwargs:
            As in [`Endpoint`].
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tokenizer = tokenizer

    def generate(
        self, prompts: list[list[int]], params: list[dict[str, Any]], adapter: Adapter | None, bar: tqdm | None
    ) -> list[Completion]:
        async def complete(prompt: list[int], sampling: dict[str, Any]) -> Completion:
            choice = await self._ask(prompt, **sampling, return_token_ids=True, skip_special_tokens=False)
            if bar is not None:
                bar.update()
            ended = choice["finish_reason"] == "stop"
            token_ids = choice.get("token_ids")
            if token_ids is None:
                token_ids = self.tokenizer(choice["text"], add_special_tokens=False)["input_ids"]
                token_ids += sampling["stop_token_ids"][:1] if ended else []
            return Completion(token_ids, ended)

        return finish(_together(complete, prompts, params))

    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        if not self.is_vllm:
            return finish(_together(self._score_echo, prompts, completions))
        return score_by_token(lambda *pairs: finish(_together(self._score_token, *pairs)), prompts, completions)

    async def _score_token(self, prompt: list[int], token_id: int) -> float:
        choice = await self._ask(prompt, logprobs=1, **forced(token_id))
        return choice["logprobs"]["token_logprobs"][0]

    async def _score_echo(self, prompt: list[int], completion: list[int]) -> float:
        choice = await self._ask(prompt + completion, max_tokens=1, echo=True, logprobs=1)
        return sum(choice["logprobs"]["token_logprobs"][len(prompt) : len(prompt) + len(completion)])

    def take_cache_counts(self) -> tuple[int, int]:
        return 0, 0  # the server can have other clients

    async def _ask(self, prompt: list[int], **params) -> dict[str, Any]:
        known = {name: value for name, value in params.items() if name in _OPENAI}
        others = {name: value for name, value in params.items() if name not in known and _DEFAULTS.get(name) != value}
        async with self._slots, self._connected():
            answer = await self.client.completions.create(model=self.model, prompt=prompt, **known, extra_body=others)
        return answer.choices[0].model_dump()


async def _together(ask, prompts: list[list[int]], others: list[Any]) -> list[Any]:
    return await asyncio.gather(*map(ask, prompts, others))
