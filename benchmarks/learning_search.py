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

"""Which settings were tried before the tables of the learning benchmark were filled: the cells of other settings, and their changes."""

import json
from collections.abc import Iterable


SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None}  # of the first cells, which do not tell


def changed_settings(cell: dict, reference: dict) -> dict:
    """Settings of a cell, also how its policy samples, that another does not have; `None` for those that only the other has."""
    ours, theirs = ({**one["settings"], **one.get("sampling", SAMPLING)} for one in (cell, reference))
    return {name: ours.get(name) for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)}


def searches(cells: Iterable[dict], table: Iterable[dict]) -> list[dict]:
    """
    What other settings came to.

    Args:
        cells (`Iterable[dict]`):
            Cells of the search.
        table (`Iterable[dict]`):
            Cells of the table, to whose settings those of the search are compared. A search for a method that the table
            does not have yet is left out.

    Returns:
        `list[dict]`: one for each setting, with its `task` and `method`; its `changes` to the table's setting, `None` where
        the search leaves out what the table sets; its `budget` in environment steps; and `success`, the final one by seed.
    """
    references = {(cell["task"], cell["method"]): cell for cell in table}
    found: dict[str, dict] = {}
    for cell in sorted(cells, key=lambda cell: (cell["task"], cell["method"], cell["seed"])):
        key = (cell["task"], cell["method"])
        if key not in references:
            continue
        changes = changed_settings(cell, references[key])
        search = {"task": key[0], "method": key[1], "changes": changes, "budget": cell["budget"]}
        success = found.setdefault(json.dumps(search), {**search, "success": {}})["success"]
        success[str(cell["seed"])] = cell["final"]["held_out"]["episode/success_rate"]
    return list(found.values())


def change_words(changes: dict) -> str:
    """The changes of a search, for a table; what only the table sets had its default."""
    words = [f"{name} by default" if value is None else f"{name} = {value}" for name, value in changes.items()]
    return ", ".join(words) or "as in the table"
