# SPDX-License-Identifier: Apache-2.0

"""Real vLLM with a pretrained model: the same greedy tokens as transformers, with an adapter and without."""

import pytest
from helpers.vllm_utils import run

from benchmarks.real_model import real_model_path


pytestmark = [pytest.mark.vllm, pytest.mark.real_model]

SCRIPT = """
import sys

import torch
from peft import LoraConfig

from helpers.vllm_utils import make_vllm_trainer
from trl_nlac import NLACPrompts
from trl_nlac.generation.generator import Sampling

folder, path, kind = sys.argv[1:]
lora = LoraConfig(r=4, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM") if kind == "lora" else None
options = {"learning_rate": 1e-3 if lora else 1e-5, "max_steps": 1, "per_device_train_batch_size": 2}
options |= {"episodes_per_iteration": 2, "vllm_max_model_length": 1024, "max_turns": 2}
options["model_init_kwargs"] = {"dtype": "float32"}
trainer = make_vllm_trainer(folder, options, model=path, peft_config=lora, prompts=NLACPrompts())
generator, chat = trainer.roles.generator, trainer.roles.chat
questions = "What is the capital of France?", "Write one line about a cat.", "Count to five."
prompts = [chat.start([{"role": "user", "content": question}]) for question in questions]
sampling = Sampling(max_tokens=24, temperature=0.0)


def greedy(backend):
    with backend.session(trainer.model):
        return [completion.token_ids for completion in backend.generate(prompts, sampling, [0] * len(prompts))]


start = greedy(generator)
assert "Paris" in chat.decode(start[0]), chat.decode(start[0])
assert start == greedy(generator.scorer)
with torch.no_grad():  # other weights
    for name, parameter in trainer.model.named_parameters():
        if "lora_B" in name or (lora is None and "norm" in name):
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
trainer.state.global_step += 1
other = greedy(generator)
assert other == greedy(generator.scorer) and other != start
print("equal")
"""


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_greedy_tokens_are_equal(tmp_path, kind):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert "equal" in run(script, str(tmp_path), str(real_model_path()), kind)
