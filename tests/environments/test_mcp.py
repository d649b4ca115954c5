# SPDX-License-Identifier: Apache-2.0

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import mcp
import pytest
from datasets import Dataset
from helpers.testing_utils import make_roles, make_trained, play
from mcp import ClientSession, StdioServerParameters, types
from mcp.server.lowlevel import Server
from mcp.shared.memory import create_client_server_memory_streams

from trl_nlac.environments import EnvironmentFailure
from trl_nlac.environments.mcp import MCPEnvironment
from trl_nlac.episodes.rewards import EpisodeRewards
from trl_nlac.options.role_options import RoleOptions


IS_FIRST = hasattr(mcp, "McpError")  # major version
SERVER = f'''
import os, sys, time

port = int(sys.argv[1])
if {IS_FIRST}:
    from mcp.server.fastmcp import FastMCP
    from mcp.server.fastmcp.exceptions import ToolError

    server, options = FastMCP("shop", port=port), {{}}
else:
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    server, options = MCPServer("shop"), {{"port": port}} if port else {{}}
seen = []


@server.tool()
def look_up(order: str) -> str:
    """Look up an order."""
    if order == "none":
        raise ToolError("there is no such order")
    seen.append(order)
    return f"order {{order}}, number {{len(seen)}}"


@server.tool()
def stop() -> str:
    """Stop the server."""
    os._exit(1)


@server.tool()
def wait() -> str:
    """Take long, and answer nothing meanwhile."""
    time.sleep(30)
    return "done"


with open(f"{{sys.argv[0]}}.pid", "w") as file:
    file.write(str(os.getpid()))
server.run(transport=sys.argv[2], **options)
'''
PROMPT = {"prompt": [{"role": "user", "content": "where is A1?"}], "answer": "A1"}


def call(name: str, **arguments) -> str:
    return json.dumps({"name": name, "arguments": arguments})


@pytest.fixture
def script(tmp_path) -> str:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    return str(path)


@pytest.fixture(params=["stdio", "streamable-http"])
def server(request, script):
    if request.param == "stdio":
        yield StdioServerParameters(command=sys.executable, args=[script, "0", "stdio"])
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with serving(script, port) as url:
        yield url


