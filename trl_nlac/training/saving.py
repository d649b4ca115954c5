# SPDX-License-Identifier: Apache-2.0

"""Checkpoints that are complete even if the process is killed while saving."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from accelerate.logging import get_logger
from accelerate.utils import broadcast_object_list, gather_object, is_peft_model
from transformers import TrainerCallback
from transformers.trainer import SCALER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import ADAPTER_SAFE_WEIGHTS_NAME

from ..episodes.rendezvous import Rendezvous
from ..private_names import _BaseTrainer
from ..records.folder import checkpoints
from ..shards import has_finite_weights
from ..written_files import refuse_link, refuse_links
from .manifest import checkpoint_of, write_manifest


logger = get_logger(__name__)

_ASIDE = "_incomplete"  # not uploaded with the output folder, because of the underscore
_REPLACED = "replaced-"
_FULL = 1 << 20  # bytes that are left on a disk that is full
_SECONDS_OF_CACHES = 60.0  # that a network file system may keep


class AtomicSavingTrainer(_BaseTrainer):
    """Writes checkpoints to a temporary folder, renames them when all processes are done, then deletes older ones."""

    rendezvous: Rendezvous  # where processes wait for the one that saves
    checkpoint_sizes: dict[str, int] = {}  # bytes of the last by kind of file, on the process that writes it
    saved_step: int | None = None  # of the last checkpoint that this trainer saved
    _writes_aside = False

    def train(self, *args, **kwargs):
        if self.args.should_save:
            recover(Path(self.args.output_dir))
        self.accelerator.wait_for_everyone()
        if not self.args.save_only_model:
            self._check_folder()
        return super().train(*args, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict=None) -> None:
        """Refuse a folder with links out of it: libraries would write through them."""
        refuse_links(output_dir or self.args.output_dir)
        super()._save(output_dir, state_dict)

    def _check_folder(self) -> None:
        """Refuse, on all processes, a folder where one would write its part of a checkpoint and none publishes it."""
        (name,) = broadcast_object_list([uuid4().hex])
        seen = Path(self.args.output_dir, _ASIDE, name)
        if self.args.should_save:
            seen.parent.mkdir(parents=True, exist_ok=True)
            seen.touch()
        self.accelerator.wait_for_everyone()
        blind = [rank for rank, sees in enumerate(gather_object([_appears(seen)])) if not sees]
        if self.args.should_save:
            shutil.rmtree(seen.parent)
        if blind:
            raise ValueError(
                f"Process {blind[0]} does not see what process 0 writes into `output_dir` {self.args.output_dir!r}, "
                "and each process writes its part of a checkpoint there. Choose a folder that all nodes share, or set "
                "`save_on_each_node=True`, so that each node keeps the parts of its processes."
            )

    def _get_output_dir(self, trial) -> str:
        output_dir = super()._get_output_dir(trial)
        return str(Path(output_dir, _ASIDE)) if self._writes_aside else output_dir

    @property
    def _next_checkpoint(self) -> Path:
        """Path of a checkpoint saved now."""
        return checkpoint_of(Path(self._get_output_dir(None)), self.state.global_step)

    def _save_checkpoint(self, model, trial) -> None:
        """Refuse to save weights that are not finite: nothing is written then, and no earlier checkpoint deleted."""
        if not all(gather_object([has_finite_weights(self.model)])):
            raise RuntimeError(
                f"The weights are not finite at step {self.state.global_step}, so they are not saved; earlier "
                "checkpoints stay. Resume from one of them, with a lower `learning_rate` or `max_grad_norm`, or in "
                "float32 or bfloat16."
            )
        self.create_model_card(model_name=Path(self.args.hub_model_id or self.args.output_dir).name)
        run_dir, checkpoint = Path(self._get_output_dir(trial)), self._next_checkpoint
        if self.args.should_save:
            recover(run_dir)
        self.accelerator.wait_for_everyone()
        pushes, self.args.push_to_hub = self.args.push_to_hub, False  # not before it has its final name
        self._writes_aside = True
        try:
            super()._save_checkpoint(model, trial)
        except Exception as error:  # each library has its own for a disk that is full
            free = shutil.disk_usage(run_dir).free
            if free >= _FULL:
                raise
            raise OSError(
                f"{checkpoint} cannot be saved: the disk is full ({free:,} bytes are left). Earlier checkpoints stay. "
                "Free space, and resume from the newest one."
            ) from error
        finally:
            self._writes_aside = False
            self.args.push_to_hub = pushes
        self.accelerator.wait_for_everyone()
        written = run_dir / _ASIDE / checkpoint.name
        if self.state.best_global_step == self.state.global_step:
            self.state.best_model_checkpoint = str(checkpoint)
            if self.args.should_save:  # again, with its final name
                self.state.save_to_json(str(written / TRAINER_STATE_NAME))
        if self.args.should_save:
            self.checkpoint_sizes = _sizes(written)
            sizes = ", ".join(f"{kind} {size / 1e6:.1f} MB" for kind, size in self.checkpoint_sizes.items())
            logger.info(f"{checkpoint}: {sizes}")
            write_manifest(written)
            if checkpoint.exists():
                checkpoint.rename(written.parent / f"{_REPLACED}{checkpoint.name}")
            written.rename(checkpoint)
            shutil.rmtree(written.parent)
            if self.args.save_total_limit is not None:
                _delete_oldest(run_dir, self.args.save_total_limit, checkpoint, self.state.best_model_checkpoint)
        self.rendezvous.wait("one of which computes checksums of the checkpoint, and publishes it")
        self.saved_step = self.state.global_step
        if pushes:
            self._push_from_checkpoint(str(checkpoint))

    def _find_best(self) -> None:
        """Find the best checkpoint of a run that was moved or copied: it is in its folder now."""
        best = checkpoint_of(Path(self._get_output_dir(None)), self.state.best_global_step)
        if self.state.best_global_step and best.is_dir():
            self.state.best_model_checkpoint = str(best)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model=None) -> None:
        """Load weights, also of the adapter "default" beside others, which transformers 5.20 leaves as it is."""
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        trained = self.model
        has_others = model is None and is_peft_model(trained) and len(trained.peft_config) > 1
        if has_others and Path(resume_from_checkpoint, ADAPTER_SAFE_WEIGHTS_NAME).is_file():
            is_trainable = "default" in trained.active_adapters
            trained.load_adapter(resume_from_checkpoint, "default", is_trainable=is_trainable)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Load the scale of the loss, which only runs with `fp16` have; a run can go on without it."""
        if self.accelerator.scaler is not None:
            super()._load_scaler(checkpoint)
        elif checkpoint is not None and Path(checkpoint, SCALER_NAME).is_file():
            logger.warning(f"{SCALER_NAME} in {checkpoint} is not used: this run scales no loss (`fp16=False`).")


