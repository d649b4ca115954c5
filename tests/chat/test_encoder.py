# SPDX-License-Identifier: Apache-2.0

import json

import pytest
from helpers.testing_utils import CHAT_TEMPLATES, make_tokenizer

from trl_nlac.chat.actions import ActionFormat
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tool_calls import call_message, format_tool_call, format_tool_calls
from trl_nlac.environments.embedded.service_desk import TOOL
from trl_nlac.types import Prompt


USER = {"role": "user", "content": "baku 2"}
ASSISTANT = {"role": "assistant", "content": "route legal amber photo noon"}
VISION = ("idefics3", "llava_next", "smolvlm")  # their templates take no text as content
TEMPLATES = [path.stem for path in sorted(CHAT_TEMPLATES.glob("*.jinja")) if not path.stem.startswith(VISION)]
TOOL_TEMPLATES = [name for name in TEMPLATES if ChatEncoder(make_tokenizer(name)).calls_tools]
# Templates that show the text beside a call: after its results, or not at all, is elsewhere.
SAYING = [name for name in TOOL_TEMPLATES if not name.startswith(("gemma4", "gptoss", "llama3"))]
ARGUMENTS = {"form": "amber", "proof": "photo", "team": "legal", "time": "noon"}


def sampled(chat: ChatEncoder, content: str, thought: str = "That may help.") -> list[int]:
    """Encode an answer as a model with this template samples it, with a chain of thought if the template has one."""
    text = content
    if chat.reasoning_tags is not None:
        opening, closing = chat.reasoning_tags
        header = chat.tokenizer.decode(chat.template.header) if "channel" in opening else ""
        space = "" if "channel" in opening else "\n\n"
        text = f"{thought}{closing}{space}{header}{content}"
        text = text if chat.template.starts_reasoning else opening + text
    return [*chat.template.encode(text), chat.stop_ids[0]]


def sampled_by_template(chat: ChatEncoder, messages: list[dict], said: dict) -> list[int]:
    """Encode an answer as the template ends a conversation with it, after the generation prompt."""
    prompt, whole = (
        chat.tokenizer.apply_chat_template(shown, tools=[TOOL], tokenize=False, add_generation_prompt=is_open)
        for shown, is_open in ((messages, True), ([*messages, said], False))
    )
    assert whole.startswith(prompt)
    token_ids = chat.template.encode(whole.removeprefix(prompt))
    end_id = chat.template.call_end_id if "tool_calls" in said else chat.template.stop_id
    return token_ids[: token_ids.index(end_id) + 1] if end_id in token_ids else [*token_ids, end_id]


def with_thought(chat: ChatEncoder, message: dict, thought: str) -> dict:
    field = chat.template.reasoning_field
    if field in chat.tokenizer.chat_template:
        return message | {field: thought}
    return message | {"content": f"<think>\n{thought}\n</think>\n\n{message['content']}"}


