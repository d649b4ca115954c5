# SPDX-License-Identifier: Apache-2.0

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType
from helpers.testing_utils import RecordingTrainer, assert_same, make_trainer, weights
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel

from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.training.reference import Reference


LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
CONFIG = {"beta": 0.1, "logging_steps": 1, "max_steps": 2, "learning_rate": 1e-2}


def make_pretrained_adapter(*targets: str, dropout: float = 0.0) -> PeftModel:
    """An adapter whose function is not that of its base model, with further `targets`."""
    torch.manual_seed(0)
    config = replace(LORA, target_modules=[*LORA.target_modules, *targets], lora_dropout=dropout)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(TINY_MODEL), config)
    for name, parameter in model.named_parameters():  # those that begin as 0
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
        elif "lora_embedding_A" in name:
            torch.nn.init.normal_(parameter, std=0.005)
    return model


def kl_by_hand(initial, model, inputs) -> torch.Tensor:
    """Estimate the divergence of each of the policy's examples, one by one."""
    values = []
    for example in inputs.examples:
        if example.loss != "policy":
            continue
        number = len(example.completion_ids)
        ids = torch.tensor([[*example.prompt.ids, *example.completion_ids]])
        logps = [
            part(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[-number:, 0]
            for part in (initial, model)
        ]
        ratio = logps[0] - logps[1]
        values.append((ratio.exp() - 1 - ratio).mean())
    return torch.stack(values)


def make_tuned() -> PreTrainedModel:
    """A model whose weights are no longer those of its name."""
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
    with torch.no_grad():
        model.get_parameter("model.layers.0.mlp.up_proj.weight").mul_(1.5)
    return model


KINDS = {
    "full": lambda: {},
    "tuned": lambda: {"model": make_tuned()},
    "lora": lambda: {"peft_config": LORA},
    "pretrained_adapter": lambda: {"model": make_pretrained_adapter()},
    # The weights of embeddings have names that end with that of their adapter.
    "pretrained_embeddings": lambda: {"model": make_pretrained_adapter("embed_tokens")},
    # These begin by changing the base weights.
    "olora": lambda: {"peft_config": replace(LORA, init_lora_weights="olora")},
    "olora_before": lambda: {"model": get_peft_model(make_tuned(), replace(LORA, init_lora_weights="olora"))},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_the_hand(tmp_path, kind):
    kwargs = KINDS[kind]()
    if "model" in kwargs:
        kwargs["model"].eval()
        ids = torch.arange(9)[None]
        with torch.no_grad():
            given = kwargs["model"](ids).logits.clone()
    trainer = make_trainer(tmp_path, CONFIG, RecordingTrainer, **kwargs)
    initial = deepcopy(trainer.model).eval()
    with torch.no_grad():
        assert "model" not in kwargs or initial(ids).logits.equal(given)
    before = weights(trainer.model)
    trainer.train()
    logs = [log["policy/kl"] for log in trainer.state.log_history if "policy/kl" in log]
    assert abs(logs[0]) < 1e-6 < 1e-4 < logs[1]  # the weights of the first step are the initial ones
    after = weights(trainer.model)
    trained = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    assert {name for name in before if not before[name].equal(after[name])} == trained

    inputs = trainer.micro_batches[-1]
    with torch.no_grad():
        loss = trainer.compute_loss(trainer.model, inputs)
        trainer.args.beta = 0.0
        plain = trainer.compute_loss(trainer.model, inputs)
        expected = 0.1 * kl_by_hand(initial, trainer.model.eval(), inputs).sum() / 4
    assert expected > 1e-5
    assert (loss - plain).item() == pytest.approx(expected.item(), rel=1e-3)


def test_the_gradient_pulls_to_the_initial_weights(tmp_path):
    """Only the policy's tokens: those of the critic have no divergence."""
    trainer = make_trainer(tmp_path, CONFIG, RecordingTrainer)
    trainer.train()
    examples = trainer.micro_batches[-1].examples
    for loss, is_pulled in (("critic", False), ("policy", True)):
        inputs = trainer._collate([replace(example, loss=loss) for example in examples])
        gradients = []
        for beta in (0.0, 0.1):
            trainer.args.beta = beta
            trainer.model.zero_grad()
            trainer.compute_loss(trainer.model, inputs).backward()
            gradients.append(torch.cat([parameter.grad.flatten() for parameter in trainer.model.parameters()]))
        assert gradients[0].equal(gradients[1]) != is_pulled


@pytest.mark.parametrize(("peft_config", "learning_rate"), [(None, 3e-4), (LORA, 1e-2)], ids=["full", "lora"])
def test_a_large_beta_holds_the_policy(tmp_path, peft_config, learning_rate):
    """Trained on the same batch, the policy learns less of it and stays nearer to the initial weights."""
    config = {**CONFIG, "max_steps": 1, "learning_rate": 0.0, "critic_loss_coef": 0.0, "gradient_checkpointing": True}
    trainer = make_trainer(tmp_path, config, RecordingTrainer, peft_config=peft_config)
    trainer.train()
    (inputs,) = trainer.micro_batches
    initial, last = weights(trainer.model), []
    for beta in (0.01, 10.0):
        trainer.args.beta = beta
        trainer.model.load_state_dict(initial, strict=False)
        optimizer = torch.optim.AdamW((p for p in trainer.model.parameters() if p.requires_grad), lr=learning_rate)
        trainer.records.metrics.clear()
        for _ in range(15):
            optimizer.zero_grad()
            trainer.compute_loss(trainer.model, inputs).backward()
            optimizer.step()
        last.append([trainer.records.metrics[name][-1] for name in ("policy/loss", "policy/kl")])
    (weak_loss, weak_kl), (strong_loss, strong_kl) = last
    assert weak_loss < strong_loss and 0 < strong_kl < 0.2 * weak_kl


@pytest.mark.parametrize("kind", ["full", "pretrained_adapter"])
def test_resumed_run_has_the_same_reference(tmp_path, kind):
    config = {**CONFIG, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    trainers = []
    for folder in ("whole", "resumed"):
        kwargs = {"model": make_pretrained_adapter()} if kind == "pretrained_adapter" else {}
        trainers.append(make_trainer(tmp_path / folder, config, **kwargs))
    whole, resumed = trainers
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert_same(weights(whole.model), weights(resumed.model))
    logs = [trainer.state.log_history for trainer in trainers]
    assert [log.get("policy/kl") for log in logs[0]] == [log.get("policy/kl") for log in logs[1]]


def test_initial_weights_have_no_dropout(tmp_path):
    """The model that has them for a moment, with the copy of its adapter, goes on with dropout."""
    model = make_pretrained_adapter(dropout=0.5)
    trainer = make_trainer(tmp_path, {**CONFIG, "max_steps": 1}, RecordingTrainer, model=model)
    trainer.train()
    model, inputs = trainer.model.train(), trainer.micro_batches[-1]
    first, second = (trainer.reference.logps(model, inputs) for _ in range(2))
    assert len(first) and first.equal(second) and model.training


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bias": "lora_only"}, "an adapter with `bias='lora_only'` trains biases of the base model itself"),
        ({"use_dora": True}, None),
    ],
)
def test_adapters_that_change_the_base_model(tmp_path, changes, message):
    kwargs = {"peft_config": replace(LORA, **changes)}
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        make_trainer(tmp_path, CONFIG, **kwargs)


def test_weights_in_shards_need_a_name(tmp_path):
    """Of them no copy can be made. Otherwise a model needs none."""
    trainer = make_trainer(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
    model.config._name_or_path = ""
    assert make_trainer(tmp_path, CONFIG, model=model, processing_class=trainer.processing_class).reference.model
    sharded = SimpleNamespace(distributed_type=DistributedType.FSDP)
    with pytest.raises(ValueError, match=r"`beta=0.1` loads the initial weights again"):
        Reference(model, make_trainer(tmp_path / "x", CONFIG).args, sharded)
    assert trainer.reference is None
