# SPDX-License-Identifier: Apache-2.0

import io
import runpy
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
