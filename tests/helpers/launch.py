# SPDX-License-Identifier: Apache-2.0

import os
import subprocess
import sys
from pathlib import Path


ROOT = Path(__file__).parents[2]


def run_program(*words: object, **variables: str) -> str:
    """Run Python with these words in a process of its own, which finds the tests, and return what it printed."""
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    # The end names the cause; what comes before are warnings and progress bars.
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    return done.stdout


def launch(*arguments: str, processes: int = 2) -> str:
    # DeepSpeed builds an extension with ninja, which is in the same folder as Python.
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    words = ("torch.distributed.run", "--standalone", "--nproc_per_node", processes)
    return run_program("-m", *words, *arguments, PATH=tools, PYTHONFAULTHANDLER="1")


def launch_script(folder: Path, script: str, *arguments: str) -> str:
    """Write a script into a folder, and start it in two processes."""
    path = folder / "script.py"
    path.write_text(script)
    return launch(str(path), *arguments)
