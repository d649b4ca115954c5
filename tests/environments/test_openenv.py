# SPDX-License-Identifier: Apache-2.0

"""Tests with OpenEnv's own servers, clients and base classes; the servers run locally during a test."""

import sys
import threading
import time
from contextlib import contextmanager

import pytest


pytest.importorskip("openenv.core")

import uvicorn  # noqa: E402
from fastmcp import FastMCP  # noqa: E402
from helpers.scripts import run_script  # noqa: E402
from openenv.core import EnvClient, GenericEnvClient, MCPToolClient  # noqa: E402
from openenv.core.client_types import StepResult as ClientResult  # noqa: E402
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app  # noqa: E402
from openenv.core.env_server.mcp_environment import MCPEnvironment  # noqa: E402
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation  # noqa: E402
from pydantic import Field  # noqa: E402

from trl_nlac.chat.tool_calls import format_tool_call, parse_tool_call  # noqa: E402
from trl_nlac.environments import EnvironmentFailure  # noqa: E402
from trl_nlac.environments.embedded import TINY_MODEL  # noqa: E402
from trl_nlac.environments.openenv import OpenEnvEnvironment  # noqa: E402


class Guess(Action):
    number: int = Field(ge=1, le=100)


class Hint(Observation):
    text: str


class GuessingGame(Environment[Guess, Hint, State]):
    """Pays 1 for the right number, and `None` before it. 13 raises an error."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    number_of_steps = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, number: int = 42, **kwargs) -> Hint:
        self.number = number
        return Hint(text="Guess a number.")

    def step(self, action: Guess, timeout_s: float | None = None, **kwargs) -> Hint:
        GuessingGame.number_of_steps += 1
        if action.number == 13:
            raise RuntimeError("the game broke")
        if action.number == self.number:
            return Hint(text="Right!", reward=1.0, done=True)
        return Hint(text="Higher." if action.number < self.number else "Lower.")

    @property
    def state(self) -> State:
        return State()


class GuessingClient(EnvClient[Guess, Hint, State]):
    def _step_payload(self, action: Guess) -> dict:
        return {"number": action.number}

    def _parse_result(self, payload: dict) -> ClientResult[Hint]:
        observation = Hint(text=payload["observation"]["text"])
        return ClientResult(observation, reward=payload.get("reward"), done=payload["done"])

    def _parse_state(self, payload: dict) -> State:
        return State(**payload)


class Echo(MCPEnvironment):
    """An environment whose actions are tool calls."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        tools = FastMCP("echo")

        @tools.tool
        def echo(message: str) -> str:
            """Say it again."""
            return message

        super().__init__(tools)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs) -> Observation:
        return Observation(metadata={"message": "ready"})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs) -> Observation:
        raise NotImplementedError

    @property
    def state(self) -> State:
        return State()


