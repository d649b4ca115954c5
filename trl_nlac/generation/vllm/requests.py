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

"""Requests of several threads to one vLLM engine in this process."""

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count

import torch
from vllm import LLM, RequestOutput, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind


@dataclass
class Request:
    """
    A prompt for an engine.

    Args:
        prompt (`list[int]`):
            The prompt.
        params (`vllm.SamplingParams`):
            How to sample.
        adapter (`vllm.lora.request.LoRARequest`, *optional*):
            The adapter to sample with.

    Attributes:
        output (`Future[vllm.RequestOutput]`):
            vLLM's output, once it is there.
    """

    prompt: list[int]
    params: SamplingParams
    adapter: LoRARequest | None
    output: Future[RequestOutput] = field(default_factory=Future)


class RequestLoop:
    """
    Take an engine step by step while there are requests, in a thread of its own. Requests of any thread join at the
    next step, and each is answered at the step that ends it (continuous batching).

    Args:
        llm (`vllm.LLM`):
            The engine. Nobody else generates with it.

    Attributes:
        lock (`threading.Lock`):
            Guards what the threads share.
    """

    def __init__(self, llm: LLM):
        self._engine = llm.llm_engine
        self._device = torch.cuda.current_device() if torch.cuda.is_available() else None  # of this thread
        self.lock = threading.Lock()
        self._arrived: list[Request] = []
        self._running: dict[str, Request] = {}
        self._numbers = count()
        self._thread: threading.Thread | None = None  # while there are requests

    def submit(self, requests: list[Request]) -> None:
        """Let requests join at the same step."""
        with self.lock:
            self._arrived += requests
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True, name="vLLM")
                self._thread.start()

    def cancel(self) -> None:
        """Cancel all requests, and return when the engine stands still."""
        with self.lock:
            thread, requests = self._thread, [*self._arrived, *self._running.values()]
            self._arrived = []
        for request in requests:
            request.output.cancel()
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        if self._device is not None:
            torch.cuda.set_device(self._device)
        while True:
            with self.lock:
                arrived, self._arrived = self._arrived, []
                if not arrived and not self._running:
                    self._thread = None
                    return
            try:
                self._step(arrived)
            except BaseException as error:  # which those that wait must see
                failed, self._running = [*arrived, *self._running.values()], {}
                for request in failed:
                    if not request.output.done():
                        request.output.set_exception(error)

    def _step(self, arrived: list[Request]) -> None:
        for request in arrived:
            number, request.params.output_kind = f"nlac-{next(self._numbers)}", RequestOutputKind.FINAL_ONLY
            try:
                prompt = {"prompt_token_ids": request.prompt}
                self._engine.add_request(number, prompt, request.params, lora_request=request.adapter)
            except Exception as error:  # it was refused
                request.output.set_exception(error)
            else:
                self._running[number] = request
        cancelled = [number for number, request in self._running.items() if request.output.cancelled()]
        if cancelled:
            self._engine.abort_request(cancelled)
            for number in cancelled:
                del self._running[number]
        for output in self._engine.step() if self._running else []:
            if output.finished and output.request_id in self._running:
                request = self._running.pop(output.request_id)
                if request.output.set_running_or_notify_cancel():
                    request.output.set_result(output)
