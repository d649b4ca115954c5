# SPDX-License-Identifier: Apache-2.0

"""Agents of other frameworks, unchanged: each is trained for two iterations. Packages that are missing are skipped."""

import json
import runpy
import shutil
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from helpers.testing_utils import (
    DESK,
    TASKS,
    ScriptedGenerator,
    make_roles,
    make_tokenizer,
    make_trainer,
    play,
    weights,
)
from transformers import AutoModelForCausalLM, Qwen3Config

from trl_nlac import NLACPrompts, NLACTrainer
from trl_nlac.chat.tool_calls import call_message, format_tool_call
from trl_nlac.environments import AgentEnvironment
from trl_nlac.environments.embedded import make_environment
from trl_nlac.environments.embedded.service_desk import TOOL
from trl_nlac.types import Episode


class Desk:
    """The service desk as a tool of an agent: what frameworks call in their own ways."""

    def __init__(self, request: str):
        self.desk = make_environment(DESK)
        self.task = self.desk.reset(request=request)
        self.reward = 0.0
        self.is_closed = False

    def route(self, team: str, form: str, proof: str, time: str) -> str:
        """Route the request.

        Args:
            team: The team that gets the request.
            form: The form to fill in.
            proof: What the customer must show.
            time: When it is done.
        """
        if self.is_closed:
            return "closed"
        arguments = {"team": team, "form": form, "proof": proof, "time": time}
        result = self.desk.step(format_tool_call("route", arguments))
        self.is_closed, self.reward = result.terminated, result.reward
        return result.observation


def run_loop(task, base_url, api_key):
    from openai import OpenAI

    desk = Desk(task["request"])
    messages = [{"role": "user", "content": desk.task}]
    with OpenAI(base_url=base_url, api_key=api_key) as client:
        while not desk.is_closed:
            answer = client.chat.completions.create(model="policy", messages=messages, tools=[TOOL])
            message = answer.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                try:
                    result = desk.route(**json.loads(call.function.arguments))
                except TypeError as error:
                    result = str(error)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return desk.reward


async def run_openai_agents(task, base_url, api_key, interface, streamed=False):
    import agents
    from openai import AsyncOpenAI

    desk = Desk(task["request"])
    agents.set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        model_class = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}[interface]
        agent = agents.Agent(
            name="desk",
            model=model_class("policy", client),
            tools=[agents.function_tool(desk.route, failure_error_function=lambda context, error: str(error))],
        )
        try:
            if streamed:
                run = agents.Runner.run_streamed(agent, desk.task, max_turns=3)
                async for _ in run.stream_events():
                    pass
            else:
                await agents.Runner.run(agent, desk.task, max_turns=3)
        except agents.MaxTurnsExceeded:
            pass
    return desk.reward


def run_smolagents(task, base_url, api_key, kind="ToolCallingAgent"):
    """An agent of smolagents; its `CodeAgent` calls tools in Python."""
    import smolagents

    desk = Desk(task["request"])
    agent = vars(smolagents)[kind](
        tools=[smolagents.tool(desk.route)],
        model=smolagents.OpenAIServerModel("policy", api_base=base_url, api_key=api_key),
        max_steps=2,
        verbosity_level=0,
    )
    agent.run(desk.task)
    return desk.reward


def run_langgraph(task, base_url, api_key, streamed=False):
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.errors import GraphRecursionError
    from langgraph.prebuilt import create_react_agent

    desk = Desk(task["request"])
    route = tool(desk.route)
    route.handle_tool_error = route.handle_validation_error = True
    model = ChatOpenAI(model="policy", base_url=base_url, api_key=api_key, streaming=bool(streamed))
    agent = create_react_agent(model, [route])
    try:
        agent.invoke({"messages": [("user", desk.task)]}, {"recursion_limit": 6})
    except GraphRecursionError:
        pass
    return desk.reward


def run_crewai(task, base_url, api_key):
    from crewai import LLM, Agent
    from crewai.tools import tool

    desk = Desk(task["request"])
    model = LLM("policy", provider="openai", base_url=base_url, api_key=api_key)
    words = {"role": "clerk", "goal": "Route each request.", "backstory": "You sit at a desk."}
    Agent(**words, llm=model, tools=[tool(desk.route)], max_iter=3).kickoff(desk.task)
    return desk.reward


