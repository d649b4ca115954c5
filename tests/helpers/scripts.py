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

"""Run an example script."""

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
