# SPDX-License-Identifier: Apache-2.0

"""The refinement policy: act, read the critique, act better."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..generation.generator import Sampling
from ..types import Answer, Prompt, Refinement, Sample, TrainingExample, Transition
from .backup import bellman_targets
from .critic import critiques, judgement_prompt
from .roles import Roles


Criticise = Callable[[Roles, list[Prompt]], list[Answer]]


@dataclass(frozen=True)
class Attempt:
    """
    An action to be judged and refined.

    Args:
        state ([`Prompt`]):
            The state s_t.
        action (`str`):
            The action.
        state_action ([`Prompt`]):
            The state and the action, (s_t, a_t).
        answer ([`Answer`], *optional*):
            The action as it can be trained on. `None` for a stored one that could not be read, and where the
            conversation may have lost its chain of thought.
    """

    state: Prompt
    action: str
    state_action: Prompt
    answer: Answer | None

    @classmethod
    def of(cls, roles: Roles, state: Prompt, answer: Answer) -> "Attempt":
        """Make an attempt of an answer that was parsed."""
        return cls(state, answer.parsed, roles.builder.continued(state, answer), answer)

    @classmethod
    def of_transition(cls, roles: Roles, transition: Transition) -> "Attempt":
        """Make an attempt of a stored action."""
        action, token_ids, answer = transition.turn.action, transition.action_ids, None
        if action and roles.chat.keeps_sampled_tokens:
            answer = Answer(transition.state, token_ids, roles.chat.decode(list(token_ids)), action)
        return cls(transition.state, action, transition.state_action, answer)


@dataclass(frozen=True)
class Round:
    """
    One round of critique and refinement.

    Args:
        attempt (`str`):
            The action that was judged.
        critique ([`Answer`]):
            Its critique.
        refined ([`Answer`], *optional*):
            The refined action. `None` if the critique or the refined action could not be parsed, or if none was asked
            for.
        is_kept (`bool`, *optional*, defaults to `False`):
            Whether none was asked for, because the critique calls the action the best.
    """

    attempt: str
    critique: Answer
    refined: Answer | None
    is_kept: bool = False


def refine_actions(
    roles: Roles,
    transitions: list[Transition],
    num_refinements: int = 1,
    targets: dict[int, Answer] | None = None,
    criticise: Criticise = critiques,
    keeps_best: bool = False,
) -> list[Refinement | None]:
    """
    Sample a_t ~ pi(. | s_t), Q_L(s_t, a_t) and a_t^r ~ pi^r(. | s_t, a_t, Q_L(s_t, a_t)) (section 4.2, equation 6).

    Call it with the policy's weights.

    Args:
        roles ([`~method.roles.Roles`]):
            The roles.
        transitions (`list[Transition]`):
            The states.
        num_refinements (`int`, *optional*, defaults to `1`):
            Rounds m, see [`refinement_rounds`].
        targets (`dict[int, Answer]`, *optional*):
            Bellman targets of some of the transitions, by index. There the stored action is refined in place of a
            fresh one, with its target as the first critique.
        criticise (`Callable`, *optional*, defaults to [`~method.critic.critiques`]):
            Samples critiques of conversations that end with an action.
        keeps_best (`bool`, *optional*, defaults to `False`):
            Whether an action that its critique calls the best is its own refinement (`refine_best_actions=False`).

    Returns:
        `list[Refinement | None]`: `None` where the action, its first critique or its refinement breaks its format.
    """
    targets = targets or {}
    attempts = _attempts(roles, transitions, targets)
    rounds = refinement_rounds(roles, attempts, num_refinements, targets, keeps_best, criticise)
    refinements: list[Refinement | None] = [None] * len(transitions)
    for i, of_action in rounds.items():
        first, attempt = of_action[0], attempts[i]
        if first.is_kept:
            refinements[i] = Refinement(attempt.action, attempt.action, first.critique.parsed, attempt.answer, True)
        for last in of_action:
            if last.refined is not None:
                refinements[i] = Refinement(attempt.action, last.attempt, last.critique.parsed, last.refined)
    return _corrected(roles, refinements)


def refine_in_hindsight(roles: Roles, transitions: list[Transition]) -> tuple[list[Answer], list[Refinement | None]]:
    """
    Judge stored actions knowing what followed in their whole episodes, and refine them with that as their critique. Of
    an episode that was cut it is known up to the cut, and guessed from there.

    Args:
        roles ([`~method.roles.Roles`]):
            The roles.
        transitions (`list[Transition]`):
            The actions.

    Returns:
        `tuple[list[Answer], list[Refinement | None]]`: the judgements, Monte Carlo targets, and the refinements, see
        [`refine_actions`].

    Raises:
        ValueError: If critiques weigh several futures: a judgement is one future then, without a verdict.
    """
    if roles.options.num_futures > 1:
        raise ValueError(
            "An action is refined in hindsight by the verdict of its judgement, which has none with "
            f"`num_futures={roles.options.num_futures}`. Use a model whose critiques weigh one future."
        )
    targets = bellman_targets(roles, transitions, "monte_carlo")
    return targets, refine_actions(roles, transitions, targets=dict(enumerate(targets)))


def check_distillation(roles: Roles) -> None:
    """
    Check that the policy can learn by what [`question_actions`] asks.

    Args:
        roles ([`~method.roles.Roles`]):
            The roles.

    Raises:
        ValueError: If chains of thought would be taught by thoughts about a critique.
    """
    if roles.corrects_reasoning:
        raise ValueError(
            "`policy_loss_type='distill'` would teach chains of thought by the thoughts of one that has read the "
            "critique. Use `policy_loss_type='sampled'` with this model, or `reasoning=False` if it has none."
        )


def question_actions(
    roles: Roles,
    transitions: list[Transition],
    targets: dict[int, Answer] | None = None,
    criticise: Criticise = critiques,
) -> list[Refinement | None]:
    """
    Sample actions and their critiques, and ask for no refined actions: pi^r(. | s_t, a_t, Q_L(s_t, a_t)) is to teach
    the policy along a_t itself (`policy_loss_type="distill"`). The arguments are those of [`refine_actions`].

    Returns:
        `list[Refinement | None]`: each with its action as its own refinement, after the question for another one.
        `None` where the action or its critique breaks its format.
    """
    targets = targets or {}
    attempts = {i: a for i, a in _attempts(roles, transitions, targets).items() if a.answer is not None}
    unjudged = [i for i in attempts if i not in targets]
    found = criticise(roles, [attempts[i].state_action for i in unjudged])
    judged = {**targets, **dict(zip(unjudged, found, strict=True))}
    readable = [i for i in attempts if judged[i].parsed is not None]
    prompts = refinement_prompts(roles, [attempts[i].state_action for i in readable], [judged[i] for i in readable])
    refinements: list[Refinement | None] = [None] * len(transitions)
    for i, prompt in zip(readable, prompts, strict=True):
        if roles.builder.fits(prompt):
            action, answer = attempts[i].action, replace(attempts[i].answer, prompt=prompt)
            refinements[i] = Refinement(action, action, judged[i].parsed, answer, is_kept=True)
    return refinements


def _attempts(roles: Roles, transitions: list[Transition], targets: dict[int, Answer]) -> dict[int, Attempt]:
    """Take the stored actions of transitions with `targets`, and sample one in the state of every other."""
    attempts = {i: Attempt.of_transition(roles, transitions[i]) for i in targets}
    fresh = [i for i in range(len(transitions)) if i not in targets]
    actions = roles.ask("policy", [transitions[i].state for i in fresh])
    for i, action in zip(fresh, actions, strict=True):
        if action.parsed is not None:
            attempts[i] = Attempt.of(roles, action.prompt, action)
    return attempts


def refinement_rounds(
    roles: Roles,
    attempts: dict[int, Attempt],
    num_rounds: int,
    judged: dict[int, Answer] | None = None,
    keeps_best: bool = False,
    criticise: Criticise = critiques,
    sampling: Sampling | None = None,
) -> dict[int, list[Round]]:
    """
    Refine actions in rounds of critique and refinement. The refinement policy sees all attempts and their critiques;
    the critic judges each attempt alone. An action that the critic calls the best is not judged again.

    Args:
        roles ([`~method.roles.Roles`]):
            The roles.
        attempts (`dict[int, Attempt]`):
            The actions, by any number.
        num_rounds (`int`):
            Largest number of rounds.
        judged (`dict[int, Answer]`, *optional*):
            Critiques of the first attempts, for those that have one already.
        keeps_best (`bool`, *optional*, defaults to `False`):
            Whether an action that the critic calls the best is kept without asking for a refined one, if it can be
            trained on. Otherwise it is refined once (equation 6).
        criticise (`Callable`, *optional*, defaults to [`~method.critic.critiques`]):
            Samples critiques of conversations that end with an action.
        sampling ([`~generation.generator.Sampling`], *optional*):
            In place of the refinement policy's own.

    Returns:
        `dict[int, list[Round]]`: the rounds of each action, in order.
    """
    rounds: dict[int, list[Round]] = {i: [] for i in attempts}
    together = {i: attempt.state_action for i, attempt in attempts.items()}  # with the attempts before it
    judged = dict(judged or {})
    for _ in range(num_rounds):
        unjudged = [i for i in attempts if i not in judged]
        found = criticise(roles, [attempts[i].state_action for i in unjudged])
        judged.update(zip(unjudged, found, strict=True))
        readable = [i for i in attempts if judged[i].parsed is not None]
        kept = {i for i in readable if keeps_best and judged[i].parsed.optimal and attempts[i].answer is not None}
        open_ = [i for i in readable if i not in kept]
        answers = ask_refined(roles, [together[i] for i in open_], [judged[i] for i in open_], sampling)
        refined = {i: answer for i, answer in zip(open_, answers, strict=True) if answer.parsed is not None}
        for i, attempt in attempts.items():
            rounds[i].append(Round(attempt.action, judged[i], refined.get(i), i in kept))
        attempts = {
            i: Attempt.of(roles, attempts[i].state, answer)
            for i, answer in refined.items()
            if not judged[i].parsed.optimal
        }
        together = {i: roles.builder.continued(refined[i].prompt, refined[i]) for i in attempts}
        judged = {}
    return rounds


def ask_refined(
    roles: Roles, state_actions: list[Prompt], critiques: list[Answer], sampling: Sampling | None = None
) -> list[Answer]:
    """
    Sample a_t^r ~ pi^r(. | s_t, a_t, Q_L(s_t, a_t)), one refined action each (equation 6).

    Args:
        roles ([`~method.roles.Roles`]):
            The roles.
        state_actions (`list[Prompt]`):
            Conversations that end with the action. They can contain earlier attempts and their critiques.
        critiques (`list[Answer]`):
            The critique of each action.
        sampling ([`~generation.generator.Sampling`], *optional*):
            In place of the refinement policy's own.
    """
    return roles.ask("refine", refinement_prompts(roles, state_actions, critiques), sampling=sampling)


def refinement_prompts(roles: Roles, state_actions: list[Prompt], critiques: list[Answer]) -> list[Prompt]:
    """Return the conversations that ask for a refined action, see [`ask_refined`]."""
    question = roles.prompts.refinement(roles.actions.name)
    return [
        roles.builder.follow_up(roles.builder.continued(judgement_prompt(roles, state_action), critique), question)
        for state_action, critique in zip(state_actions, critiques, strict=True)
    ]


def policy_examples(
    roles: Roles,
    samples: list[Sample],
    refinements: list[Refinement | None],
    distills: bool = False,
    masks_noncompliant: bool = False,
) -> list[TrainingExample | None]:
    """
    Make the examples of the policy loss (equation 6).

    Args:
        roles ([`~method.roles.Roles`]):
            The roles.
        samples (`list[Sample]`):
            Samples of the replay buffer.
        refinements (`list[Refinement | None]`):
            The refinement in the state of each.
        distills (`bool`, *optional*, defaults to `False`):
            Whether the refinement policy's whole distribution is the target, so that the example keeps its prompt.
        masks_noncompliant (`bool`, *optional*, defaults to `False`):
            Whether to leave out refined actions that do other than their critiques say.

    Returns:
        `list[TrainingExample | None]`: `None` where there is no refined action, or it is left out.
    """
    return [
        None
        if refinement is None or (masks_noncompliant and not refinement.complies)
        else TrainingExample(
            "policy",
            roles.builder.opened(sample.transition.state),
            refinement.refined_action.token_ids,
            transition_id=sample.transition_id,
            teacher_prompt=roles.builder.opened(refinement.refined_action.prompt) if distills else None,
        )
        for sample, refinement in zip(samples, refinements, strict=True)
    ]


def _corrected(roles: Roles, refinements: list[Refinement | None]) -> list[Refinement | None]:
    """Rewrite the chains of thought, which may refer to the critique."""
    found = [i for i, refinement in enumerate(refinements) if refinement is not None and not refinement.is_kept]
    sampled = [refinements[i].refined_action for i in found]
    for i, answer in zip(found, roles.correct_reasoning(sampled, "correct_refine"), strict=True):
        refinements[i] = None if answer.parsed is None else replace(refinements[i], refined_action=answer)
    return refinements
