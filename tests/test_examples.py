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

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_nlac import NLACPrompts


ROOT = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / script), *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.mark.parametrize(
    ("world", "action_format"), [("service_desk", "text"), ("service_desk", "react"), ("rooms", "tool_call")]
)
def test_quickstart(tmp_path, world, action_format):
    arguments = ["--max_steps", "3", "--eval_steps", "2", "--num_eval_episodes", "2", "--num_oracle_probes", "8"]
    arguments += ["--action_format", action_format]
    output = run("examples/scripts/nlac_quickstart.py", "--world", world, "--output_dir", str(tmp_path), *arguments)
    assert "What was learned" in output and "accelerate launch" in output
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["after"]["eval_environment/steps"] > results["before"]["eval_environment/steps"] == 0
    assert (tmp_path / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    AutoModelForCausalLM.from_pretrained(tmp_path)
    NLACPrompts.from_file(tmp_path / "nlac_prompts.json")


def test_build_tiny_model(tmp_path):
    output_dir = str(tmp_path / "model")
    sizes = ["--max_steps", "2", "--num_scored", "4"]
    run("examples/scripts/build_tiny_model.py", "--output_dir", output_dir, "--several_futures", *sizes)
    model = AutoModelForCausalLM.from_pretrained(output_dir)
    assert len(AutoTokenizer.from_pretrained(output_dir)) == model.config.vocab_size
    scores = json.loads((tmp_path / "model" / "build.json").read_text())["scores"]
    assert set(scores) == {
        f"{world} {action_format}"
        for world in ("rooms", "service_desk")
        for action_format in ("text", "react", "tool_call")
    }
    assert scores["rooms text"].keys() >= {"backup_exact", "backup_future_exact", "weighs_futures"}
