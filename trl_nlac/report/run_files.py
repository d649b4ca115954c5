# SPDX-License-Identifier: Apache-2.0

"""Selection of a run's episodes from its parquet files, without loading all of them."""

import json
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..records.folder import AUDIT, COMPLETIONS, EPISODES, RECORD_FILE, kind_of
from ..terminal import printable
from .episodes import audited_episode, played_episode
from .shown_notes import Times


logger = logging.getLogger(__name__)

MAX_EPISODES = 1000
MAX_REASONS = 20  # of failures
MAX_REASON = 300  # characters
_KEYS = ["step", "process", "episode"]

Key = tuple[int, int]  # process, and number of the episode there


@dataclass(frozen=True)
class Episodes:
    """The episodes in the files of a run."""

    shown: list[dict[str, Any]]  # episodes of the page, by step
    num_train: int
    num_eval: int
    # verdict scores of actions and whether their episodes succeeded, by dataset and step of the evaluation
    verdicts: dict[tuple[str, int], list[tuple[float, bool]]]
    # numbers of successes and of episodes in evaluation, by dataset, number of the task, and step. As in the success
    # rate, episodes whose environment failed and those without a turn do not count.
    tasks: dict[str, dict[int, dict[int, list[int]]]]
    # index, among those of the page, of the first episode of training that succeeded, or else of evaluation
    first_success: int | None
    failures: dict[str, Times]  # failures of environments by their reason, the most frequent first
    # names of files of which something could not be read, such as one that was being written when the run was killed.
    # Their other rows are among the episodes.
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
    succeeded: bool = False
    task: int = -1  # number of the task in an evaluation
    is_played: bool = True  # its environment did not fail, and it has a turn


