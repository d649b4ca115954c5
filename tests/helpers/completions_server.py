# SPDX-License-Identifier: Apache-2.0

"""A fake server with OpenAI's completions API: the embedded model on transformers, over real HTTP."""

import threading
from collections.abc import Sequence

from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.chat_server import FakeServer, JSONHandler
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.generation.generator import Sampling
from trl_nlac.generation.transformers import TransformersGenerator


class _Handler(JSONHandler):
    def do_GET(self):
        self.answer(self.of.list_models())

    def do_POST(self):
        request = self.read()
        if request["model"] not in self.of.models:
            return self.answer({"error": {"message": f"no model {request['model']}"}}, status=404)
        self.answer(self.of.complete(request))


class CompletionsServer(FakeServer):
    """Accepts prompts as tokens, one per request."""

    handler = _Handler

    def __init__(
        self,
        *models: str,
        owner: str = "me",
        returns_tokens: bool = True,
        max_model_length: int | None = None,
        adapters: Sequence[str] = (),
    ):
        self.models = (*models, *adapters)
        self.adapters = adapters
        self.owner = owner
        self.returns_tokens = returns_tokens
        self.max_model_length = max_model_length
        self.requests: list[dict] = []
        self.most_at_once = 0
        self._at_once = 0
        self._tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
        self._model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
        self._lock = threading.Lock()

    def list_models(self) -> dict:
        described = {"object": "model", "created": 0, "owned_by": self.owner}
        if self.max_model_length is not None:
            described["max_model_len"] = self.max_model_length
        cards = [{"id": model, "parent": None, **described} for model in self.models]
        for card in cards:
            if card["id"] in self.adapters:
                card |= {"parent": self.models[0], "max_model_len": None}
        return {"object": "list", "data": cards}

    def complete(self, request: dict) -> dict:
        self._at_once += 1
        with self._lock:
            self.most_at_once = max(self.most_at_once, self._at_once)
            self.requests.append(request)
            if request.get("echo"):
                assert self.owner != "vllm", "which breaks with adapters"
                choice = self._echo(request)
            elif "allowed_token_ids" in request:
                choice = self._force(request)
            else:
                choice = self._sample(request)
        self._at_once -= 1
        return {"id": "1", "object": "text_completion", "created": 0, "model": request["model"], "choices": [choice]}

    def _generator(self, eos_token_ids: list[int]) -> TransformersGenerator:
        return TransformersGenerator(None, self._tokenizer, eos_token_ids, batch_size=1)

    def _sample(self, request: dict) -> dict:
        generator = self._generator([*request["stop_token_ids"], self._tokenizer.eos_token_id])
        names = ("max_tokens", "temperature", "top_p", "top_k", "min_p")
        sampling = Sampling(**{name: request[name] for name in names if name in request})
        with generator.session(self._model):
            (completion,) = generator.generate([request["prompt"]], sampling, [request["seed"]])
        said = completion.token_ids[: -1 if completion.finished else None]
        text = self._tokenizer.decode(said, skip_special_tokens=request["skip_special_tokens"])
        choice = {"index": 0, "text": text, "finish_reason": "stop" if completion.finished else "length"}
        return {**choice, "token_ids": completion.token_ids} if self.returns_tokens else choice

    def _force(self, request: dict) -> dict:
        return self._scored(self._score([request["prompt"]], [request["allowed_token_ids"]]))

    def _echo(self, request: dict) -> dict:
        prompt = request["prompt"]
        starts = range(1, len(prompt))
        logps = self._score([prompt[:i] for i in starts], [prompt[i : i + 1] for i in starts])
        return self._scored([None, *logps, -1.0])

    def _score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        generator = self._generator([])
        with generator.session(self._model):
            return generator.score(prompts, completions)

    @staticmethod
    def _scored(logps: list[float | None]) -> dict:
        logprobs = {"token_logprobs": logps, "tokens": [], "text_offset": [], "top_logprobs": []}
        return {"index": 0, "text": "", "finish_reason": "length", "logprobs": logprobs}
