# SPDX-License-Identifier: Apache-2.0

"""
What the transformers backend reads of its prompts with its prefix cache, against without, and how long a batch takes,
in one run. Part of `benchmarks.systems.generation`.

Two shapes, with the embedded tiny model. `quickstart`: a batch of examples/scripts/nlac_quickstart.py, after some
episodes: it plays 4 episodes, refines actions in 128 transitions, and writes their Bellman targets with the target
weights. `episodes_of_16_turns`: 16 episodes of 16 turns, played together.

`prefill_ratio` is the share of prompt tokens that are read. Both ways have the same seeds; `same_tokens` is the share
of answers that are the same, token by token.
"""

import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import median

import torch
from datasets import Dataset

from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.environments import StepResult
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL, make_environment, make_tasks
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.method.backup import bellman_targets
from trl_nlac.method.refinement import refine_actions
from trl_nlac.options.generation_options import PREFIX_CACHE_MEMORY
from trl_nlac.types import Transition


NUM_EARLIER_ITERATIONS = 12  # of the quickstart, half of its length
Tokens = list[tuple[int, ...]]


@dataclass
class Shape:
    """
    A kind of batch.

    Args:
        trainer ([`NLACTrainer`]):
            Has the model and its roles.
        run (`Callable`):
            Generates a batch, given its number; returns the tokens of its answers.
    """

    trainer: NLACTrainer
    run: Callable[[int], Tokens]


def make_trainer(output_dir: str, environment, tasks: Dataset, **settings) -> NLACTrainer:
    """Make a trainer of the tiny model, which is not trained."""
    args = NLACConfig(
        output_dir=output_dir,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        action_format="text",
        max_generation_batch_size=512,
        episodes_per_iteration=4,
        **settings,
    )
    return NLACTrainer(
        model=TINY_MODEL, args=args, train_dataset=tasks, environment_factory=environment, prompts=COMPACT_PROMPTS
    )


def quickstart(output_dir: str) -> Shape:
    desk, tasks = make_tasks("service_desk", 0)
    trainer = make_trainer(
        output_dir,
        lambda: make_environment(desk),
        tasks,
        samples_per_iteration=128,
        per_device_train_batch_size=32,
        max_completion_length=64,
        max_turns=2,
        min_p=0.05,
        role_sampling={"successor": {"temperature": 0.5}, "backup": {"temperature": 0.0}},
    )
    rows = [tasks[i % len(tasks)] for i in range(4 * (NUM_EARLIER_ITERATIONS + 1))]
    with trainer._generating():
        trainer.replay.add(play_episodes(trainer.environments, rows[4:], trainer.roles))

    @cache
    def transitions(number: int) -> list[Transition]:
        return [sample.transition for sample in trainer.replay.sample(trainer.args.samples_per_iteration)]

    def run(number: int) -> Tokens:
        with trainer._generating():
            episodes = play_episodes(trainer.environments, rows[:4], trainer.roles)
            refinements = refine_actions(trainer.roles, transitions(number))
        with trainer.target_weights.swapped_into(trainer.model), trainer._generating():
            targets = bellman_targets(trainer.roles, transitions(number), "implicit")
        answers = [*targets, *(refinement.refined_action for refinement in refinements if refinement is not None)]
        return [
            *(tuple(episode.token_ids.tolist()) for episode in episodes),
            *(answer.token_ids for answer in answers),
        ]

    return Shape(trainer, run)


class SixteenTurns:
    """Observations of eight words, for 16 turns."""

    def __init__(self):
        self.words = make_tasks("service_desk", 0)[0].requests

    def reset(self, number: int) -> str:
        self.rng, self.turn = random.Random(number), 0
        return self.observation()

    def observation(self) -> str:
        return " ".join(self.rng.choices(self.words, k=8))

    def step(self, action: str) -> StepResult:
        self.turn += 1
        return StepResult(self.observation(), reward=1.0, terminated=self.turn == 16)


def episodes_of_16_turns(output_dir: str) -> Shape:
    tasks = Dataset.from_dict({"number": list(range(16))})
    trainer = make_trainer(output_dir, SixteenTurns, tasks, max_completion_length=16, max_turns=16)

    def run(number: int) -> Tokens:
        with trainer._generating():
            episodes = play_episodes(trainer.environments, list(tasks), trainer.roles)
        return [tuple(episode.token_ids) for episode in episodes]

    return Shape(trainer, run)


SHAPES = {"quickstart": quickstart, "episodes_of_16_turns": episodes_of_16_turns}


def measure(name: str, repetitions: int) -> dict:
    """Run the same batches with and without the cache, in turns; seconds are medians."""
    with tempfile.TemporaryDirectory() as directory:
        shape = SHAPES[name](directory)
        generator, limit = shape.trainer.roles.generator, PREFIX_CACHE_MEMORY
        measured: dict[float, list[tuple[float, float, float]]] = {0.0: [], limit: []}
        pairs: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        for number in range(1 + repetitions):
            answers = []
            for memory, runs in measured.items():
                generator.prefix_cache_memory = memory
                torch.manual_seed(number)
                start, cpu_start = time.perf_counter(), time.process_time()
                answers.append(shape.run(number))
                seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
                runs.append((seconds, cpu_seconds, generator.take_metrics()["generation/prefix_hit_rate"]))
            pairs += zip(*answers, strict=True)
    # The first batch warms up.
    before, after = (list(map(median, zip(*runs[1:], strict=True))) for runs in measured.values())
    return {
        "shape": name,
        "prefill_ratio": round(1 - after[2], 4),
        "seconds_before": round(before[0], 3),
        "seconds_after": round(after[0], 3),
        "cpu_seconds_before": round(before[1], 3),
        "cpu_seconds_after": round(after[1], 3),
        "same_tokens": sum(one == other for one, other in pairs) / len(pairs),
        "answers": len(pairs),
    }