class TestConversations:
    @pytest.mark.parametrize("template", TEMPLATES)
    def test_states_are_those_of_the_template(self, template):
        chat = ChatEncoder(make_tokenizer(template))
        prompt = chat.tokenizer.decode([*chat.template.opening_ids, *chat.prefill])
        is_closed = chat.template.keeps_reasoning and prompt.strip().endswith(chat.reasoning_tags[1])
        keeps = chat.template.keeps_reasoning and not is_closed
        said = with_thought(chat, ASSISTANT, "That may help.") if keeps else ASSISTANT
        messages = [USER, said, {"role": "user", "content": "refused 1"}, said]
        messages.append({"role": "user", "content": "closed win"})
        token_ids = chat.start(messages[:1])
        for i in (1, 3):
            before = list(token_ids)
            # The prompt in acting and in training is the template's own.
            seen = chat.tokenizer.apply_chat_template(messages[:i], add_generation_prompt=True, return_dict=False)
            assert token_ids + chat.prefill == seen
            if keeps or is_closed:
                answer = sampled_by_template(chat, messages[:i], said)
            else:
                answer = sampled(chat, said["content"])
            token_ids += chat.remembered(answer)
            token_ids += chat.reply(token_ids[-1], messages[i + 1]["content"])
            assert token_ids[: len(before)] == before
        whole = chat.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert token_ids + chat.prefill == whole
        kept = {chat.template.reasoning_field: "That may help."} if keeps else {}
        assert chat.start([ASSISTANT | kept if m is said else m for m in messages]) == token_ids

    @staticmethod
    def call() -> dict:
        function = {"name": "route", "arguments": ARGUMENTS}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}

    @pytest.mark.parametrize("template", TOOL_TEMPLATES)
    def test_calls_that_cannot_be_read_are_not_answers(self, template):
        chat = ChatEncoder(make_tokenizer(template))
        call = chat.past_turn(self.call())
        cut = chat.tokenizer.decode(call).index("photo")
        broken = chat.template.encode(chat.tokenizer.decode(call)[:cut]) + call[-1:]
        assert chat.decode_calls([], broken) == ""

    @pytest.mark.parametrize("template", TOOL_TEMPLATES)
    def test_several_calls_are_those_of_the_template(self, template):
        chat = ChatEncoder(make_tokenizer(template))
        calls = [("route", ARGUMENTS), ("close", {"when": "now"})]
        said = call_message(calls)
        if template.startswith(("gptoss", "llama3")):
            assert not chat.template.takes_several_calls()
            with pytest.raises(
                ValueError, match="shows one tool call in a turn, and a turn calls 2 tools: route, close"
            ):
                chat.start([USER, said])
            return
        results = [{"role": "tool", "name": name, "content": f'{name} "1"'} for name, _ in calls]
        opening, action = chat.start([USER], [TOOL]), chat.past_turn(said)
        assert chat.decode_calls(opening, action) == format_tool_calls(calls)
        token_ids = opening + chat.remembered(action, ("route", "close"))
        token_ids += chat.results(token_ids[-1], [message["content"] for message in results], ("route", "close"))
        messages = [USER, said, *results]
        whole = chat.tokenizer.apply_chat_template(
            messages, tools=[TOOL], add_generation_prompt=True, return_dict=False
        )
        assert token_ids + chat.prefill == whole
        assert chat.start(messages, [TOOL]) == token_ids

    @pytest.mark.parametrize("template", TOOL_TEMPLATES)
    def test_a_user_speaks_after_a_result(self, template):
        chat = ChatEncoder(make_tokenizer(template))
        messages = [USER, self.call(), {"role": "tool", "name": "route", "content": "refused"}]
        messages += [{"role": "user", "content": text} for text in ("Then claims.", "Hurry!")]
        token_ids = chat.start(messages, [TOOL])
        joined = {"role": "user", "content": "Then claims.\n\nHurry!"}
        whole = chat.tokenizer.apply_chat_template(
            [*messages[:3], joined], tools=[TOOL], add_generation_prompt=True, return_dict=False
        )
        shown, expected = (chat.tokenizer.decode(ids) for ids in (token_ids + chat.prefill, whole))
        assert shown.partition("refused")[2] == expected.partition("refused")[2]
        assert len(token_ids) + len(chat.prefill) == len(whole) or "<think>" in shown.partition("refused")[0]

    def test_arguments_as_text_are_those_of_an_object(self):
        """Qwen2.5's template would write the text as a string in JSON, others raise."""
        for template in ("qwen2_5", "llama3_1", "gemma4"):
            chat = ChatEncoder(make_tokenizer(template))
            function = {"name": "route", "arguments": json.dumps(ARGUMENTS)}
            said = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]}
            assert chat.past_turn(said) == chat.past_turn(self.call())
            assert chat.completion(said) == chat.completion(self.call())
            result = {"role": "tool", "tool_call_id": "1", "content": "refused"}
            named = {"role": "tool", "name": "route", "content": "refused"}
            assert chat.start([USER, said, result]) == chat.start([USER, self.call(), named])

    @pytest.mark.parametrize("template", ["qwen3", "qwen3_5_nothink", "glm4moe"])
    @pytest.mark.parametrize("tag", ["<think>", "</think>"])
    def test_an_argument_that_quotes_a_tag_ends_no_thought(self, template, tag):
        chat = ChatEncoder(make_tokenizer(template))
        said = call_message([("route", {"team": f"a {tag} b"})])
        sampled_ids = chat.completion(said)
        assert chat.reasoning(sampled_ids) == ""
        assert chat.remembered(sampled_ids, ("route",)) == chat.past_turn(said)

    def test_calls_that_no_template_shows_are_refused(self):
        chat = ChatEncoder(make_tokenizer("gemma"))
        with pytest.raises(ValueError, match="A turn calls route, and the chat template shows no tool calls"):
            chat.past_turn(self.call())

    @pytest.mark.parametrize("thought", ["It is late.", ""])
    @pytest.mark.parametrize("template", TOOL_TEMPLATES)
    def test_the_agent_sees_what_the_policy_saw(self, template, thought):
        tokenizer = make_tokenizer(template)
        chat = ChatEncoder(tokenizer)
        actions = ActionFormat(chat, "tool_call")
        keeps = chat.template.keeps_reasoning_of(("route",))
        if thought and (not keeps or chat.prefill and not chat.template.starts_reasoning):
            pytest.skip("the template drops the thoughts of calls, or its prompt ends them")
        said = call_message([("route", ARGUMENTS)], "Let me see." if template in SAYING else "")
        said = said | {chat.template.reasoning_field: thought} if thought else said
        messages, shown, token_ids = [USER], [USER], chat.start([USER], [TOOL])
        for observation in ("refused.", "closed"):
            prompt = Prompt.of(token_ids, tools=(TOOL,))
            if thought or not chat.template.starts_reasoning:  # otherwise the template opens a thought that it drops
                sampled_ids = sampled_by_template(chat, shown, said)
            else:
                sampled_ids = chat.completion(said)
            text, _ = actions.read(prompt, sampled_ids)
            assert text == format_tool_call("route", ARGUMENTS)
            token_ids = token_ids + actions.remembered(sampled_ids, text)
            token_ids += actions.observation_ids(token_ids[-1], text, observation)
            replies = actions.replies(text, observation)
            messages = [*messages, actions.message(text, text, sampled_ids), *replies]
            shown = [*shown, said, *replies]
            assert messages == shown
            assert chat.start(messages, [TOOL]) == token_ids
            whole = tokenizer.apply_chat_template(shown, tools=[TOOL], add_generation_prompt=True, return_dict=False)
            assert token_ids + chat.prefill == whole
        # An answer in words, whose thought most templates drop, and the user's next message.
        said = {"role": "assistant", "content": "done."}
        if chat.template.keeps_reasoning:
            answer = sampled_by_template(chat, shown, said | {chat.template.reasoning_field: "I am."})
        else:
            answer = sampled(chat, "done.")
        token_ids += [*actions.remembered(answer, "done."), *actions.observation_ids(answer[-1], "done.", "thanks")]
        messages += [actions.message("done.", "done.", answer), {"role": "user", "content": "thanks"}]
        assert chat.start(messages, [TOOL]) == token_ids

    def test_text_after_a_call_is_not_lost(self):
        chat = ChatEncoder(make_tokenizer("qwen3"))
        call = chat.tokenizer.decode(chat.past_turn(self.call())[:-1])
        token_ids = chat.template.encode(f"<think>\nHm.\n</think>\n\nFirst.\n{call} Then.<|im_end|>")
        assert chat.text_beside_calls(token_ids) == "First.\nThen."

    def test_several_calls_are_no_action_where_the_template_shows_one(self, tokenizer):
        chat = ChatEncoder(tokenizer)
        call = chat.past_turn(self.call())
        assert not chat.template.takes_several_calls()
        assert chat.decode_calls([], [*call[:-1], *call]) == ""

    def test_system_text_without_a_system_role(self):
        system = {"role": "system", "content": "Act."}
        chat = ChatEncoder(make_tokenizer("gemma"))
        text = chat.tokenizer.decode(chat.start([system, USER]))
        assert text == "<bos><start_of_turn>user\nAct.\n\nbaku 2<end_of_turn>\n<start_of_turn>model\n"
        chat = ChatEncoder(make_tokenizer("qwen2_5"))
        assert "<|im_start|>system\nAct.<|im_end|>" in chat.tokenizer.decode(chat.start([system, USER]))

    def test_neighbours_of_a_role_join_where_roles_must_alternate(self):
        chat = ChatEncoder(make_tokenizer("gemma"))
        assert "baku 2\n\nbaku 2<end_of_turn>" in chat.tokenizer.decode(chat.start([USER, USER]))
        chat = ChatEncoder(make_tokenizer("llama3"))
        assert chat.tokenizer.decode(chat.start([USER, USER])).count("baku 2<|eot_id|>") == 2

    def test_neighbouring_turns_of_the_assistant_are_refused(self, tokenizer):
        said = {"role": "assistant", "content": "take red"}
        with pytest.raises(ValueError, match="Two messages of the assistant follow each other"):
            ChatEncoder(tokenizer).start([USER, said, said, USER])

    @pytest.mark.parametrize("template", TEMPLATES)
    def test_the_first_line_keeps_its_indentation(self, template):
        """Where the template shows it. Other white space around messages could join that of the template."""
        chat = ChatEncoder(make_tokenizer(template))
        board, answer = "   1 2\n 3 4", {"role": "assistant", "content": "2"}
        messages = [{"role": "user", "content": board}, answer, {"role": "user", "content": board}]
        whole = chat.template.render(messages)
        assert chat.start(messages) + chat.prefill == chat.template.encode(whole)
        reply = chat.reply(chat.end_of_turn_id, board)
        assert reply == chat.reply(chat.end_of_turn_id, f"\n \n{board} \n\n")
        assert (board in chat.tokenizer.decode(reply)) == (board in whole)
        assert chat.past_turn(f" {board}\n") == chat.past_turn(board.strip())  # as an answer is decoded

    def test_cut_off_turn_is_closed(self, tokenizer):
        chat = ChatEncoder(tokenizer)
        complete = chat.completion("take red")
        cut = complete[:-1]
        assert cut + chat.reply(cut[-1], "late lose") == complete + chat.reply(complete[-1], "late lose")


