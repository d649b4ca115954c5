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
