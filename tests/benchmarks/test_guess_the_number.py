# SPDX-License-Identifier: Apache-2.0

import random

import pytest
from helpers.method_utils import probe_qualities, replayed

from benchmarks.learning.guess_the_number import REFERENCES, GuessTheNumberEnvironment, num_won, num_won_after
from benchmarks.learning.tasks import make_task
from benchmarks.tiny_models.guess_the_number_dialogues import (
    FOUND,
    HIGHER,
    LOWER,
    NUM_GUESSES,
    NUMBERS,
    REFUSED,
    REFUSED_AGAIN,
    TURN_LIMIT,
    fitting,
    format_guess,
    observe,
)


def finds(choose, target) -> bool:
    """Whether a player finds `target`; it is given the numbers that fit all hints, and the number of guesses left."""
    history = []
    for guesses_left in range(NUM_GUESSES, 0, -1):
        guess = choose(fitting(history), guesses_left)
        if guess == target:
            return True
        history.append((format_guess(guess), observe(history, guess, target)))
    return False


def test_references():
    assert all(
        finds(lambda numbers, left: max(NUMBERS, key=lambda guess: num_won_after(guess, numbers, left)), target)
        for target in NUMBERS
    )
    assert REFERENCES["exact solver"] == 1 and num_won(20, 4) == 15
    rng, games = random.Random(0), 6000
    success = sum(finds(lambda numbers, _: rng.choice(numbers), rng.choice(NUMBERS)) for _ in range(games)) / games
    assert REFERENCES["a number that fits all hints"] == pytest.approx(success, abs=0.02)
    won, environment = 0, GuessTheNumberEnvironment()
    for seed in range(games):
        environment.reset(seed=seed)
        result = environment.step(format_guess(rng.choice(NUMBERS)))
        while not result.terminated:
            result = environment.step(format_guess(rng.choice(NUMBERS)))
        won += result.reward == 1
    assert REFERENCES["any number"] == pytest.approx(won / games, abs=0.02)


class TestOracle:
    """With seed 2 the number is 2. After 10 ("lower") and 5 ("lower") it is one of 1 to 4, with three guesses left."""

    @pytest.fixture
    def after_two(self):
        environment = GuessTheNumberEnvironment()
        *_, transition = replayed(environment, {"seed": 2}, ["[10]", "[5]", "[7]"])
        assert environment.game.game_number == 2
        return environment.oracle, transition

    @pytest.mark.parametrize(
        ("action", "quality"),
        [
            ("[3]", 1.0),
            ("[2]", 1.0),
            ("[1]", 1.0),  # leaves three, which two more guesses find
            ("[9]", 0.75),  # leaves all four
            ("[5]", 0.0),  # was made before
            ("[21]", 0.0),
            ("what?", 0.0),
        ],
    )
    def test_quality(self, after_two, action, quality):
        oracle, transition = after_two
        assert oracle.quality(transition, action) == quality

    @pytest.mark.parametrize(
        ("future", "is_right"),
        [
            (FOUND, True),
            (f"{LOWER} [2] {FOUND}", True),
            (f"{HIGHER} [4] {FOUND}", True),
            (f"{LOWER} [2] {LOWER} [4] {LOWER}\n\n{TURN_LIMIT.format(4, 1)}", True),
            (f"{LOWER} [5] {REFUSED} [2] {FOUND}", True),
            (f"{LOWER} [3] {REFUSED} [10] {REFUSED_AGAIN}", True),
            (LOWER, False),  # does not end
            (f"{HIGHER} [6] {FOUND}", False),  # an earlier hint says that it is lower than 5
            (f"{LOWER} [4] {FOUND}", False),  # the hint before says otherwise
            (f"{HIGHER} [4] {HIGHER} [6] {FOUND}", False),
            (f"{LOWER} [5] {LOWER} [2] {FOUND}", False),  # would be refused
            (f"{LOWER} [2] {LOWER} [4] {LOWER}\n\n{TURN_LIMIT.format(4, 2)}", False),
            (f"{FOUND} [2] {FOUND}", False),
        ],
    )
    def test_futures(self, after_two, future, is_right):
        oracle, transition = after_two
        assert oracle.future_is_right(transition, "[3]", future) == is_right
        assert not oracle.future_is_right(transition, "[10]", future)
        assert oracle.future_is_right(transition, "[10]", f"{REFUSED} [3] {future}") == is_right

    def test_probes_are_half_best(self):
        assert probe_qualities(GuessTheNumberEnvironment(), 40).count(1) == 20


def test_training_never_plays_a_game_of_evaluation():
    task = make_task("guess_the_number", 0)
    assert not set(task.rows["seed"]) & set(task.instances["held_out"].rows["seed"])
    environment = task.environment_factory()
    targets = set()
    for row in task.instances["held_out"].rows:
        environment.reset(**row)
        targets.add(environment.game.game_number)
    assert targets == set(NUMBERS)
