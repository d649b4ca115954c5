# SPDX-License-Identifier: Apache-2.0

"""Chat templates of a foreign folder that take time or memory without end, raise anything, or reach for Python."""

import sys

import pytest
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from trl_nlac.chat import template_trial
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.episodes.rewards import RewardModel


GOOD = AutoTokenizer.from_pretrained(TINY_MODEL).chat_template
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS = {
    "loops": LOOP,
    "a constant": "{{ ('x' * 10**10) | length }}",
    "doubling": "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "a filter": "{{ ('x' | center(10**10)) | length }}",
    "a list": "{{ ([0] * 10**10) | length }}",
    "output": "{{ 'lo ' * 10**6 }}",
    "a number": "{{ 9 ** (9 ** 9) }}",
    "a loop where thinking is off": "{% if enable_thinking is defined %}" + LOOP + "{% endif %}",
    "a loop beside tools": "{% if tools %}" + LOOP + "{% endif %}",
}
ODD = {
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "extends": "{% extends '/etc/passwd' %}",
    "a macro in itself": "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(0) }}",
    "zero": "{{ 1 / 0 }}",
    "an unknown filter": "{{ messages | nothing }}",
    "an undefined name": "{{ x.y.z }}",
    "attributes": "{{ ''.__class__.__mro__[1].__subclasses__()[0]() }}",
    "a format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "globals of a function": "{{ raise_exception.__globals__['os'].mkdir('mark') }}",
    "globals of a class": "{{ cycler.__init__.__globals__.os.mkdir('mark') }}",
    "an environment": "{{ self._TemplateReference__context.environment.loader.x }}",
    "a change of the messages": "{{ messages.clear() }}",
    "half a character": "{{ '\\ud800' }}",
    "levels": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
}
WHERE = {
    "always": "",
    "with a system": "{% if messages[0].role == 'system' %}",
    "with a call": "{% if messages[1].tool_calls %}",
    "with thinking": "{% if enable_thinking is defined %}",
}


def tokenizer_with(template: str):
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    tokenizer.chat_template = template
    return tokenizer


limited = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these limits")


@limited
@pytest.mark.parametrize("name", ENDLESS)
def test_templates_without_an_end(name, monkeypatch):
    monkeypatch.setattr(template_trial, "SECONDS", 1)
    with pytest.raises(ValueError, match="The chat template .* takes more than"):
        ChatEncoder(tokenizer_with(ENDLESS[name] + GOOD))


@limited
def test_a_reward_model():
    config = AutoConfig.from_pretrained(TINY_MODEL, num_labels=1)
    model = AutoModelForSequenceClassification.from_config(config)
    with pytest.raises(ValueError, match="The chat template .* takes more than"):
        RewardModel(model, tokenizer_with(ENDLESS["output"]))


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ODD)
def test_odd_templates(name, where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    part = WHERE[where] + ODD[name] + ("{% endif %}" if WHERE[where] else "")
    try:
        chat = ChatEncoder(tokenizer_with(part + GOOD))
        chat.start([{"role": "user", "content": "situ"}])
    except ValueError as error:
        assert "chat template" in str(error) and len(str(error)) < 1000
    assert not any(tmp_path.iterdir())
