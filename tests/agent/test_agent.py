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

import json

import pytest
import torch
from helpers.testing_utils import DESK, TASKS, make_roles, make_trainer

from trl_nlac import NLACAgent
from trl_nlac.agent.agent import Check
from trl_nlac.agent.improvement import choose_actions
from trl_nlac.environments.embedded import TINY_MODEL, make_environment
from trl_nlac.environments.embedded.service_desk import TOOL
from trl_nlac.environments.pool import EnvironmentPool
from trl_nlac.episodes.conversations import conversation
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.method.critic import Judgement
from trl_nlac.types import Prompt, Transition


MESSAGES = [{"role": "user", "content": "situ 2"}]


@pytest.fixture(scope="module")
def agent():
    return NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="text", max_completion_length=48)


@pytest.mark.parametrize("action_format", ["text", "react", "tool_call"])
def test_conversations_are_those_of_training(action_format):
    """A conversation in messages has the tokens that the trainer's policy saw when it was played."""
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format=action_format, max_completion_length=48)
    pool = EnvironmentPool(lambda: make_environment(DESK, action_format))
    agent.roles.tools = pool.tool_schemas
    torch.manual_seed(0)
    with agent.roles.generator.session(agent.model):
        episodes = play_episodes(pool, list(TASKS), agent.roles, max_turns=2)
    compared = 0
    for episode in episodes:
        messages = conversation(episode, agent.roles)["messages"]
        starts = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        for i, start in enumerate(starts):
            prompt = agent.encode(messages[:start], pool.tool_schemas)
            assert prompt.ids == Transition(episode, i).state.ids, messages[:start]
            compared += 1
    assert compared == 8


def test_long_conversations_are_cut_as_in_training():
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="text", max_prompt_length=60)
    said = {"role": "assistant", "content": "route billing amber photo noon"}
    heard = {"role": "user", "content": "refused needs ivory 1"}
    prompts = [agent.encode([*MESSAGES, *[said, heard] * n]) for n in range(12)]
    lengths = [len(prompt.ids) for prompt in prompts]
    assert lengths[3] - lengths[2] == lengths[2] - lengths[1] > 0
    assert lengths[0] + 11 * (lengths[2] - lengths[1]) > 60 >= max(lengths)
    assert agent.proposed([*MESSAGES, *[said, heard] * 11], "route").prompt.ids == prompts[11].ids
    with pytest.raises(ValueError, match="answered by message 3 does not fit into `max_prompt_length=60`"):
        agent.act([*MESSAGES, said, {"role": "user", "content": "refused " * 60}])


def test_act(agent):
    torch.manual_seed(0)
    turn = agent.act(MESSAGES)
    assert turn.action == turn.text == turn.message["content"] and turn.action.startswith("route ")
    assert turn.judgement is None and turn.attempts == turn.candidates == [] and turn.thought == ""
    more = [*MESSAGES, turn.message, {"role": "user", "content": "refused needs ivory 1"}]
    obeyed = [("ivory" in agent.act(more).action, "ivory" in agent.act(MESSAGES).action) for _ in range(8)]
    assert sum(after for after, _ in obeyed) > sum(before for _, before in obeyed) + 3


def test_thought_of_react():
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="react", temperature=0.0)
    turn = agent.act(MESSAGES)
    assert turn.text == f"Thought: {turn.thought}\nAction: {turn.action}" and turn.thought
    assert turn.message == {"role": "assistant", "content": turn.text}


def test_refine(agent):
    """Every attempt was judged, and the last action is the first that the critic calls the best, if any is."""
    torch.manual_seed(1)
    turns = [agent.act(MESSAGES, refine=3) for _ in range(6)]
    for turn in turns:
        assert not any(judgement.verdict for _, judgement in turn.attempts)
        assert all("Future:" in judgement.critique for _, judgement in turn.attempts)
        if len(turn.attempts) < 3:
            assert turn.judgement is None or turn.judgement.verdict
    assert max(len(turn.attempts) for turn in turns) > 1
    assert any(turn.attempts and turn.action != turn.attempts[0][0] for turn in turns)


