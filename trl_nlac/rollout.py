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

"""Playing episodes: the policy acts, the environments answer."""

import json
import logging
from dataclasses import replace
from typing import Any

import numpy as np

from .environments.base import Message, StepResult, TextEnvironment
from .environments.pool import EnvironmentPool
from .generation import Sampling
from .prompts import render
from .rewards import EpisodeRewards
from .roles import Roles
from .types import Episode, Prompt, Turn


logger = logging.getLogger(__name__)


class Recorder:
    """
    Writes down one episode as it happens, in tokens that are never encoded twice.

    Args:
        environment ([`TextEnvironment`]):
            What answers.
        roles ([`Roles`]):
            The policy.
        task (`dict[str, Any]`):
            Row of the dataset.
        keywords (`dict[str, Any]`):
            Keywords of the environment's `reset`.
        max_prompt_length (`int`, *optional*):
            Number of tokens of a state. A longer history is cut: the opening of the conversation and the newest turns stay.
    """

    def __init__(
        self,
        environment: TextEnvironment,
        roles: Roles,
        task: dict[str, Any],
        keywords: dict[str, Any],
        max_prompt_length: int | None = None,
    ):
        self.environment = environment
        self.roles = roles
        self.task = task
        self.max_prompt_length = max_prompt_length
        self.prompt_messages: list[Message] = []
        self.completion_messages: list[Message] = []
        self.token_ids: list[int] = []
        self.sampled_ids: list[int] = []
        self.prompt_start = 0
        self.action_starts: list[int] = []  # of the actions since prompt_start, as indices of token_ids
        self.turns: list[Turn] = []
        self.terminated = self.truncated = False
        self.failure: str | None = None
        try:
            self.prompt_messages = _opening(environment.reset(**keywords), environment, roles)
        except Exception as error:  # whatever a user's environment raises must not end the run
            self._fail("reset", error)
            return
        self.token_ids = self._opening_ids()
        if max_prompt_length is not None and len(self.token_ids) > max_prompt_length:
            length = len(self.token_ids)
            self._fail(
                "reset", ValueError(f"the task has {length} tokens, `max_prompt_length` is {max_prompt_length}")
            )

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    @property
    def prompt(self) -> Prompt:
        return Prompt(
            np.array(self.token_ids[self.prompt_start :], dtype=np.int32), len(self.token_ids) - self.prompt_start
        )

    def act(self, action: str | None, text: str, token_ids: list[int]) -> None:
        """Let the environment answer `action`, said as `text` and `token_ids`; `None` if it could not be read."""
        if action is None:
            reply = render(self.roles.prompts.unreadable_action, action_format=self.roles.action_format)
            result = StepResult(reply)
        else:
            try:
                result = self.environment.step(action)
                observation, reward = _text(result.observation), float(result.reward)
                if not np.isfinite(reward):
                    raise ValueError(f"the reward is {reward}")
                result = StepResult(observation, reward, bool(result.terminated), bool(result.truncated))
            except Exception as error:
                self._fail("step", error)  # the turn is not recorded: what it led to is not known
                return
        start = len(self.token_ids)
        self.token_ids += self.roles.remembered(token_ids, action)
        self.sampled_ids += token_ids
        self.action_starts.append(start)
        length = len(self.token_ids) - start
        self.turns.append(
            Turn(start, length, action or "", result.observation, result.reward, prompt_start=self.prompt_start)
        )
        self.completion_messages.append({"role": "assistant", "content": text})
        self.completion_messages.append({"role": "user", "content": result.observation})
        self.terminated, self.truncated = result.terminated, result.truncated and not result.terminated

    def go_on(self, max_turns: int) -> None:
        """After an action that did not end the episode: show the observation, or truncate at a limit."""
        if len(self.turns) >= max_turns:
            self.truncated = True
            return
        turn = self.turns[-1]
        reply = self.roles.observation(self.token_ids[-1], turn.action, turn.next_observation)
        length = len(self.token_ids) - self.prompt_start + len(reply)
        if self.max_prompt_length is None or length <= self.max_prompt_length:
            self.token_ids += reply
        else:
            self._cut_history(reply)

    def _cut_history(self, reply: list[int]) -> None:
        """Go on with the opening and as many of the newest turns as fit into half of the rest; truncate if none does."""
        opening = self._opening_ids(self.roles.prompts.history_cut)
        room = self.max_prompt_length - len(opening) - len(reply)
        starts = [start for start in self.action_starts if len(self.token_ids) - start <= room // 2]
        if not starts and len(self.token_ids) - self.action_starts[-1] <= room:
            starts = self.action_starts[-1:]
        if not starts:
            self.truncated = True
            return
        self.prompt_start = len(self.token_ids)
        shift = self.prompt_start + len(opening) - starts[0]
        self.token_ids += opening + self.token_ids[starts[0] :] + reply
        self.action_starts = [start + shift for start in starts]

    def _opening_ids(self, mark: str = "") -> list[int]:
        """The conversation up to the first action, with a mark at its end."""
        *messages, last = self.prompt_messages
        last = {**last, "content": f"{last['content']}\n\n{mark}"} if mark else last
        tools = self.environment.tool_schemas if self.roles.calls_tools else None
        return self.roles.chat.start([*messages, last], tools)

    def reward(self, reward: float) -> None:
        """Add to the reward of the last turn."""
        self.turns[-1] = replace(self.turns[-1], reward=self.turns[-1].reward + reward)

    def episode(self) -> Episode:
        end = self.turns[-1].prompt_end + self.turns[-1].action_length if self.turns else len(self.token_ids)
        return Episode(
            task=self.task,
            first_observation=self.prompt_messages[-1]["content"] if self.prompt_messages else "",
            token_ids=np.array(self.token_ids[:end], dtype=np.int32),
            turns=tuple(self.turns),
            terminated=self.terminated,
            truncated=self.truncated,
            failure=self.failure,
        )

    def _fail(self, where: str, error: Exception) -> None:
        self.truncated = True
        self.failure = f"{where}: {type(error).__name__}: {error}"
        logger.warning("An environment failed in %s; its episode is truncated there.", where, exc_info=error)


def play_episodes(
    pool: EnvironmentPool,
    tasks: list[dict[str, Any]],
    roles: Roles,
    max_turns: int,
    max_prompt_length: int | None = None,
    sampling: Sampling | None = None,
    rewards: EpisodeRewards | None = None,
) -> list[Episode]:
    """
    Play one episode of each task (algorithm 1, lines 3 to 6), all at once: every turn is one batch of generation.

    Args:
        pool ([`EnvironmentPool`]):
            Where environments come from.
        tasks (`list[dict[str, Any]]`):
            Rows of the dataset.
        roles ([`Roles`]):
            The policy.
        max_turns (`int`):
            Number of actions after which an episode is truncated.
        max_prompt_length (`int`, *optional*):
            Number of tokens of a state past which its history is cut, see [`Recorder`].
        sampling ([`~generation.Sampling`], *optional*):
            In place of the policy's own.
        rewards ([`~rewards.EpisodeRewards`], *optional*):
            Reward functions that score the episodes at their end.

    Returns:
        `list[Episode]`: in the order of the tasks. One whose environment failed ends with its last clean turn.
    """
    recorders = [
        Recorder(environment, roles, task, keywords, max_prompt_length)
        for task, (environment, keywords) in zip(tasks, pool.take(tasks), strict=True)
    ]
    living = [recorder for recorder in recorders if not recorder.done]
    while living:
        answers = roles.ask(
            "policy",
            [recorder.prompt for recorder in living],
            roles.parse_action,
            sampling=sampling,
            max_format_retries=0,
        )
        for recorder, answer in zip(living, answers, strict=True):
            recorder.act(answer.parsed, answer.text, list(answer.token_ids))
        living = [recorder for recorder in living if not recorder.done]
        for recorder in living:
            recorder.go_on(max_turns)
        living = [recorder for recorder in living if not recorder.done]
    if rewards is not None:
        _score([recorder for recorder in recorders if recorder.turns and recorder.failure is None], rewards)
    return [recorder.episode() for recorder in recorders]


def replay_actions(environment: TextEnvironment, task: dict[str, Any], actions: list[str], roles: Roles) -> Episode:
    """The episode in which the given actions are taken, as if the policy had said them."""
    recorder = Recorder(environment, roles, task, task)
    seen = recorder.prompt_messages[-1]["content"]
    for i, action in enumerate(actions):
        if i:
            recorder.go_on(max_turns=len(actions))
            seen = recorder.turns[-1].next_observation
        recorder.act(action, action, roles.written_action(action, thought=seen))
    return recorder.episode()


def _score(recorders: list[Recorder], rewards: EpisodeRewards) -> None:
    """Add the rewards of the reward functions to the last turns."""
    if not recorders:
        return
    scores = rewards(
        prompts=[recorder.prompt_messages for recorder in recorders],
        completions=[recorder.completion_messages for recorder in recorders],
        completion_ids=[recorder.sampled_ids for recorder in recorders],
        environments=[recorder.environment.unwrapped for recorder in recorders],
        tasks=[recorder.task for recorder in recorders],
    )
    for recorder, score in zip(recorders, scores, strict=True):
        recorder.reward(score)


def _opening(observation: str | list[Message], environment: TextEnvironment, roles: Roles) -> list[Message]:
    """The first messages of a conversation: how to act, with which tools, and the first observation."""
    messages = observation if isinstance(observation, list) else [{"role": "user", "content": _text(observation)}]
    system = [render(roles.prompts.policy, action_format=roles.action_format)]
    if not roles.calls_tools and environment.tool_schemas:
        schemas = "\n".join(json.dumps(schema) for schema in environment.tool_schemas)
        system.append(render(roles.prompts.tools, tools=schemas))
    if messages[0]["role"] == "system":
        system.append(messages[0]["content"])
        messages = messages[1:]
    content = "\n\n".join(part for part in system if part)
    return [{"role": "system", "content": content}, *messages] if content else messages


def _text(observation: Any) -> str:
    if not isinstance(observation, str):
        raise TypeError(f"the observation is {type(observation).__name__}, expected text")
    return observation
