# SPDX-License-Identifier: Apache-2.0

"""Real vLLM in the trainer's process: `make test-vllm`. Each test is a process, because each engine needs one."""

import json
from pathlib import Path

import pytest
from helpers.vllm_utils import run


pytestmark = pytest.mark.vllm

HEAD = """
import json
import sys

import torch
from helpers.vllm_utils import (
    assert_continuous, assert_logged, assert_own_answers, compare, greedy, logged, make_vllm_trainer, prompts_of
)

from trl_nlac.generation.generator import Completion, Sampling

"""

FULL = """
trainer = make_vllm_trainer(sys.argv[1])
generator = trainer.roles.generator
generator.engine.llm.reset_prefix_cache = lambda: False  # as vLLM does where blocks are in use
start = greedy(trainer, generator)
assert start == greedy(trainer, generator.scorer)
trainer.train()
assert compare(trainer) != start
names = "generation/num_syncs", "generation/prefix_hit_rate", "loss", "time/sync"
print(json.dumps({name: logged(trainer, name) for name in names}))
generator.take_metrics()
for _ in range(3):
    greedy(trainer, generator)
assert generator.take_metrics()["generation/num_syncs"] == 0  # nothing has changed

prompts, sampling = prompts_of(trainer), Sampling(max_tokens=24, temperature=1.5)
with generator.session(trainer.model):
    together = generator.generate(prompts, sampling, list(range(len(prompts))))
    alone = [generator.generate([prompt], sampling, [seed])[0] for seed, prompt in enumerate(prompts)]
    assert together == alone and generator.generate([], sampling, []) == []

assert_continuous(trainer)
with generator.session(trainer.model):
    # Prompts that do not fit count as cut off; completions that do not fit are cut.
    long = [prompts[0] * 200, (prompts[0] * 200)[:510], prompts[0]]
    answers = generator.generate(long, Sampling(max_tokens=24, temperature=0.0), [0] * 3)
    assert answers[0] == Completion([], False) and len(answers[1].token_ids) <= 2 and answers[2].finished

    # Structured outputs.
    regex = Sampling(max_tokens=24, temperature=1.5, regex="(ab|cd){3}")
    answers = generator.generate(prompts, regex, list(range(len(prompts))))
    said = [trainer.roles.chat.decode(answer.token_ids) for answer in answers]
    assert all(len(text) == 6 and set(text.replace("ab", "").replace("cd", "")) == set() for text in said), said
    assert len(set(said)) > 1

# A cache that is too small for a batch is reported once.
engine = generator.engine
assert engine.cache_room > 10_000 and not engine._has_warned
engine.cache_room = 100
with assert_logged("vLLM's cache has room for 100 tokens"), generator.session(trainer.model):
    generator.generate(prompts, Sampling(max_tokens=24, temperature=0.0), [0] * len(prompts))
assert engine._has_warned

# Asleep, an engine loses its weights: they are loaded again by the next session.
generator.engine.sleep_level, generator.engine.forgets_weights = 2, True
assert greedy(trainer, generator) == greedy(trainer, generator) == greedy(trainer, generator.scorer)
assert generator.take_metrics()["generation/num_syncs"] == 1  # the weights were there when it first slept
assert generator.engine.llm.llm_engine.is_sleeping()
generator.engine.sleep_level, generator.engine.forgets_weights = 0, False
generator.engine.llm.wake_up()
"""

PREFIXES = """

def hit_rate(trainer):
    '''Of ten questions after the same long conversation, asked one after the other.'''
    generator = trainer.roles.generator
    state = trainer.roles.chat.start([{"role": "user", "content": " ".join(["billing amber photo noon"] * 98)}])
    generator.take_metrics()
    with generator.session(trainer.model):
        for number in range(10):
            prompt = state + [number] * 9
            (answer,) = generator.generate([prompt], Sampling(max_tokens=1, temperature=0.0), [0])
    assert 0 < answer.num_cached_tokens < len(prompt)
    return generator.take_metrics()["generation/prefix_hit_rate"]


first, second = hit_rate(trainer), hit_rate(trainer)
with trainer.target_weights.swapped_into(trainer.model):
    other = hit_rate(trainer)
print(json.dumps({"prefix_hit_rates": [first, second, other]}))
"""

LORA = """
from peft import LoraConfig

trainer = make_vllm_trainer(sys.argv[1], peft_config=LoraConfig(r=4, lora_alpha=64, target_modules="all-linear"))
before = {name: p.clone() for name, p in trainer.model.named_parameters() if not p.requires_grad}
trainer.train()
compare(trainer)
for name, p in trainer.model.named_parameters():
    assert p.requires_grad or torch.equal(p, before[name]), name
names = "generation/num_syncs", "generation/prefix_hit_rate", "loss"
print(json.dumps({name: logged(trainer, name) for name in names}))
"""

