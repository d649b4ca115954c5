# SPDX-License-Identifier: Apache-2.0

import io
import os
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest


ROOT = Path(__file__).parent.parent.parent


def run_script(script: str, *arguments: str) -> str:
    """Return what it printed. It runs in this process: to import everything again takes longer than most scripts."""
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output):
        patch.setattr(sys, "argv", [script, *arguments])
        patch.chdir(ROOT)
        runpy.run_path(str(ROOT / script), run_name="__main__")
    return output.getvalue()


def run_program(*words: object, **variables: str) -> str:
    """Run Python with these words in a process of its own, which finds the tests, and return what it printed."""
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    # The end names the cause; what comes before are warnings and progress bars.
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    return done.stdout