async def run_pydantic_ai(task, base_url, api_key, interface):
    from pydantic_ai import Agent, UnexpectedModelBehavior, UsageLimitExceeded, UsageLimits
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    desk = Desk(task["request"])
    model_class = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}[interface]
    model = model_class("policy", provider=OpenAIProvider(base_url=base_url, api_key=api_key))
    try:
        await Agent(model, tools=[desk.route]).run(desk.task, usage_limits=UsageLimits(request_limit=3))
    except (UsageLimitExceeded, UnexpectedModelBehavior):  # too many requests, or too many wrong calls
        pass
    return desk.reward


def train(tmp_path, run_agent, tasks=TASKS, **config) -> list[Episode]:
    environment = AgentEnvironment(run_agent)
    settings = {"action_format": None, "max_completion_length": 40, "environment_timeout": 60.0, **config}
    return run(make_trainer(tmp_path, settings, environment_factory=environment, train_dataset=tasks))


def run(trainer: NLACTrainer) -> list[Episode]:
    before = weights(trainer.model)
    trainer.train()
    episodes = trainer.replay.episodes
    assert trainer.args.action_format == "tool_call"
    assert not any(episode.failure for episode in episodes), [episode.failure for episode in episodes]
    assert any(not torch.equal(value, before[name]) for name, value in weights(trainer.model).items())
    assert trainer.state.global_step == 2 and trainer.num_environment_steps == len(trainer.replay)
    return episodes


def with_calls(episodes: list[Episode]) -> list[Episode]:
    return [episode for episode in episodes if any('"name": "route"' in turn.action for turn in episode.turns)]


def test_plain_loop(tmp_path):
    episodes = train(tmp_path, run_loop)
    assert len(episodes) == 8 and any(len(episode.turns) > 1 for episode in with_calls(episodes))


FRAMEWORKS = [
    *(("agents", run_openai_agents, {"interface": i, "streamed": s}) for i in ("chat", "responses") for s in (0, 1)),
    *(("langgraph langchain_openai", run_langgraph, {"streamed": s}) for s in (0, 1)),
    *(("pydantic_ai", run_pydantic_ai, {"interface": i}) for i in ("chat", "responses")),
]


@pytest.mark.agents
@pytest.mark.parametrize(
    ("packages", "run_agent", "options"), FRAMEWORKS, ids=lambda v: getattr(v, "__name__", str(v))
)
def test_frameworks(tmp_path, packages, run_agent, options):
    for package in packages.split():
        pytest.importorskip(package)
    episodes = train(tmp_path, partial(run_agent, **options))
    assert len(episodes) == 8 and any(len(episode.turns) > 1 for episode in with_calls(episodes))


@pytest.mark.agents
def test_crewai(tmp_path, monkeypatch):
    monkeypatch.setenv("CREWAI_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("CREWAI_TRACING_ENABLED", "false")
    pytest.importorskip("crewai")
    assert len(train(tmp_path, run_crewai)) == 8
    call = format_tool_call("route", {"team": "amber", "form": "x", "proof": "y", "time": "z"})
    roles = make_roles([call, "It is done."], action_format="tool_call", max_prompt_length=2**14)
    (episode,) = play([TASKS[0]], AgentEnvironment(run_crewai), roles)
    assert [turn.action for turn in episode.turns] == [call, "It is done."] and not episode.segments
    assert episode.turns[0].next_observation.startswith("refused")


@pytest.mark.agents
@pytest.mark.parametrize("kind", ["ToolCallingAgent", "CodeAgent"])
def test_smolagents(tmp_path, kind):
    pytest.importorskip("smolagents")
    episodes = train(tmp_path, lambda *args: run_smolagents(*args, kind), max_turns=6)
    assert len(episodes) > 8  # it writes its history in words of its own: every request is a conversation
    assert all(episode.opening[0]["role"] == "system" for episode in episodes)


SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "examples/scripts/nlac_coding_agent.py"))
READS = {
    "qwen": ("run_shell_command", {"command": "cat note.txt", "description": "Read.", "is_background": False}),
    "pi": ("read", {"path": "note.txt"}),
    "opencode": ("read", {"filePath": "note.txt"}),
}


