# SPDX-License-Identifier: Apache-2.0

"""
Runs that are killed at random moments, and checkpoints with damaged files: do they end like an undisturbed run?

Runs of five kinds get SIGKILL or SIGTERM. A killed run is resumed from its last checkpoint, until it ends. Its
weights, target weights, replay buffer, log, episodes and audited samples must be those of the undisturbed run, bit for
bit, except for measured times. For damages one file of a checkpoint is changed, and the run is resumed from it: either
the result is the same again, or the run is refused and the message names the file. Everything else counts as a silent
difference.
"""

import gc
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from benchmarks.tiny_engine import BESIDE, load_tiny_engine
from benchmarks.tiny_run import tiny_options
from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL, make_environment, make_tasks
from trl_nlac.records.folder import checkpoints
from trl_nlac.training import build
from trl_nlac.types import RunRefused
from trl_nlac.written_files import checksum


NUM_STEPS = 12
KINDS = {
    "gradient accumulation": {"gradient_accumulation_steps": 2, "samples_per_iteration": 8},
    "kept targets": {"target_max_age": 4},
    "distilled": {"policy_loss_type": "distill"},
    "worker processes": {"environment_workers": "process"},
    "played beside training": BESIDE,
}
Kill = tuple[str, float, Sequence[int]]  # some seconds `"after"` the start or once it `"saves"`: signals in a row
KILLED = {-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM}  # exit codes
DAMAGES = ("bit flip", "truncation", "deletion", "empty", "addition", "another checkpoint's")
MEASURED = ("time/", "checkpoint/", "train_runtime", "train_s", "train_t")  # beginnings of the names of metrics


def make_trainer(output_dir: Path, **changes) -> NLACTrainer:
    """Make a trainer with every record, whose checkpoints fall between its logs and within its iterations."""
    torch.set_num_threads(1)
    desk, tasks = make_tasks("rooms", 0)
    settings = {
        **dict(max_steps=NUM_STEPS, episodes_per_iteration=2, per_device_train_batch_size=2, samples_per_iteration=4),
        **dict(max_turns=3, save_strategy="steps", save_steps=3, logging_steps=2, eval_strategy="steps", eval_steps=6),
        **dict(eval_on_start=True, log_completions=True, num_completions_to_print=0, audit_samples=2),
    }
    return NLACTrainer(
        model=TINY_MODEL,
        args=NLACConfig(**tiny_options(output_dir, **{**settings, **changes})),
        train_dataset=tasks,
        eval_dataset={"held/out": tasks.select(range(2))},
        environment_factory=lambda: make_environment(desk),
        prompts=COMPACT_PROMPTS,
    )


def train(output_dir: Path, kill: Kill | None = None, **changes) -> None:
    """Continue the run in `output_dir` to its end or to a kill."""
    if changes.get("use_vllm"):
        build.load_generator = load_tiny_engine
    trainer = make_trainer(output_dir, **changes)
    if kill is not None:
        threading.Thread(target=kill_later, args=(output_dir, *kill), daemon=True).start()
    gc.freeze()  # what is imported already, of which a collection takes longer than a step
    trainer.train(resume_from_checkpoint=bool(checkpoints(output_dir)))
    trainer.save_model()


def kill_later(output_dir: Path, when: str, seconds: float, signals: Sequence[int]) -> None:
    while when == "saves" and not (output_dir / "_incomplete").exists():
        time.sleep(1e-3)
    time.sleep(seconds)
    for number in signals:
        os.kill(os.getpid(), number)
        time.sleep(0.01)


