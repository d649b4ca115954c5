# SPDX-License-Identifier: Apache-2.0

from functools import partial

import peft
import pytest
import torch
from accelerate import PartialState
from helpers.testing_utils import Answering, assert_same, make_config, make_trained, make_trainer, weights
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoProcessor,
    AutoTokenizer,
    BitsAndBytesConfig,
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from trl import ModelConfig

from benchmarks.tiny_engine import load_tiny_engine
from trl_nlac import NLACAgent
from trl_nlac.environments import StepResult
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.generation.joint import TensorParallelGenerator
from trl_nlac.training import build
from trl_nlac.training.model import base_revision, load_by_name, warn_of_replaced_optimizer
from trl_nlac.types import Prompt, TrainingExample


SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def test_small_updates_are_kept(tmp_path):
    options = {
        **dict(per_device_train_batch_size=8, episodes_per_iteration=8, logging_steps=1, bf16=True),
        **dict(learning_rate=1e-5, lr_scheduler_type="constant", target_update_rate=0.1, max_steps=1),
    }
    trainer = make_trainer(tmp_path, options)
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    after = dict(trainer.model.named_parameters())
    averages = trainer.target_weights.state_dict()
    for name, values in before.items():
        change = (after[name] - values).abs()
        assert after[name].dtype == torch.float32 and 1e-6 < change.max() < 2e-5, name
        assert not torch.equal(after[name].to(torch.bfloat16).float(), after[name]), name
        assert (averages[name] - values).abs().max() > 0, name


def test_weights_that_round_are_reported(tmp_path, caplog):
    make_trainer(tmp_path, {"model_init_kwargs": {"dtype": "bfloat16"}})
    assert "small updates are rounded away" in caplog.text
    caplog.clear()
    make_trainer(tmp_path)
    assert "rounded away" not in caplog.text


@pytest.mark.parametrize(
    "optim, device, other, is_reported",
    [
        ("sgd", "cpu", {}, True),
        ("adamw_torch", "cpu", {}, False),
        ("sgd", "none", {}, False),
        ("sgd", "cpu", {"zero_force_ds_cpu_optimizer": False}, False),
        ("sgd", "cpu", {"optimizer": {"type": "SGD"}}, False),
    ],
)
def test_an_optimizer_that_offloading_replaces_is_reported(optim, device, other, is_reported, caplog):
    PartialState()
    config = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": device}}, **other}
    warn_of_replaced_optimizer(optim, config)
    assert ("`optim='sgd'` is not used" in caplog.text) == is_reported


@pytest.mark.parametrize("is_instance", [False, True])
def test_the_revision_is_that_of_a_model_loaded_by_name(tmp_path, monkeypatch, caplog, is_instance):
    """For an instance `model_init_kwargs` are ignored, as the warning says."""
    load, revisions = build.load_generator, []

    def note(*args, revision, **kwargs):
        revisions.append(revision)
        return load(*args, revision=revision, **kwargs)

    monkeypatch.setattr(build, "load_generator", note)
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL) if is_instance else TINY_MODEL
    make_trainer(tmp_path, {"model_init_kwargs": {"revision": "v2"}}, model=model)
    assert revisions == [None if is_instance else "v2"]
    assert ("`model_init_kwargs` and `quantization_config` are ignored" in caplog.text) == is_instance


def test_prompts_fit_into_the_context(tmp_path, caplog):
    trainer = make_trainer(tmp_path, {"max_prompt_length": 6000, "max_completion_length": 32})
    assert trainer.args.max_prompt_length == trainer.roles.options.max_prompt_length == 480
    assert "`max_prompt_length=6000` with `max_completion_length=32` needs more" in caplog.text
    caplog.clear()
    assert make_trainer(tmp_path, {"max_prompt_length": 8192}).args.max_prompt_length <= 480
    assert "context is" not in caplog.text  # which nobody chose
    for limit in (None, 481, 512):
        assert make_trainer(tmp_path, {"max_prompt_length": limit}).args.max_prompt_length == 480
    caplog.clear()
    assert make_trainer(tmp_path, {"max_prompt_length": 480}).args.max_prompt_length == 480
    assert "max_prompt_length" not in caplog.text
    with pytest.raises(ValueError, match="`max_completion_length=512` leaves no room for a prompt"):
        make_trainer(tmp_path, {"max_completion_length": 512})


@pytest.mark.parametrize("is_shared", [False, True])
def test_prompts_fit_into_the_context_of_an_engine(tmp_path, monkeypatch, caplog, is_shared):
    def load(*args, **kwargs):
        generator = load_tiny_engine(*args, **kwargs)
        generator.engine.max_model_length = 96
        return TensorParallelGenerator(generator) if is_shared else generator

    monkeypatch.setattr(build, "load_generator", load)
    config = {"use_vllm": True, "max_prompt_length": None, "max_completion_length": 16, "max_turns": 8}
    talks = partial(Answering, StepResult("word word word"), "baku 2")
    trainer = make_trainer(tmp_path, config, environment_factory=talks, train_dataset=None)
    assert trainer.roles.options.max_prompt_length == 80 and "`--max-model-len`" in caplog.text
    if not is_shared:  # several processes would play
        with trainer.roles.generator.session(trainer.model):
            (episode,) = play_episodes(trainer.environments, [{}], trainer.roles)
        lengths = [turn.prompt_end - turn.prompt_start for turn in episode.turns]
        assert len(lengths) == 8 and max(lengths) <= 80 and all(turn.action_length for turn in episode.turns)
    with pytest.raises(ValueError, match="leaves no room for a prompt in the context of 96 tokens"):
        make_trainer(tmp_path, {**config, "max_completion_length": 96}, environment_factory=talks, train_dataset=None)