def test_judgement_on_request():
    """Of the action that is chosen in the end, however it came about; once."""
    greedy = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="text", critique_temperature=0.0)
    torch.manual_seed(0)
    for improvement in ({}, {"refine": 1}, {"num_candidates": 2}):
        turn = greedy.act(MESSAGES, judge=True, **improvement)
        assert turn.judgement.critique == greedy.critique([*MESSAGES, turn.message]).critique
    torch.manual_seed(0)
    before = greedy.roles.num_generated_tokens
    candidates = greedy.act(MESSAGES, num_candidates=2)
    cost, before = greedy.roles.num_generated_tokens - before, greedy.roles.num_generated_tokens
    torch.manual_seed(0)
    assert greedy.act(MESSAGES, num_candidates=2, judge=True) == candidates
    assert greedy.roles.num_generated_tokens - before == cost


def test_candidates(agent):
    """With a large alpha the action with the highest verdict score is taken, with 0 any."""
    torch.manual_seed(2)
    turn = agent.act(MESSAGES, num_candidates=8, alpha=1e6)
    scores = [judgement.verdict_score for _, judgement in turn.candidates if judgement]
    assert len(turn.candidates) == 8 and turn.judgement.verdict_score == max(scores) > min(scores)
    taken = {agent.act(MESSAGES, num_candidates=4, alpha=0.0).judgement for _ in range(5)}
    assert min(judgement.verdict_score for judgement in taken) < 0


@pytest.mark.parametrize("alpha, unreadable", [(0.0, True), (1.0, False)])
def test_a_candidate_whose_critique_cannot_be_read(monkeypatch, alpha, unreadable):
    """It is chosen by accident alone, with an alpha of 0."""
    judgements = [Judgement("fine", True, 1.0), None]
    monkeypatch.setattr("trl_nlac.agent.improvement.judge_actions", lambda roles, state_actions: judgements)
    torch.manual_seed(0)
    chosen = set()
    for _ in range(20):
        roles = make_roles(["first", "second"])
        (choice,) = choose_actions(roles, [Prompt.of(roles.chat.start(MESSAGES))], 0, 2, alpha, seeds=[0])
        chosen.add(choice.answer.parsed)
    assert chosen == ({"first", "second"} if unreadable else {"first"})


def test_several_conversations_at_once(agent):
    """They come in their order, and each is improved by itself."""
    others = [[{"role": "user", "content": f"{request} 2"}] for request in DESK.requests]
    torch.manual_seed(4)
    turns = agent.act_all([*others, MESSAGES], refine=2, num_candidates=2)
    assert len(turns) == 5 and all(len(turn.candidates) == 2 and len(turn.attempts) <= 2 for turn in turns)
    assert len({len(turn.attempts) for turn in turns}) > 1


def test_evaluation_with_improved_actions(agent):
    """More tokens for each action, and episodes as before."""
    pool = EnvironmentPool(lambda: make_environment(DESK))
    agent.args.num_eval_critiques = agent.args.num_oracle_probes = 0
    agent.args.max_turns = 2
    spent = []
    for improvement in ({}, {"refine": 1}, {"num_candidates": 2}):
        before = agent.roles.num_generated_tokens
        seen = agent.evaluate(pool, list(TASKS), **improvement)
        spent.append(agent.roles.num_generated_tokens - before)
        assert len(seen.episodes) == 4 and all(len(episode.turns) == 2 for episode in seen.episodes)
        assert all(turn.action.startswith("route") for episode in seen.episodes for turn in episode.turns)
    assert spent[1] > 2 * spent[0] and spent[2] > 2 * spent[0]


def test_critique(agent):
    torch.manual_seed(3)
    proposed = {"role": "assistant", "content": "route billing amber photo noon"}
    judgement = agent.critique([*MESSAGES, proposed])
    assert judgement.critique.startswith("Future:") and judgement.verdict == (judgement.verdict_score > 0)
    torch.manual_seed(3)
    assert agent.critique(MESSAGES, proposed["content"]) == judgement


