# SPDX-License-Identifier: Apache-2.0

"""A table of answers that models write: real forms and invented ones, with what is read in each."""

import json
from functools import lru_cache
from pathlib import Path

import pytest
from helpers.testing_utils import make_tokenizer

from trl_nlac.chat.actions import ActionFormat
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.prompts import parse_correctness, parse_critique
from trl_nlac.types import Prompt


ANSWERS = json.loads(Path(__file__).with_name("answers.json").read_text(encoding="utf-8"))


def tool(name: str, required: list[str], **types: str) -> dict:
    properties = {parameter: {"type": kind} for parameter, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


TOOLS = (
    tool("lookup", ["order"], order="string", days="integer"),
    tool("search", ["query"], query="string"),
    tool("respond", ["content"], content="string"),
    tool("close_order", []),
)


@lru_cache
def make_actions(name: str) -> ActionFormat:
    return ActionFormat(ChatEncoder(make_tokenizer("qwen2_5")), name)


def read_action(answer: dict) -> str | None:
    """Read an answer from its tokens. In `tool_call` the marks of calls are special tokens."""
    actions, tools = make_actions(answer["format"]), TOOLS if answer["tools"] else ()
    chat = actions.chat
    encode = chat.template.encode if actions.calls_tools else chat.completion
    prompt = Prompt.of(chat.start([{"role": "user", "content": "W12?"}]), tools=tools)
    return actions.read(prompt, [*encode(answer["text"]), chat.end_of_turn_id])[1]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: f"{answer['kind']}-{answer['text'][:50]!r}")
def test_reading(answer):
    if answer["kind"] == "action":
        assert read_action(answer) == answer["expected"]
        return
    critique = {"critique": parse_critique, "correctness": parse_correctness}[answer["kind"]](answer["text"])
    read = None if critique is None else {"optimal": critique.optimal, "advice": critique.advice}
    assert read == answer["expected"]
