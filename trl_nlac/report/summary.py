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

"""The summary at the top of the report."""

import json
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import ModelCard

from ..records.log import TrainingLog


@dataclass(frozen=True)
class Success:
    """
    Success in the evaluations on one dataset.

    Args:
        dataset (`str`):
            Name of the dataset; empty if there is only one.
        first (`float`):
            Success rate in the first evaluation.
        best (`float`):
            Highest success rate.
        last (`float`):
            Success rate in the newest evaluation.
        low (`float`, *optional*):
            Lower end of its 95 % interval.
        high (`float`, *optional*):
            Upper end.
    """

    dataset: str
    first: float
    best: float
    last: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Summary:
    """
    The state of a run.

    Args:
        name (`str`):
            Folder of the run.
        model (`str`, *optional*):
            The trained model: the base model in the model card, otherwise the architecture.
        step (`int`):
            Optimizer steps.
        environment_steps (`int`):
            Environment steps.
        duration (`str`, *optional*):
            Duration of training. `None` if it has not ended.
        successes (`list[Success]`):
            One for each evaluation dataset.
        training_success (`float`, *optional*):
            Success rate in training, last logged value.
    """

    name: str
    model: str | None
    step: int
    environment_steps: int
    duration: str | None
    successes: list[Success]
    training_success: float | None


def summarize(run: Path, log: TrainingLog) -> Summary:
    """Summarize a run from its log and the model in its folder."""
    rows = [*log.training, *(row for rows in log.evaluations.values() for row in rows)]
    training_rates = [row["episode/success_rate"] for row in log.training if "episode/success_rate" in row]
    return Summary(
        name=run.name,
        model=_model(run),
        step=max((row["step"] for row in rows), default=0),
        environment_steps=max((row.get("environment/steps", 0) for row in rows), default=0),
        duration=None if log.seconds is None else _duration(log.seconds),
        successes=[success for item in log.evaluations.items() if (success := _success(*item)) is not None],
        training_success=training_rates[-1] if training_rates else None,
    )


def _success(dataset: str, rows: list[dict[str, float]]) -> Success | None:
    rows = [row for row in rows if "episode/success_rate" in row]
    if not rows:
        return None
    rates, last = [row["episode/success_rate"] for row in rows], rows[-1]
    low, high = (last.get(f"episode/success_rate_{end}") for end in ("low", "high"))
    return Success(dataset, rates[0], max(rates), rates[-1], low, high)


def _model(run: Path) -> str | None:
    card, config = run / "README.md", run / "config.json"
    base = ModelCard.load(card, ignore_metadata_errors=True).data.base_model if card.exists() else None
    if base is None and config.exists():
        base = json.loads(config.read_text()).get("architectures")
    return ", ".join(base) if isinstance(base, list) else base


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
