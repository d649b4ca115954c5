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

"""The folder of a run: names of its files, and its log. Records of later steps are set aside when a run resumes."""

import json
import math
import re
from itertools import compress
from pathlib import Path

from accelerate.logging import get_logger
from transformers import TrainerCallback


logger = get_logger(__name__)

TRAINING_LOG = "training_log.jsonl"
COMPLETIONS = "completions"
# Not uploaded with the output folder, because of the underscore.
AUDIT = "_audit"
SUPERSEDED = "_superseded"
# Files of episodes and of audited samples; those of an evaluation begin with its kind.
RECORD_FILE = re.compile(r"(?:(?P<kind>.+)_)?(?:completions|audit)_(?P<step>\d+)(?:_process\d+)?\.parquet")


def completions_file(output_dir: str | Path, step: int, kind: str = "") -> Path:
    """Name the file of the episodes until a step; `kind` is the prefix of an evaluation, such as `"eval"`."""
    return Path(output_dir, COMPLETIONS, f"{kind}_{COMPLETIONS}_{step:05d}.parquet".lstrip("_"))


def audit_file(output_dir: str | Path, step: int, process: int) -> Path:
    """Name the file of the samples that one process trained on until a step."""
    return Path(output_dir, AUDIT, f"audit_{step:05d}_process{process}.parquet")


class TrainingLogCallback(TrainerCallback):
    """
    Write every log of a [`~transformers.Trainer`] as a line of JSON to `training_log.jsonl` in the output folder. When
    training starts at a step, the records of later steps are set aside in the folder `_superseded`.
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
    """Move a run's records of later steps into its folder `_superseded`."""
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
    logger.info(f"Training starts at step {step}: the records of later steps are now in {aside}.")


def _finite(value):
    """Return a number as JSON can hold it: `None` for NaN and infinities."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
