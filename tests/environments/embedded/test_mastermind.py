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

from trl_nlac.environments.embedded import MASTERMIND_PROMPTS, make_rehearsal_dataset
from trl_nlac.environments.embedded.mastermind_dialogues import (
    CODES,
    FIRST_OBSERVATION,
    GAME,
    NO_ADVICE,
    NUM_GUESSES,
    MastermindFamily,
    format_guess,
    observe,
    parse_guess,
    share,
)
from trl_nlac.environments.textarena import TextArenaEnvironment
from trl_nlac.prompts import parse_critique


@pytest.fixture(scope="module")
def game():
    return TextArenaEnvironment("Mastermind-v0", **GAME)


def test_observations_and_scores_are_those_of_the_game(game):
    rng, lengths = random.Random(0), set()
    for seed in range(200):
        assert game.reset(seed=seed) == FIRST_OBSERVATION
        code = tuple(map(str, game.game.state.game_state["secret_code"]))
        guesses = rng.sample(CODES, NUM_GUESSES)
        if seed % 2:
            guesses[seed % NUM_GUESSES] = code
        for number, guess in enumerate(guesses, start=1):
            result = game.step(format_guess(guess))
            assert result.observation == observe(guess, code, NUM_GUESSES - number)
            assert result.terminated == (guess == code or number == NUM_GUESSES)
            if result.terminated:
                assert result.reward == share(guess, code)
                lengths.add(number)
                break
    assert lengths == set(range(1, NUM_GUESSES + 1))


@pytest.mark.parametrize(
    ("action", "guess"),
    [("[2 4]", ("2", "4")), ("I say [ 2 4]", None), ("my guess: [3 1].", ("3", "1")), ("[2 2]", None), ("2 4", None)],
)
def test_parse_guess(action, guess):
    assert parse_guess(action) == guess


@pytest.mark.parametrize("role", ["policy", "critique", "successor", "backup", "refine"])
def test_dialogues(role):
    """They keep to the rules, and say the same in every role; earlier answers do not tell the code."""
    rng, cracked, possible = random.Random(0), 0, 0
    for _ in range(300):
        dialogue = MastermindFamily().dialogue(rng, role, known=False)
        guesses = [action for action, _ in [*dialogue.history, *dialogue.future]]
        assert len(set(guesses)) == len(guesses) <= NUM_GUESSES
        assert all(parse_guess(guess) for guess in guesses)
        cracked += dialogue.score == 1
        assert dialogue.won == (dialogue.score == 1 and len(dialogue.future) == 1)
        if dialogue.won:
            assert dialogue.refined_action == dialogue.action and not dialogue.advice
        elif dialogue.score == 1:
            assert dialogue.refined_action == guesses[-1] and guesses[-1] in dialogue.advice
        else:
            assert dialogue.advice == NO_ADVICE
            assert dialogue.refined_action not in [action for action, _ in [*dialogue.history, *dialogue.future[:1]]]
        messages, completion = dialogue.messages(role, MASTERMIND_PROMPTS)
        if role in ("critique", "backup"):
            assert parse_critique(completion["content"]) == dialogue.critique
        if role == "backup" and len(dialogue.future) == 1:
            assert f"The score is {dialogue.score:g}." in messages[-1]["content"]
        if role == "successor":
            assert completion["content"].startswith(dialogue.future[1][0])
        told = [code for code in CODES if code not in map(parse_guess, guesses)]
        possible += any(
            all(observe(parse_guess(action), code, 1) == answer for action, answer in dialogue.history)
            for code in told
        )
    assert (0.2 if role == "successor" else 0.3) < cracked / 300 < 0.75  # there the first guess never cracks it
    assert possible < 300  # the answers of a history often fit no code at all


def test_rehearsal_teaches_no_guess():
    """Only the roles that copy and follow advice are rehearsed: the others would teach to guess at random."""
    rows = make_rehearsal_dataset("mastermind", size=200)
    asked = {row["prompt"][-1]["content"].split(". ")[-1] for row in rows}
    assert asked == {MASTERMIND_PROMPTS.backup, MASTERMIND_PROMPTS.refine}
