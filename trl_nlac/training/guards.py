# SPDX-License-Identifier: Apache-2.0

"""When to warn, stop or go back: failures, nothing to train on, forgotten roles, losses and gradients not finite."""

import logging
import math
from collections import deque
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate.utils import gather

from ..chat.template import ChatTemplate
from ..method.batches import NOTHING, MicroBatch, NLACCollator
from ..terminal import printable
from ..types import Episode, RunRefused
from .manifest import check_manifest, checkpoint_of


logger = logging.getLogger(__name__)


_SEE_RATES = "See the format rates in the log."


class TrainingStopped(RuntimeError):
    """Training cannot continue. A checkpoint is saved before this reaches the caller."""


NUM_WATCHED = 100  # last episodes, over all processes; with fewer, training continues
MAX_FAILURE_RATE = 0.5  # of the environments in these, and of an evaluation that is compared with others


class FailureMonitor:
    """Count failed environments among the last episodes."""

    def __init__(self):
        self.failed: deque[bool] = deque(maxlen=NUM_WATCHED)

    def update(self, failures: list[bool]) -> None:
        """Add episodes: whether the environment of each failed."""
        self.failed.extend(failures)

    @property
    def rate(self) -> float:
        """Share of failures among the last episodes."""
        return sum(self.failed) / len(self.failed)

    @property
    def is_exceeded(self) -> bool:
        """Whether training must stop."""
        return len(self.failed) == NUM_WATCHED and self.rate > MAX_FAILURE_RATE

    def report(self, checkpoint: Path, traceback: str) -> str:
        """Explain, for an error, why training stops."""
        return (
            f"The environment failed in {self.rate:.0%} of the last {len(self.failed)} episodes. Training stops, "
            f"{checkpoint} is saved. The last failure on this process:\n{printable(traceback) or 'none'}"
        )


MAX_IDLE_ITERATIONS = 10  # in a row, without an example of any loss


class IdleMonitor:
    """
    Count, for each loss that is trained, iterations in a row in which it was not, because no Bellman target or no
    refined action could be read.

    Attributes:
        num_iterations (`dict[str, int]`):
            Iterations in a row without an example of each loss.
    """

    def __init__(self):
        self.num_iterations: dict[str, int] = {}

    def update(self, num_examples: dict[str, float]) -> None:
        """Add an iteration with so many examples of each loss that is trained."""
        before = self.num_iterations
        self.num_iterations = {loss: 0 if n else before.get(loss, 0) + 1 for loss, n in num_examples.items()}

    @property
    def is_exceeded(self) -> bool:
        """Whether training must stop: no loss had an example for too long."""
        return min(self.num_iterations.values(), default=-1) >= MAX_IDLE_ITERATIONS

    @property
    def newly_idle(self) -> list[str]:
        """The losses that had none for so long as of this iteration."""
        return [loss for loss, number in self.num_iterations.items() if number == MAX_IDLE_ITERATIONS]

    def report(self, checkpoint: Path, causes: list[str]) -> str:
        """Explain, for an error, why training stops."""
        return (
            f"Not one example could be trained on in {min(self.num_iterations.values())} iterations in a row. "
            f"Training stops, {checkpoint} is saved. " + (" ".join(causes) or _SEE_RATES)
        )

    def warning(self, loss: str, causes: list[str]) -> str:
        """Explain, for a warning, that a loss is not trained while another is."""
        return (
            f"The {loss} loss had not one example in {self.num_iterations[loss]} iterations in a row, and training "
            "goes on without it. " + (" ".join(causes) or _SEE_RATES)
        )


_TOKENS_OF_A_THOUGHT = 2048


def short_thoughts(template: ChatTemplate, max_completion_length: int) -> str | None:
    """Explain, for a warning, that the model thinks by default and is likely to be cut off; `None` if it is not."""
    if not template.thinks_by_default or max_completion_length >= _TOKENS_OF_A_THOUGHT:
        return None
    off = ", or turn thinking off with `chat_template_kwargs={'enable_thinking': False}`"
    return (
        "With this chat template the model thinks before every answer, and an answer that is cut off at "
        f"`max_completion_length` ({max_completion_length} tokens) is never trained on. Raise it to "
        f"{_TOKENS_OF_A_THOUGHT} or more{off if template.can_stop_thinking else ''}."
    )


