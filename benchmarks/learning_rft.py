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


"""
The baseline of rejection fine-tuning (paper, section 6.2) with TRL's own SFT trainer: the policy plays, its successes
go to a buffer, and it is trained on samples of the buffer.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from typing import Any

from learning_playing import LearningCurve, Player, max_gradient_steps, train_until_spent, trainer_arguments
from learning_tasks import LearningTask
from torch.utils.data import DataLoader, IterableDataset
from trl import SFTConfig, SFTTrainer

from trl_nlac import NLACConfig
from trl_nlac.training.rehearsal import Rehearsal
from trl_nlac.types import Episode, TrainingExample, Transition


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
    Train with [`~trl.SFTTrainer`] until the budget of environment steps is spent.

    Args:
        task ([`LearningTask`]):
            The task.
        acting ([`NLACConfig`]):
            How to sample, where to write, and on which device in which precision.
        budget (`int`):
            Environment steps to spend.
        interval (`int`):
            Environment steps between two evaluations.
        learning_rate (`float`, *optional*, defaults to `1e-3`):
            Learning rate of AdamW.
        episodes_per_iteration (`int`, *optional*, defaults to `32`):
            Episodes between two times of training.
        updates_per_iteration (`int`, *optional*, defaults to `4`):
            Gradient steps after them. Before the first success nothing is trained: rehearsal alone would only narrow
            what is explored.
        batch_size (`int`, *optional*, defaults to `32`):
            Transitions of successful episodes in the batch of a gradient step.
        micro_batch_size (`int`, *optional*):
            Of these, those of a forward pass. If `None`, all.
        buffer_size (`int`, *optional*, defaults to `512`):
            How many of the newest transitions are kept of each group of tasks.
        rehearsal_ratio (`float`, *optional*, defaults to `0.5`):
            Rehearsal samples of a batch, relative to the transitions.
        anchor_ratio (`float`, *optional*, defaults to `0.5`):
            Anchors of a batch, relative to the transitions: actions of the base model, so that the policy does not
            collapse onto its first successes.
        answers_per_state (`int`, *optional*, defaults to `8`):
            How many anchors the base model says in each state of the first iteration's episodes.
    """
    args = SFTConfig(
        **trainer_arguments(acting, learning_rate),
        gradient_accumulation_steps=batch_size // (micro_batch_size or batch_size),
        max_steps=max_gradient_steps(budget, episodes_per_iteration, updates_per_iteration),
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    trainer = RFTTrainer(
        *(task, acting, args),
        episodes_per_iteration=episodes_per_iteration,
        updates_per_iteration=updates_per_iteration,
        batch_size=batch_size,
        buffer_size=buffer_size,
        rehearsal_ratio=rehearsal_ratio,
        anchor_ratio=anchor_ratio,
        answers_per_state=answers_per_state,
    )
    return train_until_spent(trainer, trainer.player, budget, interval)


class RFTTrainer(SFTTrainer):
    """
    Supervised fine-tuning on what the policy does well while it is trained. The arguments are those of [`train`].
    """

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
        # Not prepared by Accelerate, whose loader takes each batch one step ahead: an iteration would be played, and
        # counted, before the last gradient step of the one before.
        return DataLoader(Stream(self.batches), batch_size=None, collate_fn=self.data_collator)

    def batches(self) -> Iterator[list[dict[str, list[int]]]]:
        """The micro-batches of gradient steps. Episodes are played when the first after them is asked for."""
        tasks, number = self._tasks(), self.args.gradient_accumulation_steps
        while True:
            episodes = self.player.play(list(islice(tasks, self.episodes_per_iteration)))
            if self.num_anchors and not self.anchors:
                self.anchors = self._base_actions(episodes)
            for episode in episodes:
                if episode.score >= self.player.args.success_threshold:
                    self.successes[episode.task.get(self.player.task.group, "")] += policy_examples(episode)
            if not self.successes:  # a gradient step of zero, so that the curve goes on
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
        """Fresh actions, by the weights of now, in all states of the episodes."""
        roles = self.player.roles
        states = [Transition(episode, i).state for episode in episodes for i in range(len(episode.turns))]
        with roles.generator.session(self.model):
            answers = roles.ask("policy", states * self.answers_per_state, roles.parse_action)
        return [TrainingExample("policy", roles.opened(answer.prompt), answer.token_ids) for answer in answers]

    def _draw_successes(self) -> list[TrainingExample]:
        """Transitions of successful episodes, as many of each group of tasks."""
        groups = self.rng.choices(list(self.successes), k=self.batch_size)
        return [self.rng.choice(self.successes[group]) for group in groups]


class Stream(IterableDataset):
    """What `source` yields, each time anew."""

    def __init__(self, source: Callable[[], Iterator[Any]]):
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        return self.source()


def policy_examples(episode: Episode) -> list[TrainingExample]:
    """Each action of an episode after its state."""
    transitions = [Transition(episode, i) for i in range(len(episode.turns))]
    return [TrainingExample("policy", transition.state, transition.action_ids) for transition in transitions]


def tokens(example: TrainingExample) -> dict[str, list[int]]:
    """An example as the SFT trainer takes it; `-100` marks what is not trained on."""
    prompt_ids, completion_ids = example.prompt.ids, list(example.completion_ids)
    return {"input_ids": prompt_ids + completion_ids, "labels": [-100] * len(prompt_ids) + completion_ids}
