# SPDX-License-Identifier: Apache-2.0

"""A run and its folder: locked, never overwritten, resumed where it was, stopped in order."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from signal import Signals
from typing import Any, Protocol

from accelerate.logging import get_logger
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import PrinterCallback, ProgressCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import TrainOutput

from ..episodes.rendezvous import Rendezvous
from ..private_names import get_config_model_id
from ..records.console import ConsoleCallback, ProgressBar
from ..records.folder import END_OF_TRAINING, SECONDS, check_unused, checkpoints, last_steps, set_aside
from ..records.lock import locked
from ..records.records import Records
from ..records.written_notes import TrainingLogCallback, noted_warnings, write_settings
from ..shards import has_gathered_weights
from ..terminal import say
from ..types import RunRefused
from .checkpoint import (
    check_identity,
    kept_options,
    options_of_iteration,
    read_state,
    warn_of_base_model,
    warn_of_kept_options,
)
from .manifest import named_in_errors
from .sampler import IterationSampler
from .saving import AtomicSavingTrainer, TrainBeginCallback, recover
from .stopping import StopSignals, stop_at_once


logger = get_logger(__name__)


class Stateful(Protocol):
    """
    A part of a run that a checkpoint keeps. What it keeps as `rng` is the random state of its process: a process that
    did not exist when the checkpoint was saved does not get it.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as JSON can hold it."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from `state_dict`."""


