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

import json
from pathlib import Path

from benchmarks import attacks


def test_the_table_is_that_of_the_results():
    reports = {name: json.loads((attacks.RESULTS / f"{name}.json").read_text()) for name in attacks.NAMES}
    assert attacks.table(reports) in (Path(__file__).parents[2] / "SECURITY.md").read_text()
    assert attacks.table(reports | {"chaos": reports["chaos"] | {"problems": [1]}}) != attacks.table(reports)
