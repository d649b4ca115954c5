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

import random

import pytest

from trl_nlac.environments.embedded import GUESS_THE_NUMBER_PROMPTS, make_rehearsal_dataset
from trl_nlac.environments.embedded.guess_the_number_dialogues import (
    FIRST_OBSERVATION,
    FOUND,
    GAME,
    NUM_GUESSES,
    NUMBERS,
    GuessTheNumberFamily,
    closeness,
    fitting,
    format_guess,
    observe,
    parse_guess,
)
from trl_nlac.environments.textarena import TextArenaEnvironment
from trl_nlac.prompts import parse_critique


def test_observations_and_scores_are_those_of_the_game():
    rng, lengths, environment = random.Random(0), set(), TextArenaEnvironment("GuessTheNumber-v0", **GAME)
    for seed in range(200):
        assert environment.reset(seed=seed) == FIRST_OBSERVATION
        target = environment.game.game_number
        guesses = rng.sample(NUMBERS, NUM_GUESSES)
        if seed % 2:
            guesses[seed % NUM_GUESSES] = target
        for number, guess in enumerate(guesses, start=1):
            result = environment.step(format_guess(guess))
            assert result.observation == observe(guess, target, NUM_GUESSES - number)
            assert result.terminated == (guess == target or number == NUM_GUESSES)
            if result.terminated:
                assert result.reward == closeness(guess, target)
                lengths.add(number)
                break
    assert lengths == set(range(1, NUM_GUESSES + 1))


@pytest.mark.parametrize(
    ("action", "guess"), [("[2]", 2), ("I say [20].", 20), ("[0]", None), ("[21]", None), ("7", None), ("[a]", None)]
)
def test_parse_guess(action, guess):
    assert parse_guess(action) == guess


@pytest.mark.parametrize("role", ["policy", "critique", "successor", "backup", "refine"])
def test_dialogues(role):
    """They keep to the rules, and say the same in every role; one number explains all hints of a game."""
    rng, found, fits = random.Random(0), 0, 0
    for _ in range(300):
        dialogue = GuessTheNumberFamily().dialogue(rng, role, known=False)
        steps = [*dialogue.history, *dialogue.future]
        guesses = [parse_guess(action) for action, _ in steps]
        assert None not in guesses and len(set(guesses)) == len(guesses) <= NUM_GUESSES
        target = parse_guess(dialogue.refined_action)
        assert target in fitting(dialogue.history)
        lefts = range(NUM_GUESSES - 1, -1, -1)
        expected = [observe(guess, target, left) for guess, left in zip(guesses, lefts, strict=False)]
        assert [answer for _, answer in steps] == expected
        is_found = dialogue.future[-1][1] == FOUND
        assert is_found == (guesses[-1] == target) and (is_found or len(guesses) == NUM_GUESSES)
        assert dialogue.score == closeness(guesses[-1], target)
        assert dialogue.won == (parse_guess(dialogue.action) == target)
        assert dialogue.advice == ("" if dialogue.won else f"The number is [{target}].")
        messages, completion = dialogue.messages(role, GUESS_THE_NUMBER_PROMPTS)
        if role in ("critique", "backup"):
            assert parse_critique(completion["content"]) == dialogue.critique
        if role == "backup" and len(dialogue.future) == 1:
            assert f"The score is {dialogue.score:g}." in messages[-1]["content"]
        if role == "successor":
            assert completion["content"].startswith(dialogue.future[1][0])
        found += is_found
        fits += parse_guess(dialogue.action) in fitting(dialogue.history)
    assert 0.05 < found / 300 < (0.8 if role == "refine" else 0.4)
    assert role == "refine" or fits < 240  # guesses pay no heed to the hints


def test_rehearsal_teaches_no_guess():
    """Only the roles that copy and follow advice are rehearsed: the others would teach to guess at random."""
    rows = make_rehearsal_dataset("guess_the_number", size=200)
    asked = {row["prompt"][-1]["content"].split(". ")[-1] for row in rows}
    assert asked == {GUESS_THE_NUMBER_PROMPTS.backup, GUESS_THE_NUMBER_PROMPTS.refine}