@pytest.mark.parametrize("modules_to_save", [None, ["norm"]])
def test_lora(tmp_path, modules_to_save):
    peft_config = peft.LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], modules_to_save=modules_to_save, task_type="CAUSAL_LM"
    )
    trainer = make_trainer(tmp_path, {"max_steps": 3}, peft_config=peft_config)
    before = weights(trainer.model)
    assert_same(trainer.target_weights.state_dict(), {n: before[n] for n in trainer.target_weights.state_dict()})
    trainer.train()
    changed = {name for name, value in weights(trainer.model).items() if not torch.equal(value, before[name])}
    assert changed and all("lora_" in name or "modules_to_save" in name for name in changed)
    assert set(trainer.target_weights.state_dict()) == changed
    trainer.save_model()
    base = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
    loaded = peft.PeftModel.from_pretrained(base, tmp_path)
    own, read = weights(trainer.model), weights(loaded)
    for name in changed:
        torch.testing.assert_close(read[name], own[name])


def test_an_adapter_is_trained_on_by_its_folder(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    tokenizer.chat_template += "{# mine #}"
    peft_config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    first = make_trained(tmp_path / "first", peft_config=peft_config, processing_class=tokenizer)
    first.save_model()
    trained = weights(first.model)
    options = {"model_init_kwargs": {"revision": ModelConfig().model_revision}}
    second = make_trainer(tmp_path / "second", options, model=str(tmp_path / "first"))
    assert second.processing_class.chat_template == tokenizer.chat_template
    before = weights(second.model)
    assert_same(before, trained)
    second.train()
    changed = {name for name, value in weights(second.model).items() if not torch.equal(value, before[name])}
    assert changed and all("lora_" in name for name in changed)
    config = peft.PeftConfig.from_pretrained(tmp_path / "first")
    config.revision = "of-base"
    config.save_pretrained(tmp_path / "first")
    args = make_config(tmp_path / "third", **options)
    assert base_revision(load_by_name(str(tmp_path / "first"), args), args) == "of-base"  # and not the adapter's
    with pytest.raises(ValueError, match="this is an adapter, and `revision='v2'` .* Leave out `--model_revision`"):
        make_trainer(tmp_path / "third", {"model_init_kwargs": {"revision": "v2"}}, model=str(tmp_path / "first"))


def test_quantized_base_model(tmp_path):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    quantization_config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    peft_config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = make_trainer(tmp_path, peft_config=peft_config, quantization_config=quantization_config)
    assert trainer.model.get_base_model().model.layers[0].mlp.up_proj.weight.dtype == torch.uint8
    # Some CPUs pack the weights for inference, and cannot train with them from then on.
    for module in trainer.model.modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            module.support_avx512bf16_for_cpu = False
    before = {name: weights(trainer.model)[name] for name in trainer.target_weights.state_dict()}
    assert before and all("lora_" in name for name in before)
    trainer.train()
    after = weights(trainer.model)
    assert any(not torch.equal(after[name], value) for name, value in before.items())
    with pytest.raises(ValueError, match="purely quantized"):
        make_trainer(tmp_path, quantization_config=quantization_config)
    trainer.save_model(str(tmp_path / "adapter"))
    again = make_trainer(tmp_path, model=str(tmp_path / "adapter"), quantization_config=quantization_config)
    assert again.model.get_base_model().model.layers[0].mlp.up_proj.weight.dtype == torch.uint8
    assert all(torch.equal(weights(again.model)[name].to(after[name].dtype), after[name]) for name in before)
    with pytest.raises(ValueError, match="`model` has an adapter already"):
        make_trainer(tmp_path, model=again.model, peft_config=peft_config)


def test_an_adapter_of_a_multimodal_model_is_found(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "head_dim": 16, "vocab_size": 961}
    text = {**sizes, "num_hidden_layers": 1, "num_key_value_heads": 1, "layer_types": ["full_attention"]}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    config = Qwen3_5Config(text_config=text, vision_config={**vision, "num_position_embeddings": 16})
    Qwen3_5ForConditionalGeneration(config).save_pretrained(tmp_path / "base")
    args = make_config(tmp_path)
    adapter = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    saved = peft.get_peft_model(load_by_name(str(tmp_path / "base"), args), adapter)
    saved.save_pretrained(tmp_path / "adapter")
    loaded = load_by_name(str(tmp_path / "adapter"), args)
    assert_same(weights(loaded), weights(saved))
    assert {name for name, value in loaded.named_parameters() if value.requires_grad} == {
        name for name in weights(saved) if "lora_" in name
    }


def test_an_adapter_of_another_name_is_refused(tmp_path):
    adapter = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(TINY_MODEL), adapter, adapter_name="mine")
    with pytest.raises(ValueError, match="active adapter of `model` is 'mine'.* Call it 'default'"):
        make_trainer(tmp_path, model=model)


