# SPDX-License-Identifier: Apache-2.0

"""Rejection fine-tuning (section 6.2): TRL's SFT trainer on samples of the policy's own successful episodes."""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from trl import SFTConfig, SFTTrainer

from benchmarks.learning.methods.rehearsal import Rehearsal
from benchmarks.learning.playing import LearningCurve, Player, max_gradient_steps, train_until_spent, trainer_arguments
from benchmarks.learning.tasks import LearningTask
from trl_nlac import NLACConfig
from trl_nlac.types import Episode, TrainingExample


def train(
    task: LearningTask,
    acting: NLACConfig,
    budget: int,
    interval: int,
    learning_rate: float = 1e-3,
    episodes_per_iteration: int = 32,
    updates_per_iteration: int = 4,
    batch_size: int = 32,
    micro_batch_size: int | None = None,
    buffer_size: int = 512,
    rehearsal_ratio: float = 0.5,
    anchor_ratio: float = 0.5,
    answers_per_state: int = 8,
) -> LearningCurve:
    """
    Train with [`~trl.SFTTrainer`] until the budget of environment steps is spent. Training starts with the first
    success: rehearsal alone would only narrow exploration. The buffer keeps the newest `buffer_size` transitions of
    each group of tasks. Anchors are actions of the base model, `answers_per_state` in each state of the first
    iteration's episodes; they keep the policy from collapsing onto its first successes. Ratios are relative to the
    transitions of a batch.
    """
    args = SFTConfig(
        **trainer_arguments(acting, learning_rate),
        gradient_accumulation_steps=batch_size // (micro_batch_size or batch_size),
        max_steps=max_gradient_steps(budget, episodes_per_iteration, updates_per_iteration),
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    numbers = (episodes_per_iteration, updates_per_iteration, batch_size, buffer_size)
    trainer = RFTTrainer(task, acting, args, *numbers, rehearsal_ratio, anchor_ratio, answers_per_state)
    return train_until_spent(trainer, trainer.player, budget, interval)


class RFTTrainer(SFTTrainer):
    """Supervised fine-tuning on the policy's own successes. The arguments are those of [`train`]."""

    def __init__(
        self,
        task: LearningTask,
        acting: NLACConfig,
        args: SFTConfig,
        episodes_per_iteration: int,
        updates_per_iteration: int,
        batch_size: int,
        buffer_size: int,
        rehearsal_ratio: float,
        anchor_ratio: float,
        answers_per_state: int,
    ):
        super().__init__(model=task.model, args=args, train_dataset=task.rows, peft_config=task.peft_config)
        self.player = Player.of_model(task, acting, self.model, self.accelerator)
        self.episodes_per_iteration = episodes_per_iteration
        self.updates_per_iteration = updates_per_iteration
        self.batch_size = batch_size
        self.successes: dict[str, deque[TrainingExample]] = defaultdict(partial(deque, maxlen=buffer_size))
        self.rehearsal = Rehearsal(task.rehearsal, rehearsal_ratio, self.player.roles.chat, seed=acting.seed)
        self.num_anchors = round(anchor_ratio * batch_size)
        self.anchors: list[TrainingExample] = []
        self.answers_per_state = answers_per_state
        self.rng = random.Random(acting.seed)

    def get_train_dataloader(self) -> DataLoader:
        # Not prepared by Accelerate, whose loader fetches each batch one step ahead: an iteration would be played, and
        # counted, before the last gradient step of the previous one.
        return DataLoader(Stream(self.batches), batch_size=None, collate_fn=self.data_collator)

    def batches(self) -> Iterator[list[dict[str, list[int]]]]:
        """Yield micro-batches. Episodes are played when their first micro-batch is requested."""
        tasks, number = self._tasks(), self.args.gradient_accumulation_steps
        while True:
            episodes = self.player.play(list(islice(tasks, self.episodes_per_iteration)))
            if self.num_anchors and not self.anchors:
                self.anchors = self._base_actions(episodes)
            for episode in episodes:
                if episode.score >= self.player.args.success_threshold:
                    self.successes[episode.task.get(self.player.task.group, "")] += policy_examples(episode)
            if not self.successes:  # a gradient step of zero, so that the curve continues
                ids = episodes[0].token_ids.tolist()
                yield from [[{"input_ids": ids, "labels": [-100] * len(ids)}]] * number
                continue
            for _ in range(self.updates_per_iteration):
                examples = [
                    *self._draw_successes(),
                    *self.rehearsal.draw(self.batch_size),
                    *self.rng.choices(self.anchors, k=self.num_anchors),
                ]
                yield from ([tokens(example) for example in examples[i::number]] for i in range(number))

    def _tasks(self) -> Iterator[dict[str, Any]]:
        for epoch in count():
            yield from self.train_dataset.shuffle(seed=self.args.seed + epoch)

    def _base_actions(self, episodes: list[Episode]) -> list[TrainingExample]:
        """Sample fresh actions of the current weights in all states of the episodes."""
        roles = self.player.roles
        states = [transition.state for episode in episodes for transition in episode.transitions]
        with roles.generator.session(self.model):
            answers = roles.ask("policy", states * self.answers_per_state)
        return [TrainingExample("policy", roles.builder.opened(answer.prompt), answer.token_ids) for answer in answers]

    def _draw_successes(self) -> list[TrainingExample]:
        """Draw transitions of successful episodes, balanced over the groups of tasks."""
        groups = self.rng.choices(list(self.successes), k=self.batch_size)
        return [self.rng.choice(self.successes[group]) for group in groups]


class Stream(IterableDataset):
    """A dataset that starts `source` again for each iteration."""

    def __init__(self, source: Callable[[], Iterator[Any]]):
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        return self.source()


def policy_examples(episode: Episode) -> list[TrainingExample]:
    """Return each action of an episode after its state."""
    return [TrainingExample("policy", transition.state, transition.action_ids) for transition in episode.transitions]


def tokens(example: TrainingExample) -> dict[str, list[int]]:
    """Convert an example for the SFT trainer, with the label `-100` for tokens that are not trained on."""
    prompt_ids, completion_ids = example.prompt.ids, list(example.completion_ids)
    return {"input_ids": prompt_ids + completion_ids, "labels": [-100] * len(prompt_ids) + completion_ids}
