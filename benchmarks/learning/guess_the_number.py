# SPDX-License-Identifier: Apache-2.0

"""
Guess The Number, played by [textarena](https://github.com/LeonGuertler/TextArena), with an exact solver as its oracle:
numbers from 1 to 20, and five guesses, each of which is answered with "higher" or "lower".
"""

import random
import re
from functools import cache
from typing import Any

from benchmarks.tiny_models.dialogues import Steps
from benchmarks.tiny_models.guess_the_number_dialogues import (
    GAME,
    NUM_GUESSES,
    NUMBERS,
    answered,
    fitting,
    format_guess,
    goes_on,
    observe,
    parse_guess,
)
from trl_nlac.environments.textarena import TextArenaEnvironment
from trl_nlac.types import Transition


@cache
def num_won(size: int, guesses_left: int) -> int:
    """Return how many of `size` successive numbers best play finds with `guesses_left` guesses."""
    if not size or not guesses_left:
        return 0
    return max(1 + num_won(i, guesses_left - 1) + num_won(size - 1 - i, guesses_left - 1) for i in range(size))


def num_won_after(guess: int, numbers: list[int], guesses_left: int) -> int:
    """Return how many of the possible `numbers`, which are successive, `guess` and best play from then on find."""
    parts = sum(number < guess for number in numbers), sum(number > guess for number in numbers)
    return (guess in numbers) + sum(num_won(part, guesses_left - 1) for part in parts)


@cache
def success_of_fitting(size: int = len(NUMBERS), guesses_left: int = NUM_GUESSES) -> float:
    """Return the success of a player whose every guess is drawn from the `size` numbers that fit all hints."""
    if not size or not guesses_left:
        return 0.0
    parts = [(i, size - 1 - i) for i in range(size)]
    found = sum(1 + sum(part * success_of_fitting(part, guesses_left - 1) for part in both) for both in parts)
    return found / size**2


@cache
def success_of_any(num_hints: int = 0, was_refused: bool = False) -> float:
    """Return the success of a player who guesses any number, also one that was guessed before, after `num_hints`."""
    is_last = num_hints == NUM_GUESSES - 1
    after_another = 0.0 if is_last else success_of_any(num_hints + 1)
    after_refusal = 0.0 if is_last or was_refused else success_of_any(num_hints, True)
    num_others = len(NUMBERS) - 1 - num_hints
    return (1 + num_others * after_another + num_hints * after_refusal) / len(NUMBERS)


# Success of players that need no training. The last one plays as the base model.
REFERENCES = {
    "exact solver": num_won(len(NUMBERS), NUM_GUESSES) / len(NUMBERS),
    "a number that fits all hints": success_of_fitting(),
    "any number": success_of_any(),
}


class GuessTheNumberOracle:
    """The ground truth of every game, see [`~trl_nlac.environments.Oracle`]: the numbers that fit all hints."""

    def quality(self, transition: Transition, action: str) -> float:
        """Return the chance to win after `action`, relative to that of a best guess; 0 if the game refuses it."""
        guess, steps = parse_guess(action), _steps_before(transition)
        made = answered(steps)
        if guess is None or guess in made:
            return 0.0
        numbers, left = fitting(steps), NUM_GUESSES - len(made)
        return num_won_after(guess, numbers, left) / num_won(len(numbers), left)

    def future_is_right(self, transition: Transition, action: str, future: str) -> bool:
        """Whether `future` is, word for word, a game that can follow `action`, with the same number up to its end."""
        guess, steps = parse_guess(action), _steps_before(transition)
        return guess is not None and any(_follows(guess, steps, n, future.strip()) for n in fitting(steps))

    def probes(self, number: int, seed: int) -> list[tuple[dict[str, Any], list[str]]]:
        """Draw games of random guesses; every second one ends with a best guess, the others with a worse one."""
        rng, environment, probes = random.Random(seed), GuessTheNumberEnvironment(), []
        while len(probes) < number:
            task = {"seed": rng.randrange(10**6)}
            environment.reset(**task)
            target = environment.game.game_number
            tried = rng.sample([other for other in NUMBERS if other != target], rng.randrange(NUM_GUESSES))
            numbers = fitting([(format_guess(guess), observe([], guess, target)) for guess in tried])
            left = NUM_GUESSES - len(tried)
            most, wants_best = num_won(len(numbers), left), len(probes) % 2 == 0
            wanted = [
                guess
                for guess in NUMBERS
                if guess not in tried and (num_won_after(guess, numbers, left) == most) == wants_best
            ]
            if wanted:
                probes.append((task, [format_guess(guess) for guess in [*tried, rng.choice(wanted)]]))
        return probes


class GuessTheNumberEnvironment(TextArenaEnvironment):
    """The game. `reset(seed=...)` draws the number."""

    oracle = GuessTheNumberOracle()

    def __init__(self):
        super().__init__("GuessTheNumber-v0", **GAME)


def _steps_before(transition: Transition) -> Steps:
    """Return the guesses before a transition, with what the game said."""
    return [(turn.action, turn.next_observation) for turn in transition.episode.turns[: transition.index]]


def _follows(guess: int, steps: Steps, number: int, future: str) -> bool:
    """Whether the game says `future` about `guess` and later ones after `steps`, if `number` is to be found."""
    observation = observe(steps, guess, number)
    if not goes_on(observation):
        return future == observation
    following = re.match(r" (\[\d+\]) ", future.removeprefix(observation))
    if not future.startswith(observation) or not following or parse_guess(following[1]) is None:
        return False
    rest = future.removeprefix(observation).removeprefix(following[0])
    return _follows(parse_guess(following[1]), [*steps, (format_guess(guess), observation)], number, rest)
