# SPDX-License-Identifier: Apache-2.0

import os
import sys
from pathlib import Path

from helpers.scripts import run_program


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
