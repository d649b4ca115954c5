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

import pytest
from helpers.testing_utils import CHAT_TEMPLATES, make_tokenizer
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
            ("{{ raise_exception('no') }}", "cannot render a conversation in text: no"),
            (
                "{% for m in messages %}{{ messages | length ~ '<|user|>' + m['content'] + '<|end|>' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
                "earlier turns change as it grows",
            ),
            (None, "`processing_class`.* no chat template"),
        ],
    )
    def test_templates(self, template, message):
        tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
        tokenizer.chat_template = template
        with pytest.raises(ValueError, match=message):
            ChatEncoder(tokenizer)


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

    def test_thinking_can_be_turned_on(self):
        assert not ChatTemplate(make_tokenizer("qwen3_5_nothink"), {}).thinks_by_default
        assert ChatTemplate(make_tokenizer("qwen3_5_nothink"), {"enable_thinking": True}).thinks_by_default
