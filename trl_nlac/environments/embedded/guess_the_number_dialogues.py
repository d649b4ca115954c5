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
Supervised samples of the roles in Guess The Number, as [textarena](https://github.com/LeonGuertler/TextArena) plays
it, for the base model of the benchmarks. They teach the form of the roles, and what the game says to random guesses.
"""

import random
import re

from .dialogues import RoleDialogue, Steps


# Settings of the game: textarena allows one guess more than its `max_turns`.
GAME = {"min_number": 1, "max_number": 20, "max_turns": 4}
NUM_GUESSES = GAME["max_turns"] + 1
NUMBERS = tuple(range(GAME["min_number"], GAME["max_number"] + 1))
FIRST_OBSERVATION = (
    "You are Player 0. You are playing Guess The Number.\n"
    f"You have to guess the number between {NUMBERS[0]} and {NUMBERS[-1]} within {GAME['max_turns']} turns.\n"
    "As you enter your guess, the game will provide you with hints such as 'higher' or 'lower'.\n"
    "You may provide your response in any manner. Only the number that is wrapped in square brackets will be "
    "considered as your guess. For example, [5].\n"
    "As you play, the history of your guesses will be appended below. Use the information to complete the game before "
    "you run out of guesses.\n"
    "Enter your guess."
)
FOUND = "Congratulations! You guessed the correct number."
ADVICE = "The number is {}."


def parse_guess(action: str) -> int | None:
    """Return the number of an action like `[5]`, or `None` if the game cannot answer it."""
    found = re.search(r"\[(\d+)\]", action)
    return int(found[1]) if found and int(found[1]) in NUMBERS else None


def format_guess(guess: int) -> str:
    """Format `guess` as an action."""
    return f"[{guess}]"


def observe(guess: int, number: int, guesses_left: int) -> str:
    """Write what the game says about `guess`, after which `guesses_left` are left. A lost game shows its number."""
    if guess == number:
        return FOUND
    hint = f"The target number is {'lower' if guess > number else 'higher'}."
    if guesses_left:
        return hint
    return f"{hint}\n\nThe turn limit has been reached. Guess: {guess}, Target: {number}"


def closeness(guess: int, number: int) -> float:
    """Return the score of a game whose last guess is `guess`: 1 for the number, and less the farther it is."""
    return 1 - abs(guess - number) / (NUMBERS[-1] - NUMBERS[0])


class GuessTheNumberFamily:
    """
    Role data of games in which every guess is drawn from the numbers that were not guessed before. Whoever learns from
    these samples knows what the game says, can name the number that it shows in the end, and follows advice; but its
    own guesses pay no heed to the hints.
    """

    def dialogue(self, rng: random.Random, role: str, known: bool) -> RoleDialogue:
        """
        Draw the events around one guess.

        Args:
            rng (`random.Random`):
                Source of the draws.
            role (`str`):
                The role, which decides how much must follow.
            known (`bool`):
                Has no effect: every game has a number of its own.
        """
        number, goes_on = rng.choice(NUMBERS), role == "successor"
        history: Steps = []
        for _ in range(rng.randrange(NUM_GUESSES - goes_on)):
            guess = _other_guess(rng, history, number)
            history.append((format_guess(guess), observe(guess, number, 1)))
        guess = _other_guess(rng, history, *[number] * goes_on)
        attempts: list[RoleDialogue] = []
        for _ in range(rng.choice([1, 1, 2, 3]) if role == "refine" else 1):
            future, is_right = _play(rng, history, guess, number), guess == number
            attempts.append(
                RoleDialogue(
                    first_observation=FIRST_OBSERVATION,
                    history=history,
                    action=format_guess(guess),
                    future=future,
                    won=is_right,
                    advice="" if is_right else ADVICE.format(format_guess(number)),
                    refined_action=format_guess(number),
                    tool={},
                    earlier_attempts=[(attempt.action, attempt.critique) for attempt in attempts],
                    score=closeness(parse_guess(future[-1][0]), number),
                )
            )
            if is_right:
                break
            guess, number = number, rng.choice(fitting(history))  # each critique foresees a game of its own
        return attempts[-1]


def fitting(history: Steps) -> list[int]:
    """Return the numbers that fit all hints."""
    guesses = [(parse_guess(action), hint) for action, hint in history]
    return [number for number in NUMBERS if all(observe(guess, number, 1) == hint for guess, hint in guesses)]


def _play(rng: random.Random, history: Steps, guess: int, number: int) -> Steps:
    """Play from `guess` to the end of the game."""
    future: Steps = []
    while True:
        guesses_left = NUM_GUESSES - len(history) - len(future) - 1
        future.append((format_guess(guess), observe(guess, number, guesses_left)))
        if guess == number or not guesses_left:
            return future
        guess = _other_guess(rng, [*history, *future])


def _other_guess(rng: random.Random, steps: Steps, *others: int) -> int:
    """Draw a guess that is not in `steps`, since the game refuses it the second time, and none of `others`."""
    made = {parse_guess(action) for action, _ in steps} | set(others)
    return rng.choice([number for number in NUMBERS if number not in made])
