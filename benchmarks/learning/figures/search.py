# SPDX-License-Identifier: Apache-2.0

"""The search for settings of the learning benchmark: its cells, and how their settings differ from the tables'."""

import json
from collections.abc import Iterable
from typing import Any


SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None}  # of the first cells, which do not record it


def changed_settings(cell: dict, reference: dict) -> dict[str, Any]:
    """
    Compare the settings of two cells, including how their policies sample.

    Returns:
        `dict[str, Any]`: the settings of `cell` that differ from `reference`, `None` for those that only `reference`
        has. A setting of a single role is named `role.setting`.
    """
    ours, theirs = map(_flat_settings, (cell, reference))
    return {name: ours.get(name) for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)}


def _flat_settings(cell: dict) -> dict[str, Any]:
    settings = {**cell["settings"], **cell.get("sampling", SAMPLING)}
    for role, own in settings.pop("role_sampling", {}).items():
        settings.update({f"{role}.{name}": value for name, value in own.items()})
    return settings


def searches(cells: Iterable[dict], table: Iterable[dict]) -> list[dict]:
    """
    Summarize the results of other settings.

    Args:
        cells (`Iterable[dict]`):
            Cells of the search.
        table (`Iterable[dict]`):
            Cells of the table, whose settings are the reference. Cells of methods that the table does not have are
            left out.

    Returns:
        `list[dict]`: one entry for each setting, with its `task` and `method`; its `changes`, see
        [`changed_settings`]; its `budget` in environment steps; and the final `success` by seed.
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
    """Describe the changes of a search for a table. Settings that only the reference has were at their defaults."""
    words = [f"{name} by default" if value is None else f"{name} = {value}" for name, value in changes.items()]
    return ", ".join(words) or "as in the table"
