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

from dataclasses import dataclass

from .critic import critic_prompt, critiques
from .prompts import Critique, render
from .roles import Roles
from .types import Answer, Transition


@dataclass(frozen=True)
class Refinement:
    """
    A fresh action and what became of it.

    Args:
        action ([`Answer`]):
            a_t ~ pi_theta(. | s_t), the first attempt.
        attempt ([`Answer`]):
            The attempt that was refined last; with one round, the same.
        critique ([`~prompts.Critique`]):
            Q_L(s_t, a_t) of that attempt.
        refined_action ([`Answer`]):
            a_t^r, the target of the policy loss.
    """

    action: Answer
    attempt: Answer
    critique: Critique
    refined_action: Answer


def refine_actions(roles: Roles, transitions: list[Transition], num_refinements: int = 1) -> list[Refinement | None]:
    """
    Sample a_t ~ pi(. | s_t), Q_L(s_t, a_t) and a_t^r ~ pi^r(. | s_t, a_t, Q_L(s_t, a_t)) (section 4.2, equation 6).

    Call it with the policy's weights. With several rounds, the refinement policy sees all attempts and their critiques;
    the critic judges each attempt by itself, and an action that it calls the best is not refined again.

    Returns:
        `list[Refinement | None]`: `None` where the action, its first critique or its refinement broke its format.
    """
    actions = roles.ask("policy", [transition.state for transition in transitions], roles.parse_action)
    refinements: list[Refinement | None] = [None] * len(transitions)
    attempts = {i: action for i, action in enumerate(actions) if action.parsed is not None}
    conversations = {i: transitions[i].state for i in attempts}
    question = render(roles.prompts.refine, action_format=roles.action_format)
    for _ in range(num_refinements):
        state_actions = [transitions[i].state.extended(attempt.token_ids) for i, attempt in attempts.items()]
        answers = critiques(roles, state_actions)
        judged = {i: answer for i, answer in zip(attempts, answers, strict=True) if answer.parsed is not None}
        for i, critique in judged.items():
            attempt = conversations[i].extended(attempts[i].token_ids)
            criticised = critic_prompt(roles, attempt).extended(critique.token_ids)
            conversations[i] = roles.follow_up(criticised, question)
        refined = roles.ask("refine", [conversations[i] for i in judged], roles.parse_action)
        refinable = {}
        for (i, critique), action in zip(judged.items(), refined, strict=True):
            if action.parsed is not None:
                refinements[i] = Refinement(actions[i], attempts[i], critique.parsed, action)
                if not critique.parsed.optimal:
                    refinable[i] = action
        attempts = refinable
    return refinements
