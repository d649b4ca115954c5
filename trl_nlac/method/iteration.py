# SPDX-License-Identifier: Apache-2.0

"""The parts of an iteration that ask the model, and the examples of both losses."""

from ..nlac_config import NLACConfig
from ..types import Answer, Prompt, Refinement, Sample, TrainingExample, Transition
from .backup import backup_questions, critic_examples, is_answerable
from .chains import answer_each
from .critic import critiques
from .refinement import (
    Attempt,
    Criticise,
    policy_examples,
    question_attempts,
    refine_attempts,
    sample_attempts,
    stored_attempts,
)
from .roles import Roles


def attempt_each(
    roles: Roles, transitions: list[Transition], criticise: Criticise = critiques
) -> list[Attempt | None]:
    """Act in the state of each transition and judge it, as [`~method.refinement.sample_attempts`]."""
    return answer_each(roles, "attempt", transitions, lambda drawn: sample_attempts(roles, drawn, criticise))


def foresee_each(roles: Roles, transitions: list[Transition], bootstrap: str) -> list[Prompt | None]:
    """Ask the backup about each transition, as [`~method.backup.backup_questions`]."""
    return answer_each(roles, "future", transitions, lambda drawn: backup_questions(roles, drawn, bootstrap))


def refined_actions(
    roles: Roles,
    args: NLACConfig,
    transitions: list[Transition],
    attempts: list[Attempt | None],
    targets: list[Answer],
) -> list[Refinement | None]:
    """Refine attempts, or stored actions in hindsight; where the policy is distilled, ask for what teaches it."""
    if args.is_in_hindsight:
        attempts = stored_attempts(roles, transitions, targets)
    return (question_attempts if args.distills else refine_attempts)(roles, attempts)


def make_examples(
    roles: Roles, args: NLACConfig, samples: list[Sample], targets: list[Answer], refinements: list[Refinement | None]
) -> tuple[list[TrainingExample | None], list[TrainingExample | None]]:
    """Make the examples of both losses (equations 5 and 6), one of each for a sample; `None` where there is none."""
    of_critic: list[TrainingExample | None] = [None] * len(samples)
    of_policy: list[TrainingExample | None] = [None] * len(samples)
    if args.critic_loss_coef:
        of_critic = critic_examples(roles, samples, targets)
    if args.policy_loss_coef:
        of_policy = policy_examples(roles, samples, refinements, args.distills, args.policy_kl_coef > 0)
    return of_critic, of_policy


def unanswerable(
    roles: Roles,
    args: NLACConfig,
    samples: list[Sample],
    of_critic: list[TrainingExample | None],
    of_policy: list[TrainingExample | None],
) -> list[int]:
    """Return the ids of transitions without an example that never have one, as their prompts are too long."""
    # Otherwise the policy can learn in a state about which the backup's question is too long.
    needs_target = not args.policy_loss_coef
    unused = [sample for sample, *both in zip(samples, of_critic, of_policy, strict=True) if not any(both)]
    return [s.transition_id for s in unused if not is_answerable(roles, s.transition, needs_target)]
