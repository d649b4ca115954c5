# SPDX-License-Identifier: Apache-2.0

"""What a checkpoint adds to TRL's: replay buffer, target weights, and the place within an iteration."""

import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from accelerate.logging import get_logger
from accelerate.utils import is_peft_model
from safetensors import safe_open
from safetensors.torch import save_file

from ..chat.encoder import ChatEncoder
from ..method.target_weights import InitialWeights, KeptWeights, TargetWeights
from ..nlac_config import NLACConfig
from ..replay.prioritized_replay import PrioritizedReplay
from ..types import Prompt, RunRefused, TrainingExample
from .manifest import check_manifest


if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

logger = get_logger(__name__)

_TARGET_WEIGHTS = "target_weights.safetensors"
_INITIAL_WEIGHTS = "initial_weights.safetensors"
_ROWS = "records.parquet"
# Options of a model's configuration without which its weights fit no other.
_SHAPE = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
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
    initial_weights: InitialWeights,
    batches: list[list[TrainingExample]],
    state: dict[str, Any],
    writes_whole: bool,
) -> None:
    """
    Write the state of process `rank` into `directory`, as parquet, JSON and safetensors. `batches` are the remaining
    micro-batches of the iteration, and `state` any other that JSON can hold, see
    [`~training.run.RunTrainer.run_state`]. Weights that are whole are written by one process (`writes_whole`), sharded
    ones by each.
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
    (folder / "state.json").write_text(
        json.dumps({**state, "target_updates": [target_weights.num_updates, target_weights.num_samples]})
    )
    _save_weights(directory, rank, target_weights, _TARGET_WEIGHTS, writes_whole)
    _save_weights(directory, rank, initial_weights, _INITIAL_WEIGHTS, writes_whole)


def load_state(
    directory: Path,
    rank: int,
    world_size: int,
    replay: PrioritizedReplay,
    target_weights: TargetWeights,
    initial_weights: InitialWeights,
) -> tuple[list[list[TrainingExample]], dict[str, Any]]:
    """
    Read the pending micro-batches and the state from [`save_state`]. If they were saved by another number of
    processes, their replay buffers are divided among the current ones, and the iteration starts again, because its
    micro-batches fit the old batches and transition ids. If no process of this rank saved, the parts of the state lack
    their random states. Raise a `FileNotFoundError` if the checkpoint has no state of this process.
    """
    folder, first = _folder(directory, rank), _folder(directory, 0)
    if not first.exists():
        _check_state(directory, folder, rank)
    # Without a shared file system, a node has only the files of its own processes.
    saved_world_size = _state(first if first.exists() else folder)["world_size"]
    _load_weights(directory, target_weights, _TARGET_WEIGHTS)
    _load_weights(directory, initial_weights, _INITIAL_WEIGHTS)
    batches: list[list[TrainingExample]] = []
    if saved_world_size == world_size:
        replay.load(folder)
        batches, state = _load_batches(folder), _state(folder)
    else:
        logger.warning(
            f"The checkpoint {directory} was saved by {saved_world_size} processes, now there are {world_size}: the "
            "replay buffers are divided again, and the iteration starts again."
        )
        replay.load_share([_folder(directory, i) for i in range(saved_world_size)], rank, world_size)
        state = _state(folder if rank < saved_world_size else first)
        for part in state["parts"].values() if rank >= saved_world_size else []:
            part.pop("rng", None)
    target_weights.num_updates, target_weights.num_samples = state["target_updates"]
    return batches, state


def read_state(checkpoint: Path) -> dict[str, Any]:
    """
    Check the files of a checkpoint, then read the state of the first process that [`save_state`] wrote, before
    anything else is loaded. Raise [`RunRefused`] if files are missing or damaged. Raise a `FileNotFoundError` if the
    checkpoint has no such state.
    """
    if not checkpoint.is_dir():
        raise FileNotFoundError(f"There is no checkpoint {checkpoint}: no such folder.")
    check_manifest(checkpoint)
    folder = _folder(checkpoint, 0)
    _check_state(checkpoint, folder, 0)
    return _state(folder)


def describe_run(
    model: "PreTrainedModel | PeftModel",
    chat: ChatEncoder,
    prompts: dict[str, Any],
    action_format: str,
    environment: dict[str, Any],
    optimizer: str,
) -> dict[str, dict[str, Any]]:
    """Describe what a run must have in common with a checkpoint that it resumes from, for [`check_identity`]."""
    shape = model.config.get_text_config().to_dict()
    return {
        "model": {name: shape.get(name) for name in _SHAPE},
        "adapter": _describe_adapter(model),
        "optimizer": {"name": optimizer},
        "tokenizer": {
            "vocabulary": _digest(sorted(chat.tokenizer.get_vocab().items())),
            "chat_template": _digest(chat.tokenizer.chat_template),
        },
        "prompts": {name: _digest(prompt) for name, prompt in prompts.items()},
        "options": {"action_format": action_format},
        "environment": {
            name: value if isinstance(value, str) else _digest(value) for name, value in environment.items()
        },
    }


def _describe_adapter(model: "PreTrainedModel | PeftModel") -> dict[str, Any]:
    """Describe what decides on the shapes of an adapter's weights, and on the factors that they get."""
    if not is_peft_model(model):
        return {"type": "none"}
    config = model.peft_config[model.active_adapter].to_dict()
    shape = {name: config.get(name) for name in ("r", "rank_pattern", "target_modules", "modules_to_save", "use_dora")}
    sets = {name: sorted(value) if isinstance(value, set | list) else value for name, value in shape.items()}
    scale = {name: config.get(name) for name in ("lora_alpha", "alpha_pattern", "use_rslora")}
    return {"type": config["peft_type"].value, "shape": _digest(sets), "scale": _digest(scale)}


