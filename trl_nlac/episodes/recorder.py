# SPDX-License-Identifier: Apache-2.0

"""Record episodes."""

import json
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..chat.actions import ActionFormat
from ..chat.message_reader import read_question
from ..method.states import forgetful_task, opening_ids, opening_messages
from ..prompts import NLACPrompts
from ..terminal import shown
from ..types import Episode, Message, Prompt, Turn
from .text_environment import Opening, StepResult, TextEnvironment, describe_error


MAX_REWARD = 3e38  # nearly that of a float32


class MalformedResult(TypeError):
    """An environment returned a wrong type: `kind` is `"observation"` or `"reward"`."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


@dataclass(eq=False)
class Recorder:
    """
    Record one episode as it happens, in tokens that are never encoded twice: of the task, which is a row of the
    dataset, with the tools that actions can call, and with the `prompts` of the policy. A history of more than
    `max_prompt_length` tokens is cut: the opening of the conversation and the newest turns stay. An observation of
    more than half of it is shortened before anything sees it, and so is a task that does not fit; `num_shortened`
    counts them.
    """

    actions: ActionFormat
    prompts: NLACPrompts
    task: dict[str, Any]
    tool_schemas: list[dict[str, Any]] | None = None
    max_prompt_length: int | None = None

    def __post_init__(self):
        self.tool_schemas = self.tool_schemas or []
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

    def begin(self, observation: str | list[Message] | Opening) -> None:
        """
        Open the conversation with the result of `reset`. Raise [`MalformedResult`] if that is neither text nor
        messages. Raise a `ValueError` if it is too long, even with shortened texts, or the chat template cannot show
        it.
        """
        opening, limit = checked_opening(observation), self.max_prompt_length
        if opening.tools is not None:
            self.actions.check_tools(opening.tools)
            self.tool_schemas = opening.tools
        whole = self.actions.shown(opening.messages)
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
        self.prompt_messages = opening_messages(self.actions, self.prompts, messages, self.tool_schemas)
        self.token_ids = opening_ids(self.actions, self.prompts, messages, self.tool_schemas)
        self.opening_length = len(self.token_ids)
        return self.opening_length

    def act(self, action: str | None, text: str, token_ids: list[int], result: StepResult) -> None:
        """Record `action`, answered as `text` and `token_ids`, and its result; `None` if it could not be parsed."""
        if self.turns and not self.turns[-1].next_observation:  # the policy saw an empty observation, and answered it
            self.completion_messages += self.actions.replies(self.turns[-1].action, "")
        remembered = self.actions.remembered(token_ids, action)
        self.take(action or "", remembered, result.observation, result.reward, result.words)
        self.sampled_ids += token_ids
        self.completion_messages.append(self.actions.message(action, text, token_ids))
        turn = self.turns[-1]
        if turn.next_observation:
            self.completion_messages += self.actions.replies(action, turn.next_observation, turn.words)
        self.terminated, self.truncated = result.terminated, result.truncated and not result.terminated

    def take(self, action: str, token_ids: list[int], observation: str, reward: float = 0.0, words: str = "") -> None:
        """
        Record an action as it stays in the conversation, and the observation that followed; and `words` of a user
        after it, if it is the results of tools. Raise a `ValueError` if the chat template cannot show words after
        them.
        """
        if self.max_prompt_length is not None:
            whole, limit = (observation, words), self.max_prompt_length // (4 if words else 2)
            observation = self.actions.shortened(action, observation, limit)
            words = self.actions.chat.shortened(words, limit)
            self.num_shortened += (observation, words) != whole
        if words:
            self.actions.check_words_after(action)
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
        """Append the last observation, or begin again with it; where that is too long, cut history or episode."""
        turn = self.turns[-1]
        if not self.actions.keeps_history:
            self._begin_again(turn.next_observation)
            return
        reply = self.actions.observation_ids(self.token_ids[-1], turn.action, turn.next_observation, turn.words)
        length = len(self.token_ids) - self.prompt_start + len(reply)
        if self.max_prompt_length is None or length <= self.max_prompt_length:
            self.token_ids += reply
        else:
            self._cut_history(reply)

    def _cut_history(self, reply: list[int]) -> None:
        """Keep the opening and as many of the newest turns as fit into half of the rest; truncate if none does."""
        mark = self.prompts.history_cut
        opening = opening_ids(self.actions, self.prompts, self.opening, self.tool_schemas, mark)
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

    def _begin_again(self, observation: str) -> None:
        """Make the observation the whole state; truncate if it does not fit."""
        task = forgetful_task(self.opening, observation)
        state = opening_ids(self.actions, self.prompts, task, self.tool_schemas)
        if self.max_prompt_length is not None and len(state) > self.max_prompt_length:
            self.truncated = True
            return
        self.prompt_start = len(self.token_ids)
        self.token_ids += state
        self.action_starts = []

    def add_reward(self, reward: float) -> None:
        """Add to the reward of the last turn."""
        self.turns[-1] = replace(self.turns[-1], reward=self.turns[-1].reward + reward)

    def fail(self, kind: str, error: BaseException) -> None:
        """Truncate the episode, without an action of unknown consequence or score: the environment failed."""
        if self.terminated and self.turns:  # without turns: a conversation that had just begun when the episode ended
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


class EpisodeRecorder:
    """
    Record one episode as it happens. It is one conversation, unless the environment opens others, see
    [`~environments.StepResult`]; each is then an episode of its own. All share the final reward and that of the step
    that terminates the episode. Arguments are those of [`Recorder`].
    """

    def __init__(self, *args, **kwargs):
        self._new = partial(Recorder, *args, **kwargs)
        self.conversations = [self._new()]  # in the order of their beginnings
        self.extra: dict[str, Any] = {}  # values that reward functions logged
        self.terminated = self.truncated = False
        self._current = 0  # the conversation in which the policy is asked
        # Answers without their observations, and their rewards so far.
        self._waiting: dict[int, tuple[tuple[str | None, str, list[int]], float]] = {}

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated

    @property
    def prompt(self) -> Prompt:
        """The current state."""
        return self.conversations[self._current].prompt

    @property
    def num_shortened(self) -> int:
        """Number of texts of the environment that were shortened."""
        return sum(recorder.num_shortened for recorder in self.conversations)

    @property
    def num_answers(self) -> int:
        """Number of answers of the policy so far."""
        return sum(len(recorder.turns) for recorder in self.conversations) + len(self._waiting)

    @property
    def failure(self) -> str | None:
        """What failed in the environment, if anything."""
        return self.conversations[0].failure

    def begin(self, observation: str | list[Message] | Opening) -> None:
        """Open the first conversation, see [`Recorder.begin`]."""
        self.conversations[0].begin(observation)

    def act(self, action: str | None, text: str, token_ids: list[int], result: StepResult) -> None:
        """
        Record an answer and its result, see [`Recorder.act`]. Raise [`MalformedResult`] if the result belongs to a
        conversation that does not wait for it, or opens none. Raise a `ValueError` if it opens one that is too long,
        or the chat template cannot show it.
        """
        final_reward = 0.0
        if result.terminated:
            result, final_reward = replace(result, reward=0.0), result.reward
        answer = (action, text, token_ids)
        self._waiting[self._current] = answer, 0.0
        if isinstance(result.conversation, Opening):
            if result.observation:
                self._observe(self._current, result)
            else:
                self._waiting[self._current] = answer, result.reward
            self.conversations.append(self._new())
            self._current = len(self.conversations) - 1
            self.conversations[-1].begin(result.conversation)
        else:
            self._current = self._current if result.conversation is None else result.conversation
            self._observe(self._current, result)
        if result.terminated or result.truncated:
            self._close_waiting()
            self._end(result.terminated)
            self.add_reward(final_reward)

    def _observe(self, number: int, result: StepResult) -> None:
        if number not in self._waiting:
            raise MalformedResult("observation", f"no answer of conversation {number} waits for an observation")
        answer, reward = self._waiting.pop(number)
        self.conversations[number].act(*answer, replace(result, reward=reward + result.reward))

    def continue_or_end(self, max_turns: int, turn_limit: str = "truncate") -> None:
        """After an answer that did not end the episode: show the observation, or end all conversations at a limit."""
        recorder = self.conversations[self._current]
        if self.num_answers >= max_turns:
            if turn_limit == "terminate":
                self._close_waiting()
            self._end(turn_limit == "terminate")
        elif recorder.turns:  # otherwise it has just begun
            recorder.show_observation()
            if recorder.truncated:
                self._end(terminated=False)

    def _close_waiting(self) -> None:
        """Record the answers after which nothing came in their conversations."""
        for number in list(self._waiting):
            self._observe(number, StepResult(""))

    def _end(self, terminated: bool) -> None:
        """End all conversations. An answer whose consequence is unknown then is dropped."""
        self._waiting.clear()
        for recorder in (self, *self.conversations):
            recorder.terminated, recorder.truncated = terminated, not terminated

    def add_reward(self, reward: float) -> None:
        """Add to the reward of the last turn of each conversation."""
        for recorder in self.conversations:
            if recorder.turns:
                recorder.add_reward(reward)

    def fail(self, kind: str, error: BaseException) -> None:
        """Truncate all conversations because the environment failed, see [`Recorder.fail`]."""
        self._waiting.clear()
        self.terminated, self.truncated = False, True
        for recorder in self.conversations:
            recorder.fail(kind, error)

    def episode(self) -> Episode:
        """Return the recorded episode; conversations but the first are its `segments`."""
        played = [recorder.episode() for recorder in self.conversations if recorder.turns]
        first, *segments = played or [self.conversations[0].episode()]
        return replace(first, segments=tuple(segments), extra=self.extra)


def checked_opening(observation: Any) -> Opening:
    """
    Check that the result of `reset` is text, messages that wait for an answer or an [`~environments.Opening`], and
    return it as one: with messages as [`~chat.message_reader.read_question`] reads them. Raise [`MalformedResult`] if
    it is neither.
    """
    tools = observation.tools if isinstance(observation, Opening) else None
    observation = observation.messages if isinstance(observation, Opening) else observation
    if not isinstance(observation, list):
        return Opening([{"role": "user", "content": checked_text(observation)}], _checked_tools(tools))
    try:
        return Opening(read_question(observation), _checked_tools(tools))
    except ValueError as error:
        raise MalformedResult("observation", f"the messages of `reset` are no conversation: {error}") from error


def _checked_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Return copies of the JSON schemas of tools."""
    try:
        copies = json.loads(json.dumps(tools))
        if copies is not None and not all(isinstance(tool.get("function", tool)["name"], str) for tool in copies):
            raise TypeError("a tool has no name")
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise MalformedResult("observation", f"the tools of an opening are no JSON schemas: {error}") from error
    return copies


