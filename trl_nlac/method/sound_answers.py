# SPDX-License-Identifier: Apache-2.0

"""A model's own answers in every role, to rehearse later."""

from ..types import Answer, Transition
from .backup import bellman_targets
from .refinement import refine_actions
from .roles import Roles


ASKED_ROLES = ("policy", "critique", "backup", "refine")  # always asked; others depend on options and on the steps


def sound_answers(
    roles: Roles, transitions: list[Transition], bootstrap: str = "explicit", num_refinements: int = 1
) -> dict[str, list[Answer]]:
    """
    Ask every role about transitions, as an iteration of training does, and keep the sound answers: all that can be
    read, but of the refined actions only those that do as their critique says. A refinement policy that learns from
    its lapses as well soon ignores critiques.

    Args:
        roles ([`~method.roles.Roles`]):
            The roles.
        transitions (`list[Transition]`):
            Observed steps.
        bootstrap (`str`, *optional*, defaults to `"explicit"`):
            How the future is predicted, see [`~method.backup.bellman_targets`].
        num_refinements (`int`, *optional*, defaults to `1`):
            As in [`~method.refinement.refine_actions`].

    Returns:
        `dict[str, list[Answer]]`: by role. A role without a sound answer is missing.
    """
    with roles.collected() as answers:
        bellman_targets(roles, transitions, bootstrap)
        refinements = refine_actions(roles, transitions, num_refinements)
    compliant = {id(r.refined_action.prompt) for r in refinements if r is not None and r.complies}
    answers["refine"] = [answer for answer in answers["refine"] if id(answer.prompt) in compliant]
    return {role: found for role, found in answers.items() if found}
