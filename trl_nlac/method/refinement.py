# SPDX-License-Identifier: Apache-2.0

"""The refinement policy: act, read the critique, act better."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..generation.generator import Sampling
from ..types import Answer, Prompt, Refinement, Sample, TrainingExample, Transition
from .critic import critiques, judgement_prompt
from .roles import Roles


Criticise = Callable[[Roles, list[Prompt]], list[Answer]]


@dataclass(frozen=True)
class Attempt:
    """An action to be judged and refined."""

    state: Prompt  # s_t
    action: str
    state_action: Prompt  # (s_t, a_t)
    # The action as it can be trained on. `None` for a stored one that could not be read, and where the conversation
    # may have lost its chain of thought.
    answer: Answer | None
    critique: Answer | None = None  # once it was judged

    @classmethod
    def of(cls, roles: Roles, state: Prompt, answer: Answer) -> "Attempt":
        """Make an attempt of an answer that was parsed."""
        return cls(state, answer.parsed, roles.builder.continued(state, answer), answer)

    @classmethod
    def of_transition(cls, roles: Roles, transition: Transition, critique: Answer | None = None) -> "Attempt":
        """Make an attempt of a stored action."""
        action, token_ids, answer = transition.turn.action, transition.action_ids, None
        if action and roles.chat.keeps_sampled_tokens:
            answer = Answer(transition.state, token_ids, roles.chat.decode(list(token_ids)), action)
        return cls(transition.state, action, transition.state_action, answer, critique)

    @property
    def is_readable(self) -> bool:
        """Whether it has a critique that could be parsed."""
        return self.critique is not None and self.critique.parsed is not None

    @property
    def is_best(self) -> bool:
        """Whether its critique calls it the best, and it can be trained on: it is its own refined action."""
        return self.is_readable and self.critique.parsed.optimal and self.answer is not None


def sample_attempts(
    roles: Roles, transitions: list[Transition], criticise: Criticise = critiques
) -> list[Attempt | None]:
    """
    Sample a_t ~ pi(. | s_t) and Q_L(s_t, a_t), an action in the state of each transition and its critique (section
    4.2); `None` where the action breaks its format. Call it with the policy's weights. `criticise` samples critiques
    of conversations that end with an action.
    """
    attempts: list[Attempt | None] = [None] * len(transitions)
    for i, action in enumerate(roles.ask("policy", [transition.state for transition in transitions])):
        if action.parsed is not None:
            attempts[i] = Attempt.of(roles, action.prompt, action)
    acted = [i for i, attempt in enumerate(attempts) if attempt is not None]
    judged = criticise(roles, [attempts[i].state_action for i in acted])
    for i, critique in zip(acted, judged, strict=True):
        attempts[i] = replace(attempts[i], critique=critique)
    return attempts


def stored_attempts(roles: Roles, transitions: list[Transition], critiques: list[Answer]) -> list[Attempt]:
    """Make attempts of stored actions, with a critique or a Bellman target of each."""
    return [Attempt.of_transition(roles, *pair) for pair in zip(transitions, critiques, strict=True)]


def refine_attempts(
    roles: Roles, attempts: list[Attempt | None], sampling: Sampling | None = None
) -> list[Refinement | None]:
    """
    Sample a_t^r ~ pi^r(. | s_t, a_t, Q_L(s_t, a_t)), a better action for each critique (equation 6); `None` where the
    action, its critique or its refined action breaks its format. An action that its critique calls the best is its own
    refined action, if it can be trained on, and nothing is asked. Call it with the weights of the refinement policy,
    in training the initial ones.
    """
    refinements: list[Refinement | None] = [None] * len(attempts)
    open_ = [(i, attempt) for i, attempt in enumerate(attempts) if attempt and attempt.is_readable]
    for i, attempt in open_:
        if attempt.is_best:
            refinements[i] = Refinement(attempt.action, attempt.critique.parsed, attempt.answer, is_kept=True)
    open_ = [(i, attempt) for i, attempt in open_ if not attempt.is_best]
    answers = ask_refined(roles, [a.state_action for _, a in open_], [a.critique for _, a in open_], sampling)
    for (i, attempt), answer in zip(open_, roles.correct_reasoning(answers, "correct_refine"), strict=True):
        if answer.parsed is not None:
            refinements[i] = Refinement(attempt.action, attempt.critique.parsed, answer)
    return refinements


def check_distillation(roles: Roles) -> None:
    """Raise a `ValueError` if chains of thought would be taught by thoughts about a critique."""
    if roles.corrects_reasoning:
        raise ValueError(
            "`policy_loss_type='distill'` would teach chains of thought by the thoughts of one that has read the "
            "critique. Use `policy_loss_type='sampled'` with this model, or `reasoning=False` if it has none."
        )


def question_attempts(roles: Roles, attempts: list[Attempt | None]) -> list[Refinement | None]:
    """
    Ask for no refined actions: pi^r(. | s_t, a_t, Q_L(s_t, a_t)) is to teach the policy along a_t itself
    (`policy_loss_type="distill"`). Each refinement has its action as its own, after the question for another one;
    `None` where the action or its critique breaks its format, or the action cannot be trained on.
    """
    refinements: list[Refinement | None] = [None] * len(attempts)
    open_ = [(i, a) for i, a in enumerate(attempts) if a and a.is_readable and a.answer is not None]
    prompts = refinement_prompts(roles, [a.state_action for _, a in open_], [a.critique for _, a in open_])
    for (i, attempt), prompt in zip(open_, prompts, strict=True):
        if roles.builder.fits(prompt):
            answer = replace(attempt.answer, prompt=prompt)
            refinements[i] = Refinement(attempt.action, attempt.critique.parsed, answer, is_kept=True)
    return refinements


def ask_refined(
    roles: Roles, state_actions: list[Prompt], critiques: list[Answer], sampling: Sampling | None = None
) -> list[Answer]:
    """Sample one a_t^r ~ pi^r(. | s_t, a_t, Q_L(s_t, a_t)) each, of conversations that end with the action."""
    return roles.ask("refine", refinement_prompts(roles, state_actions, critiques), sampling=sampling)


def refinement_prompts(roles: Roles, state_actions: list[Prompt], critiques: list[Answer]) -> list[Prompt]:
    """Return the conversations that ask for a refined action, see [`ask_refined`]."""
    return [
        roles.builder.follow_up(
            roles.builder.continued(judgement_prompt(roles, state_action), critique),
            roles.prompts.refinement(roles.actions.name, critique.parsed),
        )
        for state_action, critique in zip(state_actions, critiques, strict=True)
    ]


def policy_examples(
    roles: Roles,
    samples: list[Sample],
    refinements: list[Refinement | None],
    distills: bool = False,
    is_anchored: bool = False,
) -> list[TrainingExample | None]:
    """
    Make the examples of the policy loss (equation 6): `None` where there is no refined action, and where it repeats an
    action that its critique calls wrong. If it `distills`, the refinement policy's whole distribution is the target,
    and the example keeps its prompt. If it `is_anchored`, the initial policy's distribution is to be near, and the
    example keeps the state for it.
    """
    examples: list[TrainingExample | None] = [None] * len(samples)
    for i, (sample, refinement) in enumerate(zip(samples, refinements, strict=True)):
        if refinement is not None and (distills or refinement.complies):
            state, action = roles.builder.opened(sample.transition.state), refinement.refined_action
            of_initial = state if is_anchored else None
            taught_by = roles.builder.opened(action.prompt) if distills else of_initial
            examples[i] = TrainingExample(
                "policy", state, action.token_ids, transition_id=sample.transition_id, teacher_prompt=taught_by
            )
    return examples
