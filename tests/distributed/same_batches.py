# SPDX-License-Identifier: Apache-2.0

"""
Train the embedded model for a few steps, in one process or sharded over several, on the same global batches: every
process plays all episodes and generates all targets and refined actions, with the same seeds, and keeps its share of
the samples.

Several processes train with `max_tokens_per_batch` where noted, the single one without.

python same_batches.py KIND OUTPUT_DIR    # of KIND single, ddp, zero2, zero3, zero3_offload, fsdp2
"""

import copy
import json
import sys
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, gather_object
from helpers.testing_utils import make_config
from peft import LoraConfig
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from trl_nlac import NLACConfig, NLACTrainer, PrioritizedReplay
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL, make_environment, make_tasks


kind, output_dir = sys.argv[1], Path(sys.argv[2])
if kind.startswith("zero"):
    import deepspeed  # before any Accelerator, which does not import it on a CPU

    deepspeed.init_distributed("gloo")
GLOBAL_BATCH_SIZE = 8


class OneProcess(NLACConfig):
    """The configuration with the values of a single process."""

    world_size = 1


class SameBatchesTrainer(NLACTrainer):
    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        if kind == "fsdp2":  # as accelerate does on GPUs; on a CPU it ignores the plugin
            PartialState().distributed_type = self.accelerator.state.distributed_type = DistributedType.FSDP
            self.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
                fsdp_version=2, auto_wrap_policy="transformer_based_wrap", state_dict_type="FULL_STATE_DICT"
            )
            self.is_fsdp_enabled = True

    def _iteration(self, tasks):
        torch.manual_seed(self.state.global_step)
        tasks = sorted(gather_object(tasks), key=lambda task: task["start"])
        own_args, self.args = self.args, copy.copy(self.args)
        self.args.__class__, self.args.per_device_train_batch_size = OneProcess, GLOBAL_BATCH_SIZE
        batches = super()._iteration(tasks)
        self.args = own_args
        return [batch[self.args.process_index :: self.args.world_size] for batch in batches]

    def compute_loss(self, model, batch, *args, **kwargs):
        self.num_passes += 1
        assert batch.weights.dtype == torch.float32  # also where DeepSpeed computes in half precision
        return super().compute_loss(model, batch, *args, **kwargs)

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.losses.append(self.accelerator.gather(loss).mean().item())
        assert_sharded(self.model)
        return loss


def assert_sharded(model):
    parameters = list(model.parameters())
    if kind.startswith("zero3"):
        assert all(p.shape == (0,) or p.ds_persist for p in parameters)
        kept = sum(p.ds_tensor.numel() for p in parameters) / sum(p.ds_numel for p in parameters)
    elif kind == "zero2":
        trained = [p for p in parameters if p.requires_grad]
        masters = [p._hp_mapping.hp_fragment.numel() for p in trained if p._hp_mapping is not None]
        kept = sum(masters) / sum(p.numel() for p in trained)
    elif kind == "fsdp2":
        assert all(isinstance(p, DTensor) for p in parameters)
        kept = sum(p.to_local().numel() for p in parameters) / sum(p.numel() for p in parameters)
    assert kind in ("single", "ddp") or 0.4 < kept < 0.6, kept


def deepspeed_config(stage, persistence_threshold, keeps_optimizer):
    zero = {"stage": stage}
    if stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
        zero["stage3_param_persistence_threshold"] = persistence_threshold
    if kind == "zero3_offload":  # weights and optimizer, as in zero3_offload.yaml
        zero |= {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    settings = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    config = {"zero_optimization": zero, **dict.fromkeys(settings, "auto")}
    if keeps_optimizer:  # otherwise Accelerate replaces any optimizer whose states are offloaded by DeepSpeed's Adam
        config["zero_force_ds_cpu_optimizer"] = False
    return config


def train(name, lora=False, resume_from=None, persistence_threshold=100, max_tokens=None, **options):
    """Train and write losses, trained weights and the distance of the target weights to files named `name`."""
    if kind != "single":
        options["max_tokens_per_batch"] = max_tokens
    if kind.startswith("zero"):
        options["deepspeed"] = deepspeed_config(int(kind[4]), persistence_threshold, "optim" in options)
    num_processes = 1 if kind == "single" else 2
    desk, tasks = make_tasks("rooms", 0)
    trainer = SameBatchesTrainer(
        model=TINY_MODEL,
        args=make_config(
            output_dir / name,
            **{
                **dict(max_steps=3, episodes_per_iteration=4, gradient_accumulation_steps=2, priority_exponent=0.0),
                **dict(disable_tqdm=True, logging_strategy="no"),
                "per_device_train_batch_size": GLOBAL_BATCH_SIZE // num_processes,
                "adam_epsilon": 1e-5,  # above what rounding makes of a gradient that is almost zero
                **options,
            },
        ),
        train_dataset=tasks,
        environment_factory=lambda: make_environment(desk),
        prompts=COMPACT_PROMPTS,
        peft_config=LoraConfig(r=4, task_type="CAUSAL_LM") if lora else None,
    )
    assert trainer.args.world_size == num_processes
    # All processes draw the same samples.
    trainer.replay = PrioritizedReplay(1000, priority_exponent=0.0, seed=0)
    trainer.losses, trainer.num_passes = [], 0
    trainer.train(resume_from_checkpoint=resume_from)
    assert (trainer.num_passes > len(trainer.losses)) == (trainer.args.max_tokens_per_batch is not None)
    if kind == "zero3_offload":
        optimizer = trainer.model_wrapped.optimizer
        expected = torch.optim.SGD if "optim" in options else deepspeed.ops.adam.DeepSpeedCPUAdam
        assert optimizer.offload_optimizer and isinstance(optimizer.optimizer, expected)
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    result = {"losses": trainer.losses, "distance": trainer.target_weights.distance(trainer.model)}
    if trainer.is_world_process_zero():
        weights = {n: w.contiguous() for n, w in weights.items() if "lm_head" not in n}
        save_file(weights, output_dir / f"{name}.safetensors")
        (output_dir / f"{name}.json").write_text(json.dumps(result))


train("sampled", save_strategy="steps", save_steps=2)
train("resumed", resume_from=str(output_dir / "sampled" / "checkpoint-2"))
# Each layer is gathered for each token, and nothing is kept gathered; swaps within the loss.
train("distill", policy_loss_type="distill", ds3_gather_for_generation=False, persistence_threshold=0, max_steps=2)
# Passes add in another order. Adam would make that large where a gradient is almost zero.
train("passes", policy_loss_type="distill", max_tokens=60, optim="sgd", learning_rate=0.1, max_steps=2)
train("lora", lora=True, gradient_checkpointing=True, persistence_threshold=10**6, max_steps=2)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()  # else a process that ends first can abort the other, or itself
