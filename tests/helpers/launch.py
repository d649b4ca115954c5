# SPDX-License-Identifier: Apache-2.0

import os
import subprocess
import sys
from pathlib import Path


def launch(*arguments: str, processes: int = 2) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", f"{processes}"]
    tests = Path(__file__).parent.parent
    path = os.pathsep.join([str(tests), str(tests.parent)])
    # DeepSpeed builds an extension with ninja, which is in the same folder as Python.
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PATH": tools, "PYTHONFAULTHANDLER": "1"}
    command += arguments
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    # The end names the cause; what comes before are warnings and progress bars.
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-8000:]
    return finished.stdout


def launch_script(folder: Path, script: str, *arguments: str) -> str:
    """Write a script into a folder, and start it in two processes."""
    path = folder / "script.py"
    path.write_text(script)
    return launch(str(path), *arguments)
