# SPDX-License-Identifier: Apache-2.0

"""A real vLLM server and the trainer as its client: `make test-vllm`."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
from helpers.api_processes import APIProcesses
from helpers.testing_utils import make_config
from helpers.vllm_utils import (
    Server,
    assert_continuous,
    compare,
    free_port,
    greedy,
    logged,
    make_client,
    make_vllm_trainer,
    prompts_of,
    run,
)
from peft import LoraConfig

from trl_nlac.generation.generator import Completion, Sampling


pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def only_server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server") / "log.txt", free_port())
    yield server
    server.kill()


@pytest.fixture
def server(only_server):
    only_server.start()
    only_server.wait()
    return only_server


# Tests with adapters come first: full weights replace the server's base model.


def test_adapters(server, tmp_path):
    config = LoraConfig(r=4, lora_alpha=64, target_modules="all-linear")
    trainer = make_client(server, tmp_path, peft_config=config)
    trainer.train()
    compare(trainer)
    assert logged(trainer, "generation/num_syncs") == [0, 0, 0]
    assert len(list(tmp_path.glob("nlac_*/*"))) == 3


@pytest.mark.parametrize("adapters", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_server_that_is_started_again_gets_its_weights_again(server, tmp_path, adapters, caplog):
    config = LoraConfig(r=4, lora_alpha=64, target_modules="all-linear") if adapters else None
    trainer = make_client(server, tmp_path, peft_config=config)
    trainer.train()
    expected = compare(trainer)

    def restart() -> None:
        time.sleep(0.1)
        server.kill()
        server.start()

    generator, prompts = trainer.roles.generator, prompts_of(trainer)
    killer = threading.Thread(target=restart)
    with generator.session(trainer.model):
        killer.start()
        busy = Sampling(max_tokens=400, temperature=2.0, generation_kwargs={"ignore_eos": True, "stop_token_ids": []})
        with ThreadPoolExecutor(8) as threads:  # each finds the server again, and one sends the weights
            seeds = list(range(8 * len(prompts)))
            lost = [threads.submit(generator.generate, prompts, busy, seeds[i::8]) for i in range(8)]
            assert sum(len(call.result()) for call in lost) == 8 * len(prompts)
        answers = generator.generate(prompts, Sampling(max_tokens=24, temperature=0.0), [0] * len(prompts))
    killer.join()
    assert [(answer.token_ids, answer.finished) for answer in answers] == expected
    assert "was lost" in caplog.text
    assert compare(trainer) == expected


def test_full_weights(server, tmp_path):
    trainer = make_client(server, tmp_path)
    generator = trainer.roles.generator
    start = greedy(trainer, generator)
    trainer.train()
    assert compare(trainer) != start
    assert logged(trainer, "generation/num_syncs") == [1, 3, 3]
    assert all(0 <= rate <= 1 for rate in logged(trainer, "generation/prefix_hit_rate"))
    assert len(list(tmp_path.glob("nlac_*/*"))) == 1  # replaced weights are deleted
    assert_continuous(trainer)

    prompts, sampling = prompts_of(trainer), Sampling(max_tokens=24, temperature=1.5)
    with generator.session(trainer.model):
        together = generator.generate(prompts, sampling, list(range(len(prompts))))
        assert together == [generator.generate([prompt], sampling, [seed])[0] for seed, prompt in enumerate(prompts)]
        long = [prompts[0] * 200, (prompts[0] * 200)[:510], prompts[0]]
        answers = generator.generate(long, Sampling(max_tokens=24, temperature=0.0), [0] * 3)
        assert answers[0] == Completion([], False) and len(answers[1].token_ids) <= 2 and answers[2].finished
        regex = Sampling(max_tokens=24, regex="(ab|cd){3}")
        assert len(trainer.roles.chat.decode(generator.generate(prompts[:1], regex, [0])[0].token_ids)) == 6
        wrong = Sampling(max_tokens=24, generation_kwargs={"logprobs": -7})
        with pytest.raises(RuntimeError, match="refused.*400.*logprobs"):
            generator.generate(prompts[:1], wrong, [0])


def test_prefixes_of_other_weights_are_not_reused(server, tmp_path):
    trainer = make_client(server, tmp_path)
    generator = trainer.roles.generator
    state = trainer.roles.chat.start([{"role": "user", "content": " ".join(["billing amber photo noon"] * 98)}])

    def hit_rate() -> float:
        generator.take_metrics()
        with generator.session(trainer.model):
            for number in range(10):
                generator.generate([state + [number] * 9], Sampling(max_tokens=1, temperature=0.0), [0])
        return generator.take_metrics()["generation/prefix_hit_rate"]

    first, second = hit_rate(), hit_rate()
    trainer.model.get_input_embeddings().weight.data.mul_(1.01)
    assert 0.8 < first < second and hit_rate() == first


PROCESSES = """
import sys
from pathlib import Path

from helpers.vllm_utils import make_client
from helpers.vllm_utils import Server, assert_own_answers

