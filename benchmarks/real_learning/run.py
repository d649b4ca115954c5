# SPDX-License-Identifier: Apache-2.0

"""
NLAC with a real model on service desks that it has never seen, with the default prompts in plain English.

    python -m benchmarks.real_learning.run --folder runs/real_learning --json benchmarks/results/real_learning.json

First the roles are warmed up on another desk: a teacher writes samples of every role, and LoRA is trained on them for
a few minutes. Then NLAC trains the adapter on each desk. Every part keeps what it has done in the folder; a run that
was stopped (SIGTERM saves a checkpoint first) goes on where it was.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from datasets import Dataset, load_dataset
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

from benchmarks.real_learning.desk import SpokenDesk, Teacher, known_desk, rows
from benchmarks.real_learning.role_samples import chat_roles, play_transitions, write_samples
from benchmarks.real_model import real_model_path
from benchmarks.reporting import setting, write
from trl_nlac import NLACConfig, NLACPrompts, NLACTrainer
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments import ServiceDesk, TextEnvironment
from trl_nlac.environments.embedded.names import HELD_OUT_CUSTOMERS
from trl_nlac.environments.embedded.service_desk import parse_call
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.evaluation.metrics import wilson_interval
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
# Means of these, over the steps since the evaluation before, are written down with each evaluation.
WATCHED = {"health/refine_compliance", "health/backup_fidelity", "oracle/refined_better_rate"}
TOKENS = ("generated", "prefilled", "trained")
# A CPU without instructions for bfloat16 emulates it, about eight times slower than float32.
BF16 = torch.accelerator.is_available() or torch.cpu.get_capabilities().get("avx512_bf16", False)
DTYPE = "bfloat16" if BF16 else "float32"


def write_rehearsal(
    folder: Path,
    teacher: Teacher,
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
        samples = read_rehearsal(rehearsal)
        tokenizer = AutoTokenizer.from_pretrained(model)
        dataset = conversations(samples, ChatEncoder(tokenizer))
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
            train_dataset=dataset,
            processing_class=tokenizer,
            peft_config=LoraConfig(**LORA),
        )
        trainer.train(resume_from_checkpoint=get_last_checkpoint(str(output)) if output.exists() else None)
        trainer.save_model(str(adapter))
        log = {
            "samples": len(samples),
            "conversations": len(dataset),
            "tokens": sum(map(len, dataset["input_ids"])),
            "optimizer_steps": trainer.state.global_step,
            "log": trainer.state.log_history,
        }
        write(log, adapter / "warm_up.json")
    return adapter


def load(model: str, adapter: Path) -> torch.nn.Module:
    """Load the model, with an adapter that can be trained."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=DTYPE)
    return PeftModel.from_pretrained(base, str(adapter), is_trainable=True)


class ReportCallback(TrainerCallback):
    """Save how far a run has come, after every evaluation."""

    def __init__(self, save: Callable[[dict], None]):
        self.save = save
        self.trained: NLACTrainer | None = None

    def on_evaluate(self, args, state, control, **kwargs):
        number = len(self.trained.eval_dataset) * args.num_eval_episodes
        curve, watched, tokens = [], defaultdict(list), dict.fromkeys(TOKENS, 0)
        for entry in state.log_history:
            for name in WATCHED & entry.keys():
                watched[name].append(entry[name])
            tokens |= {kind: entry[f"tokens/{kind}"] for kind in TOKENS if f"tokens/{kind}" in entry}
            if "eval_episode/success_rate" not in entry:
                continue
            rate = entry["eval_episode/success_rate"]
            low, high = wilson_interval(round(rate * number), number)
            oracle = {name: value for name, value in entry.items() if name.startswith("eval_oracle/")}
            steps = {"environment_steps": entry["eval_environment/steps"], "optimizer_steps": entry["step"]}
            means = {name: sum(values) / len(values) for name, values in sorted(watched.items())}
            point = {**steps, "tokens": dict(tokens), "success": rate, "low": low, "high": high}
            curve.append({**point, **oracle, **means})
            watched.clear()
        self.save({"curve": curve, "episodes": number})


def train(folder: Path, model: str, adapter: Path, seed: int, max_steps: int, save: Callable[[dict], None]) -> None:
    """Train on one desk, from the last checkpoint if there is one."""
    desk, output = ServiceDesk.from_seed(seed), folder / f"desk_{seed}"
    args = NLACConfig(
        output_dir=str(output),
        use_cpu=not torch.accelerator.is_available(),
        bf16=BF16,
        gradient_checkpointing=False,
        max_steps=max_steps,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=20,
        eval_on_start=True,
        save_strategy="steps",
        save_steps=10,
        save_total_limit=2,
        report_to="none",
        seed=seed,
        **ROLES,
        **NLAC,
    )
    report = ReportCallback(save)
    trainer = NLACTrainer(
        model=load(model, adapter),
        args=args,
        processing_class=AutoTokenizer.from_pretrained(model),
        train_dataset=rows(desk),
        eval_dataset=rows(desk, HELD_OUT_CUSTOMERS[:8]),
        environment_factory=partial(SpokenDesk, desk),
        callbacks=[report],
    )
    report.trained = trainer
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(output)) if output.exists() else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(real_model_path()))
    parser.add_argument("--folder", type=Path, default=Path("runs", "real_learning"))
    parser.add_argument("--desks", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--max_steps", type=int, default=250, help="optimizer steps on each desk")
    parser.add_argument("--num_transitions", type=int, default=128, help="steps of which the teacher writes")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    args.folder.mkdir(parents=True, exist_ok=True)
    report = {
        **setting("torch", "transformers", "trl", "peft", threads=torch.get_num_threads()),
        "model": Path(args.model).name,
        "dtype": DTYPE,
        "settings": {"roles": ROLES, "warm_up": WARM_UP, "nlac": NLAC, "lora": LORA},
        "desks": {},
    }
    if args.json is not None and args.json.exists():
        report["desks"] = json.loads(args.json.read_text())["desks"]
    teacher, factory = Teacher(NLACPrompts()), partial(SpokenDesk, known_desk())
    rehearsal = write_rehearsal(args.folder, teacher, rows(known_desk()), factory, args.num_transitions)
    adapter = warm_up(args.folder, args.model, rehearsal)
    report["warm_up"] = {n: v for n, v in json.loads((adapter / "warm_up.json").read_text()).items() if n != "log"}
    write(report, args.json)
    for seed in args.desks:

        def save(result: dict, seed: int = seed) -> None:
            if args.json is not None:  # other processes may train on other desks
                report["desks"] |= json.loads(args.json.read_text())["desks"]
            report["desks"][str(seed)] = result
            write(report, args.json)
            print(seed, result["curve"][-1], flush=True)

        train(args.folder, args.model, adapter, seed, args.max_steps, save)


if __name__ == "__main__":
    main()
