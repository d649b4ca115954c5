# SPDX-License-Identifier: Apache-2.0

"""A trainer that plays beside training, with an engine in place of a vLLM server."""

from helpers.testing_utils import make_trainer

from benchmarks.tiny_engine import BESIDE, load_tiny_engine
from trl_nlac import NLACTrainer
from trl_nlac.training import build


def make_async_trainer(
    monkeypatch, output_dir, config: dict | None = None, max_staleness: int | None = None, **kwargs
) -> NLACTrainer:
    """
    Make a trainer that plays beside training, with an engine in place of a vLLM server, and with episodes that are at
    most `max_staleness` optimizer steps old.
    """
    monkeypatch.setattr(build, "load_generator", load_tiny_engine)
    trainer = make_trainer(output_dir, {**BESIDE, "logging_steps": 1, **(config or {})}, **kwargs)
    if max_staleness is not None:
        trainer.rollouts.max_staleness = max_staleness
    return trainer
