# SPDX-License-Identifier: Apache-2.0

"""What `make gpu-bundle` packs of the repository is all that the stages need of it."""

import os
import subprocess
import sys

from gpu.bundle import LIMIT, copy_tree


def test_the_tree_stands_alone(tmp_path):
    copy_tree(tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*")) < LIMIT / 4
    command = [sys.executable, "tests/gpu/acceptance.py", "--device", "cpu", "--small", "--stages", "default"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 0 and "default: passed" in done.stdout, done.stdout + done.stderr
