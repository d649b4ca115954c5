# SPDX-License-Identifier: Apache-2.0

"""Requests of several threads to one vLLM engine in this process."""

import queue
import threading
import weakref
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count

import torch
from vllm import LLM, RequestOutput, SamplingParams

from ...private_names import LoRARequest, RequestOutputKind


@dataclass(eq=False)
class Request:
    """A prompt for an engine, and vLLM's output once it is there."""

    prompt: list[int]
    params: SamplingParams
    adapter: LoRARequest | None
    salt: str = "0"  # names the weights: prefixes are reused among requests with the same salt only
    output: Future[RequestOutput] = field(default_factory=Future)


class RequestLoop:
    """
    Take an engine step by step while there are requests, in a thread of its own. Requests of any thread join at the
    next step, and each is answered at the step that ends it (continuous batching).

    It is one thread for the engine's whole life: what native code keeps for a thread would otherwise be torn down
    while the next thread is at work. Nobody else generates with the engine.
    """

    def __init__(self, llm: LLM):
        self._engine = llm.llm_engine
        self.lock = threading.Lock()  # guards what the threads that ask share
        self._open: set[Request] = set()  # not ended yet
        self._ended = threading.Condition()
        self._arrived: queue.SimpleQueue[list[Request] | None] = queue.SimpleQueue()
        self._running: dict[str, Request] = {}
        self._numbers = count()
        # Of this thread, which loads weights: on one stream they are not read while they are copied.
        place = (torch.cuda.current_device(), torch.cuda.current_stream()) if torch.cuda.is_available() else None
        arguments = (weakref.ref(self), self._arrived, place)
        threading.Thread(target=_work, args=arguments, daemon=True, name="vLLM").start()
        weakref.finalize(self, self._arrived.put, None)

    def submit(self, requests: list[Request]) -> None:
        """Let requests join at the same step."""
        with self._ended:
            self._open.update(requests)
        self._arrived.put(requests)

    def cancel(self) -> None:
        """Cancel all requests, and return when the engine stands still."""
        with self._ended:
            for request in self._open:
                request.output.cancel()
            self._ended.wait_for(lambda: not self._open)

    def answer(self, requests: list[Request]) -> None:
        """Answer requests, and those that arrive meanwhile."""
        while requests or self._running:
            try:
                self._step(requests)
            except BaseException as error:  # which those that wait must see
                failed, self._running = [*requests, *self._running.values()], {}
                for request in failed:
                    self._end(request, error=error)
            requests = [] if self._arrived.empty() else self._arrived.get() or []

    def _step(self, arrived: list[Request]) -> None:
        for request in arrived:
            number, request.params.output_kind = f"nlac-{next(self._numbers)}", RequestOutputKind.FINAL_ONLY
            try:
                prompt = {"prompt_token_ids": request.prompt, "cache_salt": request.salt}
                self._engine.add_request(number, prompt, request.params, lora_request=request.adapter)
            except Exception as error:  # it was refused
                self._end(request, error=error)
            else:
                self._running[number] = request
        cancelled = [number for number, request in self._running.items() if request.output.cancelled()]
        if cancelled:
            self._engine.abort_request(cancelled)
            for number in cancelled:
                self._end(self._running.pop(number))
        for output in self._engine.step() if self._running else []:
            if output.finished and output.request_id in self._running:
                self._end(self._running.pop(output.request_id), output)

    def _end(self, request: Request, output: RequestOutput | None = None, error: BaseException | None = None) -> None:
        if not request.output.done() and request.output.set_running_or_notify_cancel():
            if error is None:
                request.output.set_result(output)
            else:
                request.output.set_exception(error)
        with self._ended:
            self._open.discard(request)
            self._ended.notify_all()


def _work(
    loop: weakref.ref[RequestLoop], arrived: queue.SimpleQueue, place: tuple[int, torch.cuda.Stream] | None
) -> None:
    """Answer what arrives, until the engine is no longer used. Nothing holds it meanwhile."""
    if place is not None:
        torch.cuda.set_device(place[0])
        torch.cuda.set_stream(place[1])
    while (requests := arrived.get()) is not None:
        found = loop()
        if found is None:
            return
        found.answer(requests)
        del found, requests
