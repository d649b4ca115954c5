# SPDX-License-Identifier: Apache-2.0

import pytest
from helpers.testing_utils import make_config
from trl import TrlParser

from trl_nlac import NLACConfig


class TestChecks:
    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("action_format", "xml"),
            ("target_update_rate", -0.1),
            ("target_update_rate", 0.0),
            ("target_update_rate", 1.5),
            ("max_turns", 0),
            ("num_updates_per_generation", 0),
            ("replay_buffer_size", 0),
            ("priority_exponent", -1.0),
            ("temperature", -0.5),
            ("critic_loss_coef", -1.0),
            ("policy_loss_type", "mse"),
            ("bootstrap", "none"),
            ("turn_limit", "fail"),
            ("target_max_age", -1),
            ("num_futures", 0),
            ("max_prompt_length", -1),
            ("top_p", 0.0),
            ("min_p", 1.5),
            ("vllm_mode", "remote"),
            ("vllm_server_timeout", 0.0),
            ("vllm_tensor_parallel_size", 0),
            ("per_device_train_batch_size", 0),
            ("episodes_per_iteration", 0),
            ("samples_per_iteration", 0),
            ("top_k", -1),
            ("repetition_penalty", 0.0),
            ("max_completion_length", None),
            ("max_turns", "8"),
            ("num_futures", 1.5),
            ("temperature", None),
            ("audit_samples", -1),
            ("num_completions_to_print", -1),
        ],
    )
    def test_errors_name_option_and_value(self, tmp_path, option, value):
        with pytest.raises(ValueError) as error:
            make_config(tmp_path, **{option: value})
        assert f"`{option}`" in str(error.value) and str(value) in str(error.value)

    def test_none_stays_possible_after_a_command_line_was_parsed(self, tmp_path):
        TrlParser((NLACConfig,))
        assert make_config(tmp_path, max_prompt_length=None).max_prompt_length is None