def checked_step(result: Any) -> StepResult:
    """Check the result of `step`, and return it with values of ours; else raise [`MalformedResult`]."""
    if not isinstance(result, StepResult):
        raise MalformedResult("observation", f"`step` returned {type(result).__name__}, expected StepResult")
    observation, reward = checked_text(result.observation), checked_reward(result.reward)
    for flag in (result.terminated, result.truncated):
        if isinstance(flag, str):  # "False" is true
            raise MalformedResult("observation", "`terminated` or `truncated` is text, expected a bool")
    where = result.conversation
    if isinstance(where, Opening):
        where = checked_opening(where)
    elif where is not None and not (isinstance(where, int) and where >= 0):
        raise MalformedResult("observation", f"`conversation` is {shown(where)}, expected a number or an Opening")
    words = checked_text(result.words)
    return StepResult(
        observation, reward, bool(result.terminated), bool(result.truncated), words=words, conversation=where
    )


def checked_text(observation: Any) -> str:
    """Return text without what a subclass of `str` adds; what is none is a [`MalformedResult`]."""
    if not isinstance(observation, str):
        raise MalformedResult("observation", f"the observation is {type(observation).__name__}, expected text")
    observation = str.__str__(observation)
    try:
        observation.encode()
    except UnicodeEncodeError as error:
        # Half a character, as `surrogateescape` leaves it: no tokenizer or file accepts it.
        raise MalformedResult("observation", f"the observation is not valid text: {error}") from error
    return observation


def checked_reward(reward: Any) -> float:
    """Return a reward as a finite number, also of a sum of them; what is none is a [`MalformedResult`]."""
    try:
        number = math.nan if isinstance(reward, str | bytes) else float(reward)
    except Exception:
        number = math.nan
    if not abs(number) <= MAX_REWARD:
        raise MalformedResult("reward", f"the reward is {shown(reward)}, expected a finite number")
    return number


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
