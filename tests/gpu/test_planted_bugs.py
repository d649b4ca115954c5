# SPDX-License-Identifier: Apache-2.0

"""`planted_bugs.py` still finds the lines in which it plants, and its results say that every bug is caught."""

import json
from pathlib import Path

import pytest
from gpu.planted_bugs import BUGS, ROOT


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_line_is_there_once(bug):
    assert (ROOT / "trl_nlac" / bug.file).read_text().count(bug.right) == 1


def test_results():
    """Of `python tests/gpu/planted_bugs.py --json benchmarks/results/planted_bugs.json`, which takes minutes."""
    found = json.loads(Path(ROOT / "benchmarks" / "results" / "planted_bugs.json").read_text())["bugs"]
    assert list(found) == [bug.name for bug in BUGS]
    assert all(result["test"] for result in found.values())
