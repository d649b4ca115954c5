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

"""The refinement policy: act, be criticised, act better."""

from dataclasses import dataclass, replace

from ..prompts import Critique, render
from ..types import Answer, Prompt, Transition
from .critic import critiques, judgement_prompt
from .reasoning import correct_reasoning
from .roles import Roles


REPLAYED_FRACTIONS = {"policy": 0.0, "replay": 1.0}  # of stored actions among the refined, by `refinement_source`


@dataclass(frozen=True)
class Refinement:
    """
    An action and what became of it.

    Args:
        action (`str`):
            The first attempt: a fresh action a_t ~ pi_theta(. | s_t), or the stored one.
        attempt (`str`):
            The attempt that was refined last; with one round, the same.
        critique ([`~prompts.Critique`]):
            Q_L(s_t, a_t) of that attempt.
        refined_action ([`Answer`]):
            a_t^r, the target of the policy loss.
    """

    action: str
    attempt: str
    critique: Critique
    refined_action: Answer


def refine_actions(
    roles: Roles,
    transitions: list[Transition],
    num_refinements: int = 1,
    targets: dict[int, Answer] | None = None,
) -> list[Refinement | None]:
    """
    Sample a_t ~ pi(. | s_t), Q_L(s_t, a_t) and a_t^r ~ pi^r(. | s_t, a_t, Q_L(s_t, a_t)) (section 4.2, equation 6).

    Call it with the policy's weights. With several rounds, the refinement policy sees all attempts and their critiques;
    the critic judges each attempt by itself, and an action that it calls the best is not refined again.

    Args:
        roles ([`~method.roles.Roles`]):
            The speakers.
        transitions (`list[Transition]`):
            Where to act.
        num_refinements (`int`, *optional*, defaults to `1`):
            Rounds m.
        targets (`dict[int, Answer]`, *optional*):
            Bellman targets of some of the transitions, by index. There the stored action is refined in place of a fresh
            one, with its target as the first critique (`refinement_source="replay"`).

    Returns:
        `list[Refinement | None]`: `None` where the action, its first critique or its refinement broke its format.
    """
    judged: dict[int, Answer] = dict(targets or {})
    fresh = [i for i in range(len(transitions)) if i not in judged]
    actions = roles.ask("policy", [transitions[i].state for i in fresh], roles.parse_action)
    attempts: dict[int, str] = {i: transitions[i].turn.action for i in judged}
    alone: dict[int, Prompt] = {i: transitions[i].state_action for i in judged}
    for i, action in zip(fresh, actions, strict=True):
        if action.parsed is not None:
            attempts[i], alone[i] = action.parsed, roles.continued(action.prompt, action)
    together = dict(alone)  # with the attempts before it
    first_attempts = dict(attempts)
    refinements: list[Refinement | None] = [None] * len(transitions)
    for _ in range(num_refinements):
        unjudged = [i for i in attempts if i not in judged]
        judged.update(zip(unjudged, critiques(roles, [alone[i] for i in unjudged]), strict=True))
        readable = [i for i in attempts if judged[i].parsed is not None]
        refined = ask_refined(roles, [together[i] for i in readable], [judged[i] for i in readable])
        before, attempts = attempts, {}
        for i, action in zip(readable, refined, strict=True):
            if action.parsed is not None:
                critique = judged[i].parsed
                refinements[i] = Refinement(first_attempts[i], before[i], critique, action)
                if not critique.optimal:
                    attempts[i] = action.parsed
                    alone[i] = roles.continued(transitions[i].state, action)
                    together[i] = roles.continued(action.prompt, action)
        judged = {}
    return _corrected(roles, refinements)


def ask_refined(roles: Roles, state_actions: list[Prompt], critiques: list[Answer]) -> list[Answer]:
    """
    a_t^r ~ pi^r(. | s_t, a_t, Q_L(s_t, a_t)), one refined action each (equation 6).

    Args:
        roles ([`~method.roles.Roles`]):
            The speakers.
        state_actions (`list[Prompt]`):
            Conversations that end with the action, which may hold attempts before it and their critiques.
        critiques (`list[Answer]`):
            What the critic says about each action.
    """
    question = render(roles.prompts.refine, action_format=roles.action_format)
    conversations = [
        roles.follow_up(roles.continued(judgement_prompt(roles, state_action), critique), question)
        for state_action, critique in zip(state_actions, critiques, strict=True)
    ]
    return roles.ask("refine", conversations, roles.parse_action)


def _corrected(roles: Roles, refinements: list[Refinement | None]) -> list[Refinement | None]:
    """With chains of thought that do not speak of the critique."""
    found = [i for i, refinement in enumerate(refinements) if refinement is not None]
    answers = correct_reasoning(roles, [refinements[i].refined_action for i in found], roles.prompts.correct_refine)
    for i, answer in zip(found, answers, strict=True):
        refinements[i] = None if answer.parsed is None else replace(refinements[i], refined_action=answer)
    return refinements
