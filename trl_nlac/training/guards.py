# SPDX-License-Identifier: Apache-2.0

"""When to warn or stop: nothing to train on, losses and gradients that are not finite."""

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from accelerate.utils import gather

from ..chat.template import ChatTemplate
from ..method.batches import NOTHING, MicroBatch, NLACCollator
from ..types import TrainingStopped


logger = logging.getLogger(__name__)

MAX_IDLE_ITERATIONS = 10  # in a row, without an example of any loss


class IdleMonitor:
    """Count iterations in a row in which a loss was not trained, because no target or refined action could be read."""

    def __init__(self):
        self.num_iterations: dict[str, int] = {}  # in a row without an example of each loss
        self.has_trained = False  # whether there was an example of any loss

    def update(self, num_examples: dict[str, float]) -> None:
        """Add an iteration with so many examples of each loss that is trained."""
        before = self.num_iterations
        self.has_trained |= any(num_examples.values())
        self.num_iterations = {loss: 0 if n else before.get(loss, 0) + 1 for loss, n in num_examples.items()}

    @property
    def is_exceeded(self) -> bool:
        """Whether training must stop: no loss had an example for too long."""
        return min(self.num_iterations.values(), default=-1) >= MAX_IDLE_ITERATIONS

    def check(self, causes: list[str]) -> None:
        """Warn of a loss without examples for so long, and of its causes; raise [`TrainingStopped`] if it is both."""
        why = " ".join(causes) or "See the format rates in the log."
        if self.is_exceeded:
            number = min(self.num_iterations.values())
            raise TrainingStopped(f"No trainable example in {number} consecutive iterations. {why}")
        for loss, number in self.num_iterations.items():
            if number == MAX_IDLE_ITERATIONS:
                logger.warning(
                    f"The {loss} loss had no example in {number} consecutive iterations, and training goes on without "
                    f"it. {why}"
                )

    def warn_at_the_end(self, causes: list[str]) -> None:
        """Warn of a run that ends without having been trained."""
        if not self.has_trained:
            logger.warning(f"Nothing was trained: there was not one example. {' '.join(causes)}")

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint. A run that stopped because of them begins to count anew."""
        num_iterations = {} if self.is_exceeded else self.num_iterations
        return {"num_iterations": num_iterations, "has_trained": self.has_trained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from [`~IdleMonitor.state_dict`]."""
        self.num_iterations, self.has_trained = state["num_iterations"], state["has_trained"]


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


MAX_NOT_FINITE = 10  # in a row: micro-batches with such losses, on any process, or steps with such gradients


class LossGuard:
    """Drop examples whose loss is not finite from their batch, count and report them."""

    def __init__(self):
        self.num_dropped = 0  # examples so far, on all processes
        self.num_batches = 0  # in a row

    def finite_losses(
        self, compute: Callable[[MicroBatch], torch.Tensor], batch: MicroBatch, collate: NLACCollator
    ) -> tuple[MicroBatch, torch.Tensor]:
        """
        Compute finite losses of a batch, `(B,)`, and return the batch that they are of. If some are not finite on any
        process, the model runs again on all processes without those examples. Raise [`TrainingStopped`] if examples
        were dropped from too many micro-batches in a row. Raise a `RuntimeError` if losses are not finite even without
        them.
        """
        losses = compute(batch)
        dropped = ~losses.detach().isfinite()
        number = _count(dropped)
        self.num_batches = self.num_batches + 1 if number else 0
        if not number:
            return batch, losses
        self.num_dropped += number
        for i in dropped.nonzero()[:, 0].tolist():
            example = batch.examples[i]
            last = [*example.prompt.ids, *example.completion_ids][-20:]
            logger.warning(
                f"The {example.loss} loss of transition {example.transition_id} is {losses[i].item()}; the example is "
                f"not trained on. Its tokens end with {last}."
            )
        if self.num_batches >= MAX_NOT_FINITE:
            raise TrainingStopped(
                f"{self.num_batches} micro-batches in a row had losses that are not finite, on one process or more. "
                "See the warnings for the transitions; lower `learning_rate` or `max_grad_norm`, or train in float32 "
                "or bfloat16 instead of float16."
            )
        # An example of weight 0 takes its place: every process still has a batch.
        chosen = zip(batch.examples, dropped.tolist(), strict=True)
        batch = collate([NOTHING if is_dropped else example for example, is_dropped in chosen])
        losses = compute(batch)
        if _count(~losses.detach().isfinite()):
            raise RuntimeError(
                "Every loss is NaN or infinite; the weights are probably corrupted. Resume from an earlier "
                "checkpoint, with a lower `learning_rate` or `max_grad_norm`, or in float32 or bfloat16."
            )
        return batch, losses

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"num_dropped": self.num_dropped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from [`~LossGuard.state_dict`]."""
        self.num_dropped = state["num_dropped"]


class GradientGuard:
    """Leave out, count and report optimizer steps whose gradient is not finite, which would ruin all weights."""

    def __init__(self):
        self.num_skipped = 0
        self.num_in_a_row = 0

    def skips(self, norm: torch.Tensor | float | None, step: int) -> bool:
        """Whether the step after `step` others is left out, by the norm of the gradient over all processes."""
        if norm is None or math.isfinite(norm):
            self.num_in_a_row = 0
            return False
        self.num_skipped += 1
        self.num_in_a_row += 1
        logger.warning(f"The norm of the gradient is {float(norm)} after step {step}: the weights stay as they are.")
        return True

    def check(self) -> None:
        """Raise [`TrainingStopped`] if too many steps in a row were left out."""
        if self.num_in_a_row >= MAX_NOT_FINITE:
            raise TrainingStopped(
                f"{self.num_in_a_row} optimizer steps in a row had gradients that are not finite. Lower "
                "`learning_rate`, or train in float32 or bfloat16 instead of float16."
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"num_skipped": self.num_skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from [`~GradientGuard.state_dict`]."""
        self.num_skipped = state["num_skipped"]


def _count(chosen: torch.Tensor) -> int:
    """Count true elements on all processes."""
    return int(gather(chosen.sum()).sum())
