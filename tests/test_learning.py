# SPDX-License-Identifier: Apache-2.0

"""The whole of algorithm 1 on a world that the model has never seen. It must learn, for the right reasons."""

import numpy as np
import torch
from helpers.testing_utils import TASKS, make_trainer, priorities_of


def test_learns_a_service_desk(tmp_path):
    torch.manual_seed(0)
    config = {
        **dict(max_steps=960, logging_steps=96, samples_per_iteration=128, episodes_per_iteration=8),
        **dict(lr_scheduler_type="constant", bootstrap="explicit", num_updates_per_generation=3),
        **dict(max_generation_batch_size=512, max_completion_length=64, max_turns=2, num_eval_episodes=48),
    }
    trainer = make_trainer(tmp_path, config, eval_dataset=TASKS)
    before = trainer.evaluate()
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
    # Priorities are critic losses: none is still the one that a new transition starts with.
    priorities = priorities_of(trainer.replay)
    assert (priorities == 1.0).mean() < 0.1 and np.std(np.log(priorities)) > 0.5
