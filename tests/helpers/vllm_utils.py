# SPDX-License-Identifier: Apache-2.0

"""Helpers for tests of the vLLM backends. Scripts import them too, because each engine needs its own process."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from helpers.launch import run_program
from helpers.testing_utils import DESK, make_trainer

from trl_nlac import NLACTrainer
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.generation.generator import Sampling
from trl_nlac.generation.transformers import TransformersGenerator


os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")

MAX_MODEL_LENGTH = 512
ADAPTER_OPTIONS = "--enable-lora --max-loras 3 --max-lora-rank 8 --no-enable-chunked-prefill".split()


def make_vllm_trainer(output_dir: Path, config: dict | None = None, **kwargs) -> NLACTrainer:
    options = {
        **dict(use_vllm=True, vllm_max_model_length=MAX_MODEL_LENGTH, max_steps=3, logging_steps=1),
        **dict(episodes_per_iteration=8, per_device_train_batch_size=8, max_generation_batch_size=32),
        "learning_rate": 1e-2 if kwargs.get("peft_config") else 5e-3,
        "target_update_rate": 0.013,  # 0.1 for a gradient step
    }
    return make_trainer(output_dir, {**options, **(config or {})}, **kwargs)


def make_client(
    server: "Server", tmp_path: Path, config: dict | None = None, timeout: float = 240.0, **kwargs
) -> NLACTrainer:
    """Make a trainer whose roles generate with the server."""
    options = dict(
        vllm_mode="server",
        vllm_server_base_url=server.url,
        vllm_server_weights_dir=str(tmp_path),
        vllm_server_timeout=timeout,
    )
    return make_vllm_trainer(tmp_path / "run", {**options, **(config or {})}, **kwargs)


def greedy(trainer: NLACTrainer, generator) -> list[tuple[list[int], bool]]:
    """Return the greedy answers, each with whether it ended on its own: a random model may well go on."""
    with generator.session(trainer.model):
        prompts = prompts_of(trainer)
        completions = generator.generate(prompts, Sampling(max_tokens=24, temperature=0.0), [0] * len(prompts))
    return [(completion.token_ids, completion.finished) for completion in completions]


def prompts_of(trainer: NLACTrainer) -> list[list[int]]:
    """Return states, and as many critic prompts about actions in them."""
    chat = trainer.roles.chat
    states = [chat.start([{"role": "user", "content": f"{request} 2"}]) for request in DESK.rules]
    action = chat.completion("route legal amber photo noon")
    return states + [state + action + chat.reply(action[-1], "Critique?") for state in states]


def compare(trainer: NLACTrainer) -> list[tuple[list[int], bool]]:
    """Check that both backends give the same greedy answers for both sets of weights; return those of the policy."""
    vllm, said = trainer.roles.generator, {}
    transformers = vllm.scorer
    for name in ("policy", "target", "policy again"):
        if name == "target":
            with trainer.target_weights.swapped_into(trainer.model):
                said[name] = greedy(trainer, vllm), greedy(trainer, transformers)
        else:
            said[name] = greedy(trainer, vllm), greedy(trainer, transformers)
        assert said[name][0] == said[name][1], name
    assert said["policy"] == said["policy again"]
    assert said["policy"] != said["target"]  # otherwise the comparison proves nothing
    return said["policy"][0]


def compare_likelihoods(trainer: NLACTrainer, limit: float = 0.03) -> dict[str, float]:
    """
    Check by the model's own likelihoods that vLLM's greedy answers are its, for both sets of weights: where kernels
    differ, tokens that are equally likely may be chosen otherwise. Returns by how many nats a token they are less
    likely than its own greedy answers, and than those to the other set of weights.
    """
    vllm, prompts, found = trainer.roles.generator, prompts_of(trainer), {}
    greedily = (prompts, Sampling(max_tokens=24, temperature=0.0), [0] * len(prompts))

    def answers(generator, of_target: bool) -> list[list[int]]:
        with trainer.target_weights.swapped_into(trainer.model) if of_target else nullcontext():
            with generator.session(trainer.model):
                return [completion.token_ids for completion in generator.generate(*greedily)]

    said = [answers(vllm, of_target) for of_target in (False, True)]
    for name, of_target in (("policy", False), ("target", True)):
        own = answers(vllm.scorer, of_target)
        with trainer.target_weights.swapped_into(trainer.model) if of_target else nullcontext():
            with vllm.scorer.session(trainer.model):
                likely, vllms, others = (
                    sum(vllm.scorer.score(prompts, ids)) / sum(map(len, ids))
                    for ids in (own, said[of_target], said[not of_target])
                )
        found[f"{name}: nats below its own"], found[f"{name}: of other weights"] = likely - vllms, likely - others
        assert likely - vllms < limit < likely - others, found  # the latter, so that it proves something
    return found


def assert_continuous(trainer: NLACTrainer, is_exact: bool = True) -> None:
    """
    Check that calls of several threads at the same time, a long one among them, are answered as if each were alone,
    and that episodes do not depend on who comes first. Kernels of GPUs are not so exact: there only that all are.
    """
    generator, prompts = trainer.roles.generator, prompts_of(trainer)
    sampling = Sampling(max_tokens=24, temperature=1.5)
    endless = Sampling(max_tokens=400, temperature=2.0, generation_kwargs={"ignore_eos": True, "stop_token_ids": []})
    with generator.session(trainer.model), ThreadPoolExecutor(8) as threads:
        together = generator.generate(prompts, sampling, list(range(len(prompts))))
        long = threads.submit(generator.generate, prompts[:1], endless, [0])
        one_by_one = [threads.submit(generator.generate, [p], sampling, [i]) for i, p in enumerate(prompts)]
        alone = [answer for call in one_by_one for answer in call.result()]
        assert alone == together if is_exact else len(alone) == len(together)
        assert len(long.result()[0].token_ids) == 400
        played = []
        for tasks in (list(trainer.train_dataset)[:6],) * 2:
            torch.manual_seed(0)
            episodes = play_episodes(trainer.environments, tasks, trainer.roles)
            played.append([episode.token_ids.tolist() for episode in episodes])
        assert (played[0] == played[1] or not is_exact) and len(set(map(tuple, played[0]))) > 2


@contextmanager
def assert_logged(text: str) -> Iterator[None]:
    """Check that something is logged within this context."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger("trl_nlac").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("trl_nlac").removeHandler(handler)
    assert any(text in record for record in records), records


