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

"""Tool calls as text: how an action that calls a tool is stored, shown and passed to environments."""

import json
from typing import Any


def format_tool_call(name: str, arguments: dict[str, Any]) -> str:
    """A tool call as JSON, `{"name": ..., "arguments": {...}}`."""
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def parse_tool_call(action: str) -> tuple[str, dict[str, Any]] | None:
    """Name and arguments of a tool call in JSON; `None` if `action` is none."""
    try:
        call = json.loads(action)
    except json.JSONDecodeError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    return (call["name"], arguments) if isinstance(arguments, dict) else None