JUDGED = "Future: The word is not known.\nOptimality: No. Read the note."


class Reader(ScriptedGenerator):
    """Reads the note by a call and answers with its word; judges every action alike, and reads in its place."""

    def __init__(self, trainer: NLACTrainer, call: tuple[str, dict]):
        super().__init__(trainer.roles.chat, "")
        self.call = call

    def generate(self, prompts, sampling, seeds, bar=None):
        questions = [self.chat.tokenizer.decode(p[-1500:]).rpartition("<|im_start|>user")[2] for p in prompts]
        self.answers = [self.chat.completion(self.answer(question)) for question in questions]
        return super().generate(prompts, sampling, seeds, bar)

    def answer(self, question: str) -> str | dict:
        if "Future:" in question or "Foresee" in question:
            return JUDGED
        _, is_read, word = question.partition("The word is ")
        return f"It is {word[:7]}." if is_read else call_message([self.call])


@pytest.fixture(params=READS)
def agent(request):
    """A program from npm, as `examples/scripts/nlac_coding_agent.py` starts it."""
    if shutil.which(request.param) is None:
        pytest.skip(f"There is no program {request.param!r} in PATH.")
    return request.param


@pytest.mark.agents
@pytest.mark.slow
def test_coding_agents_ask_nothing_else(agent):
    roles = make_roles(["It is walrus."], max_prompt_length=2**17)
    (episode,) = play([{"agent": agent, "word": "walrus"}], AgentEnvironment(SCRIPT["run_agent"]), roles)
    assert episode.score == 1 and len(episode.turns) == 1 and not episode.segments


@pytest.mark.agents
@pytest.mark.slow
def test_coding_agents(agent, tmp_path):
    tokenizer = make_tokenizer("qwen3")
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    shape |= {"num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 2**17}
    options = {"action_format": None, "max_completion_length": 400, "max_prompt_length": 2**16, "max_turns": 3}
    options |= {"episodes_per_iteration": 2, "per_device_train_batch_size": 2, "audit_samples": 2}
    trainer = make_trainer(
        tmp_path,
        {**options, "environment_timeout": 300.0},
        model=AutoModelForCausalLM.from_config(Qwen3Config(**shape, vocab_size=len(tokenizer))),
        processing_class=tokenizer,
        prompts=NLACPrompts(),
        environment_factory=AgentEnvironment(SCRIPT["run_agent"]),
        train_dataset=SCRIPT["make_tasks"](agent, 4),
    )
    trainer.roles.generator = Reader(trainer, READS[agent])
    episodes = run(trainer)
    call = format_tool_call(*READS[agent])
    for episode in episodes:
        word = episode.task["word"]
        assert episode.score == 1 and episode.terminated and not episode.segments
        assert [turn.action for turn in episode.turns] == [call, f"It is {word}."]
        assert f"The word is {word}." in episode.turns[0].next_observation
        assert "note.txt" in episode.opening[-1]["content"] and READS[agent][0] in str(episode.tools)
    rows = [row for path in sorted(tmp_path.glob("_audit/*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert len(episodes) == len(rows) == 4
    for row in rows:
        assert (row["critique"], row["target"], row["refined_action"]) == (JUDGED, JUDGED, call)
        assert row["critic_loss"] > 0 and (row["policy_loss"] is None) == (row["action"] == call)


def test_another_model_is_answered_and_not_trained_on():
    def run_agent(task, base_url, api_key):
        from openai import OpenAI

        with OpenAI(base_url=base_url, api_key=api_key) as client:
            for name in ("small", "policy", "small"):
                client.chat.completions.create(model=name, messages=[{"role": "user", "content": f"for {name}"}])
        return 1.0

    (episode,) = play([{}], AgentEnvironment(run_agent), make_roles(["done"]))
    assert episode.failure is None and not episode.segments and len(episode.turns) == 1
    assert episode.opening[-1]["content"] == "for policy"
