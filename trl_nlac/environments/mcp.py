# SPDX-License-Identifier: Apache-2.0

"""Servers of the Model Context Protocol, whose tools actions call."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from ..chat.tool_calls import format_results, parse_tool_calls
from ..episodes.text_environment import EnvironmentFailure, StepResult, TextEnvironment, describe_error
from ..types import Message


if TYPE_CHECKING:
    from mcp import ClientSession, StdioServerParameters, Tool
    from mcp.types import CallToolResult

# Codes that mcp itself gives to errors: the connection was closed, a server ended the session (of mcp 2 and 1).
_LOST = (-32000, -32600, 32600)
WATCH_SECONDS = 5.0  # between looks at whether a server with a URL is still there, while it is asked


@dataclass(eq=False, repr=False)
class MCPEnvironment(TextEnvironment):
    """
    Plays tasks with the tools of a server of the [Model Context Protocol](https://modelcontextprotocol.io): `pip
    install mcp`.

    An action that is a call, or several, calls the server's tools in turn; any other action is the agent's final
    answer and ends the episode. An error that the server or a tool reports, as of arguments that are wrong, is an
    observation. One of the connection is a failure of the environment. The reward is that of `reward_funcs`, unless
    `score` gives one.

    Each instance has a session of its own, and with a command a server of its own. An episode gets new ones if a tool
    was called in them before. A server with a URL is not started again: what it keeps beyond a session stays.

    Args:
        server (`str` or `mcp.StdioServerParameters`):
            URL of a server (streamable HTTP), or the command that starts one.
        instructions (`str`, *optional*, defaults to `""`):
            System message. Empty for none.
        score (`Callable[[dict[str, Any], str], float]`, *optional*):
            Scores an episode by its task and the final answer, which is empty where there is none.
        keeps_server (`bool`, *optional*, defaults to `False`):
            Whether episodes follow one another in one session, at one server. It saves the time of a start where calls
            change nothing that later ones can see.

    Raises:
        ImportError: If mcp is not installed.
        EnvironmentFailure: If the server cannot be reached.

    Example:

    ```python
    from mcp import StdioServerParameters

    server = StdioServerParameters(command="python", args=["my_server.py"])
    environment_factory = lambda: MCPEnvironment(server, score=lambda task, answer: float(task["answer"] in answer))
    ```
    """

    server: Union[str, "StdioServerParameters"]
    instructions: str = ""
    score: Callable[[dict[str, Any], str], float] | None = None
    keeps_server: bool = False

    def __post_init__(self):
        try:
            from anyio.from_thread import start_blocking_portal
        except ImportError as error:
            raise ImportError("MCPEnvironment needs mcp: `pip install mcp`.") from error
        self.pays = self.score is not None
        self._task: dict[str, Any] = {}
        self._answer = ""
        self._closing = ExitStack()
        # Each session lives in one task of an event loop of its own. One that still begins is cancelled at the end.
        self._portal = self._closing.enter_context(start_blocking_portal())
        self._closing.callback(self._portal.call, self._portal.stop, True)
        self._connection = self._closing.enter_context(ExitStack())
        self._connect()

    def reset(self, prompt: str | list[Message], **task) -> list[Message]:
        """
        Start a task with what the agent is asked. Other columns of the dataset are for `score`.

        Raises:
            EnvironmentFailure: If the server cannot be reached again.
        """
        if self._is_used and not self.keeps_server:
            self._connect()
        self._task, self._answer = {"prompt": prompt, **task}, ""
        messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        return [{"role": "system", "content": self.instructions}, *messages] if self.instructions else messages

    def step(self, action: str) -> StepResult:
        """Call tools, or end with the final answer."""
        calls = parse_tool_calls(action)
        if not calls:
            self._answer = action
            return StepResult("", terminated=True)
        return StepResult(format_results([self._call(name, arguments) for name, arguments in calls]))

    def final_reward(self) -> float:
        """Return the score of the episode."""
        return 0.0 if self.score is None else self.score(self._task, self._answer)

    def close(self) -> None:
        """End the session, and a server that was started."""
        self._closing.close()

    def _connect(self) -> None:
        """Begin a session in place of the last one, with a command at a new server, and list its tools."""
        try:
            self._connection.close()
            connected = self._portal.wrap_async_context_manager(_connected(self.server))
            self._session = self._connection.enter_context(connected)
            tools = self._portal.call(_all_tools, self._session)
        except BaseException as error:
            self._closing.close()
            message = f"the MCP server {self.server!r:.200} cannot be used: {_reason(error)}"
            raise EnvironmentFailure(message) from error
        self.tool_schemas = [_schema(tool.model_dump(by_alias=True)) for tool in tools]
        self._is_used = False

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        if name not in [schema["function"]["name"] for schema in self.tool_schemas]:
            return str({"error": f"Tool {name} not found."})
        self._is_used = True
        url = self.server if isinstance(self.server, str) else None
        try:
            result = self._portal.call(_call_tool, self._session, name, arguments, url)
        except Exception as error:
            if isinstance(error, _mcp_error()) and error.error.code not in _LOST:
                return str({"error": error.error.message})
            raise EnvironmentFailure(f"the MCP server does not answer a call of {name}: {_reason(error)}") from error
        result = result.model_dump(mode="json", by_alias=True)
        text = "\n".join(_text_of(part) for part in result["content"])
        if not result["content"] and result["structuredContent"] is not None:
            text = json.dumps(result["structuredContent"], ensure_ascii=False)
        return str({"error": text}) if result["isError"] else text


@asynccontextmanager
async def _connected(server: Union[str, "StdioServerParameters"]) -> AsyncIterator["ClientSession"]:
    """Connect to a server, or start one."""
    from mcp import ClientSession
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client

    connection = streamable_http_client(server) if isinstance(server, str) else stdio_client(server)
    async with connection as (read, write, *_), ClientSession(read, write) as session:
        await session.initialize()
        yield session


async def _call_tool(
    session: "ClientSession", name: str, arguments: dict[str, Any], url: str | None
) -> "CallToolResult":
    """Call a tool. mcp itself would wait for ever where a server with a URL ends while it answers."""
    asking = asyncio.ensure_future(session.call_tool(name, arguments))
    try:
        while url is not None and not (await asyncio.wait([asking], timeout=WATCH_SECONDS))[0]:
            await _check_presence(session, url)
        return await asking
    finally:
        asking.cancel()


async def _check_presence(session: "ClientSession", url: str) -> None:
    """Raise if a server is gone, or does not know the session. One that is busy need not answer."""
    import httpx

    try:
        async with httpx.AsyncClient(timeout=WATCH_SECONDS) as client, client.stream("GET", url) as response:
            is_gone = response.status_code in (502, 503, 504)
    except httpx.ConnectError as error:
        raise ConnectionError(f"no server is at {url}") from error
    except httpx.HTTPError:
        return
    if is_gone:
        raise ConnectionError(f"no server is at {url}, says the gateway ({response.status_code})")
    with suppress(asyncio.TimeoutError):
        try:
            await asyncio.wait_for(session.send_ping(), WATCH_SECONDS)
        except _mcp_error() as error:
            if error.error.code in _LOST:
                raise


def _mcp_error() -> type[Exception]:
    """What mcp raises where a server answers an error."""
    try:
        from mcp import MCPError
    except ImportError:
        from mcp import McpError as MCPError  # of mcp 1
    return MCPError


async def _all_tools(session: "ClientSession") -> list["Tool"]:
    """List the tools of all pages."""
    from mcp.types import PaginatedRequestParams

    listed = await session.list_tools()
    tools = listed.tools
    while cursor := listed.model_dump(by_alias=True)["nextCursor"]:
        listed = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        tools += listed.tools
    return tools


def _schema(tool: dict[str, Any]) -> dict[str, Any]:
    """Write a tool in the form of chat templates."""
    described = {"name": tool["name"], "description": tool["description"] or "", "parameters": tool["inputSchema"]}
    return {"type": "function", "function": described}


def _text_of(part: dict[str, Any]) -> str:
    """Return the text of a part of a result, the address of a resource that it names, or else what it is."""
    if part["type"] == "text":
        return part["text"]
    if part["type"] == "resource_link":
        return part["uri"]
    if part["type"] == "resource" and "text" in part["resource"]:
        return part["resource"]["text"]
    return f"[{part['type']}]"


def _reason(error: BaseException) -> str:
    """What went wrong, of the errors of several tasks the first."""
    while len(error.args) == 2 and isinstance(error.args[1], list | tuple):  # Python 3.10 has no name for a group
        error = error.args[1][0]
    return f"{type(error).__name__}: {describe_error(error)}"
