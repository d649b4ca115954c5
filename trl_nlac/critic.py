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

"""The language critic and the language Bellman backup that writes its targets."""

from .prompts import parse_critique, parse_text, render
from .roles import Roles
from .types import Answer, Prompt, Transition


def critic_prompt(roles: Roles, state_action: Prompt) -> Prompt:
    """p_eval(s_t, a_t): what the critic answers. It contains neither the next observation nor the score."""
    return roles.follow_up(state_action, roles.prompts.critique)


def critiques(roles: Roles, state_actions: list[Prompt], **kwargs) -> list[Answer]:
    """
    Q_L(s_t, a_t): sample a critique of each action (equation 3 with k = 1, future and evaluation in one generation).

    Returns:
        `list[Answer]`: each parsed into a [`~prompts.Critique`], or `None` if it broke the format.
    """
    prompts = [critic_prompt(roles, state_action) for state_action in state_actions]
    return roles.ask("critique", prompts, parse_critique, **kwargs)


def bellman_targets(roles: Roles, transitions: list[Transition]) -> list[Answer]:
    """
    Sample targets of the language Bellman backup, d_t ~ B_L M(. | s_t, a_t) (equation 1, p_tpred in section 5.1).

    Call it with the target weights. A terminated step is judged by its observation and the final score. Any other
    step, a truncated one too, bootstraps: a future is foreseen from the observed s_{t+1}, then joined with it.

    Returns:
        `list[Answer]`: each parsed into a [`~prompts.Critique`], or `None` if it broke the format.
    """
    open_ended = [transition for transition in transitions if not transition.terminated]
    futures = iter(
        roles.ask(
            "successor",
            [
                roles.follow_up(
                    transition.state_action,
                    render(roles.prompts.successor, next_observation=transition.turn.next_observation),
                )
                for transition in open_ended
            ],
            parse_text,
        )
    )
    prompts = []
    for transition in transitions:
        if transition.terminated:
            question = render(
                roles.prompts.backup_terminated,
                next_observation=transition.turn.next_observation,
                score=f"{transition.episode.score:g}",
            )
            prompts.append(roles.follow_up(transition.state_action, question))
        else:
            future = next(futures)
            prompts.append(roles.follow_up(future.prompt.extended(future.token_ids), roles.prompts.backup))
    return roles.ask("backup", prompts, parse_critique)