def _digest(value: Any) -> dict[str, str]:
    return {"sha256": hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()}


def check_identity(checkpoint: Path, saved: dict[str, dict[str, Any]], own: dict[str, dict[str, Any]]) -> None:
    """
    Compare what a run was made of with what a checkpoint was. Another optimizer passes where the state of the former
    was deleted. Each has parts by name, with their properties as JSON holds them. Raise [`RunRefused`] if they differ;
    the message names the parts.
    """
    foreign = []
    for part, properties in own.items():
        if part == "optimizer" and not _has_optimizer(checkpoint):
            continue
        others = saved[part]
        foreign += [
            f"{name} of the {part} ({_difference(others.get(name), properties.get(name))})"
            for name in sorted({*properties, *others})
            if properties.get(name) != others.get(name)
        ]
    if foreign:
        raise RunRefused(
            f"The checkpoint {checkpoint} is of another run, says its nlac/rank_00000/state.json: "
            f"{', '.join(foreign)}. Resume with what that run had, or start a new run with `model` set to the "
            "checkpoint and an `output_dir` of its own."
        )


# Where the state of the optimizer is: of whole weights, of FSDP in one file and in parts, and of DeepSpeed.
_OPTIMIZERS = ("optimizer.pt", "optimizer.bin", "optimizer_*", "global_step*")


def _has_optimizer(checkpoint: Path) -> bool:
    return any(any(checkpoint.glob(pattern)) for pattern in _OPTIMIZERS)


# Options that the state of the optimizer keeps.
_KEPT = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")


def kept_options(args: NLACConfig) -> dict[str, float]:
    """Return the options that a resumed run has from its checkpoint, whatever it is given."""
    return {name: vars(args)[name] for name in _KEPT}


def warn_of_kept_options(checkpoint: Path, saved: dict[str, float], args: NLACConfig) -> None:
    """Warn of options that differ from those with which the optimizer of a checkpoint was made."""
    if not _has_optimizer(checkpoint):
        return
    for name, value in saved.items():
        if value != vars(args)[name]:
            logger.warning(
                f"`{name}={vars(args)[name]}` has no effect: the optimizer of {checkpoint}, with which the run "
                f"resumes, has {value}. To change it, start a new run with `model` set to the checkpoint."
            )


def warn_of_base_model(checkpoint: Path, model: "PreTrainedModel | PeftModel") -> None:
    """Warn of an adapter whose checkpoint names another base model. It holds the weights of the adapter alone."""
    if not is_peft_model(model):
        return
    from peft import PeftConfig

    names = [of.base_model_name_or_path for of in (PeftConfig.from_pretrained(checkpoint), model.active_peft_config)]
    saved, own = (str(Path(name).resolve()) if name and Path(name).exists() else name for name in names)
    if saved and own and saved != own:
        logger.warning(
            f"The adapter of {checkpoint} was trained on the base model {names[0]!r}, and the run resumes on "
            f"{names[1]!r}. If these are not copies of each other, resume with `model={names[0]!r}`."
        )


# Options on which Bellman targets depend, and those on which micro-batches do, beside them.
_OF_TARGETS = ("bootstrap", "num_futures", "single_step", "success_threshold", "reasoning")
_OF_BATCHES = ("policy_loss_type", "per_device_train_batch_size", "gradient_accumulation_steps")


def options_of_iteration(args: NLACConfig) -> dict[str, Any]:
    """Return the options on which kept targets, pending micro-batches and what is left out of the buffer depend."""
    return {name: vars(args)[name] for name in (*_OF_TARGETS, *_OF_BATCHES, "max_prompt_length")}


def drop_outdated(
    checkpoint: Path,
    saved: dict[str, Any],
    args: NLACConfig,
    replay: PrioritizedReplay,
    batches: list[list[TrainingExample]],
) -> None:
    """Drop kept targets and pending batches that were made with other options than the `saved`, with a warning."""
    own, effects = options_of_iteration(args), []
    changed = {name: value for name, value in saved.items() if value != own[name]}
    if changed.pop("max_prompt_length", None):
        replay.take_in()  # what was too long may not be so now; what still is, is left out once drawn
    if len(replay.targets) and not changed.keys().isdisjoint(_OF_TARGETS):
        replay.targets.clear()
        effects.append("Bellman targets are written anew")
    if batches and changed:
        batches.clear()
        effects.append("the iteration starts again")
    if effects:
        options = ", ".join(f"`{name}={own[name]!r}` (before, {value!r})" for name, value in changed.items())
        logger.warning(f"The run resumes from {checkpoint} with {options}: {', and '.join(effects)}.")


