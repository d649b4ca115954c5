# SPDX-License-Identifier: Apache-2.0

"""The two halves of an iteration that train: refined actions, and the examples of both losses."""

from ..nlac_config import NLACConfig
from ..types import Answer, Refinement, Sample, TrainingExample, Transition
from .backup import bellman_targets, critic_examples, is_answerable
from .chains import answer_each
from .critic import critiques
from .refinement import Criticise, policy_examples, question_actions, refine_actions
from .roles import Roles


def write_targets(roles: Roles, transitions: list[Transition], bootstrap: str) -> list[Answer]:
    """Write the Bellman target of each transition with the target weights, as [`~method.backup.bellman_targets`]."""
    return answer_each(
        roles,
        "target",
        transitions,
        lambda places: bellman_targets(roles, [transitions[place] for place in places], bootstrap),
    )


def refine_samples(
    roles: Roles,
    args: NLACConfig,
    transitions: list[Transition],
    targets: list[Answer] | None = None,
    criticise: Criticise = critiques,
) -> list[Refinement | None]:
    """
    Refine an action in the state of each transition, under the policy's weights.

    Args:
        roles ([`~method.roles.Roles`]):
            The roles.
        args ([`NLACConfig`]):
            How to refine.
        transitions (`list[Transition]`):
            The transitions.
        targets (`list[Answer]`, *optional*):
            Bellman targets of the transitions, after which their stored actions are refined in place of fresh ones.
        criticise (`Callable`, *optional*, defaults to [`~method.critic.critiques`]):
            As in [`~method.refinement.refine_actions`].

    Returns:
        `list[Refinement | None]`: as from [`~method.refinement.refine_actions`].
    """

    def refine(places: list[int]) -> list[Refinement | None]:
        chosen = [transitions[place] for place in places]
        judged = {} if targets is None else {i: targets[place] for i, place in enumerate(places)}
        if args.policy_loss_type == "distill":
            return question_actions(roles, chosen, judged, criticise)
        keeps_best = not args.refine_best_actions
        return refine_actions(roles, chosen, args.num_refinements, judged, criticise, keeps_best)

    return answer_each(roles, "refine", transitions, refine)


def make_examples(
    roles: Roles,
    args: NLACConfig,
    samples: list[Sample],
    targets: list[Answer],
    refinements: list[Refinement | None],
) -> tuple[list[TrainingExample | None], list[TrainingExample | None]]:
    """
    Make the examples of the critic loss (equation 5) and of the policy loss (equation 6), one of each for a sample;
    `None` where there is none, or the loss has the coefficient 0.

    Args:
        roles ([`~method.roles.Roles`]):
            The roles.
        args ([`NLACConfig`]):
            Which losses are trained, and how.
        samples (`list[Sample]`):
            Samples of the replay buffer.
        targets (`list[Answer]`):
            Their Bellman targets.
        refinements (`list[Refinement | None]`):
            Their refinements.
    """
    of_critic: list[TrainingExample | None] = [None] * len(samples)
    of_policy: list[TrainingExample | None] = [None] * len(samples)
    if args.critic_loss_coef:
        of_critic = critic_examples(roles, samples, targets)
    if args.policy_loss_coef:
        of_policy = policy_examples(
            roles,
            samples,
            refinements,
            distills=args.policy_loss_type == "distill",
            masks_noncompliant=args.mask_noncompliant_refinements,
        )
    return of_critic, of_policy


def unanswerable(
    roles: Roles,
    args: NLACConfig,
    samples: list[Sample],
    of_critic: list[TrainingExample | None],
    of_policy: list[TrainingExample | None],
) -> list[int]:
    """
    Return the ids of transitions without an example that can never have one, because their prompts are too long.

    Args:
        roles ([`~method.roles.Roles`]):
            The roles.
        args ([`NLACConfig`]):
            Which losses are trained.
        samples (`list[Sample]`):
            Samples of the replay buffer.
        of_critic (`list[TrainingExample | None]`), of_policy (`list[TrainingExample | None]`):
            Their examples, see [`make_examples`].
    """
    # Otherwise the policy can learn in a state about which the backup's question is too long.
    needs_target = not args.policy_loss_coef
    unused = [sample for sample, *both in zip(samples, of_critic, of_policy, strict=True) if not any(both)]
    return [s.transition_id for s in unused if not is_answerable(roles, s.transition, needs_target)]