def read_episodes(run: Path, limit: int = MAX_EPISODES) -> Episodes:
    """
    Read the episodes of the page: the newest evaluation and, as far as there is room, the same tasks in the others,
    and an even sample over training. Evaluation and training get half of `limit` each, and episodes with audited
    samples half of training's share. If one group needs less, the others get the rest. The first success is always
    among them.
    """
    files = _Files()
    few, completions, audits = (list(files.find(run / folder)) for folder in (EPISODES, COMPLETIONS, AUDIT))
    completions = sorted(few + completions, key=lambda file: file.step)  # of several sessions of a run
    evaluations, verdicts = _look_at_evaluations(files, [file for file in completions if file.kind])
    played = list(_look_at_training(files, [file for file in completions if not file.kind]))
    first_audits = _look_at_audits(files, audits)
    known = {place.key for place in played}
    audited = [place for place in played if place.key in first_audits]
    audited += [_Place(step, key, None, 0) for key, step in first_audits.items() if key not in known]
    others = [place for place in played if place.key not in first_audits]

    chosen = _over_time(evaluations, max(limit // 2, limit - len(audited) - len(others)))
    room = limit - len(chosen)
    chosen += _spread(sorted(audited, key=lambda place: place.step), max(room // 2, room - len(others)))
    chosen += _spread(others, limit - len(chosen))
    first = next((place for place in [*played, *evaluations] if place.succeeded), None)
    if first is not None and first not in chosen:
        chosen[len(chosen) // 2] = first
    shown, first_success = [], None
    for place, episode in _read(files, sorted(chosen, key=lambda place: place.step), audits):
        if place == first:
            first_success = len(shown)
        shown.append(episode)
    num_train, num_eval = len(audited) + len(others), len(evaluations)
    failures = dict(sorted(files.failures.items(), key=lambda item: -item[1].count))
    unreadable = list(files.unreadable)
    return Episodes(shown, num_train, num_eval, verdicts, _tasks(evaluations), first_success, failures, unreadable)


class _Files:
    """Read the files of a run. Those of which something cannot be read are named once, and the rest is read."""

    def __init__(self):
        self.unreadable: dict[str, None] = {}  # names, in order
        self.failures: dict[str, Times] = {}

    def find(self, folder: Path) -> Iterator[_File]:
        """Yield the files of a folder by step."""
        found = [(match, path) for path in folder.glob("*.parquet") if (match := RECORD_FILE.fullmatch(path.name))]
        for match, path in sorted(found, key=lambda pair: (int(pair[0]["step"]), pair[1].name)):
            if path.is_file():
                yield _File(path, int(match["step"]), kind_of(match))
            else:  # reading a pipe or a device may never end
                self._note(path, "it is no file")

    def _note(self, path: Path, reason: str) -> None:
        """Name a file of which something cannot be read, once."""
        if path.name not in self.unreadable:
            logger.warning("%s", printable(f"{path} is damaged, and a part of it is left out: {reason}"))
        self.unreadable[path.name] = None

    def rows(
        self, file: _File, columns: list[str] | None = None, chosen: set[int] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the rows of a file, or some `chosen` ones, with their numbers; without those that are damaged."""
        start = 0
        with self.skipping(file), pq.ParquetFile(file.path, page_checksum_verification=True) as parquet:
            missing = {*(columns or [])} - {*parquet.schema_arrow.names}
            if missing:
                raise KeyError(f"the column {min(missing)} is missing")
            for group in range(parquet.num_row_groups):
                end = start + parquet.metadata.row_group(group).num_rows
                numbers = [i for i in range(start, end) if chosen is None or i in chosen]
                with self.skipping(file):
                    table = parquet.read_row_group(group, columns=columns).take([i - start for i in numbers])
                    yield from zip(numbers, table.to_pylist(), strict=True)
                start = end

    def note_failure(self, row: dict[str, Any]) -> None:
        """Count the failure of an episode, if its environment failed."""
        if row["failure"] is not None:
            reason, step = " ".join(row["failure"][:MAX_REASON].split()), int(row["step"])
            if reason not in self.failures and len(self.failures) >= MAX_REASONS:
                reason = "other reasons"
            failures = self.failures.setdefault(reason, Times(0, step, step))
            failures.count += 1
            failures.first, failures.last = min(step, failures.first), max(step, failures.last)

    @contextmanager
    def skipping(self, file: _File) -> Iterator[None]:
        """Name the file where something in it is odd, and go on after it."""
        try:
            yield
        except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
            self._note(file.path, " ".join(str(error).split()))


def _look_at_evaluations(
    files: _Files, evaluations: list[_File]
) -> tuple[list[_Place], dict[tuple[str, int], list[tuple[float, bool]]]]:
    """Return the places of the episodes, and the critic's verdicts on them."""
    places, verdicts = [], defaultdict(list)
    for file in evaluations:
        for i, row in files.rows(file, ["step", "episode", "turns", "success", "failure"]):
            with files.skipping(file):
                files.note_failure(row)
                if row["failure"] is None:
                    scores = [turn["verdict_score"] for turn in row["turns"]]
                    pairs = [(score, row["success"]) for score in scores if score is not None and math.isfinite(score)]
                    verdicts[file.dataset, file.step] += pairs
                succeeded = row["failure"] is None and bool(row["success"])
                is_played = row["failure"] is None and bool(row["turns"])
                places.append(_Place(int(row["step"]), None, file, i, succeeded, int(row["episode"]), is_played))
    return places, {evaluation: pairs for evaluation, pairs in verdicts.items() if pairs}


def _look_at_training(files: _Files, completions: list[_File]) -> Iterator[_Place]:
    for file in completions:
        for i, row in files.rows(file, [*_KEYS, "success", "failure"]):
            with files.skipping(file):
                files.note_failure(row)
                succeeded = row["failure"] is None and bool(row["success"])
                yield _Place(int(row["step"]), _key(row), file, i, succeeded)


def _look_at_audits(files: _Files, audits: list[_File]) -> dict[Key, int]:
    """Return the step of the first audited sample of every episode that has one."""
    steps: dict[Key, int] = {}
    for file in audits:
        for _, row in files.rows(file, _KEYS):
            with files.skipping(file):
                steps.setdefault(_key(row), int(row["step"]))
    return steps


def _tasks(evaluations: list[_Place]) -> dict[str, dict[int, dict[int, list[int]]]]:
    """Count successes and episodes of evaluations by dataset, task and step."""
    found: dict[str, dict[int, dict[int, list[int]]]] = {}
    for place in [place for place in evaluations if place.is_played]:
        counts = found.setdefault(place.file.dataset, {}).setdefault(place.task, {}).setdefault(place.step, [0, 0])
        counts[0] += place.succeeded
        counts[1] += 1
    return found


def _over_time(places: list[_Place], number: int) -> list[_Place]:
    """At most `number` places of evaluations: the newest of each dataset, and the same tasks at all other times."""
    if len(places) <= number:
        return list(places)
    newest = {place.file.dataset: place.step for place in places}
    is_newest = [place.step == newest[place.file.dataset] for place in places]
    now = [place for place, is_so in zip(places, is_newest, strict=True) if is_so]
    before = [place for place, is_so in zip(places, is_newest, strict=True) if not is_so]
    now = _in_turns(now)[: number // 2 if before else number]
    return now + _in_turns(before)[: number - len(now)]


def _in_turns(places: list[_Place]) -> list[_Place]:
    """Order places so that each task at each time comes once before any comes again."""
    seen: Counter[tuple[str, int, int]] = Counter()
    keyed = []
    for place in places:
        evaluation = (place.file.dataset, place.task, place.step)
        keyed.append(((seen[evaluation], place.task, place.step), place))
        seen[evaluation] += 1
    return [place for _, place in sorted(keyed, key=lambda pair: pair[0])]


def _spread(places: list[_Place], number: int) -> list[_Place]:
    """Return at most `number` of the places, evenly spaced, including the last one."""
    if len(places) <= number:
        return places
    return [places[(i + 1) * len(places) // number - 1] for i in range(number)]


def _read(files: _Files, places: list[_Place], audits: list[_File]) -> Iterator[tuple[_Place, dict[str, Any]]]:
    """Read the episodes at these places, in order."""
    keys = {place.key for place in places}
    samples = defaultdict(list)
    for file in audits:
        for _, row in files.rows(file):
            with files.skipping(file):
                if _key(row) in keys:
                    _as_data(audited_episode([row]))  # a damaged sample costs itself alone
                    samples[_key(row)].append(row)
    chosen = defaultdict(set)
    for place in places:
        if place.file is not None:
            chosen[place.file].add(place.row)
    rows = {(file, i): row for file, of_it in chosen.items() for i, row in files.rows(file, chosen=of_it)}
    for place in places:
        of_it = samples[place.key] if place.key else []
        if place.file is None:
            if of_it:
                yield place, audited_episode(of_it)
        elif (place.file, place.row) in rows:
            split = "eval" if place.file.kind else "train"
            with files.skipping(place.file):
                yield place, _as_data(played_episode(rows[place.file, place.row], split, place.file.dataset, of_it))


def _key(row: dict[str, Any]) -> Key:
    return int(row["process"]), int(row["episode"])


def _as_data(episode: dict[str, Any]) -> dict[str, Any]:
    """Return an episode that the page can hold; a `ValueError` or `TypeError` if there is no JSON of it."""
    json.dumps(episode, allow_nan=False)
    return episode
