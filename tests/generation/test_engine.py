# SPDX-License-Identifier: Apache-2.0

import threading
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import peft
import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.utils import save_and_load
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.tiny_engine import TinyEngine
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.generation.engine import Adapter, SyncedGenerator, cache_shortage
from trl_nlac.generation.generator import Completion, Sampling


def test_what_a_cache_has_no_room_for():
    """Beginnings count once: 100 tokens, and 10 of each of five answers."""
    sequences = [[*range(100), *[1000 + i] * 10] for i in range(5)]
    assert cache_shortage(sequences, 150, 0.3, False) is None
    text = cache_shortage(sequences, 149, 0.3, False)
    assert text.startswith("vLLM's cache has room for 149 tokens, and the prompts and answers of a batch are 150")
    assert "`vllm_gpu_memory_utilization` (0.3), with `vllm_enable_sleep_mode=True`" in text
    assert "vllm_enable_sleep_mode" not in cache_shortage(sequences, 149, 0.8, True)
    assert cache_shortage([[1, 2], [1, 2], [1]], 2, 0.3, False) is None
    assert cache_shortage([], 0, 0.3, False) is None


@pytest.mark.parametrize("name", ["default", "policy"])
def test_adapters_are_handed_over_without_the_hub(tmp_path, monkeypatch, name):
    """Of a base model that was loaded from the Hub, under any name."""
    pytest.importorskip("requests")
    weights = pytest.importorskip("trl_nlac.generation.vllm.weights")
    config = LoraConfig(task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(TINY_MODEL), config, adapter_name=name)
    model.peft_config[name].base_model_name_or_path = "my-org/my-model"
    asked = []
    monkeypatch.setattr(save_and_load, "check_file_exists_on_hf_hub", lambda *names: asked.append(names))
    engine = SimpleNamespace(model=model, _dist=SimpleNamespace(gather_params=lambda parameters: nullcontext()))
    weights.save_adapter(engine, tmp_path / "adapter")
    assert not asked
    saved = peft.load_peft_weights(str(tmp_path / "adapter"))
    assert saved and all("lora_" in name for name in saved)


class Interrupted(TinyEngine):
    stops = False

    def sync_weights(self):
        super().sync_weights()
        if self.stops:
            self._copy.get_input_embeddings().weight.data.zero_()  # what is not there yet
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("no", torch.float32)]
)
def test_full_weights_are_handed_over_in_the_precision_of_the_run(tmp_path, precision, dtype):
    weights = pytest.importorskip("trl_nlac.generation.vllm.weights")
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL, dtype=torch.float32)
    accelerator = SimpleNamespace(is_main_process=True, mixed_precision=precision)
    engine = SimpleNamespace(model=model, accelerator=accelerator, _iter_named_params=model.named_parameters)
    weights.save_weights(engine, tmp_path / "1")
    saved = load_file(tmp_path / "1" / "model-00000.safetensors")
    for name, weight in model.named_parameters():
        assert saved[name].equal(weight.detach().to(dtype if weight.ndim > 1 else torch.float32))


def test_weights_of_an_interrupted_sync_are_not_used():
    model, tokenizer = AutoModelForCausalLM.from_pretrained(TINY_MODEL), AutoTokenizer.from_pretrained(TINY_MODEL)
    engine = Interrupted(model, tokenizer)
    generator = SyncedGenerator(engine, None, [tokenizer.eos_token_id])
    asked = [tokenizer("baku 2")["input_ids"]], Sampling(8, temperature=0.0), [0]
    embedding = model.get_input_embeddings().weight.data
    with generator.session(model):
        expected = generator.generate(*asked)
    embedding.mul_(-1)
    engine.stops = True
    with pytest.raises(KeyboardInterrupt), generator.session(model):
        pass
    embedding.mul_(-1)
    engine.stops = False
    with generator.session(model):
        assert generator.generate(*asked) == expected


@pytest.mark.parametrize(("forgets", "syncs"), [(False, [1, 0, 1]), (True, [1, 1, 1])])
def test_weights_are_loaded_where_the_engine_has_others(forgets, syncs):
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
    engine = TinyEngine(model, None)
    engine.forgets_weights = forgets
    generator, counted = SyncedGenerator(engine, None, []), []
    for factor in (1, 1, -1):
        model.get_input_embeddings().weight.data.mul_(factor)
        with generator.session(model):
            pass
        counted.append(generator.take_metrics()["generation/num_syncs"])
    assert counted == syncs


class AdapterEngine(TinyEngine):
    """Keeps the numbers of the adapters that are loaded. Its answers wait to be let go."""

    def __init__(self, model):
        super().__init__(model, None)
        self.loaded: list[int] = []
        self.running: Counter[Adapter] = Counter()
        self.began, self.may_end = threading.Event(), threading.Event()

    def add_adapter(self, number):
        self.loaded.append(number)
        return Adapter(number, Path("run") / str(number))

    def drop_adapter(self, adapter):
        assert not self.running[adapter], "an answer lost its adapter"
        self.loaded.remove(adapter.number)

    def generate(self, prompts, params, adapter, bar):
        self.running[adapter] += 1
        self.began.set()
        assert self.may_end.wait(20)
        self.running[adapter] -= 1
        return [Completion([1], True)] * len(prompts)


class TestAdapters:
    @pytest.fixture
    def engine(self):
        return AdapterEngine(get_peft_model(AutoModelForCausalLM.from_pretrained(TINY_MODEL), LoraConfig()))

    @staticmethod
    def use(generator, value: float, shares: bool = False) -> list[int]:
        for name, parameter in generator.engine.model.named_parameters():
            if "lora_B" in name:
                parameter.data.fill_(value)
        with generator.session(generator.engine.model):
            if shares:
                generator.share()
        return generator.engine.loaded

    def test_the_last_three_stay_loaded_and_the_shared_one(self, engine):
        generator = SyncedGenerator(engine, None, [])
        generator.beside()
        assert self.use(generator, 1.0) == [1] and self.use(generator, 2.0) == [1, 2]
        assert self.use(generator, 1.0) == [1, 2]  # it is not loaded again
        assert self.use(generator, 3.0, shares=True) == [1, 2, 3]
        assert self.use(generator, 4.0) == [1, 3, 4] and self.use(generator, 5.0) == [3, 4, 5]
        assert self.use(generator, 6.0) == [3, 4, 5, 6] and self.use(generator, 7.0, shares=True) == [3, 5, 6, 7]
        assert self.use(generator, 8.0) == [6, 7, 8]

    def test_one_is_dropped_when_its_last_answer_is_there(self, engine):
        generator = SyncedGenerator(engine, None, [])
        beside, answers = generator.beside(), []
        self.use(generator, 1.0, shares=True)
        asking = threading.Thread(target=lambda: answers.append(beside.generate([[1]], Sampling(1), [0])))
        asking.start()
        assert engine.began.wait(20)
        self.use(generator, 2.0, shares=True)
        self.use(generator, 3.0)
        threading.Timer(0.2, engine.may_end.set).start()
        assert self.use(generator, 4.0) == [2, 3, 4]
        asking.join(20)
        assert answers == [[Completion([1], True)]]
