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

"""Record episodes."""

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np

from ..chat.actions import ActionFormat
from ..environments.base import StepResult, TextEnvironment, describe_error
from ..prompts import NLACPrompts
from ..types import Episode, Message, Prompt, Turn


MAX_REWARD = 3e38  # nearly that of a float32


class MalformedResult(TypeError):
    """An environment returned a wrong type: `kind` is `"observation"` or `"reward"`."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


class Recorder:
    """
    Record one episode as it happens, in tokens that are never encoded twice.

    Args:
        actions ([`~chat.actions.ActionFormat`]):
            The format of actions.
        prompts ([`NLACPrompts`]):
            The prompts; here those of the policy.
        task (`dict[str, Any]`):
            Row of the dataset.
        tool_schemas (`list[dict[str, Any]]`, *optional*):
            JSON schemas of the tools that actions can call.
        max_prompt_length (`int`, *optional*):
            Maximum number of tokens of a state. A longer history is cut: the opening of the conversation and the
            newest turns stay. An observation of more than half of it is shortened before anything sees it, and so is a
            task that does not fit.

    Attributes:
        num_shortened (`int`):
            Number of texts of the environment that were shortened.
    """

    def __init__(
        self,
        actions: ActionFormat,
        prompts: NLACPrompts,
        task: dict[str, Any],
        tool_schemas: list[dict[str, Any]] | None = None,
        max_prompt_length: int | None = None,
    ):
        self.actions = actions
        self.prompts = prompts
        self.task = task
        self.tool_schemas = tool_schemas or []
        self.max_prompt_length = max_prompt_length
        self.opening: list[Message] = []
        self.prompt_messages: list[Message] = []
        self.completion_messages: list[Message] = []
        self.token_ids: list[int] = []
        self.sampled_ids: list[int] = []
        self.prompt_start = 0
        self.opening_length = 0
        self.num_shortened = 0
        self.action_starts: list[int] = []  # of the actions since prompt_start, as indices of token_ids
        self.turns: list[Turn] = []
        self.terminated = self.truncated = False
        self.failure: str | None = None
        self.extra: dict[str, Any] = {}

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated

    @property
    def prompt(self) -> Prompt:
        """The current state."""
        return Prompt.of(self.token_ids[self.prompt_start :], tuple(self.tool_schemas), self.opening_length)

    def begin(self, observation: str | list[Message]) -> None:
        """
        Open the conversation with the result of `reset`.

        Raises:
            MalformedResult: If that is neither text nor messages.
            ValueError: If it is too long, even with shortened texts.
        """
        whole, limit = checked_opening(observation), self.max_prompt_length
        length = self._open(whole, limit)
        if limit is not None and length > limit and self._open(whole, limit // 4 // len(whole)) > limit:
            raise ValueError(
                f"the task has {length} tokens, `max_prompt_length` is {limit}, and the prompt is too long even "
                "with a shortened task"
            )
        self.num_shortened = sum(one != other for one, other in zip(whole, self.opening, strict=True))

    def _open(self, messages: list[Message], max_tokens: int | None) -> int:
        """Open the conversation with messages, each of at most `max_tokens`; return its number of tokens."""
        if max_tokens is not None:
            shortened = self.actions.chat.shortened
            messages = [{**message, "content": shortened(message["content"], max_tokens)} for message in messages]
        self.opening = messages
        self.prompt_messages = self._prompt_messages()
        self.token_ids = self._opening_ids()
        self.opening_length = len(self.token_ids)
        return self.opening_length

    def act(self, action: str | None, text: str, token_ids: list[int], result: StepResult) -> None:
        """Record `action`, answered as `text` and `token_ids`, and its result; `None` if it could not be parsed."""
        self.take(action or "", self.actions.remembered(token_ids, action), result.observation, result.reward)
        self.sampled_ids += token_ids
        self.completion_messages.append(self.actions.message(action, text, token_ids))
        if result.observation:
            self.completion_messages += self.actions.replies(action, self.turns[-1].next_observation)
        self.terminated, self.truncated = result.terminated, result.truncated and not result.terminated

    def take(self, action: str, token_ids: list[int], observation: str, reward: float = 0.0, words: str = "") -> None:
        """
        Record an action as it stays in the conversation, and the observation that followed; and `words` of a user
        after it, if it is the results of tools.
        """
        if self.max_prompt_length is not None:
            whole, limit = (observation, words), self.max_prompt_length // (4 if words else 2)
            observation = self.actions.shortened(action, observation, limit)
            words = self.actions.chat.shortened(words, limit)
            self.num_shortened += (observation, words) != whole
        if words:
            observation = f"{observation}\n\n{words}"
        start = len(self.token_ids)
        self.token_ids += token_ids
        self.action_starts.append(start)
        turn = Turn(start, len(token_ids), action, observation, reward, prompt_start=self.prompt_start, words=words)
        self.turns.append(turn)

    def continue_or_end(self, max_turns: int, turn_limit: str = "truncate") -> None:
        """After an action that did not end the episode: show the observation, or end it at a limit."""
        if len(self.turns) < max_turns:
            self.show_observation()
        else:
            self.terminated, self.truncated = turn_limit == "terminate", turn_limit == "truncate"

    def show_observation(self) -> None:
        """Append the last observation. A history that becomes too long is cut; if that is not enough, the episode."""
        turn = self.turns[-1]
        reply = self.actions.observation_ids(self.token_ids[-1], turn.action, turn.next_observation, turn.words)
        length = len(self.token_ids) - self.prompt_start + len(reply)
        if self.max_prompt_length is None or length <= self.max_prompt_length:
            self.token_ids += reply
        else:
            self._cut_history(reply)

    def _cut_history(self, reply: list[int]) -> None:
        """Keep the opening and as many of the newest turns as fit into half of the rest; truncate if none does."""
        opening = self._opening_ids(self.prompts.history_cut)
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
        """Encode the conversation up to the first action, with a mark at its end."""
        *messages, last = self.prompt_messages
        last = {**last, "content": f"{last['content']}\n\n{mark}"} if mark else last
        tools = self.tool_schemas if self.actions.calls_tools else None
        return self.actions.chat.start([*messages, last], tools)

    def add_reward(self, reward: float) -> None:
        """Add to the reward of the last turn."""
        self.turns[-1] = replace(self.turns[-1], reward=self.turns[-1].reward + reward)

    def fail(self, kind: str, error: BaseException) -> None:
        """
        Truncate the episode because the environment failed. An action whose consequence or final score is unknown is
        dropped, and nothing is rewarded after it.
        """
        if self.terminated:
            self.turns.pop()
        self.terminated, self.truncated = False, True
        self.failure = f"{kind}: {type(error).__name__}: {describe_error(error)}"

    def episode(self) -> Episode:
        """Return the recorded episode."""
        end = self.turns[-1].prompt_end + self.turns[-1].action_length if self.turns else len(self.token_ids)
        return Episode(
            task=self.task,
            opening=tuple(self.opening),
            token_ids=np.array(self.token_ids[:end], dtype=np.int32),
            turns=tuple(self.turns),
            terminated=self.terminated,
            truncated=self.truncated,
            failure=self.failure,
            tools=tuple(self.tool_schemas),
            extra=self.extra,
        )

    def _prompt_messages(self) -> list[Message]:
        """Add the policy's system message, and examples of actions, to the opening."""
        messages, instructions = self.opening, ""
        if messages[0]["role"] == "system":
            instructions, messages = messages[0]["content"], messages[1:]
        shown = [] if self.actions.calls_tools else self.tool_schemas
        return self.prompts.opening(messages, self.actions.name, shown, instructions)


