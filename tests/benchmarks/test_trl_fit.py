# SPDX-License-Identifier: Apache-2.0

import re
from pathlib import Path

import pytest

from benchmarks.trl_fit import loaded


PAGE = Path(__file__).parents[2] / "docs" / "source" / "contributing_to_trl.md"


def test_the_page_says_what_importing_the_trainer_loads():
    rows = re.findall(r"^\| `NLACTrainer` \| `(\w+)` \| ([\d,]+) \| ([\d,]+) \|$", PAGE.read_text(), re.MULTILINE)
    printed = {
        package: {"modules": int(modules.replace(",", "")), "lines": int(lines.replace(",", ""))}
        for package, modules, lines in rows
    }
    found = loaded("NLACTrainer")
    assert printed.keys() == found.keys() == {"trl_nlac", "trl"}
    for name, value in found["trl_nlac"].items():
        assert value == pytest.approx(printed["trl_nlac"][name], rel=0.02)
    assert found["trl_nlac"]["modules"] > 50 and found["trl"]["lines"] > 1000
