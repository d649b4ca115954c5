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

"""Selection of a run's episodes from its parquet files, without loading all of them."""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..records.folder import AUDIT, COMPLETIONS, RECORD_FILE
from .episodes import audited_episode, played_episode


MAX_EPISODES = 1000

Key = tuple[int, int]  # process, and number of the episode there


@dataclass(frozen=True)
class Episodes:
    """
    The episodes in the files of a run.

    Args:
        shown (`list[dict[str, Any]]`):
            Episodes of the page, by step.
        num_train (`int`):
            Number of all training episodes.
        num_eval (`int`):
            Number of all evaluation episodes.
        verdicts (`dict[tuple[str, int], list[tuple[float, bool]]]`):
            Verdict scores of actions and whether their episodes succeeded, by dataset and step of the evaluation.
        unreadable (`list[str]`):
            Names of files that are not parquet, such as one that was being written when the run was killed.
    """

    shown: list[dict[str, Any]]
    num_train: int
    num_eval: int
    verdicts: dict[tuple[str, int], list[tuple[float, bool]]]
    unreadable: list[str]


@dataclass(frozen=True)
class _File:
    path: Path
    step: int
    kind: str  # prefix of the metrics of an evaluation; empty in training

    @property
    def dataset(self) -> str:
        return self.kind.removeprefix("eval").removeprefix("_")


@dataclass(frozen=True)
class _Place:
    """Place of an episode: a row of a file, or only audited samples."""

    step: int
    key: Key | None  # `None` in evaluation
    file: _File | None
    row: int


def read_episodes(run: Path, limit: int = MAX_EPISODES) -> Episodes:
    """
    Read the episodes of the page: the newest of evaluation, and an even sample over training. Evaluation and training
    get half of `limit` each, and episodes with audited samples half of training's share. If one group needs less, the
    others get the rest.

    Args:
        run (`Path`):
            Folder of the run.
        limit (`int`, *optional*, defaults to `MAX_EPISODES`):
            Maximum number of episodes.
    """
    unreadable: list[str] = []
    completions, audits = (list(_files(run / folder, unreadable)) for folder in (COMPLETIONS, AUDIT))
    evaluations, verdicts = _look_at_evaluations([file for file in completions if file.kind])
    played = list(_look_at_training([file for file in completions if not file.kind]))
    first_audits = _look_at_audits(audits)
    known = {place.key for place in played}
    audited = [place for place in played if place.key in first_audits]
    audited += [_Place(step, key, None, 0) for key, step in first_audits.items() if key not in known]
    others = [place for place in played if place.key not in first_audits]

    chosen = evaluations[-max(limit // 2, limit - len(audited) - len(others)) :]
    room = limit - len(chosen)
    chosen += _spread(sorted(audited, key=lambda place: place.step), max(room // 2, room - len(others)))
    chosen += _spread(others, limit - len(chosen))
    shown = _read(sorted(chosen, key=lambda place: place.step), audits)
    return Episodes(shown, len(audited) + len(others), len(evaluations), verdicts, unreadable)


def _files(folder: Path, unreadable: list[str]) -> Iterator[_File]:
    """Yield the files of a folder by step; add those that cannot be read to `unreadable`."""
    found = [(match, path) for path in folder.glob("*.parquet") if (match := RECORD_FILE.fullmatch(path.name))]
    for match, path in sorted(found, key=lambda pair: (int(pair[0]["step"]), pair[1].name)):
        try:
            pq.read_metadata(path)
        except pa.ArrowInvalid:
            unreadable.append(path.name)
        else:
            yield _File(path, int(match["step"]), match["kind"] or "")


def _look_at_evaluations(files: list[_File]) -> tuple[list[_Place], dict[tuple[str, int], list[tuple[float, bool]]]]:
    """Return the places of the episodes, and the critic's verdicts on them."""
    places, verdicts = [], defaultdict(list)
    for file in files:
        rows = pq.read_table(file.path, columns=["step", "turns", "success", "failure"]).to_pylist()
        for i, row in enumerate(rows):
            places.append(_Place(row["step"], None, file, i))
            if row["failure"] is None:
                scores = [turn["verdict_score"] for turn in row["turns"]]
                pairs = [(score, row["success"]) for score in scores if score is not None and math.isfinite(score)]
                verdicts[file.dataset, file.step] += pairs
    return places, {evaluation: pairs for evaluation, pairs in verdicts.items() if pairs}


def _look_at_training(files: list[_File]) -> Iterator[_Place]:
    for file in files:
        table = pq.read_table(file.path, columns=["step", "process", "episode"])
        for i, row in enumerate(table.to_pylist()):
            yield _Place(row["step"], (row["process"], row["episode"]), file, i)


def _look_at_audits(files: list[_File]) -> dict[Key, int]:
    """Return the step of the first audited sample of every episode that has one."""
    steps: dict[Key, int] = {}
    for file in files:
        for row in pq.read_table(file.path, columns=["step", "process", "episode"]).to_pylist():
            steps.setdefault((row["process"], row["episode"]), row["step"])
    return steps


def _spread(places: list[_Place], number: int) -> list[_Place]:
    """Return at most `number` of the places, evenly spaced, including the last one."""
    if len(places) <= number:
        return places
    return [places[(i + 1) * len(places) // number - 1] for i in range(number)]


def _read(places: list[_Place], audits: list[_File]) -> list[dict[str, Any]]:
    """Read the episodes at these places, in order."""
    keys = {place.key for place in places}
    samples = defaultdict(list)
    for file in audits:
        for row in pq.read_table(file.path).to_pylist():
            if (row["process"], row["episode"]) in keys:
                samples[row["process"], row["episode"]].append(row)
    of_file = defaultdict(list)
    for place in places:
        if place.file is not None:
            of_file[place.file].append(place)
    rows = {}
    for file, of_it in of_file.items():
        table = pq.read_table(file.path).take([place.row for place in of_it])
        rows.update(zip(of_it, table.to_pylist(), strict=True))
    return [
        audited_episode(samples[place.key])
        if place.file is None
        else played_episode(
            rows[place],
            "eval" if place.file.kind else "train",
            place.file.dataset,
            samples[place.key] if place.key else [],
        )
        for place in places
    ]
