# SPDX-License-Identifier: Apache-2.0

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.testing_utils import DESK, TASKS, ScriptedGenerator, make_config, make_trained, make_trainer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from trl_nlac import NLACAgent, NLACPrompts
from trl_nlac.agent.agent_action import Check
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL, make_environment
from trl_nlac.environments.embedded.service_desk import TOOL
from trl_nlac.episodes.conversations import conversation
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.options.role_options import RoleOptions
from trl_nlac.training.model import load_by_name
from trl_nlac.types import Transition


MESSAGES = [{"role": "user", "content": "situ 2"}]


@pytest.fixture(scope="module")
def agent():
    options = {"action_format": "text", "max_completion_length": 48, "min_p": 0.0}
    return NLACAgent.from_pretrained(TINY_MODEL, device="cpu", **options)


@pytest.fixture(scope="module")
def greedy():
    sampling = {"critic": {"temperature": 0.0}}
    return NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="text", role_sampling=sampling)


@pytest.mark.parametrize("keep_history", [True, False])
@pytest.mark.parametrize("action_format", ["text", "react", "tool_call"])
def test_conversations_are_those_of_training(action_format, keep_history):
    options = {"action_format": action_format, "keep_history": keep_history, "max_completion_length": 48}
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", **options)
    pool = EnvironmentPool(lambda: make_environment(DESK, action_format))
    agent.tools = pool.tool_schemas
    torch.manual_seed(0)
    with agent.roles.generator.session(agent.model):
        episodes = play_episodes(pool, list(TASKS), agent.roles)
    compared = 0
    for episode in episodes:
        messages = conversation(episode, agent.roles.actions)["messages"]
        starts = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        for i, start in enumerate(starts):
            prompt = agent.encode(messages[:start], pool.tool_schemas)
            assert prompt.ids == Transition(episode, i).state.ids, messages[:start]
            compared += 1
    assert compared == 8


def test_long_conversations_are_cut_as_in_training():
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="text", max_prompt_length=60)
    said = {"role": "assistant", "content": "route billing amber photo noon"}
    reply = {"role": "user", "content": "refused needs ivory 1"}
    prompts = [agent.encode([*MESSAGES, *[said, reply] * n]) for n in range(12)]
    lengths = [len(prompt.ids) for prompt in prompts]
    assert lengths[3] - lengths[2] == lengths[2] - lengths[1] > 0
    assert lengths[0] + 11 * (lengths[2] - lengths[1]) > 60 >= max(lengths)
    assert agent.proposed([*MESSAGES, *[said, reply] * 11], "route").prompt.ids == prompts[11].ids
    # A long message is shortened, as an observation is in training.
    long = agent.encode([*MESSAGES, said, {"role": "user", "content": "refused " * 60}])
    assert len(long.ids) <= 60 and "left out" in agent.roles.chat.decode(long.ids)


def test_a_device_map_decides_where_the_model_is():
    options = {"device": "meta", "backend_kwargs": {"device_map": {"": "cpu"}}}
    assert NLACAgent.from_pretrained(TINY_MODEL, **options).model.device.type == "cpu"


def test_prompts_of_a_file(tmp_path):
    NLACPrompts().save(tmp_path / "prompts.json")
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", prompts=tmp_path / "prompts.json")
    assert agent.roles.prompts == NLACPrompts() != COMPACT_PROMPTS


def test_turns_acted_one_by_one_are_read_once():
    options = {"action_format": "text", "max_completion_length": 48, "temperature": 0.0}
    agent, messages, turns = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", **options), list(MESSAGES), []
    for _ in range(4):
        before = agent.encode(messages).num_tokens
        turns.append(agent.act(messages))
        messages += [turns[-1].message, {"role": "user", "content": "refused needs ivory 1"}]
    cached, prefilled = (agent.roles.tally.tokens[f"{kind}/policy"] for kind in ("cached", "prefilled"))
    assert prefilled - cached < before + 8  # the last conversation, once, and the token before each answer
    again = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", **options)
    assert [turn.text for turn in turns] == [again.act(messages[: 2 * i + 1]).text for i in reversed(range(4))][::-1]


def test_thought_of_react():
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="react", temperature=0.0)
    turn = agent.act(MESSAGES)
    assert turn.text == f"Thought: {turn.thought}\nAction: {turn.action}" and turn.thought
    assert turn.message == {"role": "assistant", "content": turn.text}