def _difference(saved: Any, own: Any) -> str:
    return "changed" if isinstance(own, dict) else f"{saved!r}, now {own!r}"


def save_rows(directory: Path, rank: int, rows: dict[str, list[Any]]) -> None:
    """Write the records of one process that are not written down yet, by kind, as JSON in parquet."""
    noted = [{"kind": kind, "row": json.dumps(row, default=_plain)} for kind, of_it in rows.items() for row in of_it]
    table = pa.Table.from_pylist(noted, schema=pa.schema({"kind": pa.string(), "row": pa.string()}))
    pq.write_table(table, _folder(directory, rank) / _ROWS, compression="zstd")


def load_rows(directory: Path, rank: int, world_size: int) -> dict[str, list[Any]]:
    """Read the rows of [`save_rows`]. If another number of processes saved them, the first one gets all of them."""
    folders = [_folder(directory, rank)]
    if _state(_folder(directory, 0) if _folder(directory, 0).exists() else folders[0])["world_size"] != world_size:
        folders = sorted(directory.glob("nlac/rank_*")) if rank == 0 else []
    rows: dict[str, list[Any]] = {}
    for folder in folders:
        for row in pq.read_table(folder / _ROWS).to_pylist():
            rows.setdefault(row["kind"], []).append(json.loads(row["row"]))
    return rows


def _plain(value: Any) -> Any:
    """Return what a user's function noted as JSON can hold it: numbers of numpy and torch, and text of all else."""
    return value.tolist() if isinstance(value, np.generic | torch.Tensor) else str(value)


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


def _check_state(checkpoint: Path, folder: Path, rank: int) -> None:
    if not folder.exists():
        raise FileNotFoundError(
            f"The checkpoint {checkpoint} has no replay buffer of process {rank}. It was saved with "
            "`save_only_model=True`, or not all of its files were copied."
        )


def _state(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "state.json").read_text())


def _save_weights(directory: Path, rank: int, weights: KeptWeights, name: str, writes_whole: bool) -> None:
    """Write one file, or one for each process where they are sharded; its metadata has the place of the values."""
    is_sharded = any(place.is_shard for place in weights.places.values())
    writes = {key: place.is_counted if is_sharded else writes_whole for key, place in weights.places.items()}
    places = {key: place for key, place in weights.places.items() if writes[key]}
    if places:
        state = weights.state_dict()
        save_file(
            {key: state[key].contiguous() for key in places},
            (_folder(directory, rank) if is_sharded else directory) / name,
            {"places": json.dumps({key: [place.start, *place.shape] for key, place in places.items()})},
        )


def _load_weights(directory: Path, weights: KeptWeights, name: str) -> None:
    """Fill the current shards from the saved ones: of each file only its description is read, and what is needed."""
    state = {key: torch.empty_like(values) for key, values in weights.state_dict().items()}
    missing = {key: place.size for key, place in weights.places.items()}
    for path in [*directory.glob(name), *directory.glob(f"nlac/*/{name}")]:
        with safe_open(path, "pt") as file:
            for key, (start, *shape) in json.loads(file.metadata()["places"]).items():
                place = weights.places.get(key)
                if place is None or list(place.shape) != shape:
                    raise ValueError(f"The weights in {path} do not fit the model, for example `{key}`.")
                saved = math.prod(file.get_slice(key).get_shape())
                first, last = max(start, place.start), min(start + saved, place.start + place.size)
                if first < last:
                    own = state[key].view(-1)[first - place.start : last - place.start]
                    own.copy_(_read_range(file, key, first - start, last - start))
                    missing[key] -= len(own)
    incomplete = [key for key, number in missing.items() if number != 0]
    if incomplete:
        raise ValueError(
            f"The checkpoint {directory} lacks a part of {name}, for example of `{incomplete[0]}`. Were the files of "
            "all processes copied?"
        )
    weights.load_state_dict(state)


def _read_range(file: safe_open, name: str, first: int, last: int) -> torch.Tensor:
    """Read a range of a flattened tensor: of a file, the rows that it lies in."""
    part = file.get_slice(name)
    shape = part.get_shape()
    if not shape:
        return file.get_tensor(name).flatten()
    row_size = math.prod(shape[1:])
    start = first // row_size
    rows = part[start : -(-last // row_size)]
    return rows.flatten()[first - start * row_size : last - start * row_size]


def _folder(directory: Path, rank: int) -> Path:
    return directory / "nlac" / f"rank_{rank:05d}"
