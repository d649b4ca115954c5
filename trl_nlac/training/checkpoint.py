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

"""What a checkpoint adds to TRL's: replay buffer, target weights, and the place within an iteration."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from accelerate.logging import get_logger
from safetensors import safe_open
from safetensors.torch import save_file

from ..method.target_weights import TargetWeights
from ..replay.buffer import PrioritizedReplay
from ..types import Prompt, TrainingExample


logger = get_logger(__name__)

_TARGET_WEIGHTS = "target_weights.safetensors"
_EXAMPLE = pa.schema(
    {
        "batch": pa.int32(),
        "loss": pa.string(),
        "prompt_ids": pa.list_(pa.int32()),
        "completion_ids": pa.list_(pa.int32()),
        "weight": pa.float64(),
        "transition_id": pa.int64(),
        "teacher_prompt_ids": pa.list_(pa.int32()),
        "teacher_start": pa.int32(),
    }
)


def save_state(
    directory: Path,
    rank: int,
    replay: PrioritizedReplay,
    target_weights: TargetWeights,
    batches: list[list[TrainingExample]],
    state: dict[str, Any],
) -> None:
    """
    Write the state of one process into `directory`, as parquet, JSON and safetensors.

    Args:
        directory (`Path`):
            Folder of a checkpoint.
        rank (`int`):
            The process. Rank 0 writes whole target weights; sharded ones are written by each process.
        replay ([`PrioritizedReplay`]):
            Its buffer.
        target_weights ([`TargetWeights`]):
            Theta_bar.
        batches (`list[list[TrainingExample]]`):
            Remaining micro-batches of the current iteration.
        state (`dict[str, Any]`):
            Any other state that JSON can hold, with the number of processes as `world_size`.
    """
    folder = _folder(directory, rank)
    folder.mkdir(parents=True, exist_ok=True)
    replay.save(folder)
    rows = [
        {
            "batch": i,
            "loss": example.loss,
            "prompt_ids": example.prompt.ids,
            "completion_ids": list(example.completion_ids),
            "weight": example.weight,
            "transition_id": example.transition_id,
            "teacher_prompt_ids": None if example.teacher_prompt is None else example.teacher_prompt.ids,
            "teacher_start": example.teacher_start,
        }
        for i, batch in enumerate(batches)
        for example in batch
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=_EXAMPLE), folder / "batches.parquet")
    (folder / "state.json").write_text(json.dumps(state))
    _save_target_weights(directory, rank, target_weights)


def load_state(
    directory: Path, rank: int, world_size: int, replay: PrioritizedReplay, target_weights: TargetWeights
) -> tuple[list[list[TrainingExample]], dict[str, Any]]:
    """
    Read a state from [`save_state`]. If it was saved by another number of processes, their replay buffers are divided
    among the current ones, and the iteration starts again, because its micro-batches fit the old batches and
    transition ids.

    Returns:
        `tuple[list[list[TrainingExample]], dict[str, Any]]`: the pending micro-batches and the state. If no process of
        this rank saved, the state lacks its random state, `rehearsal_rng`.

    Raises:
        FileNotFoundError: If the checkpoint has no state of this process.
    """
    folder, first = _folder(directory, rank), _folder(directory, 0)
    if not folder.exists() and not first.exists():
        raise FileNotFoundError(
            f"The checkpoint {directory} has no replay buffer of process {rank}. It was saved with "
            "`save_only_model=True`, or not all of its files were copied."
        )
    # Without a shared file system, a node has only the files of its own processes.
    saved_world_size = _state(first if first.exists() else folder)["world_size"]
    _load_target_weights(directory, target_weights)
    if saved_world_size == world_size:
        replay.load(folder)
        return _load_batches(folder), _state(folder)
    logger.warning(
        f"The checkpoint {directory} was saved by {saved_world_size} processes, now there are {world_size}: the "
        "replay buffers are divided again, and the iteration starts again."
    )
    replay.load_share([_folder(directory, i) for i in range(saved_world_size)], rank, world_size)
    if rank < saved_world_size:
        return [], _state(folder)
    state = _state(first)
    del state["rehearsal_rng"]
    return [], state


def load_learned(directory: Path, rank: int, target_weights: TargetWeights) -> dict[str, Any]:
    """Read the target weights and the state of [`save_state`], without replay buffer and pending micro-batches."""
    _load_target_weights(directory, target_weights)
    return _state(_folder(directory, rank))


def _load_batches(folder: Path) -> list[list[TrainingExample]]:
    batches: list[list[TrainingExample]] = []
    for row in pq.read_table(folder / "batches.parquet").to_pylist():
        if row["batch"] == len(batches):
            batches.append([])
        teacher_prompt = row["teacher_prompt_ids"]
        batches[-1].append(
            TrainingExample(
                row["loss"],
                Prompt.of(row["prompt_ids"]),
                tuple(row["completion_ids"]),
                row["weight"],
                row["transition_id"],
                teacher_prompt=None if teacher_prompt is None else Prompt.of(teacher_prompt),
                teacher_start=row.get("teacher_start", 0),  # files of earlier versions have none
            )
        )
    return batches


def _state(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "state.json").read_text())


def _save_target_weights(directory: Path, rank: int, target_weights: TargetWeights) -> None:
    """Write one file, or one for each process where they are sharded; its metadata has the place of the values."""
    places = {name: place for name, place in target_weights.places.items() if place.is_counted}
    if places:
        is_sharded = any(place.is_shard for place in target_weights.places.values())
        state = target_weights.state_dict()
        save_file(
            {name: state[name].contiguous() for name in places},
            (_folder(directory, rank) if is_sharded else directory) / _TARGET_WEIGHTS,
            {"places": json.dumps({name: [place.start, *place.shape] for name, place in places.items()})},
        )


def _load_target_weights(directory: Path, target_weights: TargetWeights) -> None:
    """Fill the current shards from the saved ones: each reads what it needs of all files."""
    state = {name: torch.empty_like(average) for name, average in target_weights.state_dict().items()}
    missing = {name: place.size for name, place in target_weights.places.items()}
    for path in [*directory.glob(_TARGET_WEIGHTS), *directory.glob(f"nlac/*/{_TARGET_WEIGHTS}")]:
        with safe_open(path, "pt") as file:
            for name, (start, *shape) in json.loads(file.metadata()["places"]).items():
                place = target_weights.places.get(name)
                if place is None or list(place.shape) != shape:
                    raise ValueError(f"The target weights in {path} do not fit the model, for example `{name}`.")
                values = file.get_tensor(name).flatten()
                first, last = max(start, place.start), min(start + len(values), place.start + place.size)
                if first < last:
                    own = state[name].view(-1)[first - place.start : last - place.start]
                    own.copy_(values[first - start : last - start])
                    missing[name] -= len(own)
    incomplete = [name for name, number in missing.items() if number != 0]
    if incomplete:
        raise ValueError(
            f"The checkpoint {directory} lacks a part of the target weights, for example of `{incomplete[0]}`. Were "
            "the files of all processes copied?"
        )
    target_weights.load_state_dict(state)


def _folder(directory: Path, rank: int) -> Path:
    return directory / "nlac" / f"rank_{rank:05d}"