def test_virtual_tokens_in_the_sequence_are_refused(tmp_path):
    """They would move the tokens that the losses read; keys and values before the prompt do not."""
    make_trainer(tmp_path, peft_config=peft.PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"))
    for kind in (peft.PromptTuningConfig, peft.PromptEncoderConfig):
        config = kind(num_virtual_tokens=4, task_type="CAUSAL_LM")
        model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(TINY_MODEL), config)
        for given in ({"peft_config": config}, {"model": model}):
            with pytest.raises(ValueError, match=f"`{kind.__name__}` .* puts 4 virtual tokens before every prompt"):
                make_trainer(tmp_path, **given)


def test_one_process_uses_one_of_several_gpus(tmp_path, caplog):
    """As a script that is started with `python` on a node with two: no `DataParallel`, no larger batches."""
    args = make_config(tmp_path, max_steps=1)
    assert args.device.type == "cpu" and args.n_gpu == args.num_idle_gpus == 0
    args._n_gpu = 2  # as transformers counts them
    assert (args.n_gpu, args.num_idle_gpus, args.train_batch_size) == (1, 1, args.per_device_train_batch_size)
    trainer = make_trainer(tmp_path, args=args)
    assert "This process sees 2 GPUs and trains on the first of them." in caplog.text
    assert "accelerate launch --num_processes 2" in caplog.text
    trainer.train()
    assert trainer.model_wrapped is trainer.model


def test_a_multimodal_model_is_saved_with_its_processor(tmp_path):
    text, tokenizer = AutoConfig.from_pretrained(TINY_MODEL), AutoTokenizer.from_pretrained(TINY_MODEL)
    vision = CLIPVisionConfig(**SMALL, image_size=28, patch_size=14)
    model = LlavaForConditionalGeneration(LlavaConfig(text_config=text, vision_config=vision, image_token_index=5))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(tmp_path / "base")
    image, template = tokenizer.convert_ids_to_tokens(5), tokenizer.chat_template
    LlavaProcessor(
        CLIPImageProcessor(size={"shortest_edge": 28}, crop_size=28), tokenizer, 14, "default", template, image
    ).save_pretrained(tmp_path / "base")
    options = {"max_steps": 1, "max_turns": 1, "max_completion_length": 4}
    first = make_trainer(tmp_path / "first", options, model=str(tmp_path / "base"), processing_class=None)
    assert first.args.ddp_find_unused_parameters
    first.train()
    first.save_model()
    assert isinstance(AutoProcessor.from_pretrained(tmp_path / "first"), LlavaProcessor)
    make_trainer(tmp_path / "second", options, model=str(tmp_path / "first"), processing_class=None).train()
    agent = NLACAgent.from_pretrained(str(tmp_path / "first"))
    assert agent.act([{"role": "user", "content": "situ 2"}]).text


def test_experts_are_balanced(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "router_aux_loss_coef": 0.5}
    config = Qwen3MoeConfig(**SMALL, **experts, vocab_size=len(tokenizer), num_key_value_heads=2, head_dim=8)
    options = {"max_steps": 1, "max_turns": 1, "max_completion_length": 4, "logging_steps": 1, "learning_rate": 0.0}
    trainer = make_trained(tmp_path, options, model=Qwen3MoeForCausalLM(config), processing_class=tokenizer)
    assert trainer.args.router_aux_loss_coef == 0.5 and trainer.state.log_history[0]["aux_loss"] >= 1
    examples = [TrainingExample("policy", Prompt.of([5, 6, 7]), (i, i + 1)) for i in range(9, 13)]
    trainer._taken.append(examples)

    def compute(coefficient: float, *passes: list[TrainingExample]) -> float:
        trainer.args.router_aux_loss_coef = coefficient
        return sum(trainer.compute_loss(trainer.model, trainer._collate(one)).item() for one in passes)

    expected = []
    for chosen in (examples, examples[:1], examples[1:]):
        ids = torch.tensor([[*example.prompt.ids, *example.completion_ids] for example in chosen])
        expected.append(trainer.model(ids, output_router_logits=True).aux_loss.item())
    assert compute(0.5, examples) - compute(0.0, examples) == pytest.approx(0.5 * expected[0], rel=1e-4)
    passes = examples[:1], examples[1:]
    mean = (expected[1] + 3 * expected[2]) / 4
    assert compute(0.5, *passes) - compute(0.0, *passes) == pytest.approx(0.5 * mean, rel=1e-4)


def test_what_has_no_experts_is_refused_a_balance(tmp_path):
    with pytest.raises(ValueError, match="`router_aux_loss_coef=0.1` .* LlamaForCausalLM computes none. Leave it"):
        make_trainer(tmp_path, {"router_aux_loss_coef": 0.1})
    assert make_trainer(tmp_path).args.router_aux_loss_coef == 0.0
