# SPDX-License-Identifier: Apache-2.0

"""The summary at the top of the report."""

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from huggingface_hub import ModelCard

from ..records.log import TrainingLog
from ..terminal import printable
from .rendering import duration


logger = logging.getLogger(__name__)

ROLE_NAMES = {"act": "acting", "policy": "policy, not acting", "score": "verdict scores"}
TOKEN_KINDS = ("generated", "prefilled", "cached", "trained")


@dataclass(frozen=True)
class Success:
    """Success in the evaluations on one dataset."""

    dataset: str  # name of the dataset; empty if there is only one
    first: float  # success rate in the first evaluation
    best: float  # highest one
    last: float  # in the newest evaluation
    low: float | None  # lower end of its 95 % interval
    high: float | None


@dataclass(frozen=True)
class Summary:
    """The state of a run, by default one of which nothing could be read."""

    name: str  # folder of the run
    model: str | None = None  # the trained model: the base model in the model card, otherwise the architecture
    step: int = 0  # of the optimizer
    environment_steps: int = 0
    tokens: dict[str, int] = field(default_factory=dict)  # tokens of training by kind, of `TOKEN_KINDS`
    duration: str | None = None  # duration of training. `None` if it has not ended.
    successes: list[Success] = field(default_factory=list)  # one for each evaluation dataset
    training_success: float | None = None  # success rate in training, last logged value
    unreadable: list[str] = field(default_factory=list)  # names of files that could not be read


def summarize(run: Path, log: TrainingLog) -> Summary:
    """Summarize a run from its log and the model in its folder."""
    rows = [*log.training, *(row for rows in log.evaluations.values() for row in rows)]
    model, unreadable = _model(run)
    training_rates = [row["episode/success_rate"] for row in log.training if "episode/success_rate" in row]
    last = log.training[-1] if log.training else {}
    return Summary(
        name=run.name,
        model=model,
        step=max((row["step"] for row in rows), default=0),
        environment_steps=max((row.get("environment/steps", 0) for row in rows), default=0),
        tokens={kind: round(last[f"tokens/{kind}"]) for kind in TOKEN_KINDS if f"tokens/{kind}" in last},
        duration=None if log.seconds is None else duration(log.seconds),
        successes=[success for item in log.evaluations.items() if (success := _success(*item)) is not None],
        training_success=training_rates[-1] if training_rates else None,
        unreadable=unreadable,
    )


@dataclass(frozen=True)
class SpentTokens:
    """Tokens of training by role."""

    kinds: list[str]
    roles: dict[str, list[int | None]]  # number of each kind, by role; `None` where it was not counted


def spent_tokens(row: dict[str, float]) -> SpentTokens | None:
    """Read the tokens of each role out of a log; `None` if it does not have them."""
    found: dict[str, dict[str, int]] = {}
    for name, number in row.items():
        if name.startswith("tokens/") and name.count("/") == 2:
            _, kind, role = name.split("/")
            found.setdefault(ROLE_NAMES.get(role, role), {})[kind] = round(number)
    kinds = [kind for kind in TOKEN_KINDS if any(kind in numbers for numbers in found.values())]
    order = sorted(found, key=lambda role: -sum(found[role].get(kind, 0) for kind in ("generated", "prefilled")))
    return SpentTokens(kinds, {role: [found[role].get(kind) for kind in kinds] for role in order}) if kinds else None


def _success(dataset: str, rows: list[dict[str, float]]) -> Success | None:
    rows = [row for row in rows if "episode/success_rate" in row]
    if not rows:
        return None
    rates, last = [row["episode/success_rate"] for row in rows], rows[-1]
    low, high = (last.get(f"episode/success_rate_{end}") for end in ("low", "high"))
    return Success(dataset, rates[0], max(rates), rates[-1], low, high)


def _model(run: Path) -> tuple[str | None, list[str]]:
    """Find the trained model; returns it, and the names of files that could not be read."""
    unreadable = []
    readers = {
        "README.md": lambda card: ModelCard.load(card, ignore_metadata_errors=True).data.base_model,
        "config.json": lambda config: json.loads(config.read_text(encoding="utf-8")).get("architectures"),
    }
    for name, read in readers.items():
        try:
            found = read(run / name) if (run / name).is_file() else None
        except (ValueError, TypeError, AttributeError, OSError, RecursionError, yaml.YAMLError) as error:
            logger.warning("%s", printable(f"{run / name} cannot be read: {error}"))
            unreadable.append(name)
            continue
        if found:
            return ", ".join(map(str, found)) if isinstance(found, list) else str(found), unreadable
    return None, unreadable
