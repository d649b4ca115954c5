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

"""One model, several roles: asking it to speak as one of them."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tqdm.auto import tqdm

from ..chat.encoder import ChatEncoder
from ..chat.tool_calls import call_message, parse_results, parse_tool_calls
from ..generation.base import Generator, Sampling
from ..prompts import ACTION_PARSERS, NLACPrompts
from ..types import Answer, Prompt


# The metric that counts, for each role, how many of its answers keep to their format.
FORMAT_METRICS = {
    "policy": "policy/format_rate",
    "successor": "successor/format_rate",
    "backup": "critic/format_rate",
    "critique": "critique/format_rate",
    "refine": "refine/format_rate",
    "correction": "correction/format_rate",
}


class Roles:
    """
    Asks the model to speak in a role, in batches, and reads the answers.

    Args:
        generator ([`~generation.base.Generator`]):
            What samples tokens.
        chat ([`~chat.encoder.ChatEncoder`]):
            What turns messages into tokens.
        prompts ([`NLACPrompts`]):
            The words of the roles.
        samplings (`dict[str, Sampling]`):
            How each role samples.
        action_format (`str`):
            `"react"`, `"text"` or `"tool_call"`.
        max_format_retries (`int`, *optional*, defaults to `1`):
            How often an answer that breaks its format is sampled again.
        num_futures (`int`, *optional*, defaults to `1`):
            Number k of futures that a critique weighs.
        single_step (`bool`, *optional*, defaults to `False`):
            Whether a task is a single step, so that the critic judges correctness and foresees nothing.
        reasoning (`bool`, *optional*):
            Whether chains of thought are corrected before they are trained on. If `None`, if the template knows them.
        tools (`list[dict[str, Any]]`, *optional*):
            JSON schemas of all tools, by which the arguments of tool calls are read.
        shows_progress (`bool`, *optional*, defaults to `False`):
            Whether generations and rollouts that take long show a progress bar.

    Attributes:
        metrics (`dict[str, list[float]]`):
            Format and clipping rates since they were last taken.
        num_generated_tokens (`int`):
            Number of tokens of all answers so far, of those that were sampled again, too.

    Raises:
        ValueError: If the chat template cannot do what an option asks for.
    """

    def __init__(
        self,
        generator: Generator,
        chat: ChatEncoder,
        prompts: NLACPrompts,
        samplings: dict[str, Sampling],
        action_format: str,
        max_format_retries: int = 1,
        num_futures: int = 1,
        single_step: bool = False,
        reasoning: bool | None = None,
        tools: list[dict[str, Any]] | None = None,
        shows_progress: bool = False,
    ):
        if action_format == "tool_call" and not chat.calls_tools:
            raise ValueError(
                "`action_format='tool_call'` needs a chat template that shows tools and tool calls, and a "
                "`response_template` of the tokenizer to read them. Use `action_format='react'` with this model."
            )
        if reasoning and chat.reasoning_tags is None:
            raise ValueError(
                "`reasoning=True` needs a chat template that marks the chain of thought, with `<think>` for example. "
                "Use `reasoning=None` or `False` with this model."
            )
        self.generator = generator
        self.chat = chat
        self.prompts = prompts
        self.samplings = samplings
        self.calls_tools = action_format == "tool_call"
        self.shows_thoughts = action_format == "react"
        self.action_format = prompts.action_format(action_format)
        self.parse_action = ACTION_PARSERS[action_format]
        self.max_format_retries = max_format_retries
        self.num_futures = num_futures
        self.single_step = single_step
        self.corrects_reasoning = chat.reasoning_tags is not None if reasoning is None else reasoning
        self.tools = tools
        self.shows_progress = shows_progress
        self.metrics: dict[str, list[float]] = defaultdict(list)
        self.num_generated_tokens = 0

    # Conversations

    def follow_up(self, prompt: Prompt, content: str) -> Prompt:
        """`prompt`, which ends with an assistant's turn, followed by a user's message."""
        return prompt.extended(self.chat.reply(prompt.last_id, content))

    def observation(self, last_id: int, action: str, observation: str) -> list[int]:
        """Token ids of what the environment answered to `action`, whose last token is `last_id`."""
        tools = self._tools(action)
        if not tools:
            return self.chat.reply(last_id, observation)
        return self.chat.results(last_id, parse_results(observation, len(tools)), tools)

    def observe(self, prompt: Prompt, action: str, observation: str) -> Prompt:
        """`prompt`, which ends with `action`, followed by what the environment answered: s_{t+1} from (s_t, a_t)."""
        return prompt.extended(self.observation(prompt.last_id, action, observation))

    def remembered(self, token_ids: list[int], action: str | None, keeps_reasoning: bool | None = None) -> list[int]:
        """What stays in the conversation of sampled tokens that were read as `action`."""
        return self.chat.remembered(token_ids, self._tools(action), keeps_reasoning)

    def continued(self, prompt: Prompt, answer: Answer, keeps_reasoning: bool | None = None) -> Prompt:
        """`prompt` followed by `answer`, as it stays in the conversation."""
        return prompt.extended(self.remembered(list(answer.token_ids), answer.parsed, keeps_reasoning))

    def opened(self, prompt: Prompt) -> Prompt:
        """`prompt` as the model sees it when it speaks, with the prefill of the chat template."""
        return prompt.extended(self.chat.prefill)

    def written_action(self, action: str, thought: str) -> list[int]:
        """Token ids of an action as if the policy had sampled it."""
        calls = self._calls(action)
        if calls:
            return self.chat.completion(call_message(calls))
        return self.chat.completion(self.action_text(action, thought))

    def action_text(self, action: str, thought: str) -> str:
        """An action as the policy writes it in words."""
        return f"Thought: {thought}\nAction: {action}" if self.shows_thoughts else action

    def said(self, action: str | None, text: str, token_ids: list[int]) -> dict[str, Any]:
        """An answer of the policy as a message: with the tool calls that were read from it, or as `text`."""
        calls = self._calls(action)
        if calls:
            return call_message(calls, self.chat.said_beside_calls(token_ids))
        return {"role": "assistant", "content": text}

    def heard(self, action: str | None, observation: str) -> list[dict[str, Any]]:
        """What the environment answered, as messages: results of tools, or the user's."""
        tools = self._tools(action)
        if not tools:
            return [{"role": "user", "content": observation}]
        results = parse_results(observation, len(tools))
        return [{"role": "tool", "name": t, "content": result} for t, result in zip(tools, results, strict=True)]

    def _calls(self, action: Any) -> list[tuple[str, dict[str, Any]]]:
        """The tools that an action calls in the chat template's own format, with their arguments."""
        return parse_tool_calls(action) if self.calls_tools and isinstance(action, str) else []

    def _tools(self, action: Any) -> tuple[str, ...]:
        return tuple(name for name, _ in self._calls(action))

    # Questions

    def ask(
        self,
        role: str,
        prompts: list[Prompt],
        parse: Callable[[str], Any | None],
        sampling: Sampling | None = None,
        max_format_retries: int | None = None,
        seeds: list[int] | None = None,
    ) -> list[Answer]:
        """
        Let the model answer each prompt as `role`.

        Args:
            role (`str`):
                `"policy"`, `"successor"`, `"backup"`, `"critique"`, `"refine"` or `"correction"`.
            prompts (`list[Prompt]`):
                What to answer.
            parse (`Callable[[str], Any | None]`):
                Reads an answer; `None` where it breaks the format.
            sampling ([`~generation.base.Sampling`], *optional*):
                In place of the role's own.
            max_format_retries (`int`, *optional*):
                In place of the roles' own.
            seeds (`list[int]`, *optional*):
                What each answer is sampled by. If `None`, they are drawn from torch's global generator.

        Returns:
            `list[Answer]`: in the order of the prompts. [`Answer.parsed`] is `None` where the format is broken or the
            answer was cut off, after all retries.
        """
        sampling = sampling or self.samplings[role]
        retries = self.max_format_retries if max_format_retries is None else max_format_retries
        if sampling.temperature == 0:
            retries = 0  # the same answer would come again
        seeds = torch.randint(2**62, (len(prompts),)).tolist() if seeds is None else seeds
        reads_calls = self.calls_tools and role in ("policy", "refine")
        answers: dict[int, Answer] = {}
        pending = list(range(len(prompts)))
        for attempt in range(1 + retries):
            if not self.generator.any_process(bool(pending)):
                break
            opened = [self.opened(prompts[i]).ids for i in pending]
            with self.progress(role, len(pending), "answer") as bar:
                completions = self.generator.generate(opened, sampling, [seeds[i] + attempt for i in pending], bar)
            self.num_generated_tokens += sum(len(completion.token_ids) for completion in completions)
            for i, completion in zip(pending, completions, strict=True):
                if reads_calls:
                    text = self.chat.decode_action(prompts[i].ids, completion.token_ids, self.tools)
                else:
                    text = self.chat.decode(completion.token_ids)
                parsed = parse(text) if completion.finished else None
                answers[i] = Answer(prompts[i], tuple(completion.token_ids), text, parsed)
                self.metrics[FORMAT_METRICS[role]].append(float(parsed is not None))
                self.metrics["completions/clipped_ratio"].append(float(not completion.finished))
            pending = [i for i in pending if answers[i].parsed is None]
        return [answers[i] for i in range(len(prompts))]

    def progress(self, description: str, total: int, unit: str) -> tqdm:
        """A bar of something that may take long; it is not seen before it does."""
        return tqdm(desc=description, total=total, unit=unit, leave=False, delay=5.0, disable=not self.shows_progress)

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Within it, nothing that is asked counts for the metrics."""
        metrics = {name: list(values) for name, values in self.metrics.items()}
        try:
            yield
        finally:
            self.metrics.clear()
            self.metrics.update(metrics)

    def take_metrics(self) -> dict[str, float]:
        """Means of the metrics since the last call, and those of the generator."""
        means = {name: sum(values) / len(values) for name, values in self.metrics.items()}
        self.metrics.clear()
        return {**means, **self.generator.take_metrics()}