def test_judgement_on_request(greedy):
    torch.manual_seed(0)
    for improvement in ({}, {"refine": 1}, {"num_candidates": 2}):
        turn = greedy.act(MESSAGES, judge=True, **improvement)
        assert turn.judgement.critique == greedy.critique([*MESSAGES, turn.message]).critique
    torch.manual_seed(0)
    before = greedy.roles.tally.num_generated_tokens
    candidates = greedy.act(MESSAGES, num_candidates=2)
    cost, before = greedy.roles.tally.num_generated_tokens - before, greedy.roles.tally.num_generated_tokens
    torch.manual_seed(0)
    assert greedy.act(MESSAGES, num_candidates=2, judge=True) == candidates
    assert greedy.roles.tally.num_generated_tokens - before == cost


def test_no_answer_is_kept(agent):
    """An agent that serves for months keeps no metrics, which nobody would read."""
    agent.act(MESSAGES, refine=1)
    agent.critique(MESSAGES, "route billing amber photo noon")
    assert not agent.roles.tally.metrics and agent.roles.tally.tokens["generated/act"]


def test_it_acts_as_in_evaluation():
    chat = ChatEncoder(AutoTokenizer.from_pretrained(TINY_MODEL))
    role_sampling = {"policy": {"max_tokens": 7}, "evaluation": {"max_tokens": 9}}
    options = RoleOptions(action_format="text", max_turns=1, max_format_retries=0, role_sampling=role_sampling)
    agent = NLACAgent(ScriptedGenerator(chat, "route"), chat, options, COMPACT_PROMPTS)
    agent.act(MESSAGES)
    pool = EnvironmentPool(lambda: make_environment(DESK))
    for number in (1, 2):
        agent.evaluate(pool, list(TASKS)[:1], num_critiques=0, num_candidates=number)
    limits = [sampling.max_tokens for sampling in agent.roles.generator.samplings]
    assert limits.count(9) == 4 and 7 not in limits


@pytest.mark.parametrize("action_format", ["text", "react", "tool_call"])
def test_proposed_calls_are_those_of_training(action_format):
    """Another agent's call in OpenAI's form has the tokens of the same call in a conversation."""
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format=action_format)
    arguments = {"team": "billing", "form": "amber", "proof": "photo", "time": "noon"}
    call = {"type": "function", "function": {"name": "route", "arguments": json.dumps(arguments)}}
    proposed = {"role": "assistant", "content": "Hm.", "tool_calls": [call]}
    answer = agent.proposed(MESSAGES, proposed, tools=[TOOL])
    assert json.loads(answer.parsed) == {"name": "route", "arguments": arguments}
    result = {"role": "tool", "name": "route", "content": "refused needs ivory 1"}
    later = agent.encode([*MESSAGES, proposed, result], tools=[TOOL]).ids
    remembered = agent.roles.builder.continued(answer.prompt, answer).ids
    assert later[: len(remembered)] == remembered
    assert agent.encode(MESSAGES, tools=[TOOL]).ids == answer.prompt.ids
    assert ("Hm." in agent.roles.chat.tokenizer.decode(remembered)) == (action_format == "react")


@pytest.mark.parametrize(("tools", "expected"), [(None, "react"), ([TOOL], "tool_call")])
def test_tools_choose_the_format_of_actions(tools, expected):
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", tools=tools)
    assert agent.options.action_format == agent.roles.actions.name == expected


def test_tools_travel_with_the_conversation():
    """Arguments of calls are parsed by the agent's own tools and those of the conversation only."""
    other = {**TOOL, "function": {**TOOL["function"], "name": "close"}}
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="tool_call", tools=[TOOL])
    assert agent.encode(MESSAGES, tools=[other]).tools == (TOOL, other)
    assert agent.encode(MESSAGES).tools == agent.proposed(MESSAGES, "route").prompt.tools == (TOOL,)
    assert json.loads(agent.act(MESSAGES, tools=[TOOL]).action)["name"] == "route"


