# SPDX-License-Identifier: Apache-2.0

"""The whole of algorithm 1 on a world that the model has never seen. It must learn, for the right reasons."""

import numpy as np
import torch
from helpers.testing_utils import make_config, priorities_of
from transformers import TrainerCallback

from trl_nlac import NLACTrainer, TargetWeights
from trl_nlac.environments.embedded import (
    COMPACT_PROMPTS,
    TINY_MODEL,
    make_environment,
    make_tasks,
)


class WeightsOfTheRoles(TrainerCallback):
    """Records how far the weights of each answer are from the target weights and from the initial ones."""

    def __init__(self, trainer: NLACTrainer):
        self.distances: dict[str, list[tuple[float, float]]] = {}
        ask, initial = trainer.roles.ask, TargetWeights(trainer.model)

        def spy(role, prompts, *args, **kwargs):
            if trainer.is_in_train and trainer.state.global_step and prompts:
                distances = tuple(of.distance(trainer.model) for of in (trainer.target_weights, initial))
                self.distances.setdefault(role, []).append(distances)
            return ask(role, prompts, *args, **kwargs)

        trainer.roles.ask = spy


def test_learns_a_service_desk(tmp_path):
    desk, tasks = make_tasks("service_desk", 0)
    torch.manual_seed(0)
    trainer = NLACTrainer(
        model=TINY_MODEL,
        args=make_config(
            tmp_path,
            max_steps=768,
            logging_steps=96,
            samples_per_iteration=128,
            episodes_per_iteration=8,
            lr_scheduler_type="constant",
            bootstrap="explicit",
            num_updates_per_generation=3,
            max_generation_batch_size=512,
            max_completion_length=64,
            max_turns=2,
            num_eval_episodes=48,
        ),
        train_dataset=tasks,
        eval_dataset=tasks,
        environment_factory=lambda: make_environment(desk),
        prompts=COMPACT_PROMPTS,
    )
    before = trainer.evaluate()
    roles = WeightsOfTheRoles(trainer)
    trainer.train()
    after = trainer.evaluate()

    # The policy acts better: one action in 4,096 is right, and it was found within some 200 environment steps.
    assert before["eval_episode/success_rate"] < 0.05
    assert after["eval_episode/success_rate"] > 0.7
    assert trainer.num_environment_steps <= 200
    # The critic fits its targets, predicts what it could not have known, and does not always say "No".
    losses = [log["critic/loss"] for log in trainer.state.log_history if "critic/loss" in log]
    assert losses[-1] < 0.75 * losses[0]
    assert after["eval_oracle/future_accuracy"] > before["eval_oracle/future_accuracy"] + 0.05
    assert after["eval_oracle/verdict_yes_rate"] + after["eval_oracle/verdict_no_rate"] > 1
    # Targets and refined actions are written with the initial weights. Policy and critic have the target weights where
    # they foresee, and otherwise the policy's.
    to_target, to_initial = ({r: [pair[i] for pair in of] for r, of in roles.distances.items()} for i in (0, 1))
    assert max(to_initial["backup"] + to_initial["refine"]) == 0
    assert all(min(to_target[role]) == 0 and max(to_target[role]) > 1e-4 for role in ("policy", "critique"))
    # Priorities are critic losses: none is still the one that a new transition starts with.
    priorities = priorities_of(trainer.replay)
    assert (priorities == 1.0).mean() < 0.1 and np.std(np.log(priorities)) > 0.5
