# SPDX-License-Identifier: Apache-2.0

"""JSON that others wrote, within bounds."""

import json
from typing import Any

from ..chat import tool_calls


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
    return tool_calls.is_deep(value, MAX_DEPTH)
