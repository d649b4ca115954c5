# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

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
