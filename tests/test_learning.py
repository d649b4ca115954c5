# SPDX-License-Identifier: Apache-2.0

"""The whole of algorithm 1 on a world that the model has never seen. It must learn, for the right reasons."""

import numpy as np
import torch
from helpers.testing_utils import make_config, priorities_of
from transformers import TrainerCallback

from trl_nlac import NLACTrainer
from trl_nlac.environments.embedded import (
    COMPACT_PROMPTS,
    TINY_MODEL,
    make_environment,
    make_rehearsal_dataset,
    make_tasks,
)


class WeightsOfTheRoles(TrainerCallback):
    """Records how far the weights of each answer are from the target weights."""

    def __init__(self, trainer: NLACTrainer):
        self.distances: dict[str, list[float]] = {}
        ask = trainer.roles.ask

        def spy(role, *args, **kwargs):
            if trainer.state.global_step:
                distance = trainer.target_weights.distance(trainer.model)
                self.distances.setdefault(role, []).append(distance)
            return ask(role, *args, **kwargs)

        trainer.roles.ask = spy


def test_learns_a_service_desk(tmp_path):
    desk, tasks = make_tasks("service_desk", 0)
    torch.manual_seed(0)
    trainer = NLACTrainer(
        model=TINY_MODEL,
        args=make_config(
            tmp_path,
            max_steps=140,
            logging_steps=20,
            lr_scheduler_type="constant",
            adam_beta2=0.95,
            per_device_train_batch_size=32,
            samples_per_iteration=128,
            episodes_per_iteration=4,
            max_generation_batch_size=512,
            max_completion_length=48,
            max_turns=2,
            role_sampling={"successor": {"temperature": 0.5}, "backup": {"temperature": 0.0}},
            target_update_rate=0.0016,
            rehearsal_ratio=0.5,
            num_eval_episodes=48,
        ),
        train_dataset=tasks,
        eval_dataset=tasks,
        environment_factory=lambda: make_environment(desk),
        prompts=COMPACT_PROMPTS,
        rehearsal_dataset=make_rehearsal_dataset("service_desk"),
    )
    before = trainer.evaluate()
    roles = WeightsOfTheRoles(trainer)
    trainer.train()
    after = trainer.evaluate()

    # The policy acts better: one action in 4,096 is right, and it was found within some 280 environment steps.
    assert before["eval_episode/success_rate"] < 0.05
    assert after["eval_episode/success_rate"] > 0.7
    assert trainer.num_environment_steps <= 280
    # The critic fits its targets, predicts what it could not have known, and does not always say "No".
    losses = [log["critic/loss"] for log in trainer.state.log_history if "critic/loss" in log]
    assert losses[-1] < 0.75 * losses[0]
    assert after["eval_oracle/future_accuracy"] > before["eval_oracle/future_accuracy"] + 0.05
    assert after["eval_oracle/verdict_yes_rate"] + after["eval_oracle/verdict_no_rate"] > 1
    # Targets are written with the target weights, everything else with the policy's.
    assert max(roles.distances["backup"] + roles.distances["successor"]) == 0
    assert min(roles.distances["policy"] + roles.distances["critique"] + roles.distances["refine"]) > 1e-4
    # Priorities are critic losses: none is still the one that a new transition starts with.
    priorities = priorities_of(trainer.replay)
    assert (priorities == 1.0).mean() < 0.1 and np.std(np.log(priorities)) > 0.5
