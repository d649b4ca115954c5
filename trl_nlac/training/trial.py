# SPDX-License-Identifier: Apache-2.0

"""Trial runs of a model, whose code can be anybody's, before training relies on what it can do."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn


T = TypeVar("T")


class TrialFailed(Exception):
    """A model cannot do what was tried; the message says why."""


def trial(model: nn.Module, run: Callable[[], T]) -> T:
    """Return what `run` computes with a model, without dropout and gradients; [`TrialFailed`] if it raises."""
    is_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return run()
    except Exception as error:
        first, *_ = [*str(error).splitlines(), ""]
        raise TrialFailed(f"{type(error).__name__}: {first}") from error
    finally:
        model.train(is_training)


def deviation(found: torch.Tensor, expected: torch.Tensor, limit: float) -> str:
    """Say by how much values differ from the expected ones, relative to how these vary; empty within `limit`."""
    difference, scale = ((values - expected).float().norm() for values in (found, expected.mean()))
    return "" if difference <= limit * scale else f"differs by {difference / scale:.1%}"
