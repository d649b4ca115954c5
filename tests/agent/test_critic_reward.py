# SPDX-License-Identifier: Apache-2.0

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from trl_nlac import CriticReward, NLACAgent
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.environments.embedded.service_desk import TOOL


STATE = [{"role": "user", "content": "situ 2"}]
ACTION = {"role": "assistant", "content": "route billing amber photo noon"}
ANSWER = {"role": "user", "content": "refused needs ivory 1"}
OBEYS = {"role": "assistant", "content": "route billing ivory photo noon"}


@pytest.fixture(scope="module")
def agent():
    return NLACAgent.from_pretrained(
        TINY_MODEL, device="cpu", action_format="text", role_sampling={"critic": {"temperature": 0.0}}
    )


def test_reward_is_the_verdict_score(agent):
    score = agent.critique(STATE, ACTION).verdict_score
    later = agent.critique([*STATE, ACTION, ANSWER], OBEYS).verdict_score
    assert abs(score - later) > 0.1
    metrics = {}
    completions = [[ACTION, ANSWER, OBEYS], [ACTION], "route billing amber photo noon"]
    rewards = CriticReward(agent)([STATE, STATE, "situ 2"], completions, log_metric=metrics.__setitem__, step=3)
    assert rewards == pytest.approx([(score + later) / 2, score, score], abs=1e-3)
    assert metrics == {"critic_reward/format_rate": 1.0}


def test_what_cannot_be_judged_has_no_reward(agent):
    metrics = {}
    orphan = {"role": "tool", "content": "42"}
    rewards = CriticReward(agent)([STATE, STATE], [[orphan, ACTION], [ACTION]], log_metric=metrics.__setitem__)
    assert rewards[0] is None and rewards[1] is not None and metrics == {"critic_reward/format_rate": 0.5}
    mute = NLACAgent.from_pretrained(
        TINY_MODEL, device="cpu", role_sampling={role: {"max_tokens": 1} for role in ("critic", "successor")}
    )
    assert CriticReward(mute)([STATE], [[ACTION]]) == [None]
    short = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="text", max_prompt_length=64)
    long = {"role": "assistant", "content": "route billing amber photo noon " * 40}
    one, other = CriticReward(short)([STATE, STATE], [[long, ANSWER, ACTION], [ACTION]])
    assert one is None and other is not None


def test_calls_of_tools(agent):
    arguments = dict(zip(("team", "form", "proof", "time"), ACTION["content"].split()[1:], strict=True))
    call = {"type": "function", "function": {"name": "route", "arguments": arguments}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    options = {"action_format": "tool_call", "role_sampling": {"critic": {"temperature": 0.0}}}
    caller = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", tools=[TOOL], **options)
    (reward,) = CriticReward(caller, tools=[TOOL])([STATE], [[said]])
    assert reward == pytest.approx(caller.critique(STATE, said, tools=[TOOL]).verdict_score, abs=1e-3)


def test_grpo_takes_it(agent, tmp_path):
    torch.manual_seed(0)
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": f"{name} 2"}]} for name in ("situ", "dufa")])
    config = {
        **dict(use_cpu=True, bf16=False, report_to="none", max_steps=2, logging_steps=1, learning_rate=1e-3),
        **dict(per_device_train_batch_size=8, num_generations=4, max_completion_length=12),
    }
    args = GRPOConfig(str(tmp_path), **config)
    trainer = GRPOTrainer(TINY_MODEL, CriticReward(agent), args, train_dataset=rows)
    trainer.train()
    logs = [log for log in trainer.state.log_history if "rewards/critic_reward/mean" in log]
    assert len(logs) == 2 and all(log["rewards/critic_reward/mean"] < 0 for log in logs)
    assert all(0 < log["critic_reward/format_rate"] <= 1 for log in logs)
    assert any(log["reward_std"] > 0.1 for log in logs)
