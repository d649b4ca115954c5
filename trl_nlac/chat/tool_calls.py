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

"""Tool calls as text: the form in which actions are stored, shown and passed to environments."""

import json
from typing import Any


MAX_NESTING = 64  # templates, copies and tables go down by recursion


def format_tool_call(name: str, arguments: dict[str, Any]) -> str:
    """Write a tool call as JSON, `{"name": ..., "arguments": {...}}`."""
    return format_tool_calls([(name, arguments)])


def format_tool_calls(calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Write the tool calls of one turn as JSON: the call, or a list of several."""
    written = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return json.dumps(written[0] if len(written) == 1 else written, ensure_ascii=False)


def is_writable(calls: list[tuple[str, dict[str, Any]]]) -> bool:
    """
    Whether calls can be written as JSON in Unicode, and everything that handles them can follow their nesting: neither
    infinite numbers, nor half characters, nor more than `MAX_NESTING` containers in one another.
    """
    containers, depth = [calls], 0
    while containers:
        items = [item for one in containers for item in (one.values() if isinstance(one, dict) else one)]
        containers, depth = [item for item in items if isinstance(item, dict | list | tuple)], depth + 1
        if depth > MAX_NESTING:
            return False
    try:
        json.dumps(calls, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return True


def parse_tool_call(action: str) -> tuple[str, dict[str, Any]] | None:
    """Parse name and arguments of a tool call in JSON; `None` if `action` is none, or several."""
    calls = parse_tool_calls(action)
    return calls[0] if len(calls) == 1 else None


def parse_tool_calls(action: str) -> list[tuple[str, dict[str, Any]]]:
    """Parse names and arguments of tool calls in JSON; empty if `action` is not a call."""
    try:
        written = json.loads(action)
    except (ValueError, RecursionError):  # a number of too many digits, too many brackets
        return []
    calls = []
    for call in written if isinstance(written, list) else [written]:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return []
        arguments = call.get("arguments", {})
        if not isinstance(arguments, dict):
            return []
        calls.append((call["name"], arguments))
    return calls


def call_message(calls: list[tuple[str, dict[str, Any]]], content: str = "") -> dict[str, Any]:
    """Make an assistant's message that calls tools, with text in `content`, as chat templates take it."""
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    tool_calls = [{"type": "function", "function": function} for function in functions]
    return {"role": "assistant", "content": content, "tool_calls": tool_calls}


def format_results(results: list[str]) -> str:
    """Write the results of one turn's tools as one observation: the result, or a JSON list of several."""
    return results[0] if len(results) == 1 else json.dumps(results, ensure_ascii=False)


def parse_results(observation: str, number: int) -> list[str]:
    """Split an observation into the results of `number` calls. One that is not such a list answers each of them."""
    if number > 1:
        try:
            results = json.loads(observation)
        except json.JSONDecodeError:
            results = None
        if isinstance(results, list) and len(results) == number and all(isinstance(r, str) for r in results):
            return results
    return [observation] * number
