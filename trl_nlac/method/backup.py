# SPDX-License-Identifier: Apache-2.0

"""The language Bellman backup, which writes the critic's targets."""

from ..chat.actions import parse_text
from ..prompts import parse_correctness, parse_critique, parse_future, render
from ..types import Answer, Prompt, Sample, TrainingExample, Transition
from .critic import critic_prompt
from .roles import Roles


_OBSERVED_TOKENS = 64  # of an observation in the form of a target


def bellman_targets(roles: Roles, transitions: list[Transition], bootstrap: str) -> list[Answer]:
    """Sample Bellman targets (equation 1) with the weights of now: [`backup_questions`] and [`write_targets`]."""
    return write_targets(roles, transitions, backup_questions(roles, transitions, bootstrap))


def backup_questions(roles: Roles, transitions: list[Transition], bootstrap: str) -> list[Prompt | None]:
    """
    Ask the backup about observed steps; `None` where nothing can be asked. Call it with the target weights. A
    terminated step is judged by its observation and the final score. Any other step, a truncated one too, bootstraps:
    a future from the observed s_{t+1} is predicted, which the backup is to join with it. With the `bootstrap`
    `"explicit"` a_{t+1} is sampled from the policy and its future from the critic (equation 1), with `"implicit"` the
    successor model is asked for action and future in one (section 5.1), and `"monte_carlo"` takes what followed in the
    episode and, if that was cut, asks the successor model how it would have gone on from its last observation. Where a
    task is a single step, only the final score counts, and there is no question about a step that was cut.
    """
    prompts, (name, _) = _terminated_prompts(roles, transitions), roles.judging["backup"]
    if not roles.options.single_step:
        continuing = {i: transition for i, transition in enumerate(transitions) if not transition.terminated}
        futures = FUTURES[bootstrap](roles, list(continuing.values()))
        for i, conversation in zip(continuing, futures, strict=True):
            if conversation is not None:
                question = roles.prompts.question(name, observed=_on_one_line(roles, continuing[i]))
                prompts[i] = roles.builder.follow_up(conversation, question)
    return [prompts.get(i) for i in range(len(transitions))]


def write_targets(roles: Roles, transitions: list[Transition], questions: list[Prompt | None]) -> list[Answer]:
    """Answer [`backup_questions`], as [`~types.Critique`] or `None`, with the weights of the backup."""
    if roles.options.single_step:
        parse = parse_correctness
    else:
        parse = parse_critique if roles.options.num_futures == 1 else parse_future
    targets = [Answer(transition.state_action, (), "", None) for transition in transitions]
    asked = [i for i, question in enumerate(questions) if question is not None]
    answers = roles.ask("backup", [questions[i] for i in asked], parse)
    for i, answer in zip(asked, roles.correct_reasoning(answers, "correct_backup"), strict=True):
        targets[i] = answer
    return targets


def is_answerable(roles: Roles, transition: Transition, needs_target: bool) -> bool:
    """Whether an example can ever be made: whether the prompts that it takes keep to `max_prompt_length`."""
    questions = [critic_prompt(roles, transition.state_action)]
    if needs_target and transition.terminated:
        questions += _terminated_prompts(roles, [transition]).values()
    elif needs_target and not roles.options.single_step:
        questions += _successor_prompts(roles, [transition])
    return all(roles.builder.fits(question) for question in questions)


def critic_examples(roles: Roles, samples: list[Sample], targets: list[Answer]) -> list[TrainingExample | None]:
    """Make the examples of the critic loss (equation 5): `None` without a target, or if the question is too long."""
    examples: list[TrainingExample | None] = []
    for sample, target in zip(samples, targets, strict=True):
        prompt = critic_prompt(roles, sample.transition.state_action)
        if target.parsed is None or not roles.builder.fits(prompt):
            examples.append(None)
            continue
        prompt = roles.builder.opened(prompt)
        examples.append(TrainingExample("critic", prompt, target.token_ids, transition_id=sample.transition_id))
    return examples


def _terminated_prompts(roles: Roles, transitions: list[Transition]) -> dict[int, Prompt]:
    """p_tpred for the transitions that ended their tasks, by index: the final score is known."""
    prompts, (_, name) = {}, roles.judging["backup"]
    for i, transition in enumerate(transitions):
        if transition.terminated:
            values = {"next_observation": _observed(roles, transition), "observed": _on_one_line(roles, transition)}
            values |= _score_values(roles, transition)
            question = roles.prompts.question(name, **values)
            prompts[i] = roles.builder.follow_up(transition.state_action, question)
    return prompts