def test_refine_what_another_agent_proposes(agent):
    torch.manual_seed(5)
    proposed = "route billing amber photo noon"
    turns = [agent.refine(MESSAGES, proposed, rounds=2) for _ in range(4)]
    assert all(turn.attempts[0][0] == proposed for turn in turns if turn.attempts)
    assert any(turn.action != proposed for turn in turns) and {len(turn.attempts) for turn in turns} <= {0, 1, 2}
    torch.manual_seed(5)
    assert agent.refine([*MESSAGES, {"role": "assistant", "content": proposed}], rounds=2) == turns[0]
    two = [{"role": "assistant", "content": text} for text in ("route", "billing")]  # are one, as everywhere
    assert agent.proposed([*MESSAGES, *two]).text == agent.proposed(MESSAGES, "route\nbilling").text


def test_check(agent):
    proposed = "route billing amber photo noon"
    torch.manual_seed(3)
    judgement = agent.critique(MESSAGES, proposed)
    for threshold, passed in ((0.0, judgement.verdict), (-1e9, True), (1e9, False)):
        torch.manual_seed(3)
        check = agent.check(MESSAGES, proposed, threshold=threshold)
        assert check == Check(passed, judgement.verdict, judgement.critique, judgement.verdict_score)


def test_what_cannot_be_judged_does_not_pass():
    """The critic's token limit leaves no room for a verdict."""
    agent = NLACAgent.from_pretrained(
        TINY_MODEL, device="cpu", role_sampling={role: {"max_tokens": 1} for role in ("critic", "successor")}
    )
    check = agent.check(MESSAGES, "route", threshold=-1e9)
    assert check == Check(False, None, "The critic's answer could not be parsed.", None)
    assert agent.critique(MESSAGES, "route") is None and agent.predict_futures(MESSAGES, "route") == []


@pytest.mark.parametrize("num_futures", [1, 2])
def test_an_action_too_long_for_the_critic(num_futures):
    """It is an error: the critic would never be asked."""
    options = {"action_format": "text", "num_futures": num_futures, "max_prompt_length": 200}
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", **options)
    with pytest.raises(ValueError, match=r"The action of 70\d tokens is too long.*`max_prompt_length=200`"):
        agent.check(MESSAGES, " ".join(["ivory"] * 700))


def test_predict_futures(agent, greedy):
    torch.manual_seed(6)
    proposed = "route billing amber photo noon"
    futures = agent.predict_futures(MESSAGES, proposed, k=6)
    assert len(set(futures)) > 1 and all(future.split()[0] in ("refused", "closed") for future in futures)
    assert len(set(greedy.predict_futures(MESSAGES, proposed, k=6))) > 1
    (likeliest,) = greedy.predict_futures(MESSAGES, proposed, k=1)
    assert likeliest in greedy.critique(MESSAGES, proposed).critique


def test_futures_of_a_successor_model():
    chat = ChatEncoder(AutoTokenizer.from_pretrained(TINY_MODEL))
    options = RoleOptions(action_format="text", num_futures=2, role_sampling={"successor": {"max_tokens": 9}})
    generator = ScriptedGenerator(chat, ["closed win", "refused needs amber lose", "closed win"])
    agent = NLACAgent(generator, chat, options, COMPACT_PROMPTS)
    futures = agent.predict_futures(MESSAGES, "route billing amber photo noon", k=3)
    assert futures == ["closed win", "refused needs amber lose", "closed win"]
    assert [sampling.max_tokens for sampling in generator.samplings] == [9] * 3  # asked as the successor model
    questions = [chat.tokenizer.decode(prompt).rpartition("<|user|>")[2] for prompt in generator.prompts]
    assert questions == [" Future:<|end|><|assistant|>"] * 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda agent: agent.act([]), "there is no list of messages"),
        (lambda agent: agent.act([*MESSAGES, {"role": "assistant", "content": "route"}]), "is nothing to answer"),
        (lambda agent: agent.act(MESSAGES, refine=-1), "`refine` must be at least 0, got -1"),
        (lambda agent: agent.act(MESSAGES, num_candidates=0), "`num_candidates` must be at least 1, got 0"),
        (lambda agent: agent.critique(MESSAGES), "there is no `action`, and the last message is not the assistant's"),
        (lambda agent: agent.refine(MESSAGES, "route", rounds=0), "`rounds` must be at least 1, got 0"),
        (lambda agent: agent.predict_futures(MESSAGES, "route", k=0), "`k` must be at least 1, got 0"),
        (lambda agent: NLACAgent.from_pretrained(TINY_MODEL, "llama.cpp"), "`backend` must be .*got 'llama.cpp'"),
        (lambda agent: NLACAgent.from_pretrained(TINY_MODEL, "vllm", device="cpu"), "`device='cpu'` is for"),
        (lambda agent: NLACAgent.from_pretrained(TINY_MODEL, learning_rate=1), "`learning_rate` is not an option"),
    ],
)
def test_errors(agent, call, message):
    with pytest.raises(ValueError, match=message):
        call(agent)


