# SPDX-License-Identifier: Apache-2.0

# /// script
# dependencies = ["verifiers>=0.4"]
# ///
"""
An agent that plays a task of verifiers, in an environment of packages of its own: verifiers wants older versions of
some packages than trl_nlac uses. `AgentEnvironment` starts it with a task on standard input, and reads the reward that
it prints.

The task and the harness are defined here. For a taskset and a harness of the Environments Hub, load them by their
names and leave out both classes.
"""

import asyncio
import json
import os
import sys
from typing import Any

import httpx
import verifiers.v1 as vf


__all__ = ["ChatHarness"]  # by which verifiers finds the harness


class SquareData(vf.TaskData):
    answer: int


class SquareTask(vf.Task[SquareData]):
    @vf.reward
    async def names_the_answer(self, trace: vf.Trace) -> float:
        return float(str(self.data.answer) in (trace.last_reply or ""))


class ChatConfig(vf.HarnessConfig):
    id: str = "verifiers_agent"  # this module


class ChatHarness(vf.Harness[ChatConfig]):
    """One question, one answer, in this process."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        request = {"model": ctx.model, "messages": [*messages, {"role": "user", "content": prompt}]}
        async with httpx.AsyncClient(timeout=None) as client:
            key = {"Authorization": f"Bearer {secret}"}
            response = await client.post(f"{endpoint}/chat/completions", json=request, headers=key)
        return vf.ProgramResult(0 if response.is_success else 1, response.text, "")


async def play(task: dict[str, Any]) -> float:
    """Play a task with the model behind the variables that OpenAI's clients read."""
    endpoint = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    config = vf.AgentConfig(harness=ChatConfig(), runtime=vf.SubprocessConfig(), model="policy", client=endpoint)
    trace = await vf.Agent(config).run(SquareTask(SquareData(prompt=task["question"], answer=task["answer"])))
    if not trace.ok:
        raise RuntimeError(f"The rollout failed, so it has no reward: {trace.errors}")
    return trace.reward


if __name__ == "__main__":
    print(asyncio.run(play(json.load(sys.stdin))))
