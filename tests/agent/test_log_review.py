# SPDX-License-Identifier: Apache-2.0

import re

import pytest
from helpers.testing_utils import ScriptedGenerator
from transformers import AutoTokenizer

from trl_nlac import NLACAgent
from trl_nlac.agent.log_review import LogReview, critic_metrics
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL
from trl_nlac.options.role_options import RoleOptions


class NumberCritic(ScriptedGenerator):
    def score(self, prompts, completions):
        decode = self.chat.tokenizer.decode
        numbers = [int(re.findall(r"go (\d)<\|end\|><\|user\|> Critique", decode(prompt))[-1]) for prompt in prompts]
        says_yes = ["yes" in decode(completion).lower() for completion in completions]
        return [(number - 5.0) * yes for number, yes in zip(numbers, says_yes, strict=True)]


@pytest.fixture
def agent():
    chat = ChatEncoder(AutoTokenizer.from_pretrained(TINY_MODEL))
    generator = NumberCritic(chat, "Future: closed win\nOptimality: No")
    options = RoleOptions(action_format="text", max_format_retries=0)
    return NLACAgent(generator, chat, options, COMPACT_PROMPTS)


def row(reward: float, *numbers: int) -> dict:
    messages = []
    for number in numbers:
        messages += [{"role": "user", "content": "next"}, {"role": "assistant", "content": f"go {number}"}]
    return {"messages": messages, "reward": reward}


def test_findings_are_the_surest_step_of_each_failure(agent):
    rows = [row(0.0, 4, 3), row(1.0, 0, 0), row(0.0, 4, 1, 2), row(0.0, 8, 9)]
    findings, number = LogReview(rows, [], 8, 0).find(agent, 3)
    assert [(found.conversation, found.step, found.score) for found in findings] == [(2, 1, -4.0), (0, 1, -2.0)]
    assert [(f.action, f.num_steps, f.reward) for f in findings] == [("go 1", 3, 0.0), ("go 3", 2, 0.0)]
    assert number == 7
    assert LogReview(rows, [], 8, 0).find(agent, 1) == (findings[:1], 7)
    assert LogReview(rows, [], 3, 0).find(agent, 3)[1] <= 3


def test_equal_findings_are_one(agent):
    """Those of twenty loops of the same agent are one finding, which leaves room for others."""
    rows = [row(0.0, 4, 1), row(0.0, 4, 1), row(0.0, 4, 3), row(0.0, 4, 1)]
    findings, _ = LogReview(rows, [], 8, 0).find(agent, 2)
    assert [found.action for found in findings] == ["go 1", "go 3"]
    assert sorted((findings[0].conversation, *findings[0].others)) == [0, 1, 3] and findings[1].others == ()


def test_agreement_with_outcomes(agent):
    held_out = [row(1.0, 0, 9), row(0.0, 8, 1)]
    metrics = critic_metrics(LogReview([], held_out, 8, 0).judge_held_out(agent), 1.0)
    assert (metrics["steps"], metrics["readable"]) == (4, 1.0)
    assert (metrics["agreement"], metrics["agreement_of_last_steps"]) == (0.5, 1.0)