def logged(trainer: NLACTrainer, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def assert_own_answers(trainer: NLACTrainer, scorer: TransformersGenerator) -> None:
    """Check that each of two processes gets the answers to its own prompts, with its own weights."""
    rank = trainer.args.process_index
    prompts = prompts_of(trainer)[rank : 3 + 4 * rank]  # different prompts, and different numbers of them
    for weights in ("policy", "target"):
        said = []
        for backend in (trainer.roles.generator, scorer):
            with backend.session(trainer.model):
                said.append(backend.generate(prompts, Sampling(max_tokens=24, temperature=0.0), [0] * len(prompts)))
        assert said[0] == said[1], (rank, weights, said)
        trainer.target_weights.swapped_into(trainer.model).__enter__()
    print(f"done {rank} {len(prompts)}\n", end="", flush=True)


def run(script: Path, *arguments: str, processes: int = 1) -> str:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"] if processes > 1 else []
    return run_program(*launcher, script, *arguments)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Server:
    """A real local vLLM server, which can load weights and adapters from disk on request."""

    def __init__(self, log: Path, port: int, options: list[str] | None = None, environment: dict | None = None):
        self.log, self.port = log, port
        self.url = f"http://127.0.0.1:{port}"
        self.options = ADAPTER_OPTIONS if options is None else options
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            **(environment or {}),
        }
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start it if it is not running, without waiting for it."""
        if self.process is not None and self.process.poll() is None:
            return
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", TINY_MODEL]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32"]
        command += ["--max-model-len", str(MAX_MODEL_LENGTH), *self.options]
        with self.log.open("a") as log:  # in its own session, so that its engine can be killed with it
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=self.environment, start_new_session=True
            )

    def wait(self) -> None:
        deadline = time.monotonic() + 300
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5)
                return
            except OSError:
                assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()[-5000:]
                time.sleep(0.5)

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait()
