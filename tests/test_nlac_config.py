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
from pathlib import Path

import pytest
from helpers.testing_utils import make_config
from trl import GRPOConfig, TrlParser
from trl.trainer.base_config import _BaseConfig

import trl_nlac
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
            ("replay_buffer_memory", 0.0),
            ("priority_exponent", -1.0),
            ("temperature", -0.5),
            ("rehearsal_ratio", -1.0),
            ("learning_starts", 200_000),
            ("critic_loss_type", "mse"),
            ("refinement_source", "critic"),
            ("bootstrap", "none"),
            ("replay_refinement_fraction", 1.5),
            ("num_futures", 0),
            ("max_critique_length", 0),
            ("max_prompt_length", -1),
            ("backup_temperature", -1.0),
            ("top_p", 0.0),
            ("refine_top_p", 2.0),
            ("min_p", 1.5),
            ("refine_min_p", -0.1),
            ("successor_min_p", 1.1),
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
        ],
    )
    def test_errors_name_option_and_value(self, tmp_path, option, value):
        with pytest.raises(ValueError) as error:
            make_config(tmp_path, **{option: value})
        assert f"`{option}`" in str(error.value) and str(value) in str(error.value)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"single_step": True, "max_turns": 3}, "`single_step=True` means tasks of one action: set `max_turns=1`"),
            ({"single_step": True, "max_turns": 1, "num_futures": 2}, "`single_step=True` foresees nothing"),
            ({"num_futures": 2, "refinement_source": "replay"}, "`refinement_source='replay'` refines by the verdict"),
        ],
    )
    def test_options_that_exclude_each_other(self, tmp_path, options, message):
        with pytest.raises(ValueError, match=message):
            make_config(tmp_path, **options)

    def test_no_field_is_dead(self):
        inherited = {field.name for field in dataclasses.fields(_BaseConfig)}
        package = Path(trl_nlac.__file__).parent
        code = "".join(path.read_text() for path in package.rglob("*.py"))
        for field in dataclasses.fields(NLACConfig):
            if field.name not in inherited:
                assert f"args.{field.name}" in code or f"self.{field.name}" in code, field.name

    def test_lengths_of_the_roles(self, tmp_path):
        lengths = {"max_action_length": 7, "max_future_length": 8, "max_critique_length": 9}
        samplings = make_config(tmp_path, max_completion_length=99, backup_top_p=0.5, **lengths).samplings
        assert {role: sampling.max_tokens for role, sampling in samplings.items()} == {
            "policy": 7,
            "evaluation": 7,
            "refine": 7,
            "successor": 8,
            "critique": 9,
            "backup": 9,
            "correction": 99,
        }
        assert samplings["backup"].top_p == 0.5 and samplings["critique"].top_p == 1

    def test_samples_per_iteration_must_be_divisible(self, tmp_path):
        with pytest.raises(ValueError, match=r"`samples_per_iteration` \(10\) must be positive and divisible .*\(8 ="):
            make_config(tmp_path, samples_per_iteration=10, gradient_accumulation_steps=2)
        assert make_config(tmp_path, samples_per_iteration=16, gradient_accumulation_steps=2).steps_per_iteration == 4

    def test_defaults(self, tmp_path):
        config = make_config(tmp_path, gradient_accumulation_steps=2)
        assert config.samples_per_iteration == 8
        assert config.episodes_per_iteration == 4

    def test_from_command_line_and_yaml(self, tmp_path):
        (tmp_path / "run.yaml").write_text("max_turns: 7\ngeneration_kwargs: {no_repeat_ngram_size: 3}\n")
        parser = TrlParser((NLACConfig,))
        (config,) = parser.parse_args_and_config(
            ["--config", str(tmp_path / "run.yaml"), "--output_dir", str(tmp_path), "--target_update_rate", "0.5"]
            + ["--use_cpu", "--bf16", "false"]
        )
        assert (config.max_turns, config.target_update_rate) == (7, 0.5)
        assert config.samplings["critique"].generation_kwargs == {"no_repeat_ngram_size": 3}

    @pytest.mark.parametrize("role", ["successor", "backup", "critique", "refine"])
    @pytest.mark.parametrize("min_p, expected", [(None, 0.05), (0.0, None), (0.2, 0.2)])
    def test_a_role_may_sample_what_the_policy_leaves_out(self, tmp_path, role, min_p, expected):
        samplings = make_config(tmp_path, min_p=0.05, **{f"{role}_min_p": min_p}).samplings
        assert samplings[role].min_p == expected
        assert {sampling.min_p for other, sampling in samplings.items() if other != role} == {0.05}

    def test_temperatures_of_the_roles(self, tmp_path):
        samplings = make_config(tmp_path, temperature=0.9, backup_temperature=0.0).samplings
        assert samplings["backup"].temperature == 0
        assert {samplings[role].temperature for role in ("policy", "successor", "critique", "refine")} == {0.9}


def test_vllm_options_are_those_of_grpo():
    def options(config) -> dict:
        return {field.name: field.default for field in dataclasses.fields(config) if "vllm" in field.name}

    expected = {name: value for name, value in options(GRPOConfig).items() if "importance_sampling" not in name}
    ours = options(NLACConfig)
    assert ours.pop("vllm_server_weights_dir") is None
    assert ours == expected
