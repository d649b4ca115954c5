# SPDX-License-Identifier: Apache-2.0

"""Training, generation and all else on devices that refuse what GPUs refuse, without a GPU."""

import os
import subprocess
import sys
from pathlib import Path


HERE = Path(__file__).parent


def test_the_package_on_devices_that_are_not_the_cpu():
    """In a process of its own: what `on_standin.py` tests."""
    path = os.pathsep.join([str(HERE.parent), str(HERE.parent.parent)])
    command = [sys.executable, "-m", "pytest", str(HERE / "on_standin.py"), "-q", "-p", "no:xdist", "-x"]
    finished = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--durations", "5"],
        env={**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert finished.returncode == 0, finished.stdout[-20000:] + finished.stderr[-5000:]