def _score_values(roles: Roles, transition: Transition) -> dict[str, str]:
    """The final score, its scale and what it means, as prompts show them."""
    score, threshold = transition.episode.score, roles.options.success_threshold
    outcome = "succeeded" if score >= threshold else "failed"
    return {"score": f"{score:g}", "success_threshold": f"{threshold:g}", "outcome": outcome}


def _observed(roles: Roles, transition: Transition) -> str:
    """What followed the action: s_{t+1}, and r_t where it is not 0, unless the final score says the same."""
    reward, observation = transition.turn.reward, transition.turn.next_observation
    if not reward or (transition.terminated and reward == transition.episode.score):
        return observation
    return "\n".join(filter(None, [observation, render(roles.prompts.step_reward, reward=f"{reward:g}")]))


def _on_one_line(roles: Roles, transition: Transition) -> str:
    """The observation that followed, as the form of a target begins with it: on one line, and cut if it is long."""
    return roles.chat.shortened(" ".join(transition.turn.next_observation.split()), _OBSERVED_TOKENS)


def _successor_prompts(roles: Roles, transitions: list[Transition]) -> list[Prompt]:
    """p_pred(s_{t+1})."""
    return [
        roles.builder.follow_up(
            transition.state_action, roles.prompts.question("successor", next_observation=_observed(roles, transition))
        )
        for transition in transitions
    ]


def _implicit_futures(roles: Roles, transitions: list[Transition]) -> list[Prompt | None]:
    """d_{t+1} ~ M(p_pred(s_{t+1})), as conversations that end with it."""
    futures = roles.ask("successor", _successor_prompts(roles, transitions), parse_text)
    return [roles.builder.continued(future.prompt, future) if future.parsed else None for future in futures]


def _explicit_futures(roles: Roles, transitions: list[Transition]) -> list[Prompt | None]:
    """a_{t+1} ~ pi(. | s_{t+1}), d_{t+1} ~ M(. | s_{t+1}, a_{t+1}), as conversations that end with both."""
    actions = roles.ask("policy", [roles.builder.observe(transition) for transition in transitions])
    acted = {i: action for i, action in enumerate(actions) if action.parsed is not None}
    questions = [critic_prompt(roles, roles.builder.continued(action.prompt, action)) for action in acted.values()]
    of_one = roles.options.num_futures == 1  # otherwise nobody weighs the future of a target
    judged = roles.ask("critic" if of_one else "successor", questions, parse_critique if of_one else parse_future)
    conversations: list[Prompt | None] = [None] * len(transitions)
    successor_prompts = _successor_prompts(roles, transitions)
    for (i, action), critique in zip(acted.items(), judged, strict=True):
        if critique.parsed is not None:
            future = roles.chat.past_turn(f"{action.parsed} {critique.parsed.future}")
            conversations[i] = successor_prompts[i].extended(future)
    return conversations


def _observed_futures(roles: Roles, transitions: list[Transition]) -> list[Prompt | None]:
    """Conversations that end with what followed s_{t+1}, or, where that was cut, also the successor model's guess."""
    episodes = [transition.episode for transition in transitions]
    cut = {i: Transition(e, len(e.turns) - 1) for i, e in enumerate(episodes) if not e.terminated}
    guesses = roles.ask("successor", _successor_prompts(roles, list(cut.values())), parse_text)
    guessed = {i: guess.parsed for i, guess in zip(cut, guesses, strict=True)}
    conversations: list[Prompt | None] = []
    for i, (transition, prompt) in enumerate(zip(transitions, _successor_prompts(roles, transitions), strict=True)):
        if i in guessed and guessed[i] is None:
            conversations.append(None)
            continue
        rest = transition.episode.turns[transition.index + 1 :]
        end = guessed.get(i) or render(roles.prompts.observed_end, **_score_values(roles, transition))
        future = " ".join(filter(None, [*(f"{turn.action} {turn.next_observation}" for turn in rest), end]))
        limit = roles.options.max_prompt_length
        if limit is not None:  # it stays whole, as the opening and what follows the state do; other turns can be cut
            room = limit - prompt.opening_length - len(prompt.branch)
            future = roles.chat.shortened(future, max(1, min(limit // 4, room // 2)))
        conversations.append(prompt.extended(roles.chat.past_turn(future)))
    return conversations


# The future after s_{t+1}, by the name of `bootstrap`.
FUTURES = {"implicit": _implicit_futures, "explicit": _explicit_futures, "monte_carlo": _observed_futures}
