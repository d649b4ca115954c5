# SPDX-License-Identifier: Apache-2.0

"""
NLAC as a user gets it in the learning benchmark: `NLACConfig()`, with nothing set but the learning rate, lengths,
budget and device, and without rehearsal. With `fixed` roles, these are played by the initial weights.
"""

import copy
from dataclasses import fields, replace

from benchmarks.learning.playing import LearningCurve, Player, train_until_spent
from benchmarks.learning.tasks import LearningTask
from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.chat.tokenizer import ending_token_ids
from trl_nlac.generation.loading import load_generator
from trl_nlac.method.roles import Roles


class FixedRolesTrainer(NLACTrainer):
    """NLAC in which a frozen copy of the initial weights plays some roles. Their answers are trained on as before."""

    def fix(self, names: set[str]) -> None:
        """Let the weights of now play the roles with these names."""
        frozen = copy.deepcopy(self.model).eval().requires_grad_(False)
        tokenizer, own = self.roles.chat.tokenizer, self.roles
        stops = ending_token_ids(tokenizer, own.chat.stop_ids, frozen.generation_config)
        generator = load_generator(frozen, self.args, self.accelerator, tokenizer, stops)
        self.session = generator.session(frozen)  # stays open: its weights never change
        self.session.__enter__()
        fixed, learned = Roles(generator, own.chat, own.prompts, self.args), own.ask
        fixed.tally = own.tally
        own.ask = lambda role, *args, **options: (fixed.ask if role in names else learned)(role, *args, **options)


def train(
    task: LearningTask,
    acting: NLACConfig,
    budget: int,
    interval: int,
    learning_rate: float = 1e-3,
    fixed: tuple[str, ...] = (),
    **settings,
) -> LearningCurve:
    """Train until the budget of environment steps is spent. `settings` are options in place of the defaults."""
    defaults = {
        of.name: of.default for of in fields(NLACConfig) if of.name in ("bootstrap", "min_p", "target_max_age")
    }
    of_lengths = {"max_steps": 10**6, "logging_steps": 100, "learning_rate": learning_rate}
    args = replace(acting, **{**defaults, **of_lengths, **settings})
    arguments = {**task.trainer_arguments, "rehearsal_dataset": None}
    trainer = FixedRolesTrainer(model=task.model, args=args, **arguments, peft_config=task.peft_config)
    if fixed:
        trainer.fix(set(fixed))
    player = Player.of_trainer(task, trainer)
    return train_until_spent(trainer, player, budget, interval, lambda: trainer.num_environment_steps)


def train_with_fixed_operators(
    task: LearningTask, acting: NLACConfig, budget: int, interval: int, **settings
) -> LearningCurve:
    """Train policy and critic alone: the initial weights write Bellman targets, and do what a critique says."""
    return train(task, acting, budget, interval, **{"fixed": ("backup", "refine"), **settings})
