# SPDX-License-Identifier: Apache-2.0

import pytest
from helpers.testing_utils import make_config
from trl import TrlParser

from trl_nlac import NLACConfig


WRONG = {
    **dict(action_format=["xml"], policy_loss_type=["mse"], bootstrap=["none"], turn_limit=["fail"]),
    **dict(vllm_mode=["remote"], vllm_server_timeout=[0.0], vllm_tensor_parallel_size=[0]),
    **dict(target_update_rate=[-0.1, 0.0, 1.5], target_max_age=[-1], num_updates_per_generation=[0]),
    **dict(max_turns=[0, "8"], num_futures=[0, 1.5], max_prompt_length=[-1], max_completion_length=[None]),
    **dict(replay_buffer_size=[0], priority_exponent=[-1.0], critic_loss_coef=[-1.0]),
    **dict(temperature=[-0.5, None], top_p=[0.0], min_p=[1.5], top_k=[-1], repetition_penalty=[0.0]),
    **dict(per_device_train_batch_size=[0], episodes_per_iteration=[0], samples_per_iteration=[0]),
    **dict(audit_samples=[-1], num_completions_to_print=[-1]),
}


class TestChecks:
    @pytest.mark.parametrize(
        ("option", "value"), [(option, value) for option, values in WRONG.items() for value in values]
    )
    def test_errors_name_option_and_value(self, tmp_path, option, value):
        with pytest.raises(ValueError) as error:
            make_config(tmp_path, **{option: value})
        assert f"`{option}`" in str(error.value) and str(value) in str(error.value)

    def test_none_stays_possible_after_a_command_line_was_parsed(self, tmp_path):
        TrlParser((NLACConfig,))
        assert make_config(tmp_path, max_prompt_length=None).max_prompt_length is None
