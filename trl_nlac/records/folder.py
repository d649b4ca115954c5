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

"""Where a run writes down what happens, and what becomes of it when a run starts again from an earlier step."""

import json
import math
import re
from itertools import compress
from pathlib import Path
from typing import Any

from accelerate.logging import get_logger
from transformers import TrainerCallback


logger = get_logger(__name__)

TRAINING_LOG = "training_log.jsonl"
COMPLETIONS = "completions"
# Not uploaded with the output folder, because of the underscore: keywords of an environment may hold secrets.
ORIGIN = "_nlac_run.json"
AUDIT = "_audit"
SUPERSEDED = "_superseded"
# What the files of episodes and of audited samples are called; an evaluation's have its kind in front.
RECORD_FILE = re.compile(r"(?:(?P<kind>.+)_)?(?:completions|audit)_(?P<step>\d+)(?:_process\d+)?\.parquet")


def completions_file(output_dir: str | Path, step: int, kind: str = "") -> Path:
    """File of the episodes that were played until a step; `kind` is the prefix of an evaluation, as `"eval"`."""
    return Path(output_dir, COMPLETIONS, f"{kind}_{COMPLETIONS}_{step:05d}.parquet".lstrip("_"))


def audit_file(output_dir: str | Path, step: int, process: int) -> Path:
    """File of the samples that one process trained on until a step."""
    return Path(output_dir, AUDIT, f"audit_{step:05d}_process{process}.parquet")


def note_origin(
    output_dir: str | Path,
    environment_factory: list[str],
    environment_kwargs: dict[str, Any],
    dataset_name: str | None,
    dataset_config: str | None = None,
    dataset_split: str = "train",
    tools: list[str] | None = None,
    reward_funcs: list[str] | None = None,
    reward_weights: list[float] | None = None,
) -> None:
    """
    Write down where a run was trained, so that `trl-nlac evaluate` and `play` find it again.

    Args:
        output_dir (`str` or `Path`):
            Folder of the run.
        environment_factory (`list[str]`):
            What makes the environment, as `module:Class`.
        environment_kwargs (`dict[str, Any]`):
            Keywords for it.
        dataset_name (`str`, *optional*):
            Tasks to play.
        dataset_config (`str`, *optional*), dataset_split (`str`, *optional*, defaults to `"train"`):
            Configuration and split of the dataset.
        tools (`list[str]`, *optional*), reward_funcs (`list[str]`, *optional*):
            Standalone tools, and functions that score episodes, as `module:function`.
        reward_weights (`list[float]`, *optional*):
            Weights of these functions.
    """
    origin = {
        "environment_factory": environment_factory,
        "environment_kwargs": environment_kwargs,
        "dataset_name": dataset_name,
        "dataset_config": dataset_config,
        "dataset_split": dataset_split,
        "tools": tools,
        "reward_funcs": reward_funcs,
        "reward_weights": reward_weights,
    }
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    Path(output_dir, ORIGIN).write_text(json.dumps(origin, indent=2) + "\n")


class TrainingLogCallback(TrainerCallback):
    """
    Writes every log of a [`~transformers.Trainer`] as a line of JSON to `training_log.jsonl` in the output folder, as it
    happens. When training starts at a step, what was recorded of later ones is set aside in the folder `_superseded`.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            set_aside(Path(args.output_dir), state.global_step)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero:
            path = Path(args.output_dir, TRAINING_LOG)
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a") as file:
                line = {"step": state.global_step, **{name: _finite(value) for name, value in logs.items()}}
                file.write(json.dumps(line, default=float) + "\n")


def set_aside(run: Path, step: int) -> None:
    """Move the records of a run that are from after a step into its folder `_superseded`."""
    aside, log = run / SUPERSEDED, run / TRAINING_LOG
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    is_later = [not line.endswith("\n") or json.loads(line)["step"] > step for line in lines]  # or half-written
    files = [path for folder in (COMPLETIONS, AUDIT) for path in sorted(run.glob(f"{folder}/*.parquet"))]
    files = [path for path in files if (match := RECORD_FILE.fullmatch(path.name)) and int(match["step"]) > step]
    if not any(is_later) and not files:
        return
    aside.mkdir(exist_ok=True)
    if any(is_later):
        with open(aside / TRAINING_LOG, "a") as file:
            file.writelines(compress(lines, is_later))
        log.write_text("".join(line for line, later in zip(lines, is_later, strict=True) if not later))
    for path in files:
        (aside / path.parent.name).mkdir(exist_ok=True)
        path.replace(aside / path.parent.name / path.name)
    logger.info(f"Training starts at step {step}: what was recorded of later steps is now in {aside}.")


def _finite(value):
    """A number as JSON can hold it: `None` for NaN and infinities."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