def checked_opening(observation: Any) -> list[Message]:
    """
    Check that the result of `reset` is text or messages, and return it as messages: copies, because the environment
    may go on with its own.

    Raises:
        MalformedResult: If it is neither.
    """
    messages = observation if isinstance(observation, list) else [{"role": "user", "content": observation}]
    are_messages = [isinstance(message, dict) and {"role", "content"} <= message.keys() for message in messages]
    if not messages or not all(are_messages):
        raise MalformedResult("observation", "`reset` returned a list, expected messages with `role` and `content`")
    return [{**deepcopy(message), "content": checked_text(message["content"])} for message in messages]


def checked_step(result: Any) -> StepResult:
    """
    Check the result of `step`, and return it with values of ours.

    Raises:
        MalformedResult: If it is not a [`StepResult`] of text, a finite reward and flags.
    """
    if not isinstance(result, StepResult):
        raise MalformedResult("observation", f"`step` returned {type(result).__name__}, expected StepResult")
    observation, reward = checked_text(result.observation), checked_reward(result.reward)
    for flag in (result.terminated, result.truncated):
        if isinstance(flag, str):  # "False" is true
            raise MalformedResult("observation", "`terminated` or `truncated` is text, expected a bool")
    return StepResult(observation, reward, bool(result.terminated), bool(result.truncated))


def checked_text(observation: Any) -> str:
    """
    Check that an observation is text, and return it as such: without what a subclass of `str` adds.

    Raises:
        MalformedResult: If it is not.
    """
    if not isinstance(observation, str):
        raise MalformedResult("observation", f"the observation is {type(observation).__name__}, expected text")
    observation = str.__str__(observation)
    try:
        observation.encode()
    except UnicodeEncodeError as error:
        # Half a character, as `surrogateescape` leaves it: no tokenizer or file accepts it.
        raise MalformedResult("observation", f"the observation is not valid text: {error}") from error
    return str.__str__(observation)


def checked_reward(reward: Any) -> float:
    """
    Check that a reward is a finite number, small enough that a sum of rewards is finite, too.

    Raises:
        MalformedResult: If it is not.
    """
    try:
        number = math.nan if isinstance(reward, str | bytes) else float(reward)
    except Exception:
        number = math.nan
    if not abs(number) <= MAX_REWARD:
        raise MalformedResult("reward", f"the reward is {_shown(reward)}, expected a finite number")
    return number


def _shown(value: Any) -> str:
    try:
        return f"{value!r}"[:100]
    except BaseException:
        return f"a {type(value).__name__}"


def replay_actions(
    environment: TextEnvironment,
    task: dict[str, Any],
    action_texts: list[str],
    actions: ActionFormat,
    prompts: NLACPrompts,
) -> Episode:
    """Record the episode in which the given actions are taken, as if the policy had sampled them."""
    recorder = Recorder(actions, prompts, task, environment.tool_schemas)
    recorder.begin(environment.reset(**task))
    thought = recorder.prompt_messages[-1]["content"]
    for i, action in enumerate(action_texts):
        if i:
            recorder.continue_or_end(max_turns=len(action_texts))
            thought = recorder.turns[-1].next_observation
        recorder.act(action, action, actions.completion(action, thought), environment.step(action))
    return recorder.episode()
