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
from transformers import AutoTokenizer

from trl_nlac.chat.encoder import ChatEncoder
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
