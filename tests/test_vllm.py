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

"""Real vLLM, in an environment of its own: `make test-vllm`. Each test is a process, because an engine is one, too."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


pytestmark = pytest.mark.vllm

SCRIPT = """
import json
import sys

import torch
from testing_utils import make_config

from trl_nlac import NLACTrainer
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL, make_environment, make_tasks
from trl_nlac.generation import Sampling

desk, tasks = make_tasks("service_desk", 0)


def make_trainer(**kwargs):
    config = dict(
        use_vllm=True, max_steps=3, learning_rate=3e-3, target_update_rate=0.4, vllm_max_model_length=512,
        max_generation_batch_size=32, logging_steps=1, episodes_per_iteration=8, per_device_train_batch_size=8,
    )
    return NLACTrainer(
        model=TINY_MODEL,
        args=make_config(sys.argv[1], **{**config, **kwargs.pop("config", {})}),
        train_dataset=tasks,
        environment_factory=lambda: make_environment(desk),
        prompts=COMPACT_PROMPTS,
        **kwargs,
    )


def greedy(trainer, generator, prompts):
    with generator.session(trainer.model):
        completions = generator.generate(prompts, Sampling(max_tokens=24, temperature=0.0), [0] * len(prompts))
    assert all(completion.finished for completion in completions)
    return [completion.token_ids for completion in completions]


def prompts_of(trainer):
    chat = trainer.roles.chat
    states = [chat.start([{"role": "user", "content": f"{request} 2"}]) for request in desk.rules]
    action = chat.completion("route legal amber photo noon")
    return states + [state + action + chat.reply(action[-1], "Critique?") for state in states]


def compare(trainer):
    '''Greedy tokens of both backends, for both sets of weights.'''
    vllm, transformers = trainer.roles.generator, trainer.roles.generator.scorer
    prompts, said = prompts_of(trainer), {}
    for name in ("policy", "target", "policy again"):
        if name == "target":
            with trainer.target_weights.swapped_into(trainer.model):
                said[name] = greedy(trainer, vllm, prompts), greedy(trainer, transformers, prompts)
        else:
            said[name] = greedy(trainer, vllm, prompts), greedy(trainer, transformers, prompts)
        assert said[name][0] == said[name][1], name
    assert said["policy"] == said["policy again"]
    assert said["policy"] != said["target"]  # or nothing was compared


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]

"""

FULL = """
trainer = make_trainer()
start = greedy(trainer, trainer.roles.generator, prompts_of(trainer))
assert start == greedy(trainer, trainer.roles.generator.scorer, prompts_of(trainer))
trainer.train()
compare(trainer)
assert start != greedy(trainer, trainer.roles.generator, prompts_of(trainer))
print(json.dumps({name: logged(trainer, name) for name in ("generation/num_syncs", "generation/prefix_hit_rate", "loss", "time/sync")}))
generator = trainer.roles.generator
generator.take_metrics()
for _ in range(3):
    greedy(trainer, generator, prompts_of(trainer))
assert generator.take_metrics()["generation/num_syncs"] == 0  # nothing has changed
sampling = Sampling(max_tokens=24, temperature=1.5)
prompts = prompts_of(trainer)
with generator.session(trainer.model):
    together = generator.generate(prompts, sampling, list(range(len(prompts))))
    alone = [generator.generate([prompt], sampling, [seed])[0] for seed, prompt in enumerate(prompts)]
assert together == alone and generator.generate([], sampling, []) == []
"""

PREFIXES = """

def hit_rate(trainer):
    '''Of ten questions after the same long conversation, asked one after the other.'''
    generator = trainer.roles.generator
    state = trainer.roles.chat.start([{"role": "user", "content": " ".join(["billing amber photo noon"] * 98)}])
    generator.take_metrics()
    with generator.session(trainer.model):
        for number in range(10):
            generator.generate([state + [number] * 9], Sampling(max_tokens=1, temperature=0.0), [0])
    return generator.take_metrics()["generation/prefix_hit_rate"]


first, second = hit_rate(trainer), hit_rate(trainer)
with trainer.target_weights.swapped_into(trainer.model):
    other = hit_rate(trainer)
print(json.dumps({"prefix_hit_rates": [first, second, other]}))
"""

LORA = """
from peft import LoraConfig

trainer = make_trainer(peft_config=LoraConfig(r=4, lora_alpha=64, target_modules="all-linear"), config={"learning_rate": 1e-2})
before = {name: p.clone() for name, p in trainer.model.named_parameters() if not p.requires_grad}
trainer.train()
compare(trainer)
for name, p in trainer.model.named_parameters():
    assert p.requires_grad or torch.equal(p, before[name]), name
print(json.dumps({name: logged(trainer, name) for name in ("generation/num_syncs", "generation/prefix_hit_rate", "loss")}))
"""


def run(script: str, tmp_path: Path) -> dict[str, list[float]]:
    """What a script prints in its last line."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT + script)
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    finished = subprocess.run(
        [sys.executable, path, tmp_path], capture_output=True, text=True, env=environment, timeout=600
    )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-6000:]
    lines = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith(('{"gen', '{"pre'))]
    return {name: value for line in lines for name, value in line.items()}


def check(logs: dict[str, list[float]], num_syncs: list[int]) -> None:
    assert logs["generation/num_syncs"] == num_syncs
    assert all(loss > 0 for loss in logs["loss"])
    first, second, other = logs["prefix_hit_rates"]
    assert 0.8 < first < second  # the second time, nothing is new
    assert other == first  # other weights know nothing of what these have read


def test_full_weights(tmp_path):
    """Greedy tokens equal those of transformers, for policy and target weights, before and after training."""
    check(run(FULL + PREFIXES, tmp_path), [1, 3, 3])  # all weights are the same at first


def test_adapters(tmp_path):
    """The same with two adapters, without a single sync of the base weights, which stay as they are."""
    check(run(LORA + PREFIXES, tmp_path), [0, 0, 0])
