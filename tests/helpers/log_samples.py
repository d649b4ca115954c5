# SPDX-License-Identifier: Apache-2.0

import json

from trl_nlac.log_formats.log_files import read_logs
from trl_nlac.log_formats.logged import LoggedConversations


def read(folder, *rows, outcome: str | None = None, indent: int | None = None) -> LoggedConversations:
    """Read a file of rows, of which texts are written as they are."""
    lines = [row if isinstance(row, str) else json.dumps(row, indent=indent) for row in rows]
    (folder / "logs.jsonl").write_text("\n".join(lines))
    return read_logs([folder / "logs.jsonl"], None, outcome)  # no buffer


CALL = {"id": "call_1", "type": "function", "function": {"name": "get_order", "arguments": '{"id": "W1"}'}}
TOOL = {"type": "function", "function": {"name": "get_order", "parameters": {"type": "object", "properties": {}}}}
ASKED = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Where is W1?"}]
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []}
SEEN = {"role": "tool", "tool_call_id": "call_1", "content": '{"status": "lost"}'}
SAID = {"role": "assistant", "content": "It is lost."}


def request(messages: list, answer: dict, **others) -> dict:
    return {
        "request": {"model": "m", "messages": messages, "tools": [TOOL]},
        "response": {"id": "chatcmpl-1", "choices": [{"index": 0, "message": answer, "finish_reason": "stop"}]},
        **others,
    }


def run(task_id: int, reward: float, **others) -> dict:
    """One run, as `run.py` of τ-bench writes it."""
    call = {
        "function": {"arguments": '{"order_id": "#W1"}', "name": "get_order_details"},
        "id": "call_a",
        "type": "function",
    }
    return {
        "task_id": task_id,
        "reward": reward,
        "info": {"task": {"user_id": "mei_1", "actions": [], "instruction": "You want ..."}, "user_cost": 0.01},
        "traj": [
            {"role": "system", "content": "# Retail agent policy"},
            {"role": "user", "content": "I want to return my order."},
            {"content": None, "role": "assistant", "tool_calls": [call], "function_call": None},
            {"role": "tool", "tool_call_id": "call_a", "name": "get_order_details", "content": '{"status": "sent"}'},
            {"content": "It is on its way back.", "role": "assistant", "tool_calls": None, "function_call": None},
            {"role": "user", "content": "###STOP###"},
        ],
        "trial": 0,
        **others,
    }  # fmt: skip


def simulation(reward, reason: str = "user_stop", messages: list | None = None) -> dict:
    said = {"role": "assistant", "turn_idx": 2, "timestamp": "2026-01-01T00:00:00", "cost": 0.0, "is_audio": False}
    call = {"id": "c1", "name": "get_customer", "arguments": {"phone": "555"}, "requestor": "assistant"}
    own = {"id": "c2", "name": "toggle_data", "arguments": {}, "requestor": "user"}
    return {
        "id": "s1",
        "task_id": "[mobile_data_issue]",
        "termination_reason": reason,
        "reward_info": None if reward is None else {"reward": reward, "reward_breakdown": {"DB": reward}},
        "messages": messages
        or [
            {**said, "content": "Hi! How can I help you today?", "tool_calls": None},
            {"role": "user", "content": "My data is slow.", "tool_calls": None},
            {**said, "content": None, "tool_calls": [call]},
            {"id": "c1", "role": "tool", "content": '{"plan": "A"}', "requestor": "assistant", "error": False},
            {**said, "content": "Please toggle your data.", "tool_calls": None},
            {"role": "user", "content": None, "tool_calls": [own]},
            {"id": "c2", "role": "tool", "content": "Data is on.", "requestor": "user", "error": False},
            {"role": "user", "content": "Done, thanks. ###STOP###", "tool_calls": None},
        ],
        "trial": 0,
    }


TEXT = [{"role": "user", "parts": [{"type": "text", "content": "Weather in Paris?"}]}]
CALLING = {
    "role": "assistant",
    "parts": [
        {"type": "reasoning", "content": "I need the tool."},
        {"type": "tool_call", "id": "call_1", "name": "get_weather", "arguments": {"location": "Paris"}},
    ],
    "finish_reason": "tool_call",
}
RESULT = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_1", "response": "rainy, 57°F"}]}
ANSWER = {"role": "assistant", "parts": [{"type": "text", "content": "It rains."}], "finish_reason": "stop"}


def value_of(value):
    """A value as OTLP's JSON has it."""
    if isinstance(value, list):
        return {"arrayValue": {"values": [value_of(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": attributes_of(value)}}
    kinds = {str: "stringValue", bool: "boolValue", int: "intValue", float: "doubleValue"}
    return {kinds[type(value)]: str(value) if type(value) is int else value}


def attributes_of(values: dict) -> list[dict]:
    return [{"key": name, "value": value_of(value)} for name, value in values.items()]


def otlp(*spans: dict) -> dict:
    scope = {"scope": {"name": "opentelemetry.instrumentation.openai_v2"}, "spans": list(spans)}
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [scope]}]}


def chat_span(trace: str, start: int, before: list, answers: list, events: list | None = None, **attributes) -> dict:
    """A span of a call, whose messages are text in some instrumentations and structures in others."""
    messages = {"gen_ai.input.messages": json.dumps(before), "gen_ai.output.messages": answers}
    noted = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", **messages, **attributes}
    return {
        "traceId": trace,
        "spanId": f"{start:016x}",
        "name": "chat m",
        "startTimeUnixNano": str(start),
        "attributes": attributes_of(noted),
        "events": [{"name": name, "attributes": attributes_of(values)} for name, values in events or []],
    }


def score(value, name: str = "task") -> tuple:
    return ("gen_ai.evaluation.result", {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": value})
