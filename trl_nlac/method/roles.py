# SPDX-License-Identifier: Apache-2.0

"""One model, four roles: ask it to answer in one of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from ..chat.actions import ActionFormat
from ..chat.encoder import ChatEncoder
from ..generation.generator import Completion, Generator, Sampling
from ..options.checks import check
from ..options.role_options import ROLE_DEFAULTS, ROLES, RoleOptions
from ..prompts import BEGUN, NLACPrompts, begun_thought, parse_corrected_think, render
from ..types import Answer, Prompt
from .prompt_builder import PromptBuilder
from .randomness import draw_seeds
from .tally import Tally


_NUM_PARTS = 3  # of an answer that are begun: future, verdict, advice

# The metric for the share of prompts that were longer than `max_prompt_length`, and not answered.
TOO_LONG = "prompts/too_long_ratio"


@dataclass(eq=False)
class Roles:
    """
    Ask the model for answers in its roles, in batches, and parse them. Where the generator is concurrent, threads can
    ask at the same time. Every action must match `action_regex`, which works only with vLLM. Raise a `ValueError` if
    the chat template does not support an option.
    """

    generator: Generator
    chat: ChatEncoder
    prompts: NLACPrompts
    options: RoleOptions
    action_regex: str | None = None
    shows_progress: bool = False

    def __post_init__(self):
        chat, prompts, options = self.chat, self.prompts, self.options
        if options.reasoning and chat.reasoning_tags is None:
            raise ValueError(
                "`reasoning=True` needs a chat template that marks the chain of thought, with `<think>` for example. "
                "Use `reasoning=None` or `False` with this model."
            )
        self.actions = ActionFormat(chat, options.action_format, options.keep_history)
        if self.actions.calls_tools:
            form = render(prompts.format_tool_call, call=self.actions.call_form())
            self.prompts = prompts = replace(prompts, format_tool_call=form)
        self.builder = PromptBuilder(self.actions, prompts, options)
        self.samplings = role_samplings(options, self.action_regex)
        self.judging = judging_prompts(options)
        # Whether chains of thought are rewritten before training.
        self.corrects_reasoning = chat.reasoning_tags is not None if options.reasoning is None else options.reasoning
        self.tally = Tally()

    def check_generation(self, model: nn.Module) -> None:
        """Sample a token as each role does: only then are most options looked at. A `ValueError` if one is bad."""
        prompt = self.builder.opened(Prompt.of(self.chat.start([{"role": "user", "content": "?"}]))).ids
        try:
            with self.generator.session(model):
                for sampling in self.samplings.values():
                    self.generator.generate([prompt], replace(sampling, max_tokens=1), seeds=[0])
            self.generator.take_metrics()
        except (TypeError, ValueError) as error:
            requirement = f"what the generator can use ({type(error).__name__}: {error})"
            check(self.options, "generation_kwargs", False, requirement)

    # Questions

    def act(
        self, prompts: list[Prompt], seeds: list[int] | None = None, sampling: Sampling | None = None
    ) -> list[Answer]:
        """Answer states as the policy, once each, also with what is no action. Seeds are drawn if there are none."""
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
        Answer each prompt as `role`: `"policy"`, `"successor"`, `"backup"`, `"critic"`, `"refine"` or
        `"correction"`. `parse` returns `None` where an answer breaks the format; without it answers are actions, in
        which the tools of their prompts can be called. Critiques are begun for a model that does not think first, see
        [`~prompts.begun_critique`]. `sampling` and `max_format_retries` replace those of the role. A greedy role is
        asked again at temperature 1. Seeds are drawn if there are none, see [`~method.randomness.seeded`]. Tokens are
        counted under the role, or under `counted_as`.

        [`Answer.parsed`] is `None` where the format is broken or the answer was cut off, after all retries, and where
        the prompt is longer than `max_prompt_length`: it is not answered.
        """
        sampling = sampling or self.samplings[role]
        begin = self._beginning(role, parse)
        retries = self.options.max_format_retries if max_format_retries is None else max_format_retries
        seeds = draw_seeds(len(prompts)) if seeds is None else seeds
        answers = {i: Answer(prompt, (), "", None) for i, prompt in enumerate(prompts)}
        fit = [self.builder.fits(prompt) for prompt in prompts]
        pending = [i for i, fits in enumerate(fit) if fits]
        self.tally.note(TOO_LONG, [float(not fits) for fits in fit])
        for attempt in range(1 + retries):
            if not self.generator.any_process(bool(pending)):
                break
            opened = [self.builder.opened(prompts[i]).ids for i in pending]
            seeds_now = [seeds[i] + attempt for i in pending]
            if attempt and sampling.temperature == 0:
                sampling = replace(sampling, temperature=1.0)  # otherwise the same answer would come again
            of_attempt = (role, opened, sampling, seeds_now, counted_as or role)
            if begin is None:
                completions = self._complete(*of_attempt)
            else:
                completions = self._complete_form(*of_attempt, begin)
            for i, completion in zip(pending, completions, strict=True):
                if parse is None:
                    text, parsed = self.actions.read(prompts[i], completion.token_ids, takes_whole=role == "policy")
                else:
                    text = self.chat.decode(completion.token_ids)
                    parsed = parse(text)
                parsed = parsed if completion.finished else None
                answers[i] = Answer(prompts[i], tuple(completion.token_ids), text, parsed, completion.finished)
            self.tally.note(f"{role}/format_rate", [float(answers[i].parsed is not None) for i in pending])
            self.tally.note("completions/clipped_ratio", [float(not c.finished) for c in completions])
            pending = [i for i in pending if answers[i].parsed is None]
        return [answers[i] for i in range(len(prompts))]

    def _beginning(self, role: str, parse: Callable[[str], Any | None] | None) -> Callable[[str], str | None] | None:
        """Return what begins answers of a role: `None` for a model that thinks first, or if no form is shown."""
        is_thought = role == "refine" and self.options.action_format == "react" and not self.samplings[role].regex
        begin = begun_thought if is_thought else BEGUN.get(parse)
        if begin is None or self.chat.template.thinks_by_default:
            return None
        names = (role,) if is_thought else self.judging[role]
        return begin if self.prompts.show_form(begin(""), *names) else None

    def _complete_form(
        self,
        role: str,
        prompts: list[list[int]],
        sampling: Sampling,
        seeds: list[int],
        counted_as: str,
        begin: Callable[[str], str | None],
    ) -> list[Completion]:
        """
        Generate completions whose parts `begin` for the model: small models call a tool instead, or end after the
        first line. What ended without a part, within half of the limit, goes on with its beginning. Processes that
        generate together do so at the same points, with the same limits.
        """
        completions: dict[int, Completion] = {}
        label, half = self.chat.beginning(begin("")), sampling.max_tokens // 2
        begun, limit = dict.fromkeys(range(len(prompts)), label), sampling.max_tokens - len(label)
        for _ in range(_NUM_PARTS):
            if not self.generator.any_process(bool(begun)):
                break
            within = replace(sampling, max_tokens=max(1, limit))
            opened = [prompts[i] + token_ids for i, token_ids in begun.items()]
            found = self._complete(role, opened, within, [seeds[i] for i in begun], counted_as)
            for (i, token_ids), completion in zip(begun.items(), found, strict=True):
                completions[i] = replace(completion, token_ids=token_ids + completion.token_ids)
            ended = {i: self.chat.decode(completions[i].token_ids) for i in begun if completions[i].finished}
            begun = {i: self.chat.beginning(more) for i, text in ended.items() if (more := begin(text)) is not None}
            begun = {i: token_ids for i, token_ids in begun.items() if len(token_ids) <= half}
            limit = half
        return [completions[i] for i in range(len(prompts))]

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
        for i, completion in completions.items():
            cached = completion.num_cached_tokens
            known = {} if cached is None else {"cached": cached}
            self.tally.count(counted_as, generated=len(completion.token_ids), prefilled=len(prompts[i]), **known)
        return [completions[i] for i in places]

    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        """Compute the log-likelihood of each completion, see [`~generation.generator.Generator`]."""
        self.tally.count("score", prefilled=sum(map(len, [*prompts, *completions])))
        return self.generator.score(prompts, completions)

    def correct_reasoning(self, answers: list[Answer], prompt_name: str) -> list[Answer]:
        """
        Rewrite the chains of thought of answers that become training targets (appendix A.2 and A.3), by the prompt of
        this name. The training prompt does not show what the thoughts used: the next observation and the score, or the
        critique. The content stays as it was sampled. Where the rewriting could not be parsed, or makes an answer
        longer than that of any role, for which the model's context need not have room, [`Answer.parsed`] is `None`.
        Answers without a chain of thought stay as they are.
        """
        if not self.corrects_reasoning:
            return answers
        question = self.prompts.question(prompt_name)
        thoughtful = [i for i, a in enumerate(answers) if a.parsed is not None and self.chat.reasoning(a.token_ids)]
        prompts = [
            self.builder.follow_up(
                self.builder.continued(answers[i].prompt, answers[i], keeps_reasoning=True), question
            )
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
        self.tally.note("correction/too_long_ratio", list(map(float, are_too_long)))
        return corrected

    # Progress and metrics

    def progress(self, description: str, total: int, unit: str) -> tqdm:
        """Make a progress bar, shown after 5 s if there is more than one thing to do."""
        hides = not self.shows_progress or total < 2
        return tqdm(desc=description, total=total, unit=unit, leave=False, delay=5.0, disable=hides)

    @contextmanager
    def aside(self, seed: int, device: torch.device) -> Iterator[None]:
        """Answer with a seed of its own, outside training: its random state, metrics and tokens stay as they were."""
        with (
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
            self.tally.uncounted(),
            self.tally.unrecorded(),
        ):
            torch.manual_seed(seed)
            yield

    def take_metrics(self) -> dict[str, float]:
        """Return the means of the metrics since the last call, and those of the generator."""
        return {**self.tally.take(), **self.generator.take_metrics()}


def judging_prompts(options: RoleOptions) -> dict[str, tuple[str, ...]]:
    """Name the prompts by which critic and backup judge: the latter after a step, and after the last of a task."""
    if options.single_step:
        return {"critic": ("correctness",), "backup": ("backup_correctness", "backup_correctness")}
    if options.num_futures > 1:
        return {"critic": ("evaluation",), "backup": ("backup_future", "backup_future_terminated")}
    return {"critic": ("critique",), "backup": ("backup", "backup_terminated")}


def role_samplings(options: RoleOptions, action_regex: str | None = None) -> dict[str, Sampling]:
    """Combine the general options with those of each role; `"evaluation"` is the policy in evaluation."""
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
