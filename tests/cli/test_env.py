# SPDX-License-Identifier: Apache-2.0

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
    assert {"GPUs", "CUDA packages", "Triton version", "vLLM for CPUs version"} <= lines.keys()
    assert all(text in lines["Environment variables"] for text in ("NCCL_DEBUG=INFO", "VLLM_API_KEY"))
    assert "sk-0123456789abcdef" not in printed and "unrelated" not in printed
