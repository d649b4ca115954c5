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

"""One model, four roles: ask it to answer in one of them."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from ..chat.actions import ActionFormat
from ..chat.encoder import ChatEncoder
from ..generation.base import Completion, Generator, Sampling
from ..options.checks import check
from ..options.roles import ROLE_DEFAULTS, ROLES, RoleOptions
from ..prompts import NLACPrompts, parse_corrected_think
from ..types import Answer, Message, Prompt, Transition
from .states import forgetful_task, opening_ids


# The metric of each role for the share of its answers that keep to their format.
FORMAT_METRICS = {
    "policy": "policy/format_rate",
    "successor": "successor/format_rate",
    "backup": "backup/format_rate",
    "critique": "critic/format_rate",
    "refine": "refine/format_rate",
    "correction": "correction/format_rate",
}

# The metric for the share of prompts that were longer than `max_prompt_length`, and not answered.
TOO_LONG = "prompts/too_long_ratio"

_rng: ContextVar[torch.Generator | None] = ContextVar("rng", default=None)


class Roles:
    """
    Ask the model for answers in its roles, in batches, and parse them. Where the generator is concurrent, threads can
    ask at the same time.

    Args:
        generator ([`~generation.base.Generator`]):
            Samples tokens.
        chat ([`~chat.encoder.ChatEncoder`]):
            Encodes messages.
        prompts ([`NLACPrompts`]):
            The prompts of the roles.
        options ([`~options.roles.RoleOptions`]):
            How the roles act and generate.
        action_regex (`str`, *optional*):
            Regular expression that every action must match. Only with vLLM.
        shows_progress (`bool`, *optional*, defaults to `False`):
            Whether long generations and rollouts show a progress bar.

    Attributes:
        actions ([`~chat.actions.ActionFormat`]):
            The format of actions.
        samplings (`dict[str, Sampling]`):
            How each role samples.
        corrects_reasoning (`bool`):
            Whether chains of thought are rewritten before training.
        metrics (`dict[str, list[float]]`):
            Format and clipping rates since [`take_metrics`].
        tokens (`Counter[str]`):
            Tokens so far by kind and role, such as `"generated/backup"`: those of answers, sampled again or not
            (`generated`), those of their prompts (`prefilled`), and how many of the latter were in a cache (`cached`,
            where the generator can say). Acting in an environment is the role `act`, and scoring verdicts `score`.

    Raises:
        ValueError: If the chat template does not support an option.
    """

    def __init__(
        self,
        generator: Generator,
        chat: ChatEncoder,
        prompts: NLACPrompts,
        options: RoleOptions,
        action_regex: str | None = None,
        shows_progress: bool = False,
    ):
        if options.reasoning and chat.reasoning_tags is None:
            raise ValueError(
                "`reasoning=True` needs a chat template that marks the chain of thought, with `<think>` for example. "
                "Use `reasoning=None` or `False` with this model."
            )
        self.generator = generator
        self.chat = chat
        self.prompts = prompts
        self.options = options
        self.actions = ActionFormat(chat, options.action_format, options.keep_history)
        self.samplings = role_samplings(options, action_regex)
        self.corrects_reasoning = chat.reasoning_tags is not None if options.reasoning is None else options.reasoning
        self.shows_progress = shows_progress
        self.metrics: dict[str, list[float]] = defaultdict(list)
        self.tokens: Counter[str] = Counter()
        self._recording = threading.Lock()
        self._collected: defaultdict[str, list[Answer]] | None = None

    @property
    def num_generated_tokens(self) -> int:
        """Number of tokens of all answers so far."""
        return self._num_tokens("generated")

    @property
    def num_prefilled_tokens(self) -> int:
        """Number of tokens of all prompts so far."""
        return self._num_tokens("prefilled")

    def _num_tokens(self, kind: str) -> int:
        return sum(number for name, number in self.tokens.items() if name.startswith(f"{kind}/"))

    def check_generation(self, model: nn.Module) -> None:
        """
        Sample a token as each role does: generators look at most of `generation_kwargs` only then.

        Args:
            model (`nn.Module`):
                The model, for a session of the generator.

        Raises:
            ValueError: If the generator cannot use them.
        """
        prompt = self.opened(Prompt.of(self.chat.start([{"role": "user", "content": "?"}]))).ids
        try:
            with self.generator.session(model):
                for sampling in self.samplings.values():
                    self.generator.generate([prompt], replace(sampling, max_tokens=1), seeds=[0])
            self.generator.take_metrics()
        except Exception as error:
            requirement = f"what the generator can use ({type(error).__name__}: {error})"
            check(self.options, "generation_kwargs", False, requirement)

    # Conversations

    def follow_up(self, prompt: Prompt, question: list[Message]) -> Prompt:
        """Append a question, see [`NLACPrompts.question`], to `prompt`, which ends with an assistant's turn."""
        for message in question:
            if message["role"] == "user":
                prompt = prompt.extended(self.chat.reply(prompt.last_id, message["content"]))
            else:
                prompt = prompt.extended(self.chat.past_turn(message))
        return self.fitted(prompt)

    def observe(self, transition: Transition) -> Prompt:
        """Return s_{t+1}: (s_t, a_t) and the observation after it or, without history, the observation alone."""
        episode, turn, prompt = transition.episode, transition.turn, transition.state_action
        if not self.actions.keeps_history:
            task = forgetful_task(list(episode.opening), turn.next_observation)
            state = opening_ids(self.actions, self.prompts, task, list(episode.tools))
            return Prompt.of(state, episode.tools, len(state))
        observed = self.actions.observation_ids(prompt.last_id, turn.action, turn.next_observation, turn.words)
        return self.fitted(prompt.extended(observed))

    def continued(self, prompt: Prompt, answer: Answer, keeps_reasoning: bool | None = None) -> Prompt:
        """Append `answer` to `prompt`, as it stays in the conversation."""
        return prompt.extended(self.actions.remembered(list(answer.token_ids), answer.parsed, keeps_reasoning))

    def opened(self, prompt: Prompt) -> Prompt:
        """Append the prefill of the chat template: `prompt` as the model sees it when it answers."""
        return prompt.extended(self.chat.prefill)

    def fits(self, prompt: Prompt) -> bool:
        """Whether a prompt keeps to `max_prompt_length`. One that does not is never answered."""
        limit = self.options.max_prompt_length
        return limit is None or prompt.num_tokens <= limit

    def fitted(self, prompt: Prompt) -> Prompt:
        """
        Leave the oldest turns of a prompt out if it is longer than `max_prompt_length`: the opening with a mark, the
        newest turns that fit, and what follows the state stay. A prompt that cannot be cut so far stays as it is.
        """
        if self.fits(prompt):
            return prompt
        trunk = prompt.trunk[prompt.trunk_start : prompt.trunk_end].tolist()
        starts = [start for start in self.chat.answer_starts(trunk) if start >= prompt.opening_length]
        if not starts:
            return prompt
        kept = self.chat.marked(trunk[: starts[0]], self.prompts.history_cut)
        room = self.options.max_prompt_length - len(kept) - len(prompt.branch)
        newest = next((start for start in starts[1:] if len(trunk) - start <= room), None)
        if newest is None:
            return prompt
        return replace(Prompt.of(kept + trunk[newest:], prompt.tools, prompt.opening_length), branch=prompt.branch)

    # Questions

    def act(
        self, prompts: list[Prompt], seeds: list[int] | None = None, sampling: Sampling | None = None
    ) -> list[Answer]:
        """
        Answer states as the policy, once each: an answer that is not an action is kept.

        Args:
            prompts (`list[Prompt]`):
                The states.
            seeds (`list[int]`, *optional*):
                Seed of each answer. If `None`, drawn, see [`seeded`].
            sampling ([`~generation.base.Sampling`], *optional*):
                In place of the policy's own.
        """
        return self.ask("policy", prompts, None, sampling, max_format_retries=0, seeds=seeds, counted_as="act")

    def ask(
        self,
        role: str,
        prompts: list[Prompt],
        parse: Callable[[str], Any | None] | None = None,
        sampling: Sampling | None = None,
        max_format_retries: int | None = None,
        seeds: list[int] | None = None,
        counted_as: str | None = None,
    ) -> list[Answer]:
        """
        Answer each prompt as `role`.

        Args:
            role (`str`):
                `"policy"`, `"successor"`, `"backup"`, `"critique"`, `"refine"` or `"correction"`.
            prompts (`list[Prompt]`):
                The prompts.
            parse (`Callable[[str], Any | None]`, *optional*):
                Parses an answer; `None` where it breaks the format. If `None`, the answers are actions, in which the
                tools of their prompts can be called.
            sampling ([`~generation.base.Sampling`], *optional*):
                In place of the role's own.
            max_format_retries (`int`, *optional*):
                In place of the option.
            seeds (`list[int]`, *optional*):
                Seed of each answer. If `None`, drawn, see [`seeded`].
            counted_as (`str`, *optional*):
                Role under which its tokens are counted. If `None`, `role`.

        Returns:
            `list[Answer]`: in the order of the prompts. [`Answer.parsed`] is `None` where the format is broken or the
            answer was cut off, after all retries, and where the prompt is longer than `max_prompt_length`: it is not
            answered.
        """
        sampling = sampling or self.samplings[role]
        retries = self.options.max_format_retries if max_format_retries is None else max_format_retries
        if sampling.temperature == 0:
            retries = 0  # the same answer would come again
        seeds = torch.randint(2**62, (len(prompts),), generator=self.rng).tolist() if seeds is None else seeds
        answers = {i: Answer(prompt, (), "", None) for i, prompt in enumerate(prompts)}
        pending = [i for i, prompt in enumerate(prompts) if self.fits(prompt)]
        with self._recording:
            self.metrics[TOO_LONG] += [float(not self.fits(prompt)) for prompt in prompts]
        for attempt in range(1 + retries):
            if not self.generator.any_process(bool(pending)):
                break
            opened = [self.opened(prompts[i]).ids for i in pending]
            seeds_now = [seeds[i] + attempt for i in pending]
            completions = self._complete(role, opened, sampling, seeds_now, counted_as or role)
            for i, completion in zip(pending, completions, strict=True):
                if parse is None:
                    text, parsed = self.actions.read(prompts[i], completion.token_ids)
                else:
                    text = self.chat.decode(completion.token_ids)
                    parsed = parse(text)
                parsed = parsed if completion.finished else None
                answers[i] = Answer(prompts[i], tuple(completion.token_ids), text, parsed, completion.finished)
            with self._recording:
                self.metrics[FORMAT_METRICS[role]] += [float(answers[i].parsed is not None) for i in pending]
                clipped = [float(not completion.finished) for completion in completions]
                self.metrics["completions/clipped_ratio"] += clipped
            pending = [i for i in pending if answers[i].parsed is None]
        if self._collected is not None:
            with self._recording:
                self._collected[role] += [answer for answer in answers.values() if answer.parsed is not None]
        return [answers[i] for i in range(len(prompts))]

    def _complete(
        self, role: str, prompts: list[list[int]], sampling: Sampling, seeds: list[int], counted_as: str
    ) -> list[Completion]:
        """Generate a completion of each prompt; if they are greedy, one for all prompts that are the same."""
        places = list(range(len(prompts)))
        if sampling.temperature == 0:
            first: dict[tuple[int, ...], int] = {}
            places = [first.setdefault(tuple(prompt), i) for i, prompt in enumerate(prompts)]
        asked = sorted(set(places))
        with self.progress(role, len(asked), "answer") as bar:
            answers = self.generator.generate([prompts[i] for i in asked], sampling, [seeds[i] for i in asked], bar)
        completions = dict(zip(asked, answers, strict=True))
        with self._recording:
            for i, completion in completions.items():
                self.tokens[f"generated/{counted_as}"] += len(completion.token_ids)
                self.tokens[f"prefilled/{counted_as}"] += len(prompts[i])
                if completion.num_cached_tokens is not None:
                    self.tokens[f"cached/{counted_as}"] += completion.num_cached_tokens
        return [completions[i] for i in places]

    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        """Compute the log-likelihood of each completion, see [`~generation.base.Generator`]."""
        with self._recording:
            self.tokens["prefilled/score"] += sum(map(len, [*prompts, *completions]))
        return self.generator.score(prompts, completions)

    def correct_reasoning(self, answers: list[Answer], prompt_name: str) -> list[Answer]:
        """
        Rewrite the chains of thought of answers that become training targets (appendix A.2 and A.3). The training
        prompt does not show what the thoughts used: the next observation and the score, or the critique.

        Args:
            answers (`list[Answer]`):
                Targets or refined actions.
            prompt_name (`str`):
                Name of the prompt that asks for the rewriting.

        Returns:
            `list[Answer]`: with the rewritten chain of thought and the content as it was sampled. Where the rewriting
            could not be parsed, or makes an answer longer than that of any role, for which the model's context need
            not have room, [`Answer.parsed`] is `None`. Answers without a chain of thought stay as they are.
        """
        if not self.corrects_reasoning:
            return answers
        question = self.prompts.question(prompt_name)
        thoughtful = [i for i, a in enumerate(answers) if a.parsed is not None and self.chat.reasoning(a.token_ids)]
        prompts = [
            self.follow_up(self.continued(answers[i].prompt, answers[i], keeps_reasoning=True), question)
            for i in thoughtful
        ]
        corrected, longest = list(answers), max(sampling.max_tokens for sampling in self.samplings.values())
        are_too_long = []
        for i, correction in zip(thoughtful, self.ask("correction", prompts, parse_corrected_think), strict=True):
            corrected[i] = replace(answers[i], parsed=None)
            if correction.parsed is not None:
                token_ids = self.chat.with_reasoning(list(answers[i].token_ids), correction.parsed)
                are_too_long.append(len(token_ids) > longest)
                if not are_too_long[-1]:
                    corrected[i] = replace(answers[i], token_ids=tuple(token_ids))
        self.note("correction/too_long_ratio", list(map(float, are_too_long)))
        return corrected

    # Random numbers

    @property
    def rng(self) -> torch.Generator | None:
        """What random choices are drawn from: `None` is torch's global generator."""
        return _rng.get()

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """
        Draw random choices, the seeds of answers among them, from a generator of its own within this context, in this
        thread: they do not depend on what other threads draw.
        """
        token = _rng.set(torch.Generator().manual_seed(seed))
        try:
            yield
        finally:
            _rng.reset(token)

    # Progress and metrics

    def progress(self, description: str, total: int, unit: str) -> tqdm:
        """Make a progress bar, shown after 5 s if there is more than one thing to do."""
        hides = not self.shows_progress or total < 2
        return tqdm(desc=description, total=total, unit=unit, leave=False, delay=5.0, disable=hides)

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Leave the answers within this context out of the metrics."""
        metrics = {name: list(values) for name, values in self.metrics.items()}
        try:
            yield
        finally:
            self.metrics.clear()
            self.metrics.update(metrics)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leave the answers within this context out of the tokens."""
        tokens = Counter(self.tokens)
        try:
            yield
        finally:
            self.tokens = tokens

    @contextmanager
    def collected(self) -> Iterator[dict[str, list[Answer]]]:
        """Collect the readable answers of every role within this context."""
        self._collected = defaultdict(list)
        try:
            yield self._collected
        finally:
            self._collected = None

    def note(self, name: str, values: list[float]) -> None:
        """Add values to a metric. Threads can do so at the same time."""
        with self._recording:
            self.metrics[name] += values

    def absorb(self, other: "Roles") -> None:
        """Take over the metrics and the counted tokens of roles in another thread."""
        with other._recording:
            metrics, other.metrics = other.metrics, defaultdict(list)
            tokens, other.tokens = other.tokens, Counter()
        with self._recording:
            for name, values in metrics.items():
                self.metrics[name] += values
            self.tokens.update(tokens)

    def take_metrics(self) -> dict[str, float]:
        """Return the means of the metrics since the last call, and those of the generator."""
        with self._recording:
            taken, self.metrics = self.metrics, defaultdict(list)
        means = {name: sum(values) / len(values) for name, values in taken.items() if values}
        return {**means, **self.generator.take_metrics()}


def role_samplings(options: RoleOptions, action_regex: str | None = None) -> dict[str, Sampling]:
    """
    Combine the general options of sampling with those of each role.

    Args:
        options ([`~options.roles.RoleOptions`]):
            The options.
        action_regex (`str`, *optional*):
            Regular expression that every action must match.

    Returns:
        `dict[str, Sampling]`: by role; `"evaluation"` is the policy in evaluation.
    """
    general = {
        "max_tokens": options.max_completion_length,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "min_p": options.min_p,
        "repetition_penalty": options.repetition_penalty,
    }
    own = {role: {**ROLE_DEFAULTS.get(role, {}), **(options.role_sampling or {}).get(role, {})} for role in ROLES}
    own["evaluation"] = {**own["policy"], **own["evaluation"]}
    samplings = {}
    for role in ROLES:
        settings = {**general, **own[role]}
        samplings[role] = Sampling(
            **{**settings, "min_p": settings["min_p"] or None},
            generation_kwargs=options.generation_kwargs or {},
            regex=action_regex if role in ("policy", "refine", "evaluation") else None,
        )
    return samplings
