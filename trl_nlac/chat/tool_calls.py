# SPDX-License-Identifier: Apache-2.0

"""Tool calls as text: the form in which actions are stored, shown and passed to environments."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from ..types import Message


MAX_NESTING = 64  # templates, copies and tables go down by recursion


def format_tool_call(name: str, arguments: dict[str, Any]) -> str:
    """Write a tool call as JSON, `{"name": ..., "arguments": {...}}`."""
    return format_tool_calls([(name, arguments)])


def format_tool_calls(calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Write the tool calls of one turn as JSON: the call, or a list of several."""
    written = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return json.dumps(written[0] if len(written) == 1 else written, ensure_ascii=False)


def is_deep(value: Any, levels: int) -> bool:
    """Whether a value has more levels of lists and objects. It is looked at without recursion."""
    level = [[value]]
    for _ in range(levels + 1):
        items = [item for one in level for item in (one.values() if isinstance(one, dict) else one)]
        level = [item for item in items if isinstance(item, dict | list | tuple)]
    return bool(level)


def is_writable(calls: list[tuple[str, dict[str, Any]]]) -> bool:
    """Whether calls can be JSON in Unicode, without infinite numbers, and not nested beyond `MAX_NESTING`."""
    if is_deep(calls, MAX_NESTING):
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
    """
    Parse names and arguments of tool calls in JSON; empty if `action` is not a call. An object with other keys than
    `"name"` and `"arguments"` is none, nor one without these: `{"name": "Bob"}` is an answer in JSON.
    """
    try:
        written = json.loads(action)
    except (ValueError, RecursionError):  # a number of too many digits, too many brackets
        return []
    calls = []
    for call in written if isinstance(written, list) else [written]:
        if not isinstance(call, dict) or call.keys() != {"name", "arguments"}:
            return []
        if not isinstance(call["name"], str) or not isinstance(call["arguments"], dict):
            return []
        calls.append((call["name"], call["arguments"]))
    return calls


def call_message(calls: list[tuple[str, dict[str, Any]]], content: str = "") -> Message:
    """Make an assistant's message that calls tools, with text in `content`, as chat templates take it."""
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    tool_calls = [{"type": "function", "function": function} for function in functions]
    return {"role": "assistant", "content": content, "tool_calls": tool_calls}


def read_call(call: Any) -> tuple[str, dict[str, Any]] | None:
    """Read name and arguments of a call of OpenAI's form (JSON text) or of chat templates (an object), or `None`."""
    function = _function_of(call)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    arguments = _arguments_of(function)
    return (function["name"], arguments) if isinstance(arguments, dict) else None


def _function_of(call: Any) -> Any:
    return call.get("function", call) if isinstance(call, dict) else call


def _arguments_of(function: dict[str, Any]) -> Any:
    """Return the arguments of a call as an object. Text that is not JSON stays as it is."""
    arguments = function.get("arguments")
    if isinstance(arguments, str) and arguments:
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            pass
    return {} if arguments in (None, "") else arguments


def read_calls_of(message: Message) -> list[tuple[str, dict[str, Any]]]:
    """Read the calls of a message, see [`read_call`]; a `ValueError` if one cannot be read."""
    calls = [read_call(call) for call in message.get("tool_calls") or []]
    if None in calls:
        raise ValueError("A tool call has no name, or its arguments are not a JSON object.")
    return calls


def with_objects(message: Message) -> Message:
    """Write arguments of calls as objects, as chat templates take them; a `ValueError` if one cannot be read."""
    arguments = iter([arguments for _, arguments in read_calls_of(message)])
    return _with_functions(message, lambda function: {**function, "arguments": next(arguments)})


def with_text(message: Message) -> Message:
    """Write arguments of calls that are no text as JSON, as OpenAI does; a `ValueError` if JSON holds them not."""

    def change(function: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(function.get("arguments"), dict):
            return function
        try:
            return {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"JSON does not hold the arguments of a tool call: {error}") from error

    return _with_functions(message, change)


def _with_functions(message: Message, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Message:
    """Change what each call of a message says of its function: its name and its arguments."""
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": change(call["function"])} if "function" in call else change(call)
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def said(message: Message) -> tuple[str, str, str]:
    """Who says and calls what in a message of any form, without ids and spacing, which clients echo otherwise."""
    content, calls = message.get("content") or "", message.get("tool_calls") or []
    if isinstance(content, list):
        content = "".join(str(part.get("text")) for part in content if isinstance(part, dict))
    if isinstance(calls, list):
        calls = [
            [function.get("name"), _arguments_of(function) or {}] if isinstance(function, dict) else function
            for function in map(_function_of, calls)
        ]
    return str(message.get("role")), str(content).strip(), json.dumps(calls, sort_keys=True, default=str)


def results_in_order(calls: list[dict[str, Any]], results: list[Message]) -> list[Message]:
    """
    Put the results of tools in the order of their calls: by `tool_call_id`, or else by `name`, or as they stand where
    they have neither. Raise a `ValueError` if it is not clear which result answers which call.
    """
    if len(results) != len(calls):
        raise ValueError(f"there are {len(results)} results of {len(calls)} tool calls")
    names = [call.get("function", call).get("name") for call in calls]
    for key, wanted in (("tool_call_id", [call.get("id") for call in calls]), ("name", names)):
        given = [result.get(key) for result in results]
        if any(given):
            if Counter(given) != Counter(wanted):
                raise ValueError(f"results have the `{key}` {given}, and the calls are {wanted}")
            left, ordered = list(results), []
            for value in wanted:
                ordered.append(left.pop(next(i for i, result in enumerate(left) if result.get(key) == value)))
            return ordered
    return results


def format_results(results: list[str]) -> str:
    """Write the results of one turn's tools as one observation: the result, or a JSON list of several."""
    return results[0] if len(results) == 1 else json.dumps(results, ensure_ascii=False)


def before_words(observation: str, words: str) -> str:
    """Return an observation without the `words` of a user that end it, see [`~types.Turn`]: the results of tools."""
    return observation.removesuffix(words).removesuffix("\n\n") if words else observation


def parse_results(observation: str, number: int) -> list[str]:
    """Split an observation into the results of `number` calls. One that is not such a list answers each of them."""
    if number > 1:
        try:
            results = json.loads(observation)
        except (ValueError, RecursionError):
            results = None
        if isinstance(results, list) and len(results) == number and all(isinstance(r, str) for r in results):
            return results
    return [observation] * number