@pytest.mark.parametrize("action_format", ["text", "react", "tool_call"])
def test_proposed_calls_are_those_of_training(action_format):
    """What another agent proposes in OpenAI's form has the tokens of the same action in a conversation."""
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format=action_format)
    arguments = {"team": "billing", "form": "amber", "proof": "photo", "time": "noon"}
    call = {"type": "function", "function": {"name": "route", "arguments": json.dumps(arguments)}}
    proposed = {"role": "assistant", "content": "Hm.", "tool_calls": [call]}
    answer = agent.proposed(MESSAGES, proposed, tools=[TOOL])
    assert json.loads(answer.parsed) == {"name": "route", "arguments": arguments}
    result = {"role": "tool", "name": "route", "content": "refused needs ivory 1"}
    later = agent.encode([*MESSAGES, proposed, result], tools=[TOOL]).ids
    spoken = agent.roles.continued(answer.prompt, answer).ids
    assert later[: len(spoken)] == spoken
    assert agent.encode(MESSAGES, tools=[TOOL]).ids == answer.prompt.ids
    assert ("Hm." in agent.roles.chat.tokenizer.decode(spoken)) == (action_format == "react")


def test_tools_of_a_conversation_are_known_after_it():
    """The arguments of their calls are read by them."""
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="tool_call")
    other = {**TOOL, "function": {**TOOL["function"], "name": "close"}}
    assert agent.roles.tools is None
    agent.act(MESSAGES)
    assert agent.roles.tools is None
    for tools in ([TOOL], [TOOL, other], [other]):
        agent.act(MESSAGES, tools=tools)
    assert agent.roles.tools == [TOOL, other]


def test_refine_what_another_agent_proposes(agent):
    torch.manual_seed(5)
    proposed = "route billing amber photo noon"
    turns = [agent.refine(MESSAGES, proposed, rounds=2) for _ in range(4)]
    assert all(turn.attempts[0][0] == proposed for turn in turns if turn.attempts)
    assert any(turn.action != proposed for turn in turns) and {len(turn.attempts) for turn in turns} <= {0, 1, 2}
    torch.manual_seed(5)
    assert agent.refine([*MESSAGES, {"role": "assistant", "content": proposed}], rounds=2) == turns[0]


def test_check(agent):
    """It passes above the threshold, with the critic's reason."""
    proposed = "route billing amber photo noon"
    torch.manual_seed(3)
    judgement = agent.critique(MESSAGES, proposed)
    for threshold, passed in ((0.0, judgement.verdict), (-1e9, True), (1e9, False)):
        torch.manual_seed(3)
        check = agent.check(MESSAGES, proposed, threshold=threshold)
        assert check == Check(passed, judgement.verdict, judgement.critique, judgement.verdict_score)


def test_what_cannot_be_judged_does_not_pass():
    """A critic that has no room for its verdict."""
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", max_critique_length=1, max_future_length=1)
    check = agent.check(MESSAGES, "route", threshold=-1e9)
    assert check == Check(False, None, "The critic's answer could not be read.", None)
    assert agent.critique(MESSAGES, "route") is None and agent.predict_futures(MESSAGES, "route") == []


def test_predict_futures(agent):
    """Different ones, also of a greedy critic; one alone is the likeliest then."""
    torch.manual_seed(6)
    proposed = "route billing amber photo noon"
    futures = agent.predict_futures(MESSAGES, proposed, k=6)
    assert len(set(futures)) > 1 and all(future.split()[0] in ("refused", "closed") for future in futures)
    greedy = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="text", critique_temperature=0.0)
    assert len(set(greedy.predict_futures(MESSAGES, proposed, k=6))) > 1
    (likeliest,) = greedy.predict_futures(MESSAGES, proposed, k=1)
    assert likeliest in greedy.critique(MESSAGES, proposed).critique


