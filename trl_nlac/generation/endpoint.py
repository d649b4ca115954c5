# SPDX-License-Identifier: Apache-2.0

"""A server with OpenAI's interface: completions of prompts as tokens, such as vLLM's, and how to read its answers."""

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from openai import APIConnectionError, APIStatusError, AsyncOpenAI, OpenAIError
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..event_loop import Coroutines
from ..secrets import hide_in_text, remember_secrets
from .engine import Adapter, forced, score_by_token
from .generator import Completion


_OPENAI = ("max_tokens", "temperature", "top_p", "seed", "logprobs", "echo")
# Parameters that are not in OpenAI's own API and need not be sent with these values. vLLM takes what is not sent from
# the model's generation_config.json.
_DEFAULTS = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
_MAX_SHOWN = 300  # characters of what a server says
_MAX_TOKEN_ID = 2**31
_REQUESTS = Coroutines()  # whichever thread asks: connections and locks belong to one event loop


class EndpointError(ConnectionError):
    """A server gives no answer, refuses a request, or answers with something else than OpenAI's interface."""


class OddAnswer(Exception):
    """What is wrong with an answer."""


class EndpointEngine:
    """
    A model on a server that accepts prompts as tokens; all completions are requested at once. If the server has a
    single model, under whatever name, that one is used unless a `served_model_name` is given. The `tokenizer` is for
    the answers of servers that do not return tokens; `client_kwargs` are arguments of `openai.AsyncOpenAI`. Raise
    [`EndpointError`] if no server answers, or something else. Raise a `ValueError` if it serves several models, but
    none with that name.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        base_url: str,
        model: str,
        max_concurrency: int,
        served_model_name: str | None = None,
        **client_kwargs,
    ):
        self.tokenizer = tokenizer
        api_key = os.environ.get("OPENAI_API_KEY", "EMPTY")  # most local servers need none
        client_kwargs = {"api_key": api_key, **client_kwargs}
        remember_secrets({"base_url": base_url, **client_kwargs})
        self.client = AsyncOpenAI(base_url=base_url, **client_kwargs)
        self._place = f"`backend={hide_in_text(base_url)!r}`"
        self._slots = asyncio.Semaphore(max_concurrency)
        served = _REQUESTS.run(self._list_models())
        names = [found["id"] for found in served]
        wanted = served_model_name or model
        if wanted not in names and (served_model_name is not None or len(names) != 1):
            raise ValueError(
                f"The server at {self._place} serves {', '.join(names)}, but not {wanted!r}. Name one of these with "
                "`backend_kwargs={'served_model_name': ...}`."
            )
        self.model = wanted if wanted in names else names[0]
        described = served[names.index(self.model)]
        # Only vLLM reports a length: of an adapter (LoRA), with its base model, the `parent`.
        parents = [found for found in served if found["id"] == described.get("parent")]
        lengths = [found.get("max_model_len") for found in (described, *parents)]
        self.max_model_length = next((n for n in lengths if isinstance(n, int) and n > 0), math.inf)
        self.is_vllm = described.get("owned_by") == "vllm"

    async def _list_models(self) -> list[dict[str, Any]]:
        async with self._named_errors():
            body = await read_body(self.client.models.with_raw_response.list())
            models = body.get("data")
            if not isinstance(models, list) or not models:
                raise OddAnswer("its /models lists no model")
            if not all(isinstance(found, dict) and isinstance(found.get("id"), str) for found in models):
                raise OddAnswer("its /models lists a model without an `id`")
            return models

    @asynccontextmanager
    async def _named_errors(self) -> AsyncIterator[None]:
        """Say in one line what a server did, and what can be done about it."""
        try:
            yield
        except APIConnectionError as error:  # after `max_retries`
            raise EndpointError(
                f"No server answers at {self._place}: {_shown(error)} Start one, for example with `vllm serve`, or "
                f"raise `backend_kwargs={{'timeout': ...}}`, which is {self.client.timeout} (s)."
            ) from error
        except APIStatusError as error:
            raise EndpointError(
                f"The server at {self._place} refuses a request with status {error.status_code}: {_shown(error)}"
            ) from error
        except (OpenAIError, OddAnswer) as error:
            raise EndpointError(
                f"The server at {self._place} does not answer as OpenAI's interface does: {_shown(error)}"
            ) from error

    def generate(
        self, prompts: list[list[int]], params: list[dict[str, Any]], adapter: Adapter | None, bar: tqdm | None
    ) -> list[Completion]:
        async def complete(prompt: list[int], sampling: dict[str, Any]) -> Completion:
            async with self._slots, self._named_errors():
                choice = await self._ask(prompt, **sampling, return_token_ids=True, skip_special_tokens=False)
                ended = choice.get("finish_reason") == "stop"
                token_ids = self._read_tokens(choice, sampling["stop_token_ids"][:1] if ended else [])
            if bar is not None:
                bar.update()
            most = sampling["max_tokens"]
            return Completion(token_ids[:most], ended and len(token_ids) <= most)

        return _REQUESTS.run(_together(complete, prompts, params))

    def _read_tokens(self, choice: dict[str, Any], ending: list[int]) -> list[int]:
        """Read the tokens of a completion, from its text where the server gives no tokens: with `ending` then."""
        token_ids = choice.get("token_ids")
        if token_ids is None:
            if not isinstance(choice.get("text"), str):
                raise OddAnswer("its choice has neither `text` nor `token_ids`")
            return [*self.tokenizer(_valid(choice["text"]), add_special_tokens=False)["input_ids"], *ending]
        if not isinstance(token_ids, list) or not all(type(i) is int and 0 <= i < _MAX_TOKEN_ID for i in token_ids):
            raise OddAnswer("the `token_ids` of its choice are no list of tokens")
        return token_ids

    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        if not self.is_vllm:
            return _REQUESTS.run(_together(self._score_echo, prompts, completions))
        return score_by_token(lambda *pairs: _REQUESTS.run(_together(self._score_token, *pairs)), prompts, completions)

    async def _score_token(self, prompt: list[int], token_id: int) -> float:
        async with self._slots, self._named_errors():
            choice = await self._ask(prompt, logprobs=1, **forced(token_id))
            return sum(_read_logprobs(choice, 0, 1))

    async def _score_echo(self, prompt: list[int], completion: list[int]) -> float:
        async with self._slots, self._named_errors():
            choice = await self._ask(prompt + completion, max_tokens=1, echo=True, logprobs=1)
            return sum(_read_logprobs(choice, len(prompt), len(completion)))

    def take_cache_counts(self) -> tuple[int, int]:
        return 0, 0  # the server can have other clients

    async def _ask(self, prompt: list[int], **params) -> dict[str, Any]:
        known = {name: value for name, value in params.items() if name in _OPENAI}
        unsent = {"detokenize": False} if self.is_vllm else {"detokenize": False, **_DEFAULTS}
        others = {name: value for name, value in params.items() if name not in known and unsent.get(name) != value}
        create = self.client.completions.with_raw_response.create
        return _choice(await read_body(create(model=self.model, prompt=prompt, **known, extra_body=others)))


async def read_body(request: Awaitable[Any]) -> dict[str, Any]:
    """Send a request, and read the object in its answer, of whatever type; raise [`OddAnswer`] without one."""
    text = (await request).text
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OddAnswer(f"its answer is not JSON: {text[:_MAX_SHOWN]!r}") from error
    if not isinstance(body, dict):
        raise OddAnswer(f"its answer is not a JSON object: {text[:_MAX_SHOWN]!r}")
    if body.get("error"):
        raise OddAnswer(f"it reports an error: {body['error']!r:.{_MAX_SHOWN}}")
    return body


def _choice(body: dict[str, Any]) -> dict[str, Any]:
    """Return the first choice of an answer."""
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise OddAnswer("its answer has no `choices`")
    return choices[0]


def read_said(body: dict[str, Any]) -> str:
    """Return what a chat model said, or an empty text; raise [`OddAnswer`] if the object is not that of one."""
    message = _choice(body).get("message")
    if not isinstance(message, dict) or not isinstance(message.get("content") or "", str):
        raise OddAnswer("its choice has no message with text")
    return _valid(message.get("content") or "")


def _read_logprobs(choice: dict[str, Any], start: int, number: int) -> list[float]:
    """Read the log-likelihoods of some tokens of a choice."""
    logprobs = choice.get("logprobs")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    found = values[start : start + number] if isinstance(values, list) else []
    if len(found) < number or not all(isinstance(value, int | float) and math.isfinite(value) for value in found):
        raise OddAnswer(
            "it gives no log-likelihood for some tokens (`logprobs`, and `echo` for those of a prompt), by which "
            "verdicts are scored"
        )
    return found


def _valid(text: str) -> str:
    """Return text that a tokenizer takes: half characters, which JSON can hold, become marks."""
    return text.encode(errors="replace").decode()


def _shown(error: Exception) -> str:
    """What is said, in one line of limited length."""
    return hide_in_text(" ".join(str(error).split()))[:_MAX_SHOWN]


async def _together(ask, prompts: list[list[int]], others: list[Any]) -> list[Any]:
    return await asyncio.gather(*map(ask, prompts, others))