LEARNING_RATE_FACTOR = 0.5  # of each return to a checkpoint


class ForgettingGuard:
    """
    Decide what follows when a role was forgotten: nothing, the end of training, or a return to a checkpoint.

    Args:
        reaction (`str`):
            `"warn"`, `"stop"` or `"restore"`.

    Attributes:
        max_restores (`int`):
            Number of returns after which training stops.
        restores (`list[tuple[int, int]]`):
            The returns so far: the step of the checkpoint, and the step after which the run was saved again.
        healthy (`list[int]`):
            Steps at which the run was saved while no role was reported.
    """

    max_restores = 3

    def __init__(self, reaction: str):
        self.reaction = reaction
        self.restores: list[tuple[int, int]] = []
        self.healthy: list[int] = []

    def note_checkpoint(self, step: int, is_healthy: bool) -> None:
        """Note that the run is saved, in place of any checkpoint of the same step."""
        self.healthy = [other for other in self.healthy if other != step] + [step] * is_healthy

    def choose(self, run_dir: Path) -> tuple[int | None, list[int]]:
        """
        Choose the checkpoint to go back to. One that is damaged is passed over, with a warning.

        Args:
            run_dir (`Path`):
                Folder of the run.

        Returns:
            `tuple[int | None, list[int]]`: the step of the checkpoint, and the steps of all `healthy` ones that exist
            and were not passed over. The checkpoint is the newest of these from which the run did not start again yet:
            the others were perhaps ill already. If there is none, it is the newest of all. The step is `None` if
            training must stop.
        """
        steps = [step for step in self.healthy if checkpoint_of(run_dir, step).exists()]
        if self.reaction == "stop" or len(self.restores) >= self.max_restores:
            return None, steps
        used = {step for restore in self.restores for step in restore}
        while steps:
            step = max(set(steps) - used or steps)
            try:
                check_manifest(checkpoint_of(run_dir, step))
            except RunRefused as refused:
                logger.warning(f"Step {step} is passed over. {refused}")
                steps.remove(step)
            else:
                return step, steps
        return None, steps

    def report(self, checkpoint: Path, steps: list[int], causes: list[str]) -> str:
        """Explain, for an error, why training stops."""
        reasons = {
            "stop": "Training stops (`on_forgetting='stop'`)",
            "restore": f"Training stops after {len(self.restores)} returns (`on_forgetting='restore'`)",
        }
        healthy = f"the newest without a forgotten role is that of step {max(steps)}" if steps else "none is healthy"
        return f"{' '.join(causes)} {reasons[self.reaction]}, {checkpoint} is saved; of the checkpoints, {healthy}."


MOST_EMPTY, MOST_EMPTY_OF_ALL = 10, 2  # one coroutine that blocks can hold up all others once


def check_played(empty: list[tuple[int, str]]) -> None:
    """
    Stop where tasks are played again and again, and training cannot start.

    Args:
        empty (`list[tuple[int, str]]`):
            Of each process, how often in a row not one turn was played of those that it needs, and why.

    Raises:
        RuntimeError: If that happened to one process too often, or to all of them twice.
    """
    number, reason = max(empty)
    if number >= MOST_EMPTY or min(empty)[0] >= MOST_EMPTY_OF_ALL:
        raise RuntimeError(reason)


def nothing_played(episodes: list[Episode]) -> str:
    """Explain, for an error, why there is nothing to train on. The episodes are those of this process."""
    end = printable(str(episodes[0].failure)) if episodes else "no episode of this process"
    return (
        f"None of {len(episodes)} episodes had a single turn, so there is nothing to train on. The first ended with: "
        f"{end}. Check the environment, and whether it can play the rows of `train_dataset`."
    )


MAX_LEFT_BEHIND = 1000  # on a process


def too_many_hang(number: int, checkpoint: Path) -> str:
    """Explain, for an error, why training stops although few environments fail."""
    return (
        f"{number} environments took longer than `environment_timeout` and still hang, in threads that cannot be "
        f"ended. Training stops, {checkpoint} is saved. Resume there in a new process, which has none, and limit the "
        "time of what hangs in the environment itself."
    )


MAX_NOT_FINITE = 10  # in a row: micro-batches with such losses, on any process, or steps with such gradients


