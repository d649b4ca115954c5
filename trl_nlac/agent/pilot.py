# SPDX-License-Identifier: Apache-2.0

"""A pilot: the same tasks with and without an intervention of the critic, and whether to enable it."""

import hashlib
import json
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from transformers.utils import cached_file

from ..episodes.pool import EnvironmentPool
from ..evaluation.shares import paired_interval
from ..written_files import checksum, write_json
from .agent import NLACAgent
from .guard import Guard


PILOT_FILE = "nlac_pilot.json"  # saved beside a model
REFUSE = "--refuse"  # the intervention of a guard that blocks; others refine, or choose among candidates
ENABLE, DO_NOT_ENABLE = "enable", "do not enable"
MAX_NEEDED = 100_000  # tasks


@dataclass(frozen=True)
class PilotSide:
    """What the episodes of one side came to."""

    successes: int
    failed: int  # episodes that could not be played or scored
    tokens_per_task: float  # generated, in all roles
    calls_per_task: float  # of the model
    seconds_per_step: float  # environments included


@dataclass(frozen=True)
class Pilot:
    """The result of a pilot. An episode that failed on one side alone counts against the intervention."""

    intervention: str  # as the options of `trl-nlac serve`: `"--refuse"`, or `"--refine 1"`
    model: str
    weights: str  # see [`digest_of_weights`]
    environment: str
    block_below: float  # score below which actions were refused
    seed: int
    num_tasks: int
    gained: int  # tasks that only the side with the intervention won
    lost: int  # tasks that only the side without it won
    plain: PilotSide
    guarded: PilotSide

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> "Pilot":
        """Make a pilot of its attributes, as files have them; what is wrong raises whatever Python does."""
        pilot = _of_types(cls, row)
        if not 0 < pilot.num_tasks >= pilot.gained + pilot.lost or min(pilot.gained, pilot.lost) < 0:
            raise ValueError(f"{pilot.gained} gained and {pilot.lost} lost of {pilot.num_tasks} tasks")
        return pilot

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the difference in the share of successes."""
        return paired_interval(self.gained, self.lost, self.num_tasks)

    @property
    def verdict(self) -> str:
        """`"enable"` if the interval is above 0, else `"do not enable"`."""
        return ENABLE if self.interval[0] > 0 else DO_NOT_ENABLE

    @property
    def reason(self) -> str:
        """What was measured, what it means, and how many more tasks are needed."""
        difference, (low, high) = (self.gained - self.lost) / self.num_tasks, self.interval
        measured = f"success changes by {difference:+.2f} ({low:+.2f} to {high:+.2f}) on {self.num_tasks} tasks"
        if failed := self.plain.failed + self.guarded.failed:
            measured += f", {failed} episodes failed"
        if low > 0:
            return f"it helps: {measured}."
        if high < 0:
            return f"it harms: {measured}."
        if self.gained <= self.lost:
            return f"no gain is seen: {measured}."
        more = self.num_tasks_needed - self.num_tasks
        return f"a gain cannot be told from chance: {measured}. With this difference about {more} more are needed."

    @property
    def num_tasks_needed(self) -> int:
        """Number of tasks from which on the same gain would be told from chance."""
        gained, lost = self.gained / self.num_tasks, self.lost / self.num_tasks
        sizes = range(self.num_tasks, MAX_NEEDED)
        return next((n for n in sizes if paired_interval(gained * n, lost * n, n)[0] > 0), MAX_NEEDED)

    def save_pretrained(self, directory: str | Path) -> None:
        """Write it next to a model, in place of an earlier one of the same intervention."""
        pilots = read_pilots(str(directory)) | {self.intervention: self}
        rows = {name: {"verdict": one.verdict, "reason": one.reason, **asdict(one)} for name, one in pilots.items()}
        write_json(Path(directory, PILOT_FILE), rows)


def _of_types(cls: type, row: dict[str, Any]) -> Any:
    """Make an instance of a dataclass of a row, whose values can be rows of others."""
    values = {one.name: (one.type, row[one.name]) for one in fields(cls)}
    return cls(**{n: _of_types(kind, v) if kind is PilotSide else kind(v) for n, (kind, v) in values.items()})


def read_pilots(model: str) -> dict[str, Pilot]:
    """
    Read the pilots saved with a model, a folder or a repository on the Hub, by their interventions.

    Raises:
        ValueError: If the file has no pilots.
    """
    return _find_pilots(model)[0]


def _find_pilots(model: str) -> tuple[dict[str, Pilot], Path | None]:
    """Return the pilots of [`read_pilots`], and the folder in which they are."""
    path = cached_file(model, PILOT_FILE, _raise_exceptions_for_missing_entries=False)
    if path is None:
        return {}, None
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
        return {name: Pilot.of_row(row) for name, row in rows.items()}, Path(path).parent
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(
            f"{path} has no results of pilots ({type(error).__name__}: {error}). Remove it, and play them again."
        ) from error


def refuse_unproven(model: str, intervention: str, guard: Guard) -> None:
    """
    Refuse an intervention that no pilot of this model enables.

    Raises:
        ValueError: If there is none, it was of other weights or another threshold, or its verdict is no.
    """
    pilots, folder = _find_pilots(model)
    pilot = pilots.get(intervention)
    words = "" if intervention == REFUSE else f" {intervention}"
    again = f"Play one with `trl-nlac calibrate {model} --pilot 100{words}`, or add --without_pilot."
    if pilot is None:
        raise ValueError(f"no pilot says that this helps. {again}")
    if pilot.weights != digest_of_weights(folder):
        raise ValueError(f"the pilot in {PILOT_FILE} was played with other weights. {again}")
    if intervention == REFUSE and pilot.block_below != guard.block_below:
        before, now = pilot.block_below, guard.block_below
        raise ValueError(
            f"the pilot refused below a score of {before:.3f}, and the guard does below {now:.3f}. {again}"
        )
    if pilot.verdict != ENABLE:
        raise ValueError(
            f'the pilot says "{DO_NOT_ENABLE}": {pilot.reason} Leave the option out, or add --without_pilot.'
        )


def digest_of_weights(folder: Path) -> str:
    """Return a digest of the weights in a folder, which tells whether a model was trained since."""
    weights = (path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin") and path.is_file())
    return hashlib.sha256(" ".join(map(checksum, sorted(weights))).encode()).hexdigest()


def name_intervention(refine: int, num_candidates: int) -> str:
    """Name how actions are improved, as options; where they are not, a guard refuses them."""
    words = [f"--refine {refine}"] * (refine > 0) + [f"--num_candidates {num_candidates}"] * (num_candidates > 1)
    return " ".join(words) or REFUSE


def play_pilot(
    agent: NLACAgent,
    environments: EnvironmentPool,
    tasks: list[dict[str, Any]],
    model: str,
    environment: str,
    refine: int = 0,
    num_candidates: int = 1,
    seed: int = 0,
    **options,
) -> Pilot:
    """
    Play tasks twice with the same seeds: as the policy acts, and with an intervention. `refine`, `num_candidates` and
    other `options` are those of [`NLACAgent.evaluate`]; without the first two the guard of `model`, a folder, refuses
    actions. `environment` is written down.

    Raises:
        ValueError: If not one of a side's episodes can be played and scored.
    """
    guard, intervention = Guard.from_pretrained(model), name_intervention(refine, num_candidates)
    improved = {"refine": refine, "num_candidates": num_candidates}
    options |= {"num_critiques": 0, "seed": seed}
    before, plain = _play(agent, environments, tasks, **options)
    after, guarded = _play(
        agent, environments, tasks, **options, **({"guard": guard} if intervention == REFUSE else improved)
    )
    changes = [after.get(task, 0) - before.get(task, 1) for task in before.keys() | after.keys()]
    gained, lost, weights = changes.count(1), changes.count(-1), digest_of_weights(Path(model))
    played = (intervention, model, weights, environment, guard.block_below, seed, len(tasks))
    return Pilot(*played, gained, lost, plain, guarded)


def _play(
    agent: NLACAgent, environments: EnvironmentPool, tasks: list[dict[str, Any]], **options
) -> tuple[dict[int, float], PilotSide]:
    """Play one side; return also 1 or 0 for the success of each task whose episode did not fail, by its number."""
    tally, start = agent.roles.tally, time.perf_counter()
    num_tokens, num_calls = tally.num_generated_tokens, tally.num_calls
    evaluation = agent.evaluate(environments, tasks, **options)
    seconds = time.perf_counter() - start
    if not evaluation.outcomes:
        raise ValueError(
            f"not one of {len(tasks)} episodes could be played and scored. The last failure:\n"
            f"{environments.last_failure or 'none'}"
        )
    won = dict(evaluation.outcomes)
    return won, PilotSide(
        successes=int(sum(won.values())),
        failed=len(tasks) - len(won),
        tokens_per_task=(tally.num_generated_tokens - num_tokens) / len(tasks),
        calls_per_task=(tally.num_calls - num_calls) / len(tasks),
        seconds_per_step=seconds / sum(episode.num_turns for episode in evaluation.episodes),
    )
