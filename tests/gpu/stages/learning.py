# SPDX-License-Identifier: Apache-2.0

"""The embedded model learns a service desk on a device. Needs trl and datasets."""

import tempfile

import torch
from common import main


def run(device: torch.device, small: bool) -> dict:
    from helpers.testing_utils import TASKS, make_trainer

    with tempfile.TemporaryDirectory() as folder:
        config = {
            **dict(use_cpu=device.type == "cpu", max_turns=2, max_completion_length=48),
            **dict(max_steps=4 if small else 140, logging_steps=4 if small else 20),
            **dict(lr_scheduler_type="constant", adam_beta2=0.95, target_update_rate=0.0016),
            **dict(per_device_train_batch_size=32, samples_per_iteration=128, episodes_per_iteration=4),
            **dict(max_generation_batch_size=512, num_eval_episodes=2 if small else 48),
            "role_sampling": {"successor": {"temperature": 0.5}, "backup": {"temperature": 0.0}},
        }
        trainer = make_trainer(folder, config, eval_dataset=TASKS)
        assert trainer.model.device.type == device.type
        trainer.train()
        result = trainer.evaluate()
        success = result["eval_episode/success_rate"]
        found = {
            "success": success,
            "environment steps": trainer.num_environment_steps,
            "trees": trainer._collate.shares_prefixes,
        }
        assert small or success > 0.7, found
    return found


if __name__ == "__main__":
    main(run)
