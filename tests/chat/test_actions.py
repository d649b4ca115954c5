# SPDX-License-Identifier: Apache-2.0

import json
from dataclasses import replace

import pytest
from helpers.testing_utils import make_tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from trl_nlac.chat.actions import ActionFormat, choose_format, parse_react, react_thought
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tool_calls import format_tool_call
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.environments.embedded.service_desk import TOOL
from trl_nlac.types import Answer, Prompt


USER = {"role": "user", "content": "baku 2"}
THOUGHT = "It is late."
WORDS = "route legal amber photo noon"
CALL = format_tool_call("route", {"team": "legal", "form": "amber", "proof": "photo", "time": "noon"})


def load(template: str | None) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(TINY_MODEL) if template is None else make_tokenizer(template)


class TestActionFormat:
    @pytest.mark.parametrize("template", [None, "qwen2_5", "qwen3", "llama3_1", "gptoss"])
    @pytest.mark.parametrize(
        ("name", "action"),
        [("text", WORDS), ("react", WORDS), ("react", CALL), ("tool_call", CALL)],
        ids=["text", "react", "react-call", "tool_call"],
    )
    def test_what_is_written_is_read_back(self, template, name, action):
        chat = ChatEncoder(load(template))
        actions = ActionFormat(chat, name)
        prompt = Prompt.of(chat.start([USER], [TOOL] if name == "tool_call" else None), tools=(TOOL,))
        token_ids = actions.completion(action, thought=THOUGHT)
        assert token_ids[-1] in chat.stop_ids
        text, read = actions.read(prompt, token_ids)
        assert read == action
        answer = Answer(prompt, tuple(token_ids), text, action)
        assert actions.thought(answer) == (THOUGHT if name == "react" else "")
        message = actions.message(action, text, token_ids)
        assert chat.past_turn(message) == actions.remembered(token_ids, action)
        if name == "tool_call":
            function = message["tool_calls"][0]["function"]
            assert {"name": function["name"], "arguments": function["arguments"]} == json.loads(action)
        else:
            assert message == {"role": "assistant", "content": text}

    @pytest.mark.parametrize("template", ["qwen2_5", "qwen3", "llama3_1", "gptoss"])
    def test_a_call_in_other_words_stays_as_it_was_written(self, template):
        chat = ChatEncoder(make_tokenizer(template))
        actions = ActionFormat(chat, "tool_call")
        prompt = Prompt.of(chat.start([USER], [TOOL]), tools=(TOOL,))
        words = f"Let me see:\n```json\n{CALL.replace('name', 'tool').replace('arguments', 'args')}\n```"
        text, action = actions.read(prompt, chat.completion(words))
        assert (text, action) == (words, CALL)
        assert actions.remembered(chat.completion(words), action) == chat.past_turn(words)
        assert actions.replies(action, "refused 1") == [{"role": "tool", "name": "route", "content": "refused 1"}]

    @pytest.mark.parametrize(("template", "takes_several"), [("qwen2_5", True), ("llama3_1", False)])
    def test_several_calls_in_other_words(self, template, takes_several):
        """They are no action where the template shows one: no past turn could hold them."""
        actions, both = ActionFormat(ChatEncoder(make_tokenizer(template)), "tool_call"), f"[{CALL}, {CALL}]"
        assert actions.parse(CALL, [TOOL]) == CALL
        assert actions.parse(both, [TOOL]) == (both if takes_several else None)

    def test_a_template_without_tools(self):
        with pytest.raises(ValueError, match="`action_format='tool_call'` needs a chat template that shows tools"):
            ActionFormat(ChatEncoder(make_tokenizer("gemma")), "tool_call")


@pytest.mark.parametrize(
    ("name", "template", "tools", "expected"),
    [
        (None, "qwen2_5", [TOOL], "tool_call"),
        (None, "gemma", [TOOL], "react"),
        (None, "qwen2_5", [], "react"),
        ("text", "qwen2_5", [TOOL], "text"),
        ("react", "qwen2_5", [TOOL], "react"),
    ],
)
def test_choose_format(name, template, tools, expected, caplog):
    with caplog.at_level("INFO", logger="trl_nlac"):
        assert choose_format(name, ChatEncoder(make_tokenizer(template)), tools) == expected
    assert [f"`action_format` is '{expected}'" in message for message in caplog.messages] == [True] * (name is None)


@pytest.mark.parametrize(("template", "expected"), [("qwen2_5", "tool_call"), ("gemma", "text")])
def test_an_agent_that_brings_its_tools_has_its_own_words(template, expected):
    assert choose_format(None, ChatEncoder(make_tokenizer(template)), [], brings_tools=True) == expected


@pytest.mark.parametrize(
    ("answer", "policy", "refined"),
    [
        ("Thought: hm\nAction: 50", "50", "50"),
        ("50", "50", None),
        ("Action: 50", "50", None),
        ("Thought: 50", None, None),
        ("Thought: hm\nAction: 50\nAction: 51", None, None),
        (" ", None, None),
    ],
)
def test_answers_without_a_thought_are_actions_of_the_policy(answer, policy, refined):
    """An environment may say how it wants to be answered."""
    chat = ChatEncoder(make_tokenizer("qwen2_5"))
    actions, prompt = ActionFormat(chat, "react"), Prompt.of(chat.start([USER]))
    with_tools = replace(prompt, tools=(TOOL,))
    token_ids = chat.tokenizer(answer, add_special_tokens=False)["input_ids"]
    assert actions.read(prompt, token_ids, takes_whole=True)[1] == policy
    assert actions.read(prompt, token_ids)[1] == actions.read(with_tools, token_ids, takes_whole=True)[1] == refined


@pytest.mark.parametrize("mark", ["", "**", "# ", "- "])
def test_a_thought_keeps_its_full_stop(mark):
    text = f"{mark}Thought: Is it late? Yes.\n{mark}Action: go"
    assert (react_thought(text), parse_react(text)) == ("Is it late? Yes.", "go")