@contextmanager
def serving(*app_args, port: int = 0, **app_kwargs):
    config = uvicorn.Config(create_fastapi_app(*app_args, **app_kwargs), "127.0.0.1", port, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def url():
    with serving(GuessingGame, Guess, Hint, max_concurrent_envs=2) as url:
        yield url


def to_guess(text: str) -> Guess:
    return Guess(number=text)


def guessing(make_client, **kwargs) -> OpenEnvEnvironment[Guess, Hint]:
    return OpenEnvEnvironment(make_client, to_guess, lambda hint: hint.text, **kwargs)


@pytest.mark.parametrize("kind", ["synchronous client", "client", "generic client", "in this process"])
def test_an_episode(url, kind):
    environment = {
        "synchronous client": guessing(lambda: GuessingClient(base_url=url).sync()),
        "client": guessing(lambda: GuessingClient(base_url=url)),
        "generic client": OpenEnvEnvironment(
            lambda: GenericEnvClient(base_url=url).sync(),
            to_action=lambda text: to_guess(text).model_dump(),
            to_text=lambda observation: observation["text"],
        ),
        "in this process": guessing(GuessingGame),
    }[kind]
    for number in (7, 70):  # an instance is reused
        assert environment.reset(number=number, difficulty="hard", seed=1) == "Guess a number."
        step = environment.step(str(number - 1))
        assert (step.observation, step.reward, step.terminated) == ("Higher.", 0.0, False)
        step = environment.step(str(number))
        assert (step.observation, step.reward, step.terminated) == ("Right!", 1.0, True)
        assert isinstance(step.reward, float) and not step.truncated
    environment.close()


@pytest.mark.parametrize("kind", ["synchronous client", "client"])
def test_a_connection_that_is_lost_within_an_episode(kind):
    """The client makes another one, for which the server has a session that was never reset."""
    make_client = {
        "synchronous client": lambda: GuessingClient(base_url=url).sync(),
        "client": lambda: GuessingClient(base_url=url),
    }[kind]
    environment = guessing(make_client)
    with serving(GuessingGame, Guess, Hint, max_concurrent_envs=2) as url:
        environment.reset(number=7)
        assert environment.step("1").observation == "Higher."
        port = int(url.rpartition(":")[2])
    with serving(Remembering, Guess, Hint, port=port, max_concurrent_envs=2):  # it was started again
        with pytest.raises(EnvironmentFailure, match="the connection to the server was lost, and with it the episode"):
            environment.step("42")
        assert environment.reset(number=7) == "Guess a number." and environment.step("7").terminated
        environment.close()


class Remembering(GuessingGame):
    number = 42


def test_mistakes_are_answered_and_never_sent(url):
    environment = guessing(lambda: GuessingClient(base_url=url).sync())
    environment.reset()
    number_of_steps = GuessingGame.number_of_steps
    assert "should be a valid integer" in environment.step("a hundred").observation
    step = environment.step("1000")
    assert step.observation.startswith("Error: ") and "less than or equal to 100" in step.observation
    assert not step.terminated and step.reward == 0.0 and GuessingGame.number_of_steps == number_of_steps
    environment.close()


def test_instructions_and_tools_are_shown():
    schema = {"type": "function", "function": {"name": "guess", "parameters": {}}}
    environment = guessing(GuessingGame, instructions="Guess the number.", tool_schemas=[schema])
    assert environment.reset() == [
        {"role": "system", "content": "Guess the number."},
        {"role": "user", "content": "Guess a number."},
    ]
    assert environment.tool_schemas == [schema] and guessing(GuessingGame).tool_schemas == []


@pytest.mark.parametrize("kind", ["synchronous client", "in this process"])
def test_a_failing_game_is_raised(url, kind):
    environment = guessing(GuessingGame if kind == "in this process" else lambda: GuessingClient(base_url=url).sync())
    environment.reset(number=13)
    with pytest.raises(RuntimeError, match="the game broke"):
        environment.step("13")
    environment.reset(number=14)  # then it can be used again
    assert environment.step("14").reward == 1.0
    environment.close()


def test_closing_frees_the_session(url):
    environments = [guessing(lambda: GuessingClient(base_url=url).sync()) for _ in range(3)]
    environments[0].close()  # never used, nothing to close
    for environment in environments[:2]:
        environment.reset()
    with pytest.raises(RuntimeError, match="capacity"):  # the server allows two sessions
        environments[2].reset()
    environments[0].close()
    assert environments[2].reset() == "Guess a number."
    for environment in environments:
        environment.close()


def to_tool_call(text: str) -> CallToolAction:
    call = parse_tool_call(text)
    if call is None:
        raise ValueError('write {"name": <tool>, "arguments": <JSON object>}')
    return CallToolAction(tool_name=call[0], arguments=call[1])


def read_tool(observation) -> str:
    if not isinstance(observation, CallToolObservation):
        return observation.metadata.get("message", "ready")
    return observation.error.message if observation.error else str(observation.result["content"][0]["text"])


def test_tools_of_a_server():
    with serving(Echo, CallToolAction, CallToolObservation) as url:
        with MCPToolClient(base_url=url).sync() as client:
            functions = [
                {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
                for tool in client.list_tools()
            ]
        environment = OpenEnvEnvironment(
            lambda: MCPToolClient(base_url=url).sync(),
            to_tool_call,
            read_tool,
            tool_schemas=[{"type": "function", "function": function} for function in functions],
        )
        (schema,) = environment.tool_schemas
        assert schema["function"]["name"] == "echo" and "message" in schema["function"]["parameters"]["properties"]
        assert environment.reset() == "ready"
        assert environment.step(format_tool_call("echo", {"message": "hello"})).observation == "hello"
        assert "shout" in environment.step(format_tool_call("shout", {})).observation
        assert environment.step("hello").observation.startswith("Error: write")
        environment.close()


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "openenv.core.env_server.interfaces", None)
    with pytest.raises(ImportError, match="pip install openenv"):
        guessing(GuessingGame)


class Say(Action):
    message: str


class Conversation(Observation):
    messages: list[dict[str, str]]


class TalkingGame(Environment[Say, Conversation, State]):
    """Like OpenEnv's TextArena environment: an observation has all messages so far. The second word wins."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs) -> Conversation:
        self.said = ["Say something."]
        return self.observe()

    def step(self, action: Say, timeout_s: float | None = None, **kwargs) -> Conversation:
        self.said += [f"[Player] {action.message}", "[Game] Go on."]
        return self.observe(reward=1.0, done=True) if len(self.said) > 3 else self.observe()

    def observe(self, **kwargs) -> Conversation:
        return Conversation(messages=[{"content": "\n".join(self.said)}], **kwargs)

    @property
    def state(self) -> State:
        return State()


def test_example_script(tmp_path):
    arguments = f"""--output_dir {tmp_path} --report_to none
        --model_name_or_path {TINY_MODEL} --use_cpu --bf16 False --action_format text --max_completion_length 16
        --num_tasks 4 --num_eval_tasks 2 --per_device_train_batch_size 2 --max_steps 2 --max_turns 3"""
    with serving(TalkingGame, Say, Conversation, max_concurrent_envs=2) as url:
        output = run_script("examples/scripts/nlac_openenv.py", *arguments.split(), "--env_url", url)
    assert "of 2 games on http://127.0.0.1" in output and (tmp_path / "model.safetensors").exists()
