# SPDX-License-Identifier: Apache-2.0

"""Calls of tools, as every chat template that TRL packages writes them, are read as they were, or not at all."""

import functools

import pytest
from helpers.testing_utils import CHAT_TEMPLATES, make_roles_of, make_tokenizer

from trl_nlac.chat.actions import ActionFormat, choose_format
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tool_calls import call_message, parse_tool_calls
from trl_nlac.episodes.logs import episodes_from_logs, logs_dataset
from trl_nlac.types import Prompt


TEXT = {"type": "string"}
# What a template cannot hold, beside the names of its family.
HARD = {
    "indented": "    return x\n",
    "trailing": "x  ",
    "a line break": "\n",
    "line breaks": "\n\nx\n\n",
    "a closing tag": "a</parameter>b</arg_value></tool_call>",
    "quotes": 'it\'s "q"',
    "brackets": "a,b)]}c",
    "a backslash": "a\\nb",
    "a separator": "é\u2028",
    "json": '{"a": 1}',
    "a number": "75001",
    "null": "null",
    "nothing": "",
    "of another type": "true",
}
LOST = {
    "glm4moe": ["a closing tag"],
    "nemotron": ["a closing tag"],
    "qwen3_5": ["a closing tag"],
    "qwen3_6": ["a closing tag"],
    "qwen3_8": ["a closing tag"],
    "lfm2_2_5": ["quotes"],
    "lfm2_2_5_vl": [],
}
NAMES = [path.stem for path in sorted(CHAT_TEMPLATES.glob("*.jinja")) if "training" not in path.stem]


def schema(name: str, **properties: dict) -> dict:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}


@functools.cache
def format_of(template: str) -> ActionFormat | None:
    try:
        chat = ChatEncoder(make_tokenizer(template))
    except ValueError:  # it shows no conversation in text
        return None
    return ActionFormat(chat, "tool_call") if chat.calls_tools else None


CALLING = [name for name in NAMES if format_of(name)]


def read_back(template: str, name: str, arguments: dict, tool: dict) -> list | None:
    """Write a call as the template does, and read it as an answer of the policy."""
    actions = format_of(template)
    prompt = actions.chat.start([{"role": "user", "content": "hi"}], [tool])
    answer = actions.chat.completion(call_message([(name, arguments)]))
    action = actions.read(Prompt.of(prompt, (tool,), len(prompt)), answer)[1]
    return None if action is None else parse_tool_calls(action)


@pytest.mark.parametrize("template", CALLING)
def test_texts(template):
    family = max((name for name in LOST if template.startswith(name)), key=len, default="")
    for kind, text in HARD.items():
        expected = None if kind in LOST.get(family, []) else [("edit", {"old": text, "new": "y"})]
        tool = schema("edit", old=TEXT, new=TEXT)
        assert read_back(template, "edit", {"old": text, "new": "y"}, tool) == expected, kind


@pytest.mark.parametrize("template", CALLING)
@pytest.mark.parametrize("name", ["get-weather", "a.b", "mcp__x-y", "ns:tool"])
def test_names(template, name):
    tool = schema(name, city=TEXT)
    assert read_back(template, name, {"city": "Paris"}, tool) == [(name, {"city": "Paris"})]
    format_of(template).check_tools([tool])


@pytest.mark.parametrize("template", CALLING)
def test_other_types(template):
    values = {"integer": 3, "number": 1.5, "boolean": False, "array": ["a", 1], "object": {"a": {"b": 1}}}
    tool = schema("edit", **{kind: {"type": kind} for kind in values})
    assert read_back(template, "edit", values, tool) == [("edit", values)]
    for names in (["string", "null"], "string"):  # what cannot be written is not read as something else
        assert read_back(template, "edit", {"x": None}, schema("edit", x={"type": names})) in (
            None,
            [("edit", {"x": None})],
            [("edit", {"x": "None"})],
            [("edit", {"x": "null"})],
        )


@pytest.mark.parametrize("template", CALLING)
@pytest.mark.parametrize("key", ["a b", "a-b", "é"])
def test_names_of_parameters_that_are_not_read_back_are_refused_before_training(template, key):
    tool = schema("edit", **{key: TEXT})
    if read_back(template, "edit", {key: "x"}, tool) == [("edit", {key: "x"})]:
        format_of(template).check_tools([tool])
        return
    with pytest.raises(ValueError, match="calls of the tool 'edit'.* in a way that cannot be read back"):
        choose_format("tool_call", format_of(template).chat, [tool])


@pytest.mark.parametrize("text", ["    return x\n", "</parameter>", "a\n</parameter>\n<parameter=new>\nb"])
def test_a_log_whose_calls_are_read_as_others_is_refused(text):
    """What is not read at all does no harm: nothing is called then."""
    roles = make_roles_of(ChatEncoder(make_tokenizer("qwen3_5_nothink")), [], action_format="tool_call")
    said = call_message([("edit", {"old": text})])
    log = logs_dataset([{"messages": [{"role": "user", "content": "go"}, said], "reward": 1.0}])
    if "new" not in text:
        (episode,) = episodes_from_logs(log, roles.actions, roles.prompts)
        assert f"<parameter=old>\n{text}\n</parameter>" in roles.chat.tokenizer.decode(episode.token_ids)
        return
    with pytest.raises(ValueError, match="row 0: The chat template writes the calls of message 1 so that others are"):
        episodes_from_logs(log, roles.actions, roles.prompts)
