# SPDX-License-Identifier: Apache-2.0

"""Calls of tools, as every chat template that TRL packages writes them, are read as they were, or not at all."""

import functools
from pathlib import Path

import pytest
from helpers.testing_utils import CHAT_TEMPLATES, make_roles_of, make_tokenizer

from trl_nlac.chat.actions import ActionFormat, choose_format
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tool_calls import call_message, parse_tool_calls
from trl_nlac.episodes.logs import episodes_from_logs, logs_dataset
from trl_nlac.types import Prompt


TEXT = {"type": "string"}
# Name, arguments and schema of what is hard to write and to read back, in the order of the columns of the table.
HARD = {
    "spaces": ("edit", {"x": "    return x  \n"}, TEXT),
    "line breaks": ("edit", {"x": "\n\nx\n\n"}, TEXT),
    "closing tags": ("edit", {"x": "a</parameter>b</arg_value></tool_call>"}, TEXT),
    "quotes": ("edit", {"x": 'it\'s "q"'}, TEXT),
    "a backslash": ("edit", {"x": "a\\nb"}, TEXT),
    "brackets": ("edit", {"x": "a,b)]}c=\u2028"}, TEXT),
    "JSON": ("edit", {"x": '{"a": 1}'}, TEXT),
    "a number": ("edit", {"x": "75001"}, TEXT),
    "nothing": ("edit", {"x": ""}, TEXT),
    "null": ("edit", {"x": None}, {"type": ["string", "null"]}),
    "a key": ("edit", {"a b": "x"}, TEXT),
    "a name": ("mcp__maps.find-route", {"x": "Paris"}, TEXT),
}
TABLE = (Path(__file__).parent / "exact_calls.md").read_text().splitlines()
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
    actions = format_of(template)
    prompt = actions.chat.start([{"role": "user", "content": "hi"}], [tool])
    answer = actions.chat.completion(call_message([(name, arguments)]))
    action = actions.read(Prompt.of(prompt, (tool,), len(prompt)), answer)[1]
    return None if action is None else parse_tool_calls(action)


def outcome(template: str, name: str, arguments: dict, of: dict) -> str:
    arguments = {**arguments, "to": "y"}
    tool = schema(name, **dict.fromkeys(arguments, of))
    found = read_back(template, name, arguments, tool)
    try:
        choose_format("tool_call", format_of(template).chat, [tool])
    except ValueError as error:
        assert "in a way that cannot be read back" in str(error)
        return "refused"
    return "exact" if found == [(name, arguments)] else "unread" if found is None else f"wrong: {found}"


@pytest.mark.parametrize("template", CALLING)
def test_the_table(template):
    row = [template, *(outcome(template, *case) for case in HARD.values())]
    assert f"| {' | '.join(row)} |" in TABLE and "wrong" not in str(row)


def test_the_table_has_all_templates():
    rows = [row.split(" ")[1] for row in TABLE if row.startswith("| ")]
    assert rows == ["template", "---", *CALLING]


@pytest.mark.parametrize("template", CALLING)
def test_other_types(template):
    values = {"integer": 3, "number": 1.5, "boolean": False, "array": ["a", None], "object": {"a": {"b": None}}}
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
def test_a_text_in_quotes_stays_one(template):
    if format_of(template).chat.template.value_pattern is not None:  # `null` and "null" are written alike
        return
    choices = {"anyOf": [{"type": "null"}, {"type": "string"}]}
    for text in ("null", "None", "75001", "true"):
        for of in ({"type": ["integer", "boolean", "null", "string"]}, {"type": "string", "nullable": True}, choices):
            assert read_back(template, "edit", {"x": text}, schema("edit", x=of)) == [("edit", {"x": text})]
    assert read_back(template, "edit", {"x": "3"}, schema("edit", x={"type": "integer"})) == [("edit", {"x": 3})]


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
