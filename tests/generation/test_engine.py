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

from contextlib import nullcontext
from types import SimpleNamespace

import peft
import pytest
import torch
from helpers.engine_utils import TinyEngine
from peft import LoraConfig, get_peft_model
from peft.utils import save_and_load
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.generation.base import Sampling
from trl_nlac.generation.engine import SyncedGenerator, cache_shortage


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
    """Its next sync stops halfway."""

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
    """Not even with the weights that the engine had before."""
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
