# SPDX-License-Identifier: Apache-2.0

import shutil
import subprocess

import pytest

from trl_nlac.cli.completion import completion_script
from trl_nlac.cli.main import COMMANDS


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes(tmp_path):
    """Bash itself completes lines, each up to its last word."""
    (tmp_path / "completion").write_text(completion_script("bash"))
    (tmp_path / "run.yaml").touch()
    lines = {
        "trl-nlac ": {*COMMANDS, "--help", "--version"},
        "trl-nlac re": {"rehearse", "report"},
        "trl-nlac train --num_ev": {"--num_eval_critiques", "--num_eval_episodes"},
        "trl-nlac train --bootstrap ": {"implicit", "explicit", "monte_carlo"},
        "trl-nlac train --config run": {"run.yaml"},
        "trl-nlac plan --gp": {"--gpus"},
        "trl-nlac plan --num_fut": {"--num_futures"},
        "trl-nlac report --fo": {"--follow"},
        "trl-nlac buffer ": {"stats", "export", "import"},
        "trl-nlac buffer stats --succ": {"--success_threshold"},
        "trl-nlac completion b": {"bash"},
        "trl-nlac evaluate --de": {"--debug"},
    }
    script = "source completion\n"
    for line in lines:
        words = line.split(" ")
        quoted = " ".join(f"'{word}'" for word in words)
        script += f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; COMPREPLY=(); _trl_nlac; "
        script += 'echo "${COMPREPLY[*]}"\n'
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    found = {line: set(words.split()) for line, words in zip(lines, done.stdout.split("\n"), strict=False)}
    assert found == lines


def test_zsh_runs_the_functions_of_bash():
    script = completion_script("zsh")
    assert "bashcompinit" in script and completion_script("bash").partition("_trl_nlac()")[2] in script