class LossGuard:
    """
    Drop examples whose loss is not finite from their batch, count and report them.

    Attributes:
        num_dropped (`int`):
            Number of dropped examples so far, on all processes.
    """

    def __init__(self):
        self.num_dropped = 0
        self.num_batches = 0  # in a row

    def finite_losses(
        self,
        compute: Callable[[MicroBatch], torch.Tensor],
        batch: MicroBatch,
        collate: NLACCollator,
    ) -> tuple[MicroBatch, torch.Tensor]:
        """
        Compute finite losses of a batch. If some are not finite on any process, the model runs again on all processes
        without those examples.

        Args:
            compute (`Callable`):
                Computes the loss of each example of a batch, `(B,)`.
            batch ([`~method.batches.MicroBatch`]):
                The batch.
            collate ([`~method.batches.NLACCollator`]):
                Makes a batch of the examples that are left.

        Returns:
            `tuple[MicroBatch, torch.Tensor]`: the batch without dropped examples, and its losses.

        Raises:
            TrainingStopped: If examples were dropped from too many micro-batches in a row.
            RuntimeError: If losses are not finite even without them.
        """
        losses = compute(batch)
        dropped = ~losses.detach().isfinite()
        number = _count(dropped)
        self.num_batches = self.num_batches + 1 if number else 0
        if not number:
            return batch, losses
        self.num_dropped += number
        self._report(losses, batch, dropped)
        if self.num_batches >= MAX_NOT_FINITE:
            raise TrainingStopped(
                f"{self.num_batches} micro-batches in a row had losses that are not finite, on one process or more. "
                "Training stops, a checkpoint is saved. See the warnings for the transitions; lower `learning_rate` "
                "or `max_grad_norm`, or train in float32 or bfloat16 instead of float16."
            )
        # An example of weight 0 takes its place: every process still has a batch.
        chosen = zip(batch.examples, dropped.tolist(), strict=True)
        batch = collate([NOTHING if is_dropped else example for example, is_dropped in chosen])
        losses = compute(batch)
        if _count(~losses.detach().isfinite()):
            raise RuntimeError(
                "All losses of the model are not finite: its weights are corrupted. Resume from an earlier "
                "checkpoint, with a lower `learning_rate` or `max_grad_norm`, or in float32 or bfloat16."
            )
        return batch, losses

    @staticmethod
    def _report(losses: torch.Tensor, batch: MicroBatch, dropped: torch.Tensor) -> None:
        for i in dropped.nonzero()[:, 0].tolist():
            example = batch.examples[i]
            last = [*example.prompt.ids, *example.completion_ids][-20:]
            logger.warning(
                f"The {example.loss} loss of transition {example.transition_id} is {losses[i].item()}; the example is "
                f"not trained on. Its tokens end with {last}."
            )


class GradientGuard:
    """
    Leave out optimizer steps whose gradient is not finite, count and report them: such a step would ruin all weights.

    Attributes:
        num_skipped (`int`):
            Number of these steps so far.
    """

    def __init__(self):
        self.num_skipped = 0
        self.num_in_a_row = 0

    def skips(self, norm: torch.Tensor | float | None, step: int) -> bool:
        """
        Decide on a step.

        Args:
            norm (`torch.Tensor` or `float`, *optional*):
                Norm of the gradient, over all processes. `None` where it is not known.
            step (`int`):
                Number of optimizer steps before.

        Returns:
            `bool`: whether it is left out.
        """
        if norm is None or math.isfinite(norm):
            self.num_in_a_row = 0
            return False
        self.num_skipped += 1
        self.num_in_a_row += 1
        logger.warning(f"The norm of the gradient is {float(norm)} after step {step}: the weights stay as they are.")
        return True

    def check(self) -> None:
        """
        Raises:
            TrainingStopped: If too many steps in a row were left out.
        """
        if self.num_in_a_row >= MAX_NOT_FINITE:
            raise TrainingStopped(
                f"{self.num_in_a_row} optimizer steps in a row had gradients that are not finite. Training stops, a "
                "checkpoint is saved. Lower `learning_rate`, or train in float32 or bfloat16 instead of float16."
            )


def _count(chosen: torch.Tensor) -> int:
    """Count true elements on all processes."""
    return int(gather(chosen.sum()).sum())
