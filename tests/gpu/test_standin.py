# SPDX-License-Identifier: Apache-2.0

"""Training, generation and all else on devices that refuse what GPUs refuse, without a GPU."""

from pathlib import Path

from helpers.launch import run_program


def test_the_package_on_devices_that_are_not_the_cpu():
    """In a process of its own: what `on_standin.py` tests."""
    tests = Path(__file__).with_name("on_standin.py")
    run_program("-m", "pytest", tests, "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", PYTEST_ADDOPTS="")
