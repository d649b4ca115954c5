# SPDX-License-Identifier: Apache-2.0

"""Supervised fine-tuning on logs, with TRL's SFT trainer."""

import random

from accelerate import Accelerator
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from benchmarks.learning.methods.rehearsal import Rehearsal
from benchmarks.learning.methods.rft import policy_examples, tokens
from benchmarks.learning.playing import Player, trainer_arguments
from benchmarks.learning.tasks import LearningTask
from trl_nlac import NLACConfig
from trl_nlac.episodes.logs import episodes_from_logs
from trl_nlac.training.model import load_model


def sft_trainer(
    task: LearningTask,
    acting: NLACConfig,
    logs: Dataset,
    max_steps: int,
    rehearsal_ratio: float,
    learning_rate: float = 1e-3,
    batch_size: int = 32,
) -> SFTTrainer:
    """Make TRL's SFT trainer on every action of the logs, and on rehearsal samples, with NLAC's batches."""
    player = Player.of_model(task, acting, load_model(task.model, acting), Accelerator(cpu=True))
    episodes = episodes_from_logs(logs, player.roles.actions, task.prompts)
    actions = [example for episode in episodes for example in policy_examples(episode)]
    rehearsal = Rehearsal(task.rehearsal, rehearsal_ratio, player.roles.chat, seed=acting.seed)
    rng = random.Random(acting.seed)
    rows = []
    for _ in range(max_steps):
        batch = rng.choices(actions, k=batch_size) + rehearsal.draw(batch_size)
        rows += [tokens(example) for example in batch]
    args = SFTConfig(
        **trainer_arguments(acting, learning_rate),
        max_steps=max_steps,
        per_device_train_batch_size=len(rows) // max_steps,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    return SFTTrainer(model=task.model, args=args, train_dataset=Dataset.from_list(rows))
