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

"""
Guess The Number, played by [textarena](https://github.com/LeonGuertler/TextArena), with an exact solver as its oracle:
numbers from 1 to 20, and five guesses, each of which is answered with "higher" or "lower".
"""

import json
import random
import re
from functools import cache
from typing import Any

from trl_nlac.environments.embedded.guess_the_number_dialogues import (
    FOUND,
    GAME,
    NUM_GUESSES,
    NUMBERS,
    format_guess,
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


def num_won_after(guess: int, numbers: range, guesses_left: int) -> int:
    """Return how many of the possible `numbers` are found by `guess`, and best play from then on."""
    parts = [answered(guess, hint, numbers) for hint in ("lower", "higher")]
    return (guess in numbers) + sum(num_won(len(part), guesses_left - 1) for part in parts)


def answered(guess: int, hint: str, numbers: range) -> range:
    """Return which of the possible `numbers` fit the hint that follows `guess`."""
    if hint == "lower":
        return range(numbers.start, min(numbers.stop, guess))
    return range(max(numbers.start, guess + 1), numbers.stop)


@cache
def success_of_fitting(size: int = len(NUMBERS), guesses_left: int = NUM_GUESSES) -> float:
    """Return the success of a player whose every guess is drawn from the `size` numbers that fit all hints."""
    if not size or not guesses_left:
        return 0.0
    parts = [(i, size - 1 - i) for i in range(size)]
    found = sum(1 + sum(part * success_of_fitting(part, guesses_left - 1) for part in both) for both in parts)
    return found / size**2


# Success of players that need no training. The last one never repeats a guess, as the base model.
REFERENCES = {
    "exact solver": num_won(len(NUMBERS), NUM_GUESSES) / len(NUMBERS),
    "a number that fits all hints": success_of_fitting(),
    "any other guess": NUM_GUESSES / len(NUMBERS),
}
_ALL = range(NUMBERS[0], NUMBERS[-1] + 1)


def fitting_games(tasks: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """
    Play each task as a player whose every guess is drawn from the numbers that fit all hints.

    Returns:
        `list[dict]`: conversations, each with `task`, `messages` and `reward`, see
        [`~episodes.logs.episodes_from_logs`].
    """
    rng, environment, logs = random.Random(f"fitting {seed}"), GuessTheNumberEnvironment(), []
    for task in tasks:
        messages, numbers = [{"role": "user", "content": environment.reset(**task)}], _ALL
        while True:
            guess = rng.choice(numbers)
            result = environment.step(format_guess(guess))
            messages.append({"role": "assistant", "content": format_guess(guess)})
            messages.append({"role": "user", "content": result.observation})
            if result.terminated:
                break
            numbers = answered(guess, _hint(result.observation), numbers)
        logs.append({"task": json.dumps(task), "messages": messages, "reward": result.reward})
    return logs


class GuessTheNumberOracle:
    """The ground truth of every game, see [`~trl_nlac.environments.Oracle`]: the numbers that fit all hints."""

    def quality(self, transition: Transition, action: str) -> float:
        """Return the chance to win after `action`, relative to that of a best guess; 0 if the game refuses it."""
        guess, (tried, numbers) = parse_guess(action), _known(transition)
        if guess is None or guess in tried:
            return 0.0
        left = NUM_GUESSES - len(tried)
        return num_won_after(guess, numbers, left) / num_won(len(numbers), left)

    def future_is_right(self, transition: Transition, action: str, future: str) -> bool:
        """Whether `future` is, word for word, a game that can follow `action`, with the same number up to its end."""
        guess, (tried, numbers) = parse_guess(action), _known(transition)
        return guess is not None and any(_follows(guess, tried, number, future.strip()) for number in numbers)

    def probes(self, number: int, seed: int) -> list[tuple[dict[str, Any], list[str]]]:
        """Draw games of random guesses; every second one ends with a best guess, the others with a worse one."""
        rng, environment, probes = random.Random(seed), GuessTheNumberEnvironment(), []
        while len(probes) < number:
            task = {"seed": rng.randrange(10**6)}
            environment.reset(**task)
            target = environment.game.game_number
            tried = rng.sample([other for other in NUMBERS if other != target], rng.randrange(NUM_GUESSES))
            numbers, left = _ALL, NUM_GUESSES - len(tried)
            for guess in tried:
                numbers = answered(guess, "lower" if guess > target else "higher", numbers)
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


def _hint(observation: str) -> str | None:
    """Return the hint of an observation, if it has one."""
    found = re.match(r"The target number is (lower|higher)\.", observation)
    return found[1] if found else None


def _known(transition: Transition) -> tuple[list[int], range]:
    """Return the guesses that were answered before a transition, and the numbers that fit these hints."""
    tried, numbers = [], _ALL
    for turn in transition.episode.turns[: transition.index]:
        hint = _hint(turn.next_observation)
        if hint:
            tried.append(parse_guess(turn.action))
            numbers = answered(tried[-1], hint, numbers)
    return tried, numbers


def _follows(guess: int, tried: list[int], number: int, future: str) -> bool:
    """Whether the game says `future` about `guess` and later ones, if `number` is to be found."""
    if guess in tried:
        return False
    left = NUM_GUESSES - len(tried) - 1
    observation = observe(guess, number, left)
    if observation == FOUND or not left:
        return future == observation
    following = re.match(r" (\[\d+\]) ", future.removeprefix(observation))
    if not future.startswith(observation) or not following or parse_guess(following[1]) is None:
        return False
    rest = future.removeprefix(observation).removeprefix(following[0])
    return _follows(parse_guess(following[1]), [*tried, guess], number, rest)