def test_next_to_a_trainer(tmp_path):
    config = {"max_steps": 2, "logging_steps": 1}
    trainer = make_trained(tmp_path / "alone", config)
    expected = [log["critic/loss"] for log in trainer.state.log_history if "critic/loss" in log]
    before = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="text")
    trainer = make_trainer(tmp_path / "together", config)
    after = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="text")
    trainer.train()
    assert [log["critic/loss"] for log in trainer.state.log_history if "critic/loss" in log] == expected != []
    for agent in (before, after):
        assert agent.act(MESSAGES, refine=1).text


@pytest.mark.parametrize("num_rows", [962, 976])  # of the tokens alone, and padded
def test_an_adapter_with_tokens_of_its_own(tmp_path, num_rows):
    peft = pytest.importorskip("peft")
    base, tokenizer = AutoModelForCausalLM.from_pretrained(TINY_MODEL), AutoTokenizer.from_pretrained(TINY_MODEL)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|extra|>"]})
    base.resize_token_embeddings(num_rows)
    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    adapter, rows = peft.get_peft_model(base, config), base.get_input_embeddings().weight.clone()
    for written in (adapter, tokenizer):
        written.save_pretrained(tmp_path)
    options = {"action_format": "text", "max_completion_length": 48}
    agent = NLACAgent.from_pretrained(str(tmp_path), device="cpu", **options)
    trained = load_by_name(str(tmp_path), make_config(tmp_path / "run"))
    for model in (agent.model, trained):
        assert torch.equal(model.get_input_embeddings().weight.float(), rows)
    loaded, saved = agent.model.state_dict(), adapter.state_dict()
    for name in (name for name in saved if "lora_" in name):
        assert torch.equal(saved[name], loaded[name.replace("base_model.model.", "")].float()), name


def test_an_adapter_of_a_multimodal_model(tmp_path):
    """Its base model has no class for text alone."""
    peft = pytest.importorskip("peft")
    text, tokenizer = AutoConfig.from_pretrained(TINY_MODEL), AutoTokenizer.from_pretrained(TINY_MODEL)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = CLIPVisionConfig(**sizes, image_size=28, patch_size=14)
    base = LlavaForConditionalGeneration(LlavaConfig(text_config=text, vision_config=vision, image_token_index=5))
    base.save_pretrained(tmp_path / "base")
    lora = peft.LoraConfig(target_modules=r".*language_model.*q_proj", init_lora_weights=False)
    trained = peft.get_peft_model(LlavaForConditionalGeneration.from_pretrained(tmp_path / "base"), lora)
    for written in (trained, tokenizer):
        written.save_pretrained(tmp_path / "adapter")
    options = {"action_format": "text", "max_completion_length": 48}
    agent = NLACAgent.from_pretrained(str(tmp_path / "adapter"), device="cpu", **options)
    assert isinstance(agent.model, LlavaForConditionalGeneration)
    ids = torch.arange(10, 20)[None]
    with torch.no_grad():
        logits, before = agent.model(ids).logits, base.eval()(ids).logits
        assert torch.allclose(logits, trained.eval()(ids).logits, atol=1e-5) and not torch.allclose(logits, before)


def test_one_thread_at_a_time():
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", action_format="text")
    with agent.generating(), ThreadPoolExecutor(1) as other:
        assert agent.act(MESSAGES).text  # of the same thread
        with pytest.raises(RuntimeError, match="answers in another thread already.*`AsyncNLACAgent`"):
            other.submit(agent.act, MESSAGES).result()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(agent.act, MESSAGES).result().text


def test_an_accelerator_that_torch_was_built_for_and_that_is_not_there(monkeypatch):
    """As with CUDA's build of torch on a machine without a GPU."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *args: torch.device("cuda"))
    agent = NLACAgent.from_pretrained(TINY_MODEL, action_format="text")
    assert agent.act([{"role": "user", "content": "bone 2"}]).action is not None
