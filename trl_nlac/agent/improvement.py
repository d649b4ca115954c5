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

"""Better actions without training: refinement after critique, and a choice among candidates by their verdict scores."""

from dataclasses import dataclass, field, replace

import torch

from ..generation.base import Sampling
from ..method.critic import Judgement, critiques, judge_actions, judge_critiques
from ..method.refinement import ask_refined
from ..method.roles import Roles
from ..types import Answer, Prompt


@dataclass
class Choice:
    """
    An action and how it came about.

    Args:
        answer ([`Answer`]):
            What was said in the end; parsed into `None` if that is no action.
        judgement ([`~method.critic.Judgement`], *optional*):
            What the critic says about it, if it was asked.
        attempts (`list[tuple[str, Judgement]]`):
            Actions before it that were refined, with what the critic said.
        candidates (`list[tuple[str, Judgement | None]]`):
            Actions among which it was chosen.
    """

    answer: Answer
    judgement: Judgement | None = None
    attempts: list[tuple[str, Judgement]] = field(default_factory=list)
    candidates: list[tuple[str, Judgement | None]] = field(default_factory=list)


def choose_actions(
    roles: Roles,
    prompts: list[Prompt],
    refine: int = 0,
    num_candidates: int = 1,
    alpha: float = 1.0,
    sampling: Sampling | None = None,
    seeds: list[int] | None = None,
) -> list[Choice]:
    """
    Act in each state.

    Args:
        roles ([`~method.roles.Roles`]):
            Who acts and judges.
        prompts (`list[Prompt]`):
            The states.
        refine (`int`, *optional*, defaults to `0`):
            Rounds of critique and refinement. They end at an action that the critic calls the best.
        num_candidates (`int`, *optional*, defaults to `1`):
            Number of actions to sample, of which one is chosen with pi(a|s) proportional to exp(alpha Q(s, a)), Q being the
            verdict score (LAC, https://huggingface.co/papers/2506.06376).
        alpha (`float`, *optional*, defaults to `1.0`):
            How much verdict scores count among candidates.
        sampling ([`~generation.base.Sampling`], *optional*):
            How to sample actions, in place of the policy's own.
        seeds (`list[int]`, *optional*):
            What the action in each state is sampled by. If `None`, they are drawn from torch's global generator.

    Returns:
        `list[Choice]`: in the order of the states.

    Raises:
        ValueError: If a number is out of range.
    """
    for name, value, least in (("refine", refine, 0), ("num_candidates", num_candidates, 1), ("alpha", alpha, 0)):
        if value < least:
            raise ValueError(f"`{name}` must be at least {least}, got {value}.")
    repeated = [prompt for prompt in prompts for _ in range(num_candidates)]
    seeds = seeds and [seed + i for seed in seeds for i in range(num_candidates)]
    said = roles.ask("policy", repeated, roles.parse_action, sampling, max_format_retries=0, seeds=seeds)
    groups = [said[i : i + num_candidates] for i in range(0, len(said), num_candidates)]
    choices = _chosen(roles, groups, alpha) if num_candidates > 1 else [Choice(group[0]) for group in groups]
    refine_choices(roles, prompts, choices, refine)
    return choices


def _chosen(roles: Roles, groups: list[list[Answer]], alpha: float) -> list[Choice]:
    """One action of each group, by the verdict scores."""
    actions = [action for group in groups for action in group if action.parsed is not None]
    state_actions = [roles.continued(action.prompt, action) for action in actions]
    judged = dict(zip(map(id, actions), judge_actions(roles, state_actions), strict=True))
    choices = []
    for group in groups:
        group = [action for action in group if action.parsed is not None] or group[:1]
        judgements = [judged.get(id(action)) for action in group]
        scores = torch.tensor([judgement.verdict_score if judgement else -torch.inf for judgement in judgements])
        if alpha == 0 or scores.isinf().all():  # any, or no critique could be read
            scores = torch.zeros(len(group))
        i = int(torch.multinomial(torch.softmax(alpha * scores, 0), 1))
        candidates = [(action.parsed, judgement) for action, judgement in zip(group, judgements, strict=True)]
        choices.append(Choice(group[i], judgements[i], candidates=candidates))
    return choices


def refine_choices(roles: Roles, prompts: list[Prompt], choices: list[Choice], rounds: int) -> None:
    """Rounds of refinement of the action in each state; the refinement policy sees all attempts and their critiques."""
    open_ = [i for i, choice in enumerate(choices) if choice.answer.parsed is not None]
    together = {i: roles.continued(prompts[i], choices[i].answer) for i in open_}
    for _ in range(rounds):
        answers = critiques(roles, [roles.continued(prompts[i], choices[i].answer) for i in open_])
        judged = dict(zip(open_, zip(answers, judge_critiques(roles, answers), strict=True), strict=True))
        for i, (_, judgement) in judged.items():
            choices[i].judgement = judgement
        open_ = [i for i, (_, judgement) in judged.items() if judgement is not None and not judgement.verdict]
        refined = ask_refined(roles, [together[i] for i in open_], [judged[i][0] for i in open_])
        readable = {i: answer for i, answer in zip(open_, refined, strict=True) if answer.parsed is not None}
        for i, answer in readable.items():
            choices[i].attempts.append((choices[i].answer.parsed, choices[i].judgement))
            choices[i].answer, choices[i].judgement = answer, None
            together[i] = roles.continued(answer.prompt, answer)
        open_ = list(readable)


def judge_choices(roles: Roles, prompts: list[Prompt], choices: list[Choice]) -> None:
    """Let the critic judge the action in each state, if it has not and there is one."""
    open_ = [i for i, choice in enumerate(choices) if choice.judgement is None and choice.answer.parsed is not None]
    judged = judge_actions(roles, [roles.continued(prompts[i], choices[i].answer) for i in open_])
    for i, judgement in zip(open_, judged, strict=True):
        choices[i].judgement = judgement


class ImprovedRoles(Roles):
    """
    Roles whose policy is improved at the time of acting, see [`choose_actions`]; for whoever plays episodes.

    Args:
        roles ([`Roles`]):
            Who acts, judges and refines.
        refine (`int`), num_candidates (`int`), alpha (`float`):
            As of [`choose_actions`].
    """

    def __init__(self, roles: Roles, refine: int, num_candidates: int, alpha: float):
        vars(self).update(vars(roles))
        self.roles = roles
        self.refine = refine
        self.num_candidates = num_candidates
        self.alpha = alpha

    def ask(self, role, prompts, parse, sampling=None, max_format_retries=None, seeds=None) -> list[Answer]:
        if role != "policy":
            return self.roles.ask(role, prompts, parse, sampling, max_format_retries, seeds)
        choices = choose_actions(
            self.roles, prompts, self.refine, self.num_candidates, self.alpha, sampling=sampling, seeds=seeds
        )
        return [replace(choice.answer, prompt=prompt) for choice, prompt in zip(choices, prompts, strict=True)]
