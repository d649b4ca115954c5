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

from pathlib import Path

from benchmarks import attacks


def test_the_table_is_that_of_the_results():
    reports = attacks.read_reports()
    assert (
        reports.keys() >= {"kills", "chaos"}
        and attacks.table(reports) in (Path(__file__).parents[2] / "SECURITY.md").read_text()
    )
    changed = reports["chaos"] | {"problems": [{"number": 1}]}
    assert attacks.table(reports | {"chaos": changed}) != attacks.table(reports)
