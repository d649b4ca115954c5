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

"""`trl-nlac env`: what a bug report needs."""

from importlib.metadata import version

from trl_nlac.cli.main import main


def test_env_prints_what_matters_on_gpus(monkeypatch, capsys):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("VLLM_API_KEY", "sk-0123456789abcdef")
    monkeypatch.setenv("OTHER_VARIABLE", "unrelated")
    assert main(["env"]) == 0
    printed = capsys.readouterr().out
    lines = dict(line.removeprefix("- ").split(": ", 1) for line in printed.splitlines() if line.startswith("- "))
    for name, package in (("trl-nlac", "trl-nlac"), ("TRL", "trl"), ("Transformers", "transformers")):
        assert lines[f"{name} version"].startswith(version(package)), name
    assert {"GPU memory", "CUDA of PyTorch", "NCCL version", "Triton version", "vLLM for CPUs"} <= lines.keys()
    assert "NCCL_DEBUG=INFO" in lines["Environment variables"]
    assert "VLLM_API_KEY" in lines["Environment variables"]
    assert "sk-0123456789abcdef" not in printed and "unrelated" not in printed
