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
from collections.abc import Callable
from typing import Any

from .chat import ChatEncoder
from .generation import Generator, Sampling
from .prompts import ACTION_PARSERS, NLACPrompts
from .types import Answer, Prompt


# The metric that counts, for each role, how many of its answers keep to their format.
FORMAT_METRICS = {
    "policy": "policy/format_rate",
    "successor": "successor/format_rate",
    "backup": "critic/format_rate",
    "critique": "critique/format_rate",
    "refine": "refine/format_rate",
}


class Roles:
    """
    Asks the model to speak in a role, in batches, and reads the answers.

    Args:
        generator ([`~generation.Generator`]):
            What samples tokens.
        chat ([`~chat.ChatEncoder`]):
            What turns messages into tokens.
        prompts ([`NLACPrompts`]):
            The words of the roles.
        samplings (`dict[str, Sampling]`):
            How each role samples.
        action_format (`str`):
            `"react"` or `"text"`.
        max_format_retries (`int`, *optional*, defaults to `1`):
            How often an answer that breaks its format is sampled again.

    Attributes:
        metrics (`dict[str, list[float]]`):
            Format and clipping rates since they were last taken.
    """

    def __init__(
        self,
        generator: Generator,
        chat: ChatEncoder,
        prompts: NLACPrompts,
        samplings: dict[str, Sampling],
        action_format: str,
        max_format_retries: int = 1,
    ):
        self.generator = generator
        self.chat = chat
        self.prompts = prompts
        self.samplings = samplings
        self.action_format = prompts.action_format(action_format)
        self.parse_action = ACTION_PARSERS[action_format]
        self.max_format_retries = max_format_retries
        self.metrics: dict[str, list[float]] = defaultdict(list)

    def follow_up(self, prompt: Prompt, content: str) -> Prompt:
        """`prompt`, which ends with an assistant's turn, followed by a user's message."""
        return prompt.extended(self.chat.reply(prompt.last_id, content))

    def ask(
        self,
        role: str,
        prompts: list[Prompt],
        parse: Callable[[str], Any | None],
        sampling: Sampling | None = None,
        max_format_retries: int | None = None,
    ) -> list[Answer]:
        """
        Let the model answer each prompt as `role`.

        Args:
            role (`str`):
                `"policy"`, `"successor"`, `"backup"`, `"critique"` or `"refine"`.
            prompts (`list[Prompt]`):
                What to answer.
            parse (`Callable[[str], Any | None]`):
                Reads an answer; `None` where it breaks the format.
            sampling ([`~generation.Sampling`], *optional*):
                In place of the role's own.
            max_format_retries (`int`, *optional*):
                In place of the roles' own.

        Returns:
            `list[Answer]`: in the order of the prompts. [`Answer.parsed`] is `None` where the format is broken or the
            answer was cut off, after all retries.
        """
        sampling = sampling or self.samplings[role]
        retries = self.max_format_retries if max_format_retries is None else max_format_retries
        if sampling.temperature == 0:
            retries = 0  # the same answer would come again
        answers: dict[int, Answer] = {}
        pending = list(range(len(prompts)))
        for _ in range(1 + retries):
            if not pending:
                break
            completions = self.generator.generate([prompts[i].ids for i in pending], sampling)
            for i, completion in zip(pending, completions, strict=True):
                text = self.chat.decode(completion.token_ids)
                parsed = parse(text) if completion.finished else None
                answers[i] = Answer(prompts[i], tuple(completion.token_ids), text, parsed)
                self.metrics[FORMAT_METRICS[role]].append(float(parsed is not None))
                self.metrics["completions/clipped_ratio"].append(float(not completion.finished))
            pending = [i for i in pending if answers[i].parsed is None]
        return [answers[i] for i in range(len(prompts))]

    def take_metrics(self) -> dict[str, float]:
        """Means of the metrics since the last call."""
        means = {name: sum(values) / len(values) for name, values in self.metrics.items()}
        self.metrics.clear()
        return means
