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


def bellman_targets(roles: Roles, transitions: list[Transition], bootstrap: str = "implicit") -> list[Answer]:
    """
    Sample targets of the language Bellman backup, d_t ~ B_L M(. | s_t, a_t) (equation 1, p_tpred in section 5.1).

    Call it with the target weights. A terminated step is judged by its observation and the final score. Any other
    step, a truncated one too, bootstraps: a future is foreseen from the observed s_{t+1}, then joined with it.

    Args:
        roles ([`~roles.Roles`]):
            The speakers.
        transitions (`list[Transition]`):
            The observed steps.
        bootstrap (`str`, *optional*, defaults to `"implicit"`):
            Where the future from s_{t+1} comes from: `"implicit"` asks the successor model for action and future in one
            (section 5.1), `"explicit"` samples a_{t+1} from the policy and its future from the critic (equation 1).

    Returns:
        `list[Answer]`: each parsed into a [`~prompts.Critique`], or `None` if it broke the format.
    """
    open_ended = [transition for transition in transitions if not transition.terminated]
    foresee = {"implicit": _implicit_futures, "explicit": _explicit_futures}[bootstrap]
    futures = iter(foresee(roles, open_ended))
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
            prompts.append(roles.follow_up(next(futures), roles.prompts.backup))
    return roles.ask("backup", prompts, parse_critique)


def _successor_prompts(roles: Roles, transitions: list[Transition]) -> list[Prompt]:
    """p_pred(s_{t+1})."""
    return [
        roles.follow_up(
            transition.state_action,
            render(roles.prompts.successor, next_observation=transition.turn.next_observation),
        )
        for transition in transitions
    ]


def _implicit_futures(roles: Roles, transitions: list[Transition]) -> list[Prompt]:
    """d_{t+1} ~ M(p_pred(s_{t+1})), as conversations that end with it."""
    futures = roles.ask("successor", _successor_prompts(roles, transitions), parse_text)
    return [future.prompt.extended(future.token_ids) for future in futures]


def _explicit_futures(roles: Roles, transitions: list[Transition]) -> list[Prompt]:
    """a_{t+1} ~ pi(. | s_{t+1}), d_{t+1} ~ M(. | s_{t+1}, a_{t+1}), as conversations that end with both."""
    sampling = roles.samplings["successor"]
    states = [roles.follow_up(t.state_action, t.turn.next_observation) for t in transitions]
    actions = roles.ask("policy", states, roles.parse_action, sampling=sampling)
    judged = critiques(roles, [action.prompt.extended(action.token_ids) for action in actions], sampling=sampling)
    conversations = []
    for prompt, action, critique in zip(_successor_prompts(roles, transitions), actions, judged, strict=True):
        future = critique.text if critique.parsed is None else critique.parsed.future
        conversations.append(prompt.extended(roles.chat.completion(f"{action.parsed or action.text} {future}")))
    return conversations
