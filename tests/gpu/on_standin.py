# SPDX-License-Identifier: Apache-2.0

import gc
import json
import sys
from pathlib import Path

import pytest
import torch
from helpers import standin
from helpers.standin import default_device, traffic
from helpers.testing_utils import COMPACT_PROMPTS, TASKS, TINY_MODEL, make_trainer, weights
from peft import LoraConfig
from torch import nn
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.sdpa_attention import repeat_kv

from trl_nlac import NLACAgent
from trl_nlac.generation.generator import Sampling
from trl_nlac.generation.transformers import TransformersGenerator
from trl_nlac.training import tree_attention


DEVICE, OTHER = torch.device("standin:0"), torch.device("standin:1")
LORA = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")


def dense_flex_attention(module, query, key, value, block_mask, scaling=None, **kwargs):
    """What FlexAttention computes, from the rule of the mask, which must be on the device of the queries."""
    number = torch.arange(query.shape[2], device=query.device)
    assert query.shape[2] >= 256 and query.shape[2] % 128 == 0
    sees = block_mask.mask_mod(0, 0, number[:, None], number[None])
    assert {t.device for t in (block_mask.kv_indices, block_mask.kv_num_blocks, sees)} == {query.device}
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    output = scores.masked_fill(~sees, -torch.inf).softmax(-1) @ value
    return output.transpose(1, 2).contiguous(), None


@pytest.fixture
def flexes(monkeypatch):
    """The stand-ins share prefixes as GPUs do; FlexAttention's kernel, which wants whole blocks, is replaced."""
    monkeypatch.setattr(tree_attention, "FLEX_DEVICES", {standin.NAME})
    monkeypatch.setattr(tree_attention, "flex_attention_forward", dense_flex_attention)


def devices_of(model: nn.Module) -> set[torch.device]:
    return {tensor.device for tensor in [*model.parameters(), *model.buffers()]}


def test_stages_of_the_acceptance_run(monkeypatch, capsys):
    """Another one says what shards on GPUs."""
    monkeypatch.syspath_prepend(Path(__file__).with_name("stages"))
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "")  # which the stages set
    import common
    import device
    import short

    said = []
    for stage, words in ((device, []), (short, ["zero3"])):
        monkeypatch.setattr(sys, "argv", ["stage.py", *words, "--device", str(OTHER), "--small"])
        common.main(stage.run)
        said.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert said[0]["found"]["answers that differ, greedy"] == 0 and "shards nothing" in said[1]["left out"]


# Training

SHORT = {"logging_steps": 1, "optim": "sgd", "learning_rate": 0.01, "max_turns": 2, "max_completion_length": 20}
RUNS = {
    "sampled": {},
    "distill": {"policy_loss_type": "distill", "max_steps": 1, "gradient_checkpointing": True},
    "twice": {"num_updates_per_generation": 2},
    "separate": {"max_tokens_per_batch": 200, "max_steps": 1, "gradient_checkpointing": True},
    "lora": {"policy_loss_type": "distill", "max_grad_norm": 0.1, "max_steps": 1},
}


def train(output_dir, name: str, device: torch.device | None, **options):
    config = {**SHORT, **RUNS[name], **options}
    lora = LORA if name == "lora" else None
    if device is None:
        trainer = make_trainer(output_dir / "cpu", config, peft_config=lora)
        trainer.shares_prefixes = name != "separate"
        trainer.train()
        return trainer
    with default_device(str(device)):
        trainer = make_trainer(output_dir / "device", {**config, "use_cpu": False}, peft_config=lora)
        trainer.shares_prefixes = name != "separate"
        assert trainer.args.device == device
        with traffic() as counted:
            trainer.train()
    trainer.counted = counted
    assert devices_of(trainer.model) == {device}
    return trainer