def test_futures_of_a_successor_model():
    """Of an agent that was trained to weigh several futures."""
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="text", num_futures=2)
    asked = []
    ask = agent.roles.ask

    def record(role, prompts, *args, **kwargs):
        asked.append((role, len(prompts)))
        return ask(role, prompts, *args, **kwargs)

    agent.roles.ask = record
    agent.predict_futures(MESSAGES, "route billing amber photo noon", k=3)
    assert asked == [("successor", 3)]


def test_critique_all(agent):
    """In their order: as a greedy critic judges them one by one."""
    greedy = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="text", critique_temperature=0.0)
    proposed = [f"route {team} amber photo noon" for team in ("billing", "legal", "claims")]
    conversations = [[*MESSAGES, {"role": "assistant", "content": action}] for action in proposed]
    judged = greedy.critique_all(conversations)
    alone = [greedy.critique(MESSAGES, action) for action in proposed]
    assert [judgement.critique for judgement in judged] == [judgement.critique for judgement in alone]
    for one, other in zip(judged, alone, strict=True):
        assert one.verdict_score == pytest.approx(other.verdict_score, abs=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda agent: agent.act([]), "it does not begin with a user's message"),
        (
            lambda agent: agent.act([*MESSAGES, {"role": "assistant", "content": "route"}]),
            "there is nothing to answer",
        ),
        (lambda agent: agent.act(MESSAGES, refine=-1), "`refine` must be at least 0, got -1"),
        (lambda agent: agent.act(MESSAGES, num_candidates=0), "`num_candidates` must be at least 1, got 0"),
        (lambda agent: agent.critique(MESSAGES), "There is no `action` to judge"),
        (
            lambda agent: agent.critique([*MESSAGES, {"role": "tool", "content": "1"}], "x"),
            "it does not begin with a user",
        ),
        (lambda agent: agent.refine(MESSAGES, "route", rounds=0), "`rounds` must be at least 1, got 0"),
        (lambda agent: agent.predict_futures(MESSAGES, "route", k=0), "`k` must be at least 1, got 0"),
        (lambda agent: NLACAgent.from_pretrained(TINY_MODEL, "llama.cpp"), "`backend` must be .*got 'llama.cpp'"),
        (lambda agent: NLACAgent.from_pretrained(TINY_MODEL, "vllm", device="cpu"), "`device='cpu'` is for"),
        (lambda agent: NLACAgent.from_pretrained(TINY_MODEL, learning_rate=1), "`learning_rate` is no option of how"),
    ],
)
def test_errors(agent, call, message):
    with pytest.raises(ValueError, match=message):
        call(agent)


def test_beside_a_trainer(tmp_path):
    """An agent that is loaded in the process of a trainer disturbs it as little as the other way round."""
    trainer = make_trainer(tmp_path / "alone", {"max_steps": 2})
    trainer.train()
    expected = [log["critic_loss"] for log in trainer.state.log_history if "critic_loss" in log]
    before = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="text")
    trainer = make_trainer(tmp_path / "beside", {"max_steps": 2})
    after = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="text")
    trainer.train()
    assert [log["critic_loss"] for log in trainer.state.log_history if "critic_loss" in log] == expected
    for agent in (before, after):
        assert agent.act(MESSAGES, refine=1).text


def test_adapter(tmp_path):
    """What a trainer of an adapter saves is an agent, too."""
    peft = pytest.importorskip("peft")
    config = {"max_steps": 1, "max_turns": 2, "learning_rate": 0.1}
    trainer = make_trainer(tmp_path, config, peft_config=peft.LoraConfig(target_modules=["q_proj"]))
    trainer.train()
    trainer.save_model()
    agent = NLACAgent.from_pretrained(str(tmp_path), device="cpu", temperature=0.0)
    assert (tmp_path / "adapter_config.json").exists() and agent.args.max_turns == 2
    assert agent.act(MESSAGES).action is not None
    trained = {name: value for name, value in trainer.model.state_dict().items() if "lora_B" in name}
    loaded = {name.replace("base_model.model.", ""): value for name, value in agent.model.state_dict().items()}
    for name, value in trained.items():
        assert value.abs().sum() > 0
        assert torch.equal(value, loaded[name.replace("base_model.model.", "")]), name
