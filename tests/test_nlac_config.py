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

import pytest
from testing_utils import make_config
from trl import TrlParser

from trl_nlac import NLACConfig


class TestNLACConfig:
    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("action_format", "xml"),
            ("target_update_rate", -0.1),
            ("target_update_rate", 0.0),
            ("target_update_rate", 1.5),
            ("max_turns", 0),
            ("num_refinements", 0),
            ("replay_buffer_size", 0),
            ("priority_exponent", -1.0),
            ("temperature", -0.5),
            ("rehearsal_ratio", -1.0),
            ("learning_starts", 200_000),
        ],
    )
    def test_errors_name_option_and_value(self, tmp_path, option, value):
        with pytest.raises(ValueError) as error:
            make_config(tmp_path, **{option: value})
        assert f"`{option}`" in str(error.value) and str(value) in str(error.value)

    def test_samples_per_iteration_must_be_divisible(self, tmp_path):
        with pytest.raises(ValueError, match=r"`samples_per_iteration` \(10\) must be divisible .*\(8 ="):
            make_config(tmp_path, samples_per_iteration=10, gradient_accumulation_steps=2)
        assert make_config(tmp_path, samples_per_iteration=16, gradient_accumulation_steps=2).steps_per_iteration == 4

    def test_defaults(self, tmp_path):
        config = make_config(tmp_path, gradient_accumulation_steps=2)
        assert config.samples_per_iteration == 8
        assert config.episodes_per_iteration == 4

    def test_every_field_is_documented(self):
        inherited = {field.name for field in dataclasses.fields(NLACConfig.__mro__[1])}
        for field in dataclasses.fields(NLACConfig):
            if field.name not in inherited:
                assert f"        {field.name} (`" in NLACConfig.__doc__, field.name
                assert field.metadata["help"], field.name

    def test_from_command_line_and_yaml(self, tmp_path):
        (tmp_path / "run.yaml").write_text("max_turns: 7\ngeneration_kwargs: {no_repeat_ngram_size: 3}\n")
        parser = TrlParser((NLACConfig,))
        (config,) = parser.parse_args_and_config(
            ["--config", str(tmp_path / "run.yaml"), "--output_dir", str(tmp_path), "--target_update_rate", "0.5"]
            + ["--use_cpu", "--bf16", "false"]
        )
        assert (config.max_turns, config.target_update_rate) == (7, 0.5)
        assert config.samplings["critique"].generation_kwargs == {"no_repeat_ngram_size": 3}

    def test_temperatures_of_the_roles(self, tmp_path):
        samplings = make_config(tmp_path, temperature=0.9, backup_temperature=0.0).samplings
        assert samplings["backup"].temperature == 0
        assert {samplings[role].temperature for role in ("policy", "successor", "critique", "refine")} == {0.9}
