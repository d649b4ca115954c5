# SPDX-License-Identifier: Apache-2.0

import dataclasses

from trl import GRPOConfig

from trl_nlac import NLACConfig


def test_vllm_options_are_those_of_grpo():
    def options(config) -> dict:
        return {field.name: field.default for field in dataclasses.fields(config) if "vllm" in field.name}

    expected = {name: value for name, value in options(GRPOConfig).items() if "importance_sampling" not in name}
    ours = options(NLACConfig)
    assert ours.pop("vllm_server_weights_dir") is None
    assert ours == expected
