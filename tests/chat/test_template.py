# SPDX-License-Identifier: Apache-2.0

import pytest
from helpers.testing_utils import CHAT_TEMPLATES, make_tokenizer, make_tokenizer_of
from transformers import AutoTokenizer

from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.template import ChatTemplate
from trl_nlac.environments.embedded import TINY_MODEL


class TestRefusals:
    @pytest.mark.parametrize(
        ("template", "message"),
        [
            ("{{ '<|user|>' + messages[-1]['content'] + '<|end|><|assistant|>' }}", "drops, repeats or reorders"),
            ("{% for m in messages %}{{ m['content'] + ' / ' }}{% endfor %}", "does not end an assistant's turn"),
            ("{{ raise_exception('no') }}", "cannot render a conversation in text and without tools, .*: no"),
            (
                "{% for m in messages %}{{ messages | length ~ '<|user|>' + m['content'] + '<|end|>' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
                "earlier turns change as it grows",
            ),
            (None, "`processing_class`.* no chat template"),
            ("{{ tools | length }}", "cannot render a conversation in text and without tools"),
        ],
    )
    def test_templates(self, template, message):
        tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
        tokenizer.chat_template = template
        with pytest.raises(ValueError, match=message):
            ChatEncoder(tokenizer)


TURNS = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<|user|>' + m.content }}"
    "{% else %}{{ '<|assistant|>@PAST' + m.content + '@END' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>@OPEN' }}{% endif %}"
)


@pytest.mark.parametrize("template", ["gptoss", "qwen3", "gemma4", "glm4moe"])
@pytest.mark.parametrize("said", [{}, {"description": ""}, {"description": None}])
@pytest.mark.parametrize("is_wrapped", [True, False])
def test_tools_without_a_description_are_shown(template, said, is_wrapped):
    tool = {"name": "now", "parameters": {"type": "object", "properties": {}}, **said}
    chat = ChatEncoder(make_tokenizer(template))
    tools = [{"type": "function", "function": tool} if is_wrapped or template in ("gptoss", "gemma4") else tool]
    assert "now" in chat.tokenizer.decode(chat.start([{"role": "user", "content": "hi"}], tools))


class TestOpenings:
    @pytest.mark.parametrize(
        ("past", "prompt", "end"),
        [
            ("</think>", "<think>", ""),
            ("</think>", "<think>", "<|end|>"),
            ("<think></think>", "<think>\\n", "<|end|>"),
            ("<|START_RESPONSE|>", "<|START_THINKING|>", "<|END_RESPONSE|><|END_OF_TURN|>"),
            ("<|START_TEXT|>", "<|START_THINKING|><|END_THINKING|>", "<|END_TEXT|><|END_OF_TURN|>"),
            ("\\n\\n", "\\n", "<|end|>"),
        ],
    )
    @pytest.mark.parametrize("is_special", [True, False])
    def test_tags_with_a_common_start_are_not_split(self, past, prompt, end, is_special):
        template = TURNS.replace("@PAST", past).replace("@OPEN", prompt).replace("@END", end)
        tags = ["<think>", "</think>", *(f"<|{name}|>" for name in ("user", "assistant", "end"))]
        tokenizer = make_tokenizer_of(template, ordinary=[] if is_special else tags)
        chat = ChatEncoder(tokenizer)
        messages = [{"role": r, "content": c} for r, c in (("user", "a"), ("assistant", "b"), ("user", "c"))]
        whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert chat.start(messages) + chat.prefill == whole
        past, prompt = past.replace("\\n", "\n"), prompt.replace("\\n", "\n")
        assert tokenizer.decode([*chat.template.opening_ids, *chat.template.header]) == f"<|assistant|>{past}"
        assert tokenizer.decode([*chat.template.opening_ids, *chat.prefill]) == f"<|assistant|>{prompt}"


class TestThinking:
    THINKING = {
        **dict.fromkeys(["deepseek_r1_distill", "deepseekv3", "gptoss"], False),  # whether `enable_thinking` is read
        **dict.fromkeys(["glm4moe", "qwen3", "qwen3_5_think", "qwen3_6", "qwen3_8"], True),
        **dict.fromkeys([f"nemotron_3_{name}" for name in ("5_lightning", "nano", "super", "ultra")], True),
    }

    def test_which_templates_think_by_default(self):
        found = {}
        for path in CHAT_TEMPLATES.glob("*.jinja"):
            if path.stem.endswith("_training"):
                continue
            try:
                template = ChatTemplate(make_tokenizer(path.stem), {})
            except ValueError:  # refused: earlier turns would change
                continue
            if template.thinks_by_default:
                found[path.stem] = template.can_stop_thinking
        assert found == self.THINKING

    @pytest.mark.parametrize("name", [name for name, can_stop in THINKING.items() if can_stop])
    def test_thinking_can_be_turned_off(self, name):
        template = ChatTemplate(make_tokenizer(name), {"enable_thinking": False})
        assert not template.thinks_by_default and not template.can_stop_thinking

    def test_of_several_templates_that_for_conversations_is_read(self):
        tokenizer = make_tokenizer("qwen3")
        tags = ChatTemplate(tokenizer, {}).reasoning_tags
        tokenizer.chat_template = {"default": tokenizer.chat_template, "rag": "{{ documents }}"}
        assert ChatTemplate(tokenizer, {}).reasoning_tags == tags == ("<think>", "</think>")

    @pytest.mark.parametrize("tag", ["[THINK]", "<seed:think>"])
    def test_other_tags(self, tag):
        tokenizer = make_tokenizer("qwen3")
        closing = tag[0] + "/" + tag[1:]
        tokenizer.chat_template = tokenizer.chat_template.replace("<think>", tag).replace("</think>", closing)
        assert ChatTemplate(tokenizer, {}).reasoning_tags == (tag, closing)

    def test_thinking_can_be_turned_on(self):
        assert not ChatTemplate(make_tokenizer("qwen3_5_nothink"), {}).thinks_by_default
        assert ChatTemplate(make_tokenizer("qwen3_5_nothink"), {"enable_thinking": True}).thinks_by_default
