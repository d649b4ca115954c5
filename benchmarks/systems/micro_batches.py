# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.


"""
The gain of spreading the examples of a gradient step over its micro-batches by length: the share of tokens that are
padding, and the seconds of forward and backward passes, against the same examples in any order.

The examples are real: targets, refined actions and rehearsal of a told service desk, by the model of the learning
benchmark. Both sides do the same steps one after the other. A time is the median over `--repetitions`.

python -m benchmarks.systems.micro_batches --json benchmarks/results/micro_batches.json
"""

import argparse
import json
import random
import tempfile
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import median

from benchmarks import reporting
from benchmarks.learning.methods.settings import acting_config, default_settings
from benchmarks.learning.tasks import make_task
from trl_nlac import NLACTrainer
from trl_nlac.method.batches import split, spread_by_length
from trl_nlac.types import TrainingExample


def collect_examples(output_dir: str, num_transitions: int) -> tuple[NLACTrainer, list[TrainingExample]]:
    """Return a trainer and the examples of its first gradient step, in random order."""
    task = make_task("service_desk_told", 0)
    settings = default_settings(task, "nlac")
    settings.update(samples_per_iteration=num_transitions, episodes_per_iteration=num_transitions)
    settings.update(per_device_train_batch_size=num_transitions, gradient_accumulation_steps=1)
    trainer = NLACTrainer(
        model=task.model,
        args=replace(acting_config(task, output_dir, 0), max_steps=1, **settings),
        **task.trainer_arguments,
    )
    [examples] = trainer._iteration([row for row, _ in zip(task.rows, range(num_transitions), strict=False)])
    random.Random(0).shuffle(examples)
    return trainer, examples


def measure(trainer: NLACTrainer, micro_batches: list[list[TrainingExample]], repetitions: int) -> dict[str, float]:
    """Measure the padding, and the seconds of one gradient step's forward and backward passes."""
    inputs = [trainer._collate(batch) for batch in micro_batches]
    filled = sum(int(batch["attention_mask"].sum()) for batch in inputs)
    seconds = []
    for _ in range(repetitions):
        trainer.model.zero_grad()
        start = time.perf_counter()
        for batch in inputs:
            trainer.compute_loss(trainer.model, batch).backward()
        seconds.append(time.perf_counter() - start)
    return {
        "padding": round(1 - filled / sum(batch["input_ids"].numel() for batch in inputs), 3),
        "seconds": round(median(seconds), 4),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--num_transitions", type=int, default=32, help="of a gradient step")
    parser.add_argument("--micro_batches", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--repetitions", type=int, default=9)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as output_dir:
        trainer, examples = collect_examples(output_dir, args.num_transitions)
        rows = []
        for number in args.micro_batches:
            row = {"micro_batches": number}
            for name, spread in (("by_length", spread_by_length), ("in_any_order", split)):
                row[name] = measure(trainer, spread(examples, number), args.repetitions)
            rows.append(row)
            print(json.dumps(row), flush=True)
        trainer.environments.close()
    report = {
        "date": date.today().isoformat(),
        "transitions": args.num_transitions,
        "examples": len(examples),
        **reporting.setting("torch", "transformers"),
        "rows": rows,
    }
    reporting.write(report, args.json)


if __name__ == "__main__":
    main()