def losses(trainer) -> list[tuple[float, float, float]]:
    names = ("loss", "critic/loss", "policy/loss", "grad_norm")
    return [tuple(entry[name] for name in names) for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("name", RUNS)
def test_training_is_that_of_the_cpu(tmp_path, flexes, name):
    """On the second device for one run, so that nothing is on the first one by default."""
    device = OTHER if name == "sampled" else DEVICE
    trainer, expected = train(tmp_path, name, device), train(tmp_path, name, None)
    assert trainer._collate.shares_prefixes == expected._collate.shares_prefixes == (name != "separate")
    assert len(losses(trainer)) == trainer.args.max_steps
    for loss in ("critic", "policy"):
        numbers = [entry.get(f"{loss}/num_examples") for entry in trainer.state.log_history]
        assert any(numbers) and 0 not in numbers
    for one, other in zip(losses(trainer), losses(expected), strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-6)
    on_host = {name: values.cpu() for name, values in weights(trainer.model).items()}
    assert_close(on_host, weights(expected.model), rtol=0, atol=1e-6)
    averages = trainer.target_weights.state_dict()
    assert {values.device for values in averages.values()} == {device}
    averages = {name: values.cpu() for name, values in averages.items()}
    assert_close(averages, expected.target_weights.state_dict(), rtol=0, atol=1e-6)
    initial = trainer.initial_weights.state_dict()
    assert {values.device for values in initial.values()} == {device}
    initial = {name: values.cpu() for name, values in initial.items()}
    assert_close(initial, expected.initial_weights.state_dict(), rtol=0, atol=0)
    assert trainer.num_environment_steps == expected.num_environment_steps


def test_traffic_of_a_training_step(tmp_path, flexes):
    """A step has a fixed number of synchronisations and copies, however many examples, tokens and layers it has."""
    counts = []
    for batch_size, steps in ((4, 1), (4, 2), (8, 2)):
        options = {"per_device_train_batch_size": batch_size, "max_steps": steps, "samples_per_iteration": 16}
        options |= {"max_turns": 1, "episodes_per_iteration": 4}
        trainer = train(tmp_path / f"{batch_size}-{steps}", "sampled", DEVICE, **options, logging_steps=100)
        counts.append(in_training(trainer.counted))
        del trainer
        gc.collect()
    (few, one_step), (more, two_steps), (large, _) = ((sum(c.values()), c) for c in counts)
    # One asks whether the gradient is finite; 14 are of the pass with the initial weights.
    assert more - few <= 39, (one_step, two_steps)
    assert large <= more


def in_training(counted: standin.Traffic) -> dict[str, int]:
    """What the lines that run in every gradient step count, synchronisations and copies."""
    both = counted.syncs + counted.copies
    places = ("nlac_trainer.py", "method/losses", "method/head", "method/batches", "training/guards")
    places += ("training/passes", "training/tree_attention", "records/records", "method/prefix_tree")
    return {line: number for line, number in both.items() if line.startswith(places)}


def test_resumed_training_goes_on_as_if_it_had_not_stopped(tmp_path, flexes):
    """AdamW, so that the optimizer has states."""
    options = {"max_steps": 4, "samples_per_iteration": 8, "optim": "adamw_torch", "learning_rate": 1e-3}
    options |= {"save_strategy": "steps", "save_steps": 3, "target_max_age": 2}
    whole = train(tmp_path, "sampled", DEVICE, **options)
    with default_device():
        resumed = make_trainer(tmp_path / "resumed", {**SHORT, **options, "use_cpu": False})
        resumed.train(resume_from_checkpoint=str(tmp_path / "device" / "checkpoint-3"))
    assert devices_of(resumed.model) == {DEVICE}
    states = [value for state in resumed.optimizer.state.values() for value in state.values() if value.dim()]
    assert states and {value.device for value in states} == {DEVICE}
    for kept in (resumed.target_weights, resumed.initial_weights):
        assert {values.device for values in kept.state_dict().values()} == {DEVICE}
    for one, other in (
        (whole.model, resumed.model),
        (whole.target_weights, resumed.target_weights),
        (whole.initial_weights, resumed.initial_weights),
    ):
        one, other = ({n: v.cpu() for n, v in part.state_dict().items()} for part in (one, other))
        assert_close(one, other, rtol=0, atol=0)


def test_evaluation(tmp_path):
    options = {**SHORT, "num_eval_critiques": 8}
    with default_device():
        trainer = make_trainer(tmp_path / "device", {**options, "use_cpu": False}, eval_dataset=TASKS)
        found = trainer.evaluate()
    expected = make_trainer(tmp_path / "cpu", options, eval_dataset=TASKS).evaluate()
    measured = {name for name in expected if "time" not in name and "per_second" not in name}
    assert found.keys() == expected.keys() and "eval_episode/return" in measured
    assert {n: found[n] for n in measured} == pytest.approx({n: expected[n] for n in measured}, rel=1e-5, nan_ok=True)


def test_agent():
    options = {"action_format": "text", "max_completion_length": 20, "prompts": COMPACT_PROMPTS}
    said = []
    for device in ("cpu", OTHER):
        agent = NLACAgent.from_pretrained(TINY_MODEL, device=device, **options)
        assert devices_of(agent.model) == {torch.device(device)}
        torch.manual_seed(0)
        messages = [{"role": "user", "content": "situ 2"}]
        answers = [
            agent.act(messages, **kwargs) for kwargs in ({}, {"refine": 1}, {"num_candidates": 3, "judge": True})
        ]
        said.append([(answer.token_ids, answer.message, len(answer.candidates)) for answer in answers])
    assert said[0] == said[1]
    assert NLACAgent.from_pretrained(TINY_MODEL, **options).model.device.type == standin.NAME  # by default


# Generation


@pytest.fixture(scope="module")
def models() -> tuple[nn.Module, nn.Module]:
    return tuple(AutoModelForCausalLM.from_pretrained(TINY_MODEL).to(device).eval() for device in ("cpu", DEVICE))


def make_generator() -> TransformersGenerator:
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    return TransformersGenerator(None, tokenizer, [tokenizer.eos_token_id], batch_size=3)


PROMPTS = [[5, 6, 7, 8], [5, 6, 9], [5, 6, 7, 10, 11], [12]]
SAMPLINGS = {
    "greedy": Sampling(12, temperature=0.0),
    "sampled": Sampling(12),
    "cut": Sampling(12, top_p=0.9, top_k=20, min_p=0.01, repetition_penalty=1.2),
}


def counted_tokens(model: nn.Module, sampling: Sampling, number: int) -> standin.Traffic:
    """Count what passes while a batch of three answers of `number` tokens is generated."""
    generator = make_generator()
    generator.eos_token_ids = [10**6]  # none ends
    sampling = Sampling(number, sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
    with generator.session(model), traffic() as counted:
        answers = generator.generate(PROMPTS[:3], sampling, [1, 2, 3])
    assert {len(answer.token_ids) for answer in answers} == {number}
    return counted


@pytest.mark.parametrize("name", SAMPLINGS)
def test_traffic_of_a_generated_token(models, name):
    """transformers waits for the device twice: has every answer ended, and is any prompt padded? We do not."""
    short, long = (counted_tokens(models[1], SAMPLINGS[name], number) for number in (5, 25))
    for kind in ("syncs", "copies"):
        of_token = (vars(long)[kind].total() - vars(short)[kind].total()) / 20
        assert of_token <= {"syncs": 2, "copies": 0}[kind], (kind, vars(long)[kind])


def test_a_model_on_two_devices_is_refused(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL).to(DEVICE)
    model.model.layers[-1].to(OTHER)
    with default_device(), pytest.raises(ValueError, match="spread over the devices standin:0, standin:1.*zero3"):
        make_trainer(tmp_path, {"use_cpu": False}, model=model)


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_full_determinism(tmp_path, flexes, deterministic):
    torch.use_deterministic_algorithms(False)  # the option does it
    trainer = train(tmp_path, "distill", DEVICE, full_determinism=True, max_steps=1, top_p=0.9)
    assert len(losses(trainer)) == 1 and torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("cut", [{"top_p": 0.7}, {"typical_p": 0.7}, {"top_h": 0.4}], ids=str)
def test_full_determinism_of_cut_probabilities(models, deterministic, cut):
    said = []
    for model in models:
        generator = make_generator()
        with generator.session(model):
            sampling = Sampling(12, temperature=1.5, top_p=cut.get("top_p", 1.0), generation_kwargs=cut)
            said.append(generator.generate(PROMPTS, sampling, [1, 2, 3, 4]))
            torch.use_deterministic_algorithms(False)
            assert generator.generate(PROMPTS, sampling, [1, 2, 3, 4]) == said[-1]
            torch.use_deterministic_algorithms(True)
    assert said[0] == said[1]
