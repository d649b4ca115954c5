# SPDX-License-Identifier: Apache-2.0

"""The roles of a real model are warmed up: a teacher writes samples of each, and LoRA is trained on them."""

from collections.abc import Callable
from pathlib import Path

import torch
from datasets import Dataset, load_dataset
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

from benchmarks.real_learning.desk import Reader
from benchmarks.real_learning.role_samples import chat_roles, play_transitions, write_samples
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments import TextEnvironment
from trl_nlac.environments.embedded.service_desk import parse_call
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.options.role_options import RoleOptions


ROLES = dict(
    action_format="text",
    max_turns=2,
    max_completion_length=64,
    min_p=0.05,
    role_sampling={"policy": {"max_tokens": 12}, "refine": {"max_tokens": 12, "temperature": 0.0}},
)
WARM_UP = dict(num_train_epochs=1, learning_rate=1e-3, per_device_train_batch_size=4)
NLAC = {
    **dict(learning_rate=5e-4, lr_scheduler_type="constant", per_device_train_batch_size=16),
    **dict(max_tokens_per_batch=3072, episodes_per_iteration=4, samples_per_iteration=16, replay_buffer_size=64),
    **dict(num_eval_episodes=1, num_eval_critiques=16),
}
LORA = dict(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
# A CPU without instructions for bfloat16 emulates it, about eight times slower than float32.
BF16 = torch.accelerator.is_available() or torch.cpu.get_capabilities().get("avx512_bf16", False)
DTYPE = "bfloat16" if BF16 else "float32"


def write_rehearsal(
    folder: Path,
    teacher: Reader,
    tasks: Dataset,
    environment_factory: Callable[[], TextEnvironment],
    num_transitions: int,
    **options,
) -> Path:
    """Let the teacher write samples of every role. `options` replace those of `ROLES`."""
    path = folder / "rehearsal.jsonl"
    if not path.exists():
        roles = chat_roles(teacher.answer, teacher.prompts, RoleOptions(**{**ROLES, **options}))
        pool = EnvironmentPool(environment_factory)
        samples = write_samples(roles, play_transitions(roles, pool, list(tasks), num_transitions))
        samples.to_json(path)
    return path


def read_rehearsal(path: Path) -> Dataset:
    """Read samples without the teacher's slips as the policy: they are there to be judged, not to be learned."""
    return load_dataset("json", data_files=str(path), split="train").filter(
        lambda sample: sample["role"] != "policy" or parse_call(sample["completion"][0]["content"]) is not None
    )


def conversations(samples: Dataset, chat: ChatEncoder) -> Dataset:
    """Encode samples, each once: one whose tokens begin another is trained on within that, as prompts only append."""
    encoded = []
    for sample in samples:
        prompt = [*chat.start(sample["prompt"]), *chat.prefill]
        encoded.append((prompt, chat.completion(sample["completion"][0])))
    whole: list[tuple[list[int], list[int]]] = []
    for prompt, completion in sorted(encoded, key=lambda parts: -len(parts[0]) - len(parts[1])):
        ids = [*prompt, *completion]
        labels = next((labels for other, labels in whole if other[: len(ids)] == ids), None)
        if labels is None:
            labels = [-100] * len(ids)
            whole.append((ids, labels))
        labels[len(prompt) : len(ids)] = completion
    return Dataset.from_list([{"input_ids": ids, "labels": labels} for ids, labels in whole])


def warm_up(folder: Path, model: str, rehearsal: Path) -> Path:
    """Train LoRA on the teacher's samples, from the last checkpoint if there is one."""
    adapter, output = folder / "warm_up", folder / "sft"
    if not (adapter / "adapter_config.json").exists():
        tokenizer = AutoTokenizer.from_pretrained(model)
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(
                output_dir=str(output),
                model_init_kwargs={"dtype": DTYPE},
                use_cpu=not torch.accelerator.is_available(),
                bf16=BF16,
                max_length=None,
                **dict(lr_scheduler_type="cosine", logging_steps=1, save_steps=4, save_total_limit=1),
                **dict(report_to="none", gradient_checkpointing=False),
                **WARM_UP,
            ),
            train_dataset=conversations(read_rehearsal(rehearsal), ChatEncoder(tokenizer)),
            processing_class=tokenizer,
            peft_config=LoraConfig(**LORA),
        )
        trainer.train(resume_from_checkpoint=get_last_checkpoint(str(output)) if output.exists() else None)
        trainer.save_model(str(adapter))
    return adapter


def load(model: str, adapter: Path) -> torch.nn.Module:
    """Load the model, with an adapter that can be trained."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=DTYPE)
    return PeftModel.from_pretrained(base, str(adapter), is_trainable=True)
