# SPDX-License-Identifier: Apache-2.0

"""Samples of the roles, mixed into the batches so that the model does not forget a role."""

import json
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from accelerate.logging import get_logger
from accelerate.utils import gather_object
from datasets import Dataset

from ..chat.encoder import ChatEncoder
from ..method.roles import Roles
from ..method.sound_answers import ASKED_ROLES, sound_answers
from ..terminal import shown
from ..types import Prompt, RunRefused, TrainingExample, Transition


logger = get_logger(__name__)

NUM_REHEARSAL_TRANSITIONS = 128  # about which the initial model is asked, over all processes
_FILE = Path("nlac", "rehearsal.parquet")  # in a checkpoint
_ROW = pa.schema({"prompt_ids": pa.list_(pa.int32()), "completion_ids": pa.list_(pa.int32())})


class Rehearsal:
    """
    Draw rehearsal samples.

    Args:
        dataset ([`~datasets.Dataset`], *optional*):
            With the conversational columns `prompt` and `completion` (one assistant message), and optionally `tools`
            (JSON schemas, as a list or in JSON).
        source (`str`):
            `"dataset"`, or `"self"` for answers of the initial model, which [`fill`] adds.
        ratio (`float`):
            Number of samples relative to the transitions of a batch.
        chat ([`~chat.encoder.ChatEncoder`]):
            Encodes the samples.
        seed (`int`):
            Seed of the draws.
        asked (`tuple[str, ...]`, *optional*, defaults to `ASKED_ROLES`):
            Roles that the run asks. A warning names those of which a dataset with the column `role` has no sample.

    Raises:
        ValueError: If there is a ratio without a dataset, a dataset without one of the columns, a row that the chat
            template cannot show, or a dataset beside another source.

    Attributes:
        is_asked (`bool`):
            Whether the initial model has been asked for its own answers, of which none may have been sound.
    """

    def __init__(
        self,
        dataset: Dataset | None,
        source: str,
        ratio: float,
        chat: ChatEncoder,
        seed: int,
        asked: tuple[str, ...] = ASKED_ROLES,
    ):
        if source == "self" and dataset:
            raise ValueError(
                "`rehearsal_source='self'` rehearses the model's own answers, and there is a `rehearsal_dataset` as "
                "well. Leave one of them out."
            )
        if source == "dataset" and ratio and not dataset:
            raise ValueError(
                f"`rehearsal_ratio={ratio}` needs a `rehearsal_dataset` with at least one row, or "
                "`rehearsal_source='self'`."
            )
        self.source = source
        self.ratio = ratio
        self.rng = np.random.default_rng(seed)
        self.owed = 0.0  # samples that the batches so far had too little
        self.is_asked = False
        self._examples: list[TrainingExample] = []
        if dataset and ratio:
            self._examples = [_example(i, row, chat) for i, row in enumerate(_checked(dataset))]
            self._warn_of_missing(dataset, asked)
        elif dataset:
            logger.warning("`rehearsal_dataset` is not used, because `rehearsal_ratio` is 0.")

    @property
    def is_due(self) -> bool:
        """Whether the initial model's own answers have yet to be written, while its weights are the model's."""
        return self.source == "self" and self.ratio > 0 and not self.is_asked

    def ask(self, roles: Roles, transitions: list[Transition], bootstrap: str, num_refinements: int) -> None:
        """Generate the samples with the model's current weights, about transitions. All processes call this."""
        with roles.tally.unrecorded():
            answers = sound_answers(roles, transitions, bootstrap, num_refinements)
        self.fill(
            gather_object(
                [(role, roles.builder.opened(a.prompt), a.token_ids) for role, found in answers.items() for a in found]
            )
        )

    def fill(self, answers: list[tuple[str, Prompt, tuple[int, ...]]]) -> None:
        """
        Rehearse answers, each with its role, prompt and tokens. Those of rarer roles are repeated, so that each role
        is drawn as often. A warning names the roles of which there is none.
        """
        self.is_asked = True
        by_role: dict[str, list[TrainingExample]] = {}
        for role, prompt, token_ids in answers:
            by_role.setdefault(role, []).append(TrainingExample("rehearsal", prompt, token_ids))
        missing = [role for role in ASKED_ROLES if role not in by_role]
        if missing:
            logger.warning(
                "`rehearsal_source='self'`: the model gave no sound answer as %s, and cannot rehearse that. Add "
                "worked examples to the prompts (`NLACPrompts.examples`), or let a stronger model write a "
                "`rehearsal_dataset`: `trl-nlac rehearse`.",
                ", ".join(missing),
            )
        size = max(map(len, by_role.values()), default=0)
        for examples in by_role.values():
            self._examples += islice(cycle(examples), size)

    @staticmethod
    def _warn_of_missing(dataset: Dataset, asked: tuple[str, ...]) -> None:
        if "role" not in dataset.column_names:
            return
        missing = sorted(set(asked) - set(dataset["role"]))
        if missing:
            logger.warning(
                "`rehearsal_dataset` has no sample of %s, which this run asks: a model that learned its roles from "
                "this dataset cannot answer. Write one with `trl-nlac rehearse` and the `bootstrap` of this run.",
                ", ".join(missing),
            )

    def draw(self, num_transitions: int) -> list[TrainingExample]:
        """
        Draw the samples for a batch of so many transitions; none as long as there are none. A fraction of a sample is
        carried over to the next batch.
        """
        if not self._examples:
            return []
        self.owed += self.ratio * num_transitions
        number = int(self.owed + 1e-6)
        self.owed -= number
        return [self._examples[i] for i in self.rng.integers(len(self._examples), size=number)] if number else []

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"rng": self.rng.bit_generator.state, "owed": self.owed, "is_asked": self.is_asked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from [`~Rehearsal.state_dict`]; without `rng`, draw as a process that begins."""
        self.is_asked = state["is_asked"]
        if "rng" in state:
            self.rng.bit_generator.state = state["rng"]
            self.owed = state["owed"]

    def save(self, directory: Path) -> None:
        """Write the model's own answers into a checkpoint."""
        if self.source == "self" and self.ratio:
            rows = [
                {"prompt_ids": example.prompt.ids, "completion_ids": list(example.completion_ids)}
                for example in self._examples
            ]
            path = directory / _FILE
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows, schema=_ROW), path)

    def check(self, directory: Path) -> None:
        """
        Check that a checkpoint has the answers of the initial model, if they are to be rehearsed.

        Raises:
            RunRefused: If it has none.
        """
        if self.source == "self" and self.ratio and not (directory / _FILE).exists():
            raise RunRefused(
                f"`rehearsal_source='self'` rehearses answers of the initial model, and the checkpoint {directory} "
                f"has none ({_FILE}), because its run rehearsed none. Resume with the `rehearsal_source` and "
                "`rehearsal_ratio` of that run, or start a new run with `model` set to the checkpoint and an "
                "`output_dir` of its own."
            )

    def load(self, directory: Path) -> None:
        """Read the answers from [`save`]."""
        if self.source == "self" and self.ratio:
            rows = pq.read_table(directory / _FILE).to_pylist()
            self._examples = [
                TrainingExample("rehearsal", Prompt.of(row["prompt_ids"]), tuple(row["completion_ids"]))
                for row in rows
            ]


def _checked(dataset: Dataset) -> Dataset:
    missing = {"prompt", "completion"} - set(dataset.column_names)
    if missing:
        raise ValueError(
            f"`rehearsal_dataset` has no column `{min(missing)}`; its columns are {dataset.column_names}."
        )
    return dataset


def _example(number: int, row: dict, chat: ChatEncoder) -> TrainingExample:
    tools, messages = row.get("tools"), row["completion"]
    if not isinstance(messages, list) or len(messages) != 1:
        raise ValueError(
            f"Row {number} of `rehearsal_dataset`: `completion` must be a list of one message of the assistant, got "
            f"{shown(messages)}. Earlier messages belong to `prompt`."
        )
    try:
        token_ids = chat.start(row["prompt"], json.loads(tools) if isinstance(tools, str) else tools)
        completion = tuple(chat.completion(messages[0]))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(
            f"Row {number} of `rehearsal_dataset` cannot be encoded as chat messages: {type(error).__name__}: {error}"
        ) from error
    return TrainingExample("rehearsal", Prompt.of([*token_ids, *chat.prefill]), completion)
