# SPDX-License-Identifier: Apache-2.0


"""NLAC in the learning benchmark, also with critiques of other requests, and with episodes of older weights."""

from concurrent import futures
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace

from benchmarks.learning.methods.extraction import (
    RehearsedRefinementsTrainer,
    RehearsedStoredActionsTrainer,
    ReverseStoredActionsTrainer,
    ReverseTrainer,
    StoredActionsTrainer,
    UsefulCriticTrainer,
    VerdictWeightedTrainer,
)
from benchmarks.learning.methods.roles import blind_critiques
from benchmarks.learning.playing import LearningCurve, Player, train_until_spent
from benchmarks.learning.tasks import LearningTask
from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.chat.tokenizer import ending_token_ids
from trl_nlac.episodes.rounds import AsyncRollouts
from trl_nlac.generation.transformers import TransformersGenerator
from trl_nlac.method.roles import Roles


class BlindTrainer(NLACTrainer):
    """NLAC whose refinement reads critiques of other requests. The critic is trained as usual."""

    def _refine(self, transitions, targets=None, criticise=blind_critiques):
        return super()._refine(transitions, targets, criticise)


class CopyGenerator(TransformersGenerator):
    """Generates with a copy of the model, in place of the engine of a server."""

    is_open = True

    def stop(self) -> None:
        """Do nothing: all that began has ended."""


class StaleRollouts(AsyncRollouts):
    """
    Playing beside training, made deterministic: every round is played with the weights that began it, and is trained
    on as late as it may be, however fast anything is.

    Args:
        trainer ([`NLACTrainer`]):
            The trainer.
        staleness (`int`):
            Number of optimizer steps from the weights that play to the first training on the episodes, of all but the
            first round. A multiple of those of an iteration.
    """

    def __init__(self, trainer: NLACTrainer, staleness: int):
        roles, args = trainer.roles, trainer.args
        chat = roles.chat
        end_ids = ending_token_ids(chat.tokenizer, chat.stop_ids, trainer.model.generation_config)
        generator = CopyGenerator(None, chat.tokenizer, end_ids, args.max_generation_batch_size)
        super().__init__(
            trainer.environments,
            roles,
            trainer.rewards,
            Roles(generator, chat, roles.prompts, args),
            staleness,
            args.updates_per_iteration,
            args.seed,
        )
        self._model, self._copy = trainer.model, deepcopy(trainer.model)
        self._session = ExitStack()

    def play_on(self) -> None:
        self._session.close()
        self._copy.load_state_dict(self._model.state_dict())
        self._session.enter_context(self.players.generator.session(self._copy))

    def _begin(self, begun) -> None:
        super()._begin(begun)
        futures.wait([begun.episodes])

    def _has_ended(self, one) -> bool:
        return False


TRAINERS = {
    "nlac": NLACTrainer,
    "blind": BlindTrainer,
    "verdict_weighted": VerdictWeightedTrainer,
    "useful_critiques": UsefulCriticTrainer,
    "reverse": ReverseTrainer,
    "stored_actions": StoredActionsTrainer,
    "reverse_stored_actions": ReverseStoredActionsTrainer,
    "rehearsed_refinements": RehearsedRefinementsTrainer,
    "rehearsed_stored_actions": RehearsedStoredActionsTrainer,
}


def train(
    task: LearningTask,
    acting: NLACConfig,
    budget: int,
    interval: int,
    staleness: int = 0,
    trainer: str = "nlac",
    **settings,
) -> LearningCurve:
    """
    Train with one of `TRAINERS` until the budget of environment steps is spent; with a `staleness`, on episodes of
    weights that are this number of optimizer steps old.
    """
    args = replace(acting, max_steps=10**6, logging_steps=100, **settings)
    if args.rehearsal_source == "self":  # in place of the samples of other instances
        task = replace(task, rehearsal=None)
    trained = TRAINERS[trainer](
        model=task.model,
        args=args,
        **task.trainer_arguments,
        peft_config=task.peft_config,
    )
    if staleness:
        trained.rollouts = StaleRollouts(trained, staleness)
    player = Player.of_trainer(task, trained)
    return train_until_spent(trained, player, budget, interval, lambda: trained.num_environment_steps)