BEGUN = """
from trl_nlac import NLACPrompts
from trl_nlac.method.critic import critiques
from trl_nlac.types import Prompt

options = {"max_completion_length": 64, "max_format_retries": 0}  # others are sampled
trainer = make_vllm_trainer(sys.argv[1], options, prompts=NLACPrompts())  # which show the form
trainer.train()
roles, vllm = trainer.roles, trainer.roles.generator
steps = [Prompt.of(state + roles.chat.completion("route legal amber photo noon")) for state in prompts_of(trainer)]


def said(generator):
    '''Its greedy critiques, and the ends of what it was asked to go on with.'''
    ends, generate = [], generator.generate

    def noting(prompts, *arguments):
        ends.extend(roles.chat.decode(prompt[-12:]).rpartition("\\n")[2] for prompt in prompts)
        return generate(prompts, *arguments)

    roles.generator, generator.generate = generator, noting
    with generator.session(trainer.model):
        answers = critiques(roles, steps, sampling=Sampling(max_tokens=64, temperature=0.0))
    del generator.generate
    return [(answer.token_ids, answer.text, answer.finished) for answer in answers], ends


for weights in ("policy", "target"):
    (answers, ends), (expected, ends_expected) = said(vllm), said(vllm.scorer)
    assert answers == expected and ends == ends_expected, (answers, expected)
    assert all(text.startswith("Future:") for _, text, _ in answers)
    print("begun", weights, len(steps), sum(end == "Optimality:" for end in ends))
    assert "Optimality:" in ends, ends
    trainer.target_weights.swapped_into(trainer.model).__enter__()
"""

PROCESSES = """
trainer = make_vllm_trainer(sys.argv[1], {"vllm_tensor_parallel_size": int(sys.argv[2])})
trainer.train()
generator = trainer.roles.generator
assert_own_answers(trainer, generator.generator.scorer if sys.argv[2] == "2" else generator.scorer)
"""


def run_script(script: str, tmp_path: Path, *arguments: str, **kwargs) -> str:
    path = tmp_path / "script.py"
    path.write_text(HEAD + script)
    return run(path, str(tmp_path), *arguments, **kwargs)


def check(output: str, num_syncs: list[int]) -> None:
    lines = [json.loads(line) for line in output.splitlines() if line.startswith(('{"gen', '{"pre'))]
    logs = {name: value for line in lines for name, value in line.items()}
    assert logs["generation/num_syncs"] == num_syncs
    assert all(loss > 0 for loss in logs["loss"])
    first, second, other = logs["prefix_hit_rates"]
    assert 0.8 < first < second  # the second time, all prompts are cached
    assert other == first  # other weights cannot use this cache


def test_full_weights(tmp_path):
    check(
        run_script(FULL + PREFIXES, tmp_path), [1, 3, 3]
    )  # initial, target and own weights, which are the same at first


def test_adapters(tmp_path):
    check(run_script(LORA + PREFIXES, tmp_path), [0, 0, 0])


def test_critiques_that_are_begun(tmp_path):
    """A model goes on with a label in vLLM as in transformers, token by token, for policy and target weights."""
    output = run_script(BEGUN, tmp_path)
    assert "begun policy" in output and "begun target" in output


@pytest.mark.parametrize("tensor_parallel_size", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_two_processes(tmp_path, tensor_parallel_size):
    output = run_script(PROCESSES, tmp_path, tensor_parallel_size, processes=2)
    assert "done 0 3" in output and "done 1 6" in output


def test_an_adapter_that_vllm_would_serve_as_another_is_refused(tmp_path):
    from peft import LoraConfig

    from trl_nlac.generation.vllm.offline import OfflineEngine

    LoraConfig(r=4, alpha_pattern={"q_proj": 64}).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="vLLM does not read `alpha_pattern` of an adapter, here {'q_proj': 64}"):
        OfflineEngine(str(tmp_path))


def test_ranks_of_adapters():
    """Importing vLLM needs no process of its own; an engine does."""
    from trl_nlac.generation.engine import allowed_rank

    assert [allowed_rank(rank) for rank in (1, 8, 9, 512)] == [8, 8, 16, 512]
    with pytest.raises(ValueError, match="rank of at most 512, and `r` of this one is 1024"):
        allowed_rank(1024)
