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

"""What a checkpoint holds beyond TRL's: replay buffer, target weights, and the place within an iteration."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from accelerate.logging import get_logger
from safetensors.torch import load_file, save_file

from .replay import PrioritizedReplay
from .target_weights import TargetWeights
from .types import Prompt, TrainingExample


logger = get_logger(__name__)

_EXAMPLE = pa.schema(
    {
        "batch": pa.int32(),
        "loss": pa.string(),
        "prompt_ids": pa.list_(pa.int32()),
        "completion_ids": pa.list_(pa.int32()),
        "weight": pa.float64(),
        "transition_id": pa.int64(),
        "teacher_prompt_ids": pa.list_(pa.int32()),
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
    Write the state of one process, as parquet, JSON and safetensors, into `directory`.

    Args:
        directory (`Path`):
            Folder of a checkpoint.
        rank (`int`):
            Which process. Rank 0 writes the target weights.
        replay ([`PrioritizedReplay`]):
            Its buffer.
        target_weights ([`TargetWeights`]):
            Theta_bar.
        batches (`list[list[TrainingExample]]`):
            Micro-batches of the current iteration that are still to be trained on.
        state (`dict[str, Any]`):
            Anything else that JSON can hold, with the number of processes as `world_size`.
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
        }
        for i, batch in enumerate(batches)
        for example in batch
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=_EXAMPLE), folder / "batches.parquet")
    (folder / "state.json").write_text(json.dumps(state))
    if rank == 0:
        save_file(target_weights.state_dict(), directory / "target_weights.safetensors")


def load_state(
    directory: Path, rank: int, world_size: int, replay: PrioritizedReplay, target_weights: TargetWeights
) -> tuple[list[list[TrainingExample]], dict[str, Any]]:
    """
    Read what [`save_state`] wrote. If that was another number of processes, their replay buffers are dealt out to those
    that there are now, and the iteration starts again: its micro-batches fit the old batches and transition ids.

    Returns:
        `tuple[list[list[TrainingExample]], dict[str, Any]]`: the pending micro-batches and the state. Where no process of
        this rank saved, the state is without its own random state, `rehearsal_rng`.

    Raises:
        FileNotFoundError: If the checkpoint has no state of this process.
    """
    folder, first = _folder(directory, rank), _folder(directory, 0)
    if not folder.exists() and not first.exists():
        raise FileNotFoundError(
            f"The checkpoint {directory} holds no replay buffer of process {rank}. It was saved with "
            "`save_only_model=True`, or not all of its files were copied."
        )
    # Without a shared file system a node has the files of its own processes only.
    saved_world_size = _state(first if first.exists() else folder)["world_size"]
    target_weights.load_state_dict(load_file(directory / "target_weights.safetensors"))
    if saved_world_size == world_size:
        replay.load(folder)
        return _load_batches(folder), _state(folder)
    logger.warning(
        f"The checkpoint {directory} was saved by {saved_world_size} processes, now there are {world_size}: the replay "
        "buffers are dealt out anew, and the iteration starts again."
    )
    replay.load_share([_folder(directory, i) for i in range(saved_world_size)], rank, world_size)
    if rank < saved_world_size:
        return [], _state(folder)
    state = _state(first)
    del state["rehearsal_rng"]
    return [], state


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
            )
        )
    return batches


def _state(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "state.json").read_text())


def _folder(directory: Path, rank: int) -> Path:
    return directory / "nlac" / f"rank_{rank:05d}"