trainer = make_client(Server(None, int(sys.argv[2])), Path(sys.argv[1]))
trainer.train()
assert_own_answers(trainer, trainer.roles.generator.scorer)
"""


def test_two_processes(server, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PROCESSES)
    output = run(script, str(tmp_path), str(server.port), processes=2)
    assert "done 0 3" in output and "done 1 6" in output


@pytest.mark.slow
def test_no_answer(server, tmp_path):
    trainer = make_client(server, tmp_path, timeout=3.0)
    trainer.train()
    server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(ConnectionError, match="vllm_server_timeout=3.0.*resume_from_checkpoint"):
            trainer.evaluate(trainer.train_dataset)
    finally:
        server.signal(signal.SIGCONT)
    trainer.evaluate(trainer.train_dataset)
    server.kill()
    with pytest.raises(ConnectionError, match="is gone.*vllm_server_timeout=3.0"):
        trainer.evaluate(trainer.train_dataset)
    with pytest.raises(OSError, match="can't be reached"):
        make_client(server, tmp_path, timeout=0.5)


def test_weights_need_a_way(tmp_path):
    with pytest.raises(ValueError, match="`vllm_server_weights_dir` is not set, but NCCL needs a GPU"):
        make_vllm_trainer(tmp_path, {"vllm_mode": "server"})
    with pytest.raises(ValueError, match="vllm_structured_outputs_regex"):
        make_config(tmp_path, vllm_structured_outputs_regex="a+")


@pytest.mark.parametrize("adapters", [False, True])
def test_several_api_processes_are_refused(tmp_path, adapters):
    """As of `vllm serve --data-parallel-size 2`: before training starts, or when the first adapter is handed over."""
    config = LoraConfig(r=4, target_modules="all-linear") if adapters else None
    options = {"vllm_mode": "server", "vllm_server_weights_dir": str(tmp_path)}
    for number in (1, 2):
        with APIProcesses(number).running() as url:
            refused = pytest.raises(ValueError, match="has several API processes.*`--api-server-count 1`")
            with refused if number > 1 else nullcontext():
                trainer = make_vllm_trainer(
                    tmp_path / f"run{number}", {**options, "vllm_server_base_url": url}, peft_config=config
                )
                with trainer.roles.generator.session(trainer.model):
                    pass


def make_adapter_trainer(tmp_path, url):
    options = {"vllm_mode": "server", "vllm_server_weights_dir": str(tmp_path), "vllm_server_base_url": url}
    config = LoraConfig(r=4, target_modules="all-linear")
    return make_vllm_trainer(tmp_path / "run", options, peft_config=config)


def test_an_adapter_that_the_server_cannot_load(tmp_path, caplog):
    """A healthy server that fails refuses it, as vLLM does with a rank that is too large; another one is lost."""
    server = APIProcesses(1)
    with server.running() as url:
        trainer = make_adapter_trainer(tmp_path, url)
        server.failures = {"/v1/load_lora_adapter": [500] * 9}
        with pytest.raises(RuntimeError, match="answered 500 to /v1/load_lora_adapter.*went wrong.*`--max-lora-rank`"):
            with trainer.roles.generator.session(trainer.model):
                pass
        assert len(server.failures["/v1/load_lora_adapter"]) == 8 and "was lost" not in caplog.text
        server.failures = {"/v1/load_lora_adapter": [500], "/health": [503]}
        with trainer.roles.generator.session(trainer.model):
            pass
        assert server.adapters[0] and "was lost: It answered 500" in caplog.text


def test_a_server_that_is_lost_between_completions(tmp_path, caplog):
    server = APIProcesses(1)
    with server.running() as url:
        trainer = make_adapter_trainer(tmp_path, url)
        server.failures = {"/v1/models": [503], "/metrics": [503]}
        with trainer.roles.generator.session(trainer.model):
            assert "was lost: It answered 503 to /v1/models" in caplog.text
        trainer.roles.take_metrics()
        assert "was lost: It answered 503 to /metrics" in caplog.text


def test_one_process_sends_the_weights_to_a_restarted_server(tmp_path):
    """Two of the trainer notice at the same time that the server was started again."""
    server = APIProcesses(1)
    with server.running() as url:
        options = dict(vllm_mode="server", vllm_server_weights_dir=str(tmp_path / "weights"), vllm_server_base_url=url)
        trainers = [make_vllm_trainer(tmp_path / f"run{i}", options) for i in range(2)]
        for trainer in trainers:
            with trainer.roles.generator.session(trainer.model):
                pass
        engines = [trainer.roles.generator.engine for trainer in trainers]
        engines[1]._path = engines[0]._path  # as processes of one run
        assert len(server.loads) == 2
        server.starts += 1
        with ThreadPoolExecutor(2) as threads:
            for call in [threads.submit(engine._find_again) for engine in engines]:
                call.result()
        assert len(server.loads) == 3
        assert {engine._server_id for engine in engines} == {"1-0"}
        for engine in engines:
            engine._find_again()
        assert len(server.loads) == 3
