# SPDX-License-Identifier: Apache-2.0

"""Answers in OpenAI's forms: chat completions and responses, whole or as events."""

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

from .chat_requests import MODEL, Question, Reply


def chat_completion(question: Question, reply: Reply) -> dict[str, Any]:
    """Write a reply as a chat completion."""
    choice = {"index": 0, "message": {"refusal": None, **reply.message}, "logprobs": None}
    return {
        **_chat_head(question, "chat.completion"),
        "choices": [{**choice, "finish_reason": _finish_reason(reply)}],
        "usage": _chat_usage(reply),
    }


def chat_events(question: Question, reply: Reply) -> Iterator[str]:
    """Write a reply as the events of a streamed chat completion. Its text comes at once."""
    head = _chat_head(question, "chat.completion.chunk")
    options = question.body.get("stream_options")
    shows_usage = isinstance(options, dict) and bool(options.get("include_usage"))

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _event({**head, "choices": [choice], **({"usage": None} if shows_usage else {})})

    yield chunk({"role": "assistant", "content": ""})
    if reply.message["content"]:
        yield chunk({"content": reply.message["content"]})
    for i, call in enumerate(reply.message.get("tool_calls", [])):
        yield chunk({"tool_calls": [{"index": i, **call}]})
    yield chunk({}, _finish_reason(reply))
    if shows_usage:
        yield _event({**head, "choices": [], "usage": _chat_usage(reply)})
    yield "data: [DONE]\n\n"


def response(question: Question, reply: Reply) -> dict[str, Any]:
    """Write a reply as an answer of the Responses interface."""
    body = question.body
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "model": body.get("model") or MODEL,
        "error": None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "temperature": body.get("temperature"),
        "top_p": body.get("top_p"),
        "status": _status(reply),
        "incomplete_details": None if reply.finished else {"reason": "max_output_tokens"},
        "output": _output_items(reply),
        "usage": {
            "input_tokens": reply.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": reply.num_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.num_prompt_tokens + reply.num_tokens,
        },
    }


def response_events(question: Question, reply: Reply) -> Iterator[str]:
    """Write a reply as the events of a streamed answer of the Responses interface."""
    whole = response(question, reply)
    begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    events: list[tuple[str, dict[str, Any]]] = [("created", {"response": begun}), ("in_progress", {"response": begun})]
    for i, item in enumerate(whole["output"]):
        place = {"item_id": item["id"], "output_index": i}
        empty = {"content": []} if item["type"] == "message" else {"arguments": ""}
        events.append(("output_item.added", {"output_index": i, "item": {**item, "status": "in_progress", **empty}}))
        if item["type"] == "message":
            (part,) = item["content"]
            text, in_part = part["text"], {**place, "content_index": 0}
            events += [
                ("content_part.added", {**in_part, "part": {**part, "text": ""}}),
                ("output_text.delta", {**in_part, "delta": text, "logprobs": []}),
                ("output_text.done", {**in_part, "text": text, "logprobs": []}),
                ("content_part.done", {**in_part, "part": part}),
            ]
        else:
            arguments = item["arguments"]
            events += [
                ("function_call_arguments.delta", {**place, "delta": arguments}),
                ("function_call_arguments.done", {**place, "arguments": arguments, "name": item["name"]}),
            ]
        events.append(("output_item.done", {"output_index": i, "item": item}))
    events.append((whole["status"], {"response": whole}))
    for number, (name, fields) in enumerate(events):
        kind = f"response.{name}"
        yield f"event: {kind}\n{_event({'type': kind, 'sequence_number': number, **fields})}"


def models() -> dict[str, Any]:
    """Write the list of the served models."""
    return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "trl_nlac"}]}


def _chat_head(question: Question, kind: str) -> dict[str, Any]:
    name = f"chatcmpl-{uuid.uuid4().hex}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": question.body.get("model") or MODEL}


def _chat_usage(reply: Reply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.num_prompt_tokens,
        "completion_tokens": reply.num_tokens,
        "total_tokens": reply.num_prompt_tokens + reply.num_tokens,
    }


def _finish_reason(reply: Reply) -> str:
    if not reply.finished:
        return "length"
    return "tool_calls" if reply.message.get("tool_calls") else "stop"


def _status(reply: Reply) -> str:
    return "completed" if reply.finished else "incomplete"


def _output_items(reply: Reply) -> list[dict[str, Any]]:
    """The items of an answer: its text, then its calls."""
    content, items = reply.message["content"], []
    if content is not None:
        part = {"type": "output_text", "text": content, "annotations": [], "logprobs": []}
        name = f"msg_{uuid.uuid4().hex}"
        items.append({"type": "message", "id": name, "role": "assistant", "status": _status(reply), "content": [part]})
    for call in reply.message.get("tool_calls", []):
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{uuid.uuid4().hex}",
                "call_id": call["id"],
                "status": "completed",
                **call["function"],
            }
        )
    return items


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"
