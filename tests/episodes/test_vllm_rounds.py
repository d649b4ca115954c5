# SPDX-License-Identifier: Apache-2.0

"""Playing beside training, with a real vLLM server: `make test-vllm`."""

import pytest
from helpers.testing_utils import RecordingTrainer, assert_same, weights
from helpers.vllm_utils import compare, logged, make_client
from peft import LoraConfig


pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("adapters", [True, False])  # full weights replace the server's base model
def test_async_rollouts(vllm_server, tmp_path, adapters):
    lora = LoraConfig(r=4, lora_alpha=64, target_modules="all-linear") if adapters else None
    runs = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        config = {"async_rollouts": True, "max_steps": 5, "save_strategy": "steps", "save_steps": 3}
        arguments = {"peft_config": lora, "trainer_class": RecordingTrainer}
        trainer = make_client(vllm_server, tmp_path / name, config, **arguments)
        trainer.rollouts.max_staleness = 1
        trainer.train()
        assert len(list(trainer.replay.episodes)) == 4 * 8
        assert max(logged(trainer, "rollout/staleness")) == 1
        assert len(trainer.micro_batches) == 5
        runs.append(trainer)
    for trainer in runs:
        compare(trainer)
    assert_same(weights(runs[0].model), weights(runs[1].model))
