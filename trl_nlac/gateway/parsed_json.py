# SPDX-License-Identifier: Apache-2.0

"""JSON that others wrote, within bounds."""

import json
from typing import Any


# Levels of lists and objects. Python's parsers read more than its code, which calls itself, can follow.
MAX_DEPTH = 100


def parse_json(text: str, **kwargs) -> Any:
    """Parse JSON as `json.loads` does; a `ValueError` if it has more than `MAX_DEPTH` levels."""
    too_deep = ValueError(f"it has more than {MAX_DEPTH} levels")
    try:
        value = json.loads(text, **kwargs)
    except RecursionError:
        raise too_deep from None
    if is_deep(value):
        raise too_deep
    return value


def is_deep(value: Any) -> bool:
    """Whether a value has more than `MAX_DEPTH` levels. It is looked at without recursion."""
    level = [[value]]
    for _ in range(MAX_DEPTH + 1):
        level = [
            part
            for nested in level
            for part in (nested.values() if isinstance(nested, dict) else nested)
            if isinstance(part, dict | list)
        ]
        if not level:
            return False
    return True