@contextmanager
def serving(script: str, port: int) -> Iterator[str]:
    command = [sys.executable, script, str(port), "streamable-http"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
        process.kill()


def score(task, answer):
    return float(task["answer"] in answer)


def test_tools_of_a_server(server):
    answers = [call("look_up", order="A1"), call("look_up", order="none"), call("fly"), "It is A1."]
    environment = lambda: MCPEnvironment(server, instructions="Be brief.", score=score)  # noqa: E731
    (episode,) = play([PROMPT], environment, make_roles(answers))
    assert episode.failure is None and episode.score == 1 and episode.terminated
    found, refused, unknown, _ = [turn.next_observation for turn in episode.turns]
    assert found == "order A1, number 1" and "there is no such order" in refused and "error" in refused
    assert unknown == "{'error': 'Tool fly not found.'}"
    assert episode.opening[0] == {"role": "system", "content": "Be brief."}
    names = [tool["function"]["name"] for tool in episode.tools]
    assert names == ["look_up", "stop", "wait"] and "order" in episode.tools[0]["function"]["parameters"]["properties"]


def test_several_calls_and_reward_functions(script):
    server = StdioServerParameters(command=sys.executable, args=[script, "0", "stdio"])
    two = json.dumps([json.loads(call("look_up", order=order)) for order in ("A1", "A2")])
    rewards = EpisodeRewards([lambda completions, **kwargs: [0.5] * len(completions)])
    (episode,) = play([PROMPT], lambda: MCPEnvironment(server), make_roles([two, "done"]), rewards=rewards)
    assert json.loads(episode.turns[0].next_observation) == ["order A1, number 1", "order A2, number 2"]
    assert episode.score == 0.5 and not MCPEnvironment(server).pays


@pytest.mark.parametrize(("keeps_server", "second"), [(False, 1), (True, 2)])
def test_episodes_do_not_see_one_another(script, keeps_server, second):
    server = StdioServerParameters(command=sys.executable, args=[script, "0", "stdio"])
    environment = lambda: MCPEnvironment(server, score=score, keeps_server=keeps_server)  # noqa: E731
    roles = make_roles([call("look_up", order="A1"), "done"] * 2)
    episodes = play([PROMPT] * 2, environment, roles, max_instances=1)
    seen = [episode.turns[0].next_observation for episode in episodes]
    assert seen == ["order A1, number 1", f"order A1, number {second}"]


def test_a_server_that_does_not_start_again_is_a_failure(script):
    environment = MCPEnvironment(StdioServerParameters(command=sys.executable, args=[script, "0", "stdio"]))
    environment.step(call("look_up", order="A1"))
    os.remove(script)
    with pytest.raises(EnvironmentFailure, match="(?i)cannot be used: McpError"):
        environment.reset(**PROMPT)


def test_a_server_that_dies_is_a_failure(server, monkeypatch):
    monkeypatch.setattr("trl_nlac.environments.mcp.WATCH_SECONDS", 0.5)
    answers = [call("look_up", order="A1"), call("stop")]
    (episode,) = play([PROMPT], lambda: MCPEnvironment(server, score=score), make_roles(answers), timeout=60.0)
    assert episode.failure.startswith("step: EnvironmentFailure: the MCP server does not answer") and episode.truncated
    assert len(episode.turns) == 1 and episode.score == 0


def test_a_server_that_was_started_again_is_a_failure(script, monkeypatch):
    monkeypatch.setattr("trl_nlac.environments.mcp.WATCH_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with serving(script, port) as url:
        environment = MCPEnvironment(url, score=score)
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(environment.step, call("wait"))
            time.sleep(1.5)  # longer than a look at the server, which is busy
            assert not answer.done()
            os.kill(int(Path(f"{script}.pid").read_text()), signal.SIGKILL)
            with serving(script, port), pytest.raises(EnvironmentFailure, match="does not answer a call of wait"):
                answer.result(timeout=50)
        environment.close()


class Paged:
    """Has a tool on each of two pages, and answers the error of a request to wrong arguments."""

    def __init__(self):
        self.code = types.INVALID_PARAMS
        self.result: types.CallToolResult | None = None  # of every call, in place of the name of the tool
        if IS_FIRST:
            self.server = Server("paged")
            self.server.request_handlers[types.ListToolsRequest] = lambda request: self.list(None, request.params)
            self.server.request_handlers[types.CallToolRequest] = lambda request: self.call(None, request.params)
        else:
            self.server = Server("paged", on_list_tools=self.list, on_call_tool=self.call)

    async def list(self, context, params):
        is_first = params is None or params.cursor is None
        tool = types.Tool(name="one" if is_first else "two", inputSchema={"type": "object"})
        listed = types.ListToolsResult(tools=[tool], nextCursor="more" if is_first else None)
        return types.ServerResult(listed) if IS_FIRST else listed

    async def call(self, context, params):
        if params.arguments and IS_FIRST:
            raise mcp.McpError(types.ErrorData(code=self.code, message="no such argument"))
        if params.arguments:
            raise mcp.MCPError(self.code, "no such argument")
        content = [types.TextContent(type="text", text=params.name)]
        result = self.result or types.CallToolResult(content=content)
        return types.ServerResult(result) if IS_FIRST else result

    @asynccontextmanager
    async def connected(self, _):
        async with create_client_server_memory_streams() as (near, far), anyio.create_task_group() as group:
            group.start_soon(self.server.run, *far, self.server.create_initialization_options())
            async with ClientSession(*near) as session:
                await session.initialize()
                yield session
            group.cancel_scope.cancel()


@pytest.fixture
def paged(monkeypatch) -> Paged:
    server = Paged()
    monkeypatch.setattr("trl_nlac.environments.mcp._connected", server.connected)
    return server


def test_tools_of_all_pages(paged):
    (episode,) = play([PROMPT], lambda: MCPEnvironment("", score=score), make_roles([call("two"), "done"]))
    assert [tool["function"]["name"] for tool in episode.tools] == ["one", "two"]
    assert episode.turns[0].next_observation == "two"


RESOURCES = [
    types.TextContent(type="text", text="two files"),
    types.EmbeddedResource(
        type="resource", resource=types.TextResourceContents(uri="file:///a", text="the text of the file")
    ),
    types.EmbeddedResource(type="resource", resource=types.BlobResourceContents(uri="file:///b", blob="AAAA")),
    types.ResourceLink(type="resource_link", name="c", uri="file:///c"),
    types.ImageContent(type="image", data="AAAA", mimeType="image/png"),
]


@pytest.mark.parametrize(
    ("content", "structured", "read"),
    [
        (RESOURCES, None, "two files\nthe text of the file\n[resource]\nfile:///c\n[image]"),
        ([], {"result": 5}, '{"result": 5}'),
        (RESOURCES[:1], {"result": 5}, "two files"),
        ([], None, ""),
    ],
)
def test_results_of_every_kind(paged, content, structured, read):
    paged.result = types.CallToolResult(content=content, structuredContent=structured)
    (episode,) = play([PROMPT], lambda: MCPEnvironment("", score=score), make_roles([call("one"), "done"]))
    assert episode.turns[0].next_observation == read


def test_an_episode_without_an_answer_is_not_scored_by_the_last_one(paged):
    environment = MCPEnvironment("", score=score)
    rewards = []
    for action in ("It is A1.", call("one")):
        environment.reset(**PROMPT)
        environment.step(action)
        rewards.append(environment.final_reward())
    environment.close()
    assert rewards == [1, 0]


def test_wrong_arguments_are_no_failure(paged):
    answers = [call("one", order=1), "done"]
    (episode,) = play([PROMPT], lambda: MCPEnvironment("", score=score), make_roles(answers))
    assert episode.turns[0].next_observation == "{'error': 'no such argument'}" and episode.failure is None
    for paged.code in (32600, -32600):
        (episode,) = play([PROMPT], lambda: MCPEnvironment("", score=score), make_roles(answers))
        assert "the MCP server does not answer a call of one" in episode.failure


def test_no_server():
    with pytest.raises(EnvironmentFailure, match="cannot be used: FileNotFoundError"):
        MCPEnvironment(StdioServerParameters(command="no-such-command"))
    with pytest.raises(EnvironmentFailure, match="cannot be used: ConnectError"):
        MCPEnvironment("http://127.0.0.1:9/mcp")


def test_training(tmp_path, script):
    server = StdioServerParameters(command=sys.executable, args=[script, "0", "stdio"], env=dict(os.environ))
    rows = Dataset.from_dict({"prompt": ["where is A1?", "where is A2?"], "answer": ["A1", "A2"]})
    trainer = make_trained(
        tmp_path / "run",
        {"action_format": None, "max_concurrent_environments": 2},
        train_dataset=rows,
        environment_factory=lambda: MCPEnvironment(server, score=score),
    )
    assert trainer.args.action_format == "tool_call" and not any(e.failure for e in trainer.replay.episodes)
    trainer.save_model()
    assert RoleOptions.from_pretrained(str(tmp_path / "run")).action_format == "tool_call"
