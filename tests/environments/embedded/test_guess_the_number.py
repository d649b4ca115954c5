# SPDX-License-Identifier: Apache-2.0

import random

import pytest

from benchmarks.tiny_models.guess_the_number_dialogues import (
    FIRST_OBSERVATION,
    GAME,
    MAX_ACTIONS,
    NUM_GUESSES,
    NUMBERS,
    GuessTheNumberFamily,
    answered,
    fitting,
    format_guess,
    goes_on,
    observe,
    parse_guess,
    score_of,
)
from benchmarks.tiny_models.samples import GUESS_THE_NUMBER_PROMPTS
from trl_nlac.environments.textarena import TextArenaEnvironment
from trl_nlac.prompts import parse_critique


def test_observations_and_scores_are_those_of_the_game():
    rng, ends, environment = random.Random(0), set(), TextArenaEnvironment("GuessTheNumber-v0", **GAME)
    for seed in range(500):
        assert environment.reset(seed=seed) == FIRST_OBSERVATION
        number, steps = environment.game.game_number, []
        while not steps or goes_on(steps[-1][1]):
            made = answered(steps)
            guess = rng.choice(made if made and rng.random() < 0.4 else NUMBERS)
            result = environment.step(format_guess(guess))
            assert result.observation == observe(steps, guess, number)
            steps.append((format_guess(guess), result.observation))
            assert result.terminated != goes_on(result.observation)
        assert result.reward == score_of(steps, number)
        ends.add((len(steps), result.observation.split(".")[0]))
    # No guess can be refused before the first hint.
    assert {length for length, _ in ends} == set(range(1, MAX_ACTIONS))
    assert len({said for _, said in ends}) == 5  # found; refused again; the last guess: lower, higher or refused


@pytest.mark.parametrize("role", ["policy", "critique", "successor", "backup", "refine"])
def test_dialogues(role):
    rng = random.Random(0)
    for _ in range(300):
        dialogue = GuessTheNumberFamily().dialogue(rng, role, known=False)
        steps = [*dialogue.history, *dialogue.future]
        guesses = [parse_guess(action) for action, _ in steps]
        assert None not in guesses and len(answered(steps)) <= NUM_GUESSES
        target = parse_guess(dialogue.refined_action)
        assert target in fitting(dialogue.history)
        observations = [observe(steps[:i], guess, target) for i, guess in enumerate(guesses)]
        assert [observation for _, observation in steps] == observations
        assert list(map(goes_on, observations)) == [True] * (len(steps) - 1) + [False]
        assert dialogue.score == score_of(steps, target)
        assert dialogue.won == (parse_guess(dialogue.action) == target)
        assert dialogue.advice == ("" if dialogue.won else f"The number is [{target}].")
        messages, completion = dialogue.messages(role, GUESS_THE_NUMBER_PROMPTS)
        if role in ("critique", "backup"):
            assert parse_critique(completion["content"]) == dialogue.critique
        if role == "backup" and len(dialogue.future) == 1:
            assert f"The score is {dialogue.score:g}." in messages[-1]["content"]
        if role == "successor":
            assert completion["content"].startswith(dialogue.future[1][0])