class TrainBeginCallback(TrainerCallback):
    """Call a function once a [`~transformers.Trainer`] has prepared everything, before its first step."""

    def __init__(self, action: Callable[[], None]):
        self.action = action

    def on_train_begin(self, args, state, control, **kwargs):
        self.action()


def _appears(path: Path) -> bool:
    """Wait until a file that was written can be seen: network file systems cache for a while that it was not there."""
    end = time.monotonic() + _SECONDS_OF_CACHES
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.1)
    return path.exists()


def recover(run_dir: Path) -> None:
    """Clean up after a process that was killed while it saved; refuse a link with [`RunRefused`]."""
    aside = run_dir / _ASIDE
    refuse_link(aside)
    for replaced in aside.glob(f"{_REPLACED}{PREFIX_CHECKPOINT_DIR}-*"):
        checkpoint = run_dir / replaced.name.removeprefix(_REPLACED)
        if not checkpoint.exists():
            replaced.rename(checkpoint)
    shutil.rmtree(aside, ignore_errors=True)


def _delete_oldest(run_dir: Path, limit: int, newest: Path, best: str | None) -> None:
    """Rename, then delete checkpoints of the first steps beyond the limit, but for the newest and the best."""
    kept = {newest, *([Path(best)] if best else [])}
    found = list(checkpoints(run_dir).values())
    number = len(found) - max(limit, len(kept)) if limit > 0 else 0
    aside = run_dir / _ASIDE
    for checkpoint in [path for path in found if path not in kept][: max(0, number)]:
        aside.mkdir(exist_ok=True)
        checkpoint.rename(aside / f"deleted-{checkpoint.name}")
    shutil.rmtree(aside, ignore_errors=True)


def _sizes(directory: Path) -> dict[str, int]:
    """Return the bytes by kind of file."""
    sizes = {"model": 0, "optimizer": 0, "target and initial weights": 0, "replay buffer": 0, "other": 0}
    for path in directory.rglob("*"):
        name, size = path.name, path.stat().st_size if path.is_file() else 0
        if name.startswith(("target_weights", "initial_weights")):
            sizes["target and initial weights"] += size
        elif "nlac" in path.relative_to(directory).parts:
            sizes["replay buffer"] += size
        elif name.startswith("optimizer") or "optim_states" in name:
            sizes["optimizer"] += size
        elif name.endswith((".safetensors", "model_states.pt")):
            sizes["model"] += size
        else:
            sizes["other"] += size
    return {kind: size for kind, size in sizes.items() if size}