class TestReasoning:
    THINKING = [name for name in TEMPLATES if name in ("qwen3", "qwen3_5_think", "deepseek_r1_distill", "gptoss")]

    @pytest.mark.parametrize("template", THINKING)
    def test_content_and_thoughts_are_separated(self, template):
        chat = ChatEncoder(make_tokenizer(template))
        answer = sampled(chat, "Optimality: Yes", thought="Hm.")
        assert chat.decode(answer) == "Optimality: Yes"
        assert chat.reasoning(answer) == "Hm."
        changed = chat.with_reasoning(answer, "I expect it.")
        assert chat.reasoning(changed) == "I expect it." and chat.decode(changed) == "Optimality: Yes"
        assert chat.with_reasoning(answer, "Hm.") == answer
        # The content stays token by token, and no thoughts stay in the conversation.
        content = answer[chat.content_start(answer) :]
        assert changed[-len(content) :] == content
        assert chat.remembered(changed) == chat.remembered(answer) == chat.past_turn("Optimality: Yes")

    @pytest.mark.parametrize("template", THINKING)
    def test_thoughts_without_an_end_are_no_content(self, template):
        chat = ChatEncoder(make_tokenizer(template))
        opening = "" if chat.template.starts_reasoning else chat.reasoning_tags[0]
        assert chat.decode(chat.template.encode(f"{opening}Optimality: Yes")) == ""

    def test_prefill(self):
        chat = ChatEncoder(make_tokenizer("deepseek_r1_distill"))
        assert chat.tokenizer.decode(chat.prefill) == "<think>\n"
        answer = chat.completion("done")  # a trained answer must end the thoughts that the prefill began
        assert chat.decode(answer) == "done" and chat.reasoning(answer) == ""

    def test_thinking_can_be_switched_off(self):
        chat = ChatEncoder(make_tokenizer("qwen3"), {"enable_thinking": False})
        assert chat.tokenizer.decode(chat.prefill) == "<think>\n\n</think>\n\n"
        assert chat.decode(chat.template.encode("done")) == "done"
        assert chat.completion("done") == chat.past_turn("done")