def run(*args, **changes) -> int:
    """Return the exit code of [`train`] in a separate process, forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.kills"])
    process = context.Process(target=train, args=args, kwargs=changes)
    process.start()
    process.join()
    return process.exitcode


def contents(output_dir: Path) -> dict[str, str]:
    """Return a checksum of everything that a run leaves and that must not depend on kills, by name."""
    last = list(checkpoints(output_dir).values())[-1]
    lines = (output_dir / "training_log.jsonl").read_text().splitlines()
    history = json.loads((last / "trainer_state.json").read_text())["log_history"]
    found = {
        "model": checksum(output_dir / "model.safetensors"),
        "target weights": checksum(last / "target_weights.safetensors"),
        "last checkpoint": _digest(last.name),
        "training_log.jsonl": _digest([_steady(json.loads(line)) for line in lines]),
        "trainer_state.json": _digest([_steady(log) for log in history]),
    }
    tables = [*last.glob("nlac/*/*.parquet"), *output_dir.glob("completions/*"), *output_dir.glob("_audit/*")]
    found |= {path.relative_to(output_dir).as_posix(): _digest(pq.read_table(path).to_pylist()) for path in tables}
    return found


def _steady(log: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is measured."""
    return {
        name: value
        for name, value in log.items()
        if not name.startswith(MEASURED) and not name.endswith(("_runtime", "_per_second"))
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def differences(found: dict[str, str], expected: dict[str, str]) -> list[str]:
    return [name for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]


def kill_runs(folder: Path, number: int, rng: random.Random, longest: float, **changes) -> dict[str, Any]:
    """Kill runs `number` times in all, and compare those that ended with one that was not killed."""
    changes = {"save_total_limit": 2, **changes}
    assert run(folder / "whole", **changes) == 0
    expected = contents(folder / "whole")
    ended: list[list[str]] = []
    kills: Counter[str] = Counter()
    while True:
        output_dir = folder / f"killed_{len(ended)}"
        last = kills["kills"] == number
        when, signaled = rng.choice(["saves", "after"]), rng.choice([signal.SIGKILL, signal.SIGTERM])
        kill = None if last else (when, rng.uniform(0, 0.15 if when == "saves" else longest), [signaled])
        code = run(output_dir, kill, **changes)
        if code == 0:
            ended.append(differences(contents(output_dir), expected))
            if last:
                break
        elif kill is not None and code in KILLED:
            kills += {"kills": 1, signaled.name: 1, "while_saving": when == "saves"}
        else:
            raise RuntimeError(f"{output_dir} ended with exit code {code} after {kill}")
    return {
        **kills,
        "runs": len(ended),
        "different_runs": sum(map(bool, ended)),
        "differences": sorted({name for names in ended for name in names}),
    }


def damage(path: Path, kind: str, rng: random.Random, other: Path) -> None:
    """Damage a file, or replace it by that of an `other` checkpoint."""
    data = bytearray((other if kind == "another checkpoint's" else path).read_bytes())
    path.unlink()  # it can be a link to the file of another copy
    if kind == "bit flip":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "truncation":
        del data[rng.randrange(len(data)) :]
    elif kind == "empty":
        data.clear()
    elif kind == "addition":
        data += rng.randbytes(rng.randint(1, 100))
    if kind != "deletion":
        path.write_bytes(data)


def damage_checkpoints(folder: Path, number: int, rng: random.Random, **changes) -> dict[str, dict[str, int]]:
    """Damage one file of a checkpoint `number` times in each way, and resume from it."""
    whole = folder / "whole_with_all"
    train(whole, **changes)
    expected = contents(whole)
    chosen = list(checkpoints(whole).values())[-2]
    before = list(checkpoints(whole).values())[-3]
    files = sorted(path for path in chosen.rglob("*") if path.is_file() and path.stat().st_size)
    assert all((before / path.relative_to(chosen)).is_file() for path in files)
    outcomes = {kind: Counter() for kind in DAMAGES}
    for kind in DAMAGES:
        for _ in range(number):
            name = rng.choice(files).relative_to(whole)
            outcome = resume_damaged(whole, folder / "damaged", name, kind, rng, expected, **changes)
            outcomes[kind][outcome] += 1
    return {kind: dict(counts) for kind, counts in outcomes.items()}


def resume_damaged(
    whole: Path, copied: Path, name: Path, kind: str, rng: random.Random, expected: dict[str, str], **changes
) -> str:
    """Resume a copy of a run from its last checkpoint but one, with a damaged file; returns what happened."""
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(whole, copied, copy_function=os.link, ignore=shutil.ignore_patterns("_lock"))
    (copied / "training_log.jsonl").unlink()
    shutil.copyfile(whole / "training_log.jsonl", copied / "training_log.jsonl")
    before, checkpoint, _ = list(checkpoints(copied).values())[-3:]
    damage(copied / name, kind, rng, before / name.relative_to(checkpoint.name))
    trainer = make_trainer(copied, **changes)
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint))
    except RunRefused as error:
        is_named = name.relative_to(checkpoint.name).as_posix() in str(error) and str(before) in str(error)
        return "refused, the file and the checkpoint before are named" if is_named else "refused without the name"
    except Exception as error:
        return f"failed: {type(error).__name__}"
    for path in copied.glob("model.safetensors"):
        path.unlink()
    trainer.save_model()
    found = differences(contents(copied), expected)
    return f"silently different ({name.name}: {', '.join(found)})" if found else "resumed, the same bit for bit"


def attack(kills: int = 30, longest: float = 8.0, damages: int = 60, seed: int = 0) -> dict[str, Any]:
    """Kill runs of all kinds until `longest` seconds of training, and damage so many files of each kind."""
    rng, each = random.Random(seed), -(-kills // len(KINDS))
    with tempfile.TemporaryDirectory() as folder:
        killed = {kind: kill_runs(Path(folder, kind), each, rng, longest, **KINDS[kind]) for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        return {"kills": killed, "damages": damage_checkpoints(Path(folder), damages, rng)}
