# SPDX-License-Identifier: Apache-2.0

"""vLLM as a separate server."""

import asyncio
import json
import logging
import math
import shutil
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from operator import index
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from accelerate.utils import broadcast_object_list, is_peft_model
from tqdm.auto import tqdm

from ...event_loop import finish
from ...private_names import VLLMClient, VLLMGeneration
from ...secrets import hide_in_text
from ..engine import Adapter
from ..generator import Completion
from .weights import save_adapter, save_weights


logger = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_ATTEMPTS = 4
_HEALTH_INTERVAL = 10.0  # s
_PROBES = 16  # requests at the same time, of which each process of a server gets one


class _ServerLost(Exception):
    """The server did not answer, or does not have our weights."""


class _ServerFailed(_ServerLost):
    """The server answered that it has failed: it, or no more than the request."""


class ServerEngine(VLLMGeneration):
    """
    A vLLM server that each process of the trainer uses separately.

    Weights are sent over NCCL, as in TRL, or through a shared folder: as safetensors that the server loads, or as
    adapters. Answers count only if, at the end of a call, the server is still the one that had the weights when it
    began (with LoRA: if it has the adapter, whose name no other run uses). If the server is lost, the engine waits for
    it; if it was restarted, it gets the weights from the folder again and the call is repeated. With NCCL that is not
    possible and ends training with an error.

    The folder, `weights_dir`, has the same path for trainer and server. Without it, NCCL is used. The other arguments
    are TRL's. Raise a `ConnectionError` if no server answers within `server_timeout` seconds. Raise a `ValueError` if
    weights cannot be sent in this way, or the server has several API processes.
    """

    forgets_weights = False

    def __init__(self, *args, weights_dir: str | None = None, **kwargs):
        self.weights_dir = weights_dir
        super().__init__(*args, **kwargs)

    def _init_vllm(self) -> None:
        is_main, device = self.accelerator.is_main_process, self.accelerator.device
        has_adapters = is_peft_model(self.model)
        if self.weights_dir is None and (has_adapters or device.type != "cuda"):
            reason = (
                "adapters reach a server as files" if has_adapters else f"NCCL needs a GPU, this is {device.type!r}"
            )
            raise ValueError(
                f"`vllm_server_weights_dir` is not set, but {reason}. Set it to a folder that trainer and server see "
                "under the same path."
            )
        url = self.server_base_url or f"http://{self.server_host}:{self.server_port}"
        self.vllm_client = VLLMClient(url, group_port=self.group_port, connection_timeout=self.server_timeout)
        self._shown_url = hide_in_text(self.vllm_client.base_url)  # in messages
        self._server_id: str | None = None  # of the server that has our weights
        self._version = 0  # of our weights
        self._recovery = threading.Lock()
        self._check = threading.Lock()
        self._checked = (-math.inf, "")  # when the server was last asked for its id, and its answer
        self._adapters: list[Adapter] = []
        self.max_model_length = self._insist(lambda: self._request("GET", "/v1/models", _length_in))
        self._cache_counts = self._insist(self._read_cache_counts)
        if not has_adapters:
            self.vllm_client.get_server_info()  # raises if the server cannot load weights on request
            ids = self._insist(lambda: self._probe("/server_info?config_format=json", _id_in))
            if len(set(ids)) > 1:
                raise ValueError(self._several_processes)
        if self.weights_dir is not None:
            if is_main:
                Path(self.weights_dir).mkdir(parents=True, exist_ok=True)
                self._directory = tempfile.TemporaryDirectory(prefix="nlac_", dir=self.weights_dir)
                Path(self._directory.name).chmod(0o755)  # the server can run as another user
            self._path = Path(self._from_main(lambda: self._directory.name))
        elif is_main:
            self.vllm_client.init_communicator(device=device)
        self.accelerator.wait_for_everyone()

    def _from_main(self, get: Callable[[], T]) -> T:
        """Return on all processes what the main one gets; raise its error there, and a `RuntimeError` elsewhere."""
        value, error = None, None
        if self.accelerator.is_main_process:
            try:
                value = get()
            except Exception as met:
                error = met
        found = [value, None if error is None else f"{type(error).__name__}: {error}"]
        broadcast_object_list(found)
        if error is not None:
            raise error
        if found[1] is not None:
            raise RuntimeError(f"The main process cannot go on, and the others stop with it: {found[1]}")
        return found[0]

    # Weights

    @contextmanager
    def awake(self) -> Iterator[None]:
        self.accelerator.wait_for_everyone()  # until no process generates with the last weights
        yield

    def sync_weights(self) -> None:
        self._version += 1
        if self.weights_dir is None:
            self._server_id = self._from_main(lambda: self._insist(self._read_server_id))
            super().sync_weights()
            return
        save_weights(self, self._weights_path)
        self._server_id = self._from_main(lambda: self._insist(self._load_weights))
        if self.accelerator.is_main_process:
            shutil.rmtree(self._path / str(self._version - 1), ignore_errors=True)

    @property
    def _weights_path(self) -> Path:
        return self._path / str(self._version)

    def _load_weights(self) -> str:
        server_id = self._read_server_id()  # before loading, so that a restart during it is noticed
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(self._weights_path)}}
        self._request("POST", "/collective_rpc", json=call)
        return server_id

    def add_adapter(self, number: int) -> Adapter:
        adapter = Adapter(number, self._path / str(number))

        def hand_over() -> None:
            self._load_adapter(adapter)
            # A process of the server knows the adapters that it was itself asked to load.
            if not self._adapters and not all(self._probe("/v1/models", lambda text: f'"{adapter.name}"' in text)):
                raise ValueError(self._several_processes)

        save_adapter(self, adapter.path, writes=self.accelerator.is_main_process)
        self._from_main(lambda: self._insist(hand_over))
        self._adapters.append(adapter)
        return adapter

    def _load_adapter(self, adapter: Adapter) -> None:
        try:
            body = {"lora_name": adapter.name, "lora_path": str(adapter.path)}
            self._request("POST", "/v1/load_lora_adapter", json=body)
        except (_ServerFailed, RuntimeError) as error:
            # vLLM fails as well where only the adapter is wrong, for example its rank.
            if isinstance(error, _ServerFailed) and not finish(self._is_healthy()):
                raise
            if "already been loaded" not in str(error):
                raise RuntimeError(
                    f"{error} To take adapters the vLLM server at {self._shown_url} needs "
                    "`VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`, `--enable-lora`, `--max-loras 3`, a sufficient "
                    f"`--max-lora-rank`, and to see `vllm_server_weights_dir={self.weights_dir!r}`."
                ) from error

    def drop_adapter(self, adapter: Adapter) -> None:
        self.accelerator.wait_for_everyone()  # until no process generates with it
        with self._recovery:  # which loads them again
            self._adapters.remove(adapter)
        if self.accelerator.is_main_process:
            try:
                self._request("POST", "/v1/unload_lora_adapter", json={"lora_name": adapter.name})
            except (_ServerLost, RuntimeError) as error:  # for example of a server that was restarted
                logger.warning(f"An adapter that is no longer needed could not be unloaded: {error}")
            shutil.rmtree(adapter.path)

    # Completions

    def generate(
        self, prompts: list[list[int]], params: list[dict[str, Any]], adapter: Adapter | None, bar: tqdm | None
    ) -> list[Completion]:
        def answers() -> list[Completion]:
            server_id = self._server_id
            if bar is not None:
                bar.reset()
            completions = finish(self._watched(lambda session: self._complete(session, prompts, params, adapter, bar)))
            if adapter is None and self._server_id_from_now() != server_id:
                raise _ServerLost("it was restarted and does not have our weights")
            return completions

        return self._insist(answers)

    async def _complete(
        self,
        session: aiohttp.ClientSession,
        prompts: list[list[int]],
        params: list[dict[str, Any]],
        adapter: Adapter | None,
        bar: tqdm | None,
    ) -> list[Completion]:
        common = {"model": self.vllm_client.model, "return_token_ids": True}
        if adapter is None:
            common["cache_salt"] = f"{self._server_id}_{self._version}"  # prevents reuse of prefixes of other weights
        else:
            common["model"] = adapter.name

        async def complete(prompt: list[int], sampling: dict[str, Any]) -> Completion:
            body = {**common, **sampling, "prompt": prompt}
            completion = await self._ask(session, "POST", "/v1/completions", _completion_in, json=body)
            if bar is not None:
                bar.update()
            return completion

        return await asyncio.gather(*map(complete, prompts, params))

    def take_cache_counts(self) -> tuple[int, int]:
        before, self._cache_counts = self._cache_counts, self._insist(self._read_cache_counts)
        tokens, cached = (now - then for now, then in zip(self._cache_counts, before, strict=True))
        return (tokens, cached) if tokens >= 0 else self._cache_counts  # negative if it was restarted

    def _read_cache_counts(self) -> tuple[int, int]:
        """Return the counts over all requests that the server has had, also those of others."""
        return self._request("GET", "/metrics", _cache_counts_in)

    # Requests

    def _insist(self, action: Callable[[], T]) -> T:
        """Return the result of `action`; if the server is lost, wait for it and repeat."""
        for attempt in range(_MAX_ATTEMPTS):
            try:
                if attempt:
                    with self._recovery:  # one thread sends the weights, the others find them there
                        self._find_again()
                return action()
            except _ServerLost as error:
                lost = error
                logger.warning(f"The vLLM server at {self._shown_url} was lost: {error}")
        raise RuntimeError(
            f"The vLLM server at {self._shown_url} was lost {_MAX_ATTEMPTS} times in a row, the last time: "
            f"{lost}. See its log; then resume from the last checkpoint "
            "(`trl-nlac train --resume_from_checkpoint last`)."
        )

    def _find_again(self) -> None:
        """Wait for the server and, if it was restarted, send the weights again."""
        if not finish(self._becomes_healthy()):
            raise ConnectionError(
                f"The vLLM server at {self._shown_url} is gone and did not come back within "
                f"`vllm_server_timeout={self.server_timeout}` seconds. Start it again and resume from "
                "the last checkpoint (`trl-nlac train --resume_from_checkpoint last`)."
            )
        for adapter in self._adapters:
            self._load_adapter(adapter)
        if self._server_id is None or self._read_server_id() == self._server_id:
            return
        if self.weights_dir is None:
            raise RuntimeError(
                f"The vLLM server at {self._shown_url} was restarted and has lost its weights and the NCCL "
                "group. Resume from the last checkpoint (`trl-nlac train --resume_from_checkpoint last`). With "
                "`vllm_server_weights_dir`, servers can be restarted during training."
            )
        self._load_weights_once()

    def _load_weights_once(self) -> None:
        """Load the weights into a restarted server, unless another process of the trainer does; then wait for it."""
        server_id = self._read_server_id()
        claim = self._path / f"claimed_{self._version}_{server_id}"
        done = claim.with_name(claim.name.replace("claimed", "loaded"))
        try:
            claim.touch(exist_ok=False)
        except FileExistsError:
            end = time.monotonic() + self.server_timeout
            while claim.exists() and not done.exists() and time.monotonic() < end:
                time.sleep(0.1)
            if not done.exists():
                raise _ServerLost("another process has not loaded the weights") from None
            self._server_id = server_id
            return
        try:
            self._server_id = self._load_weights()
        except BaseException:
            claim.unlink()
            raise
        done.touch()

    def _server_id_from_now(self) -> str:
        """Return the server's id at a moment after this call. Threads that ask at the same time share an answer."""
        now = time.monotonic()
        with self._check:
            if self._checked[0] < now:
                asked_at = time.monotonic()
                self._checked = asked_at, self._read_server_id()
            return self._checked[1]

    def _read_server_id(self) -> str:
        """Return an id that is different for each start of a server."""
        return self._request("GET", "/server_info?config_format=json", _id_in)

    def _probe(self, path: str, read: Callable[[str], T]) -> list[T]:
        """Ask many times at once, and read each answer."""

        async def ask() -> list[T]:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_PROBES)) as session:
                return await asyncio.gather(*(self._ask(session, "GET", path, read) for _ in range(_PROBES)))

        return finish(ask())

    @property
    def _several_processes(self) -> str:
        return (
            f"The vLLM server at {self._shown_url} has several API processes, as with `--data-parallel-size`, and "
            "each knows only what it was told itself. Start it with `--api-server-count 1`: one process takes the "
            "requests for all of its engines."
        )

    def _request(self, method: str, path: str, read: Callable[[str], T] = str, **kwargs) -> T:
        return finish(self._watched(lambda session: self._ask(session, method, path, read, **kwargs)))

    async def _ask(
        self, session: aiohttp.ClientSession, method: str, path: str, read: Callable[[str], T] = str, **kwargs
    ) -> T:
        try:
            async with session.request(method, f"{self.vllm_client.base_url}{path}", **kwargs) as response:
                text = await response.text(errors="replace")
        except aiohttp.ClientError as error:
            raise _ServerLost(repr(error)) from error
        if response.status == 200:
            try:
                return read(text)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise _ServerLost(f"It answered {path} with what vLLM does not: {text[:200]!r}") from error
        words = f"It answered {response.status} to {path}: {text[:1000]}"
        if response.status == 500:
            raise _ServerFailed(words)
        if response.status > 500 or any(f"`{adapter.name}` does not exist" in text for adapter in self._adapters):
            raise _ServerLost(words)
        raise RuntimeError(f"The vLLM server at {self._shown_url} refused. {words}")

    async def _watched(self, work: Callable[[aiohttp.ClientSession], Awaitable[T]]) -> T:
        """Return the result of `work`, however long it takes, unless the server is silent for too long."""
        connector = aiohttp.TCPConnector(limit=self.max_num_seqs)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            working, watching = asyncio.ensure_future(work(session)), asyncio.ensure_future(self._watch())
            try:
                await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    return working.result()
                raise _ServerLost(f"its /health was silent for {self.server_timeout} seconds")
            finally:
                working.cancel()
                watching.cancel()

    async def _watch(self) -> None:
        """Return when the server has been silent for too long. Short calls are not watched."""
        await asyncio.sleep(min(_HEALTH_INTERVAL, self.server_timeout))
        while await self._becomes_healthy():
            await asyncio.sleep(_HEALTH_INTERVAL)

    async def _becomes_healthy(self) -> bool:
        """Whether the server reports that it is healthy before it has been silent for too long."""
        end = time.monotonic() + self.server_timeout
        while time.monotonic() < end:
            if await self._is_healthy():
                return True
            await asyncio.sleep(min(1.0, self.server_timeout / 10))
        return False

    async def _is_healthy(self) -> bool:
        timeout = aiohttp.ClientTimeout(total=_HEALTH_INTERVAL)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                async with session.get(f"{self.vllm_client.base_url}/health") as response:
                    return response.ok
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return False


def _id_in(server_info: str) -> str:
    return json.loads(server_info)["vllm_config"]["instance_id"]


def _length_in(models: str) -> int:
    return index(json.loads(models)["data"][0]["max_model_len"])


def _completion_in(answer: str) -> Completion:
    parsed = json.loads(answer)
    choice, details = parsed["choices"][0], parsed["usage"].get("prompt_tokens_details") or {}
    return Completion(
        [index(token) for token in choice["token_ids"]],
        choice["finish_reason"] == "stop",
        details.get("cached_tokens"),
    )


def _cache_counts_in(metrics: str) -> tuple[int, int]:
    def total(counter: str) -> int:
        lines = [line for line in metrics.splitlines() if line.startswith(f"vllm:prefix_cache_{counter}_total{{")]
        return int(sum(float(line.split()[-1]) for line in lines))

    return total("queries"), total("hits")