class RunTrainer(AtomicSavingTrainer):
    """
    Trains in a folder, `output_dir`, that holds one run: it is locked meanwhile, a run in it is resumed or refused but
    not overwritten, and a signal stops training with a checkpoint. It knows nothing of what is trained.

    A subclass sets `identity`, `records` and `stateful` once it is constructed, and overrides the methods that are
    called before and after training, before a checkpoint is saved, and before one is loaded.
    """

    identity: dict[str, dict[str, Any]]  # what a run has in common with the checkpoints that it can resume from
    stateful: dict[str, Stateful]  # the parts whose states a checkpoint keeps, by name
    records: Records
    had_ended = False  # whether the resumed run had already finished

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.rendezvous = Rendezvous(self.args.ddp_timeout)
        self.stop_signals = StopSignals()
        self._training_log = TrainingLogCallback()
        self.add_callback(self._training_log)
        self.add_callback(TrainBeginCallback(self._begin))
        for callback in list(self.callback_handler.callbacks):
            if type(callback) in (PrinterCallback, ProgressCallback):  # which print all metrics of a log
                self.remove_callback(callback)
                if type(callback) is ProgressCallback:
                    self.add_callback(ProgressBar())
        self.add_callback(ConsoleCallback(lambda: self.records.take_row()))
        self._has_opened_folder = False
        self._saved_losses: list[float] | None = None  # of the checkpoint
        self._saved_seconds = 0.0  # that training took before it was resumed
        self._start = 0.0  # when it would have begun without a pause
        self._loss_start = 0  # step since which they are summed
        self._logged_before: list[dict[str, float]] = []  # at step 0, before training started

    @property
    def num_environment_steps(self) -> int:
        """Number of environment steps of training so far, over all processes."""
        return self.records.num_environment_steps

    def before_training(self, checkpoint: str | None) -> None:
        """Get ready, when the folder is open and before anything is loaded from the checkpoint."""

    def after_training(self) -> None:
        """Close what training used, also after an error."""

    def before_saving(self) -> None:
        """Bring what is under way to an end. An error is raised once the checkpoint is saved."""

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs) -> TrainOutput:
        """
        Train, from the start or from a checkpoint. The run's folder, `output_dir`, is locked meanwhile.

        After the first SIGINT (Ctrl-C) or SIGTERM training stops at the end of the optimizer step under way, with the
        rollout before it, if there is one, and a checkpoint is saved; after the second it stops at once. Both close
        the environments. In a thread other than the main one no signal is seen.

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*):
                Checkpoint to resume from, or `True` for the newest one in `output_dir`. What the folder has of later
                steps is set aside. From its newest checkpoint, a run that has ended already is loaded, and nothing of
                it is written again.
            *args, **kwargs:
                As in [`~transformers.Trainer.train`].

        Raises:
            RunRefused: If another run writes into the folder, if it has a run or a model already that is neither
                resumed nor overwritten (`overwrite_output_dir`), or if the checkpoint is damaged or of another run.
            KeyboardInterrupt: After SIGINT.
            SystemExit: After SIGTERM, with the code 143.
            TrainingStopped: If training cannot continue; a checkpoint is saved.
        """
        total = self.args.max_steps  # at which training ends
        if resume_from_checkpoint and total <= 0:
            total = self.set_initial_training_values(self.args, self.get_train_dataloader())[-1]
        with ExitStack() as stack:
            stack.enter_context(self.stop_signals.noted())
            stack.callback(self.after_training)
            stack.callback(self._close_progress_bars)
            stack.callback(setattr, self, "is_in_train", False)
            self._on_first_process(lambda: stack.enter_context(locked(self.args.output_dir)))
            checkpoint, self.had_ended = self._on_first_process(
                lambda: self._open_folder(resume_from_checkpoint, total)
            )
            self._has_opened_folder = True
            if self.is_world_process_zero() and not self.had_ended:
                write_settings(self.args, get_config_model_id(self.model.config))
                stack.enter_context(noted_warnings(self.args.output_dir, lambda: self.state.global_step))
            self._loss_start, self._saved_seconds = 0, 0.0
            # Transformers begins a new history; the log of the run keeps these, too.
            self._logged_before = [log for log in self.state.log_history if checkpoint is None and log["step"] == 0]
            if checkpoint is not None:
                self.args.eval_on_start = False  # the run was evaluated at its start
            self.before_training(checkpoint)
            self._has_begun = False
            with named_in_errors(checkpoint, is_over=lambda: self._has_begun):
                output = super().train(checkpoint, *args, **kwargs)
            return output._replace(training_loss=output.metrics["train_loss"])

    def say(self, line: str) -> None:
        """Print a line in the terminal of the first process."""
        if self.is_world_process_zero():
            say(line)

    def _close_progress_bars(self) -> None:
        """End the lines of bars that an error left open, so that what it says begins on a line of its own."""
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ProgressCallback):
                for bar in filter(None, (callback.prediction_bar, callback.training_bar)):
                    bar.close()

    def _on_first_process(self, action: Callable[[], Any]) -> Any:
        """Call on the first process; the result, or the error, is that of all."""
        result = error = None
        if self.is_world_process_zero():
            try:
                result = action()
            except Exception as raised:
                error = raised
        self.rendezvous.wait("of which the first looks into the folder of the run, and checks what it reads")
        result, error = broadcast_object_list([result, error])
        if error is not None:
            raise error
        return result

    def _open_folder(self, resume_from_checkpoint: str | bool | None, num_steps: int) -> tuple[str | None, bool]:
        """Check folder and checkpoint, and set later steps aside. Return the checkpoint, and whether all is done."""
        run = Path(self.args.output_dir)
        recover(run)
        if not resume_from_checkpoint:
            if not self.args.overwrite_output_dir:
                check_unused(run)
            first = 0 if self.state.log_history else -1  # keep evaluations that this trainer has logged
            set_aside(run, first, first, with_model=self.args.overwrite_output_dir)
            return None, False
        found = list(checkpoints(run).values())
        if resume_from_checkpoint is True and not found:
            raise RunRefused(f"`resume_from_checkpoint` is True, and {run} has no checkpoint.")
        checkpoint = found[-1] if resume_from_checkpoint is True else Path(resume_from_checkpoint)
        is_newest = bool(found) and checkpoint.resolve() == found[-1].resolve()
        with named_in_errors(checkpoint):
            state = read_state(checkpoint)
            check_identity(checkpoint, state["identity"], self.identity)
            warn_of_kept_options(checkpoint, state["kept_options"], self.args)
            warn_of_base_model(checkpoint, self.model)
            saved = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
            step, ends = saved.global_step, last_steps(run)
            last = max(ends, default=-1)
            # A run can end before its last step, and keep none but its best checkpoint.
            is_last = last < saved.max_steps or saved.best_global_step == step
            has_ended = is_newest and last >= step and is_last and saved.max_steps >= num_steps
        is_own = checkpoint.parent.resolve() == run.resolve()
        if not is_own:
            check_unused(run)
            set_aside(run, -1, -1)
        elif has_ended or step > num_steps or (step == num_steps and step in ends):
            logger.warning(
                f"Nothing is left to train: {checkpoint} is at step {step}, and training ends at step "
                f"{last if has_ended else num_steps}. Nothing is written. To train on, raise `max_steps` or "
                "`num_train_epochs`."
            )
            return str(checkpoint), True
        else:
            set_aside(run, step, state["recorded"])
        return str(checkpoint), False

    def _run_epoch(self, *args, **kwargs) -> None:
        if self.state.global_step < self.state.max_steps and not self.had_ended:  # else it would train for a step more
            super()._run_epoch(*args, **kwargs)

    # Its tasks

    def get_train_dataloader(self) -> DataLoader:
        if self.train_dataset is None:
            raise ValueError("Training requires a `train_dataset`.")
        return self._get_dataloader(
            dataset=self.train_dataset,
            description="Training",
            batch_size=self.args.episodes_per_iteration // self.args.world_size,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    def _get_train_sampler(self, dataset: Dataset | None = None) -> IterationSampler:
        return IterationSampler(
            self.train_dataset if dataset is None else dataset,
            self.args.episodes_per_iteration,
            self.args.steps_per_iteration,
            shuffle=self.args.shuffle_dataset,
            seed=self.args.seed,
            epoch=lambda: int(self.state.epoch or 0),
        )

    # Its state

    def run_state(self) -> dict[str, Any]:
        """Return the state of this process for a checkpoint, as JSON can hold it."""
        return {
            "world_size": self.args.world_size,
            "identity": self.identity,
            "kept_options": kept_options(self.args),
            "iteration_options": options_of_iteration(self.args),
            "recorded": self.records.recorded,
            "seconds": time.perf_counter() - self._start,
            "losses": [self._tr_loss.item(), self._total_loss_scalar, self._globalstep_last_logged, self._loss_start],
            "parts": {name: part.state_dict() for name, part in self.stateful.items()},
        }

    def load_run_state(self, state: dict[str, Any]) -> None:
        """Load a state from [`~RunTrainer.run_state`]."""
        self._saved_losses, self._saved_seconds = state["losses"], state["seconds"]
        for name, part in self.stateful.items():
            part.load_state_dict(state["parts"][name])

    def _begin(self) -> None:
        """Go on, before the first step, with what the trainer's own checkpoint has not restored."""
        self._start = time.perf_counter() - self._saved_seconds
        self.state.log_history[:0] = self._logged_before
        self._find_best()
        if self._saved_losses is None:
            self._loss_start = self.state.global_step
        else:
            loss, self._total_loss_scalar, self._globalstep_last_logged, self._loss_start = self._saved_losses
            self._tr_loss.fill_(loss)
            self._saved_losses = None
        self._has_begun = True

    # Stopping, logging and saving

    def _maybe_log_save_evaluate(self, *args, **kwargs) -> None:
        super()._maybe_log_save_evaluate(*args, **kwargs)
        number = max(gather_object([self.stop_signals.received]))
        if not number:
            return
        if self.saved_step != self.state.global_step:
            self._save_checkpoint(self.model, trial=None)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        follows = "`train(resume_from_checkpoint=True)` goes on."
        if self.args.save_only_model:
            follows = "Training cannot go on from it: `save_only_model=True` saves no more than the model."
        logger.warning(
            f"Training is stopped by {Signals(number).name} at step {self.state.global_step} of "
            f"{self.state.max_steps}; {self._next_checkpoint} is saved. {follows}"
        )
        stop_at_once(number)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs or END_OF_TRAINING in logs:
            logs[SECONDS] = time.perf_counter() - self._start
        if END_OF_TRAINING in logs:
            # Of all steps, also of those before the run was resumed.
            logs[END_OF_TRAINING] = self._total_loss_scalar / max(1, self.state.global_step - self._loss_start)
            if self.had_ended:
                return
        super().log(logs, start_time)

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        """
        Evaluate, as [`~transformers.Trainer.evaluate`] does. In a folder with a run that this trainer has neither
        trained nor resumed, nothing is written down.
        """
        self._training_log.is_on = self._on_first_process(self._may_record)
        if not self._training_log.is_on:
            logger.warning(
                f"`output_dir` {self.args.output_dir!r} has a run that this trainer has not trained: this evaluation "
                "is not written down. Choose another folder for that."
            )
        return super().evaluate(*args, **kwargs)

    def _may_record(self) -> bool:
        """Whether the folder of the run is this trainer's, or has none."""
        if self._has_opened_folder:
            return True
        try:
            check_unused(self.args.output_dir)
        except RunRefused:
            return False
        return True

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """
        Save the model, and with `push_to_hub=True` upload it, as [`~transformers.Trainer.save_model`] does. What is
        saved elsewhere than into the run's folder, such as the target weights, is not uploaded.
        """
        is_elsewhere = output_dir is not None and Path(output_dir).resolve() != Path(self.args.output_dir).resolve()
        super().save_model(output_dir, _internal_call or is_elsewhere)

    def _save_checkpoint(self, model, trial) -> None:
        lost = None
        try:
            self.before_saving()
        except Exception as error:  # of a server, for example, on all processes; what there is is saved first
            lost = error
        start = time.perf_counter()
        super()._save_checkpoint(model, trial)
        self.records.metrics["time/save"].append(time.perf_counter() - start)
        self.records.metrics["checkpoint/size_mb"].append(sum(self.checkpoint_sizes.values()) / 1e6)
        if lost is not None:
            raise lost

    def _place_model(self) -> None:
        """Put the model on its device, where that was left to training, or to an evaluation loop of transformers."""
        if self.place_model_on_device or self.is_model_parallel or has_gathered_weights(self.model):
            return
        if self.is_fsdp_enabled:
            raise ValueError(
                "Under FSDP2 the model is sharded when training begins, and cannot be evaluated before. Set "
                "`eval_on_start=True`, or evaluate it in one process."
            )
        self._move_model_to_device(self.model, self.args.device)
