# SPDX-License-Identifier: Apache-2.0

"""Bellman targets that stay with their transitions."""

import json
import zlib
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ..types import Answer, Critique, Sample, Transition


class KeptTargets:
    """
    Bellman targets of the transitions in a replay buffer, the newest of each, with the version of the target weights
    that wrote it. They are stored compressed, without the part of their prompts that the episode holds.
    """

    def __init__(self):
        self._records: dict[int, tuple[int, bytes]] = {}  # transition id -> version, and the rest as compressed JSON

    def __len__(self) -> int:
        return len(self._records)

    def keep(self, sample: Sample, target: Answer, version: int) -> None:
        """Keep the target of a transition, `None` if unreadable, and the number of updates of the target weights."""
        text = json.dumps(_written(target, sample.transition))
        self._records[sample.transition_id] = (version, zlib.compress(text.encode()))

    def version(self, sample: Sample) -> int | None:
        """Return the version that wrote the target of a transition; `None` if there is no target."""
        version, _ = self._records.get(sample.transition_id, (None, b""))
        return version

    def target(self, sample: Sample) -> Answer:
        """Return the target of a transition."""
        _, record = self._records[sample.transition_id]
        return _read(json.loads(zlib.decompress(record)), sample.transition)

    def drop(self, transition_ids: Iterable[int]) -> None:
        """Drop the targets of transitions."""
        for transition_id in transition_ids:
            self._records.pop(transition_id, None)

    def drop_before(self, version: int) -> None:
        """Drop the targets that earlier versions wrote."""
        self._records = {i: record for i, record in self._records.items() if record[0] >= version}

    def clear(self) -> None:
        """Drop all targets."""
        self._records.clear()

    def dump(self, transition_id: int) -> str | None:
        """Return the target of a transition, with its version, as JSON; `None` if there is none."""
        if transition_id not in self._records:
            return None
        version, record = self._records[transition_id]
        return json.dumps({"version": version, **json.loads(zlib.decompress(record))})

    def load(self, transition_id: int, text: str) -> None:
        """Keep a target of [`KeptTargets.dump`]."""
        fields = json.loads(text)
        version = fields.pop("version")
        self._records[transition_id] = (version, zlib.compress(json.dumps(fields).encode()))


def _written(target: Answer, transition: Transition) -> dict:
    prompt = target.prompt
    is_shared = prompt.trunk is transition.episode.token_ids  # not where a long history was cut
    return {
        "trunk": None if is_shared else prompt.trunk.tolist(),
        "trunk_start": prompt.trunk_start,
        "trunk_end": prompt.trunk_end,
        "branch": list(prompt.branch),
        "token_ids": list(target.token_ids),
        "text": target.text,
        "critique": None if target.parsed is None else vars(target.parsed),
    }


def _read(fields: dict, transition: Transition) -> Answer:
    trunk = fields["trunk"]
    prompt = replace(
        transition.state_action,
        trunk=transition.episode.token_ids if trunk is None else np.array(trunk, dtype=np.int32),
        trunk_start=fields["trunk_start"],
        trunk_end=fields["trunk_end"],
        branch=tuple(fields["branch"]),
    )
    critique = None
    if fields["critique"] is not None:
        span = fields["critique"]["verdict_span"]
        critique = Critique(**{**fields["critique"], "verdict_span": None if span is None else tuple(span)})
    return Answer(prompt, tuple(fields["token_ids"]), fields["text"], critique)
