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
Supervised samples of the roles in Mastermind, as [textarena](https://github.com/LeonGuertler/TextArena) plays it, for
the base model of the benchmarks. They teach the form of the roles and nothing about the game.
"""

import random
import re
from itertools import permutations

from .dialogues import RoleDialogue, Steps


Code = tuple[str, ...]

# Settings of the game: textarena allows one guess more than its `max_turns`.
GAME = {"code_length": 2, "num_numbers": 4, "max_turns": 2}
NUM_GUESSES = GAME["max_turns"] + 1
CODES = tuple(permutations("123456789"[: GAME["num_numbers"]], GAME["code_length"]))
FIRST_OBSERVATION = (
    "You are playing Mastermind.\n"
    f"You need to find the code that is {GAME['code_length']} digits long, each digit from 1 to "
    f"{GAME['num_numbers']}, with no duplicates.\n"
    "In your response, you can submit your guess in the following format: '[2 1 4 5]'.\n"
    "After each guess, you will receive feedback in the form of black and white pegs.\n"
    "A black peg indicates a correct digit in the correct position, while a white peg indicates a correct digit in "
    "the wrong position.\n"
    f"You have {GAME['max_turns']} turns to guess the code."
)
CRACKED = "You have cracked the code, solving 2 out of 2 pegs correctly"
ADVICE = "The code is {}."
NO_ADVICE = "Another guess is better."


def parse_guess(action: str) -> Code | None:
    """Return the digits of an action like `[2 5]`, or `None` if it is not a guess that the game can answer."""
    found = re.search(r"\[(\d+(?:\s+\d+)*)\]", action)
    guess = tuple(found[1].split()) if found else None
    return guess if guess in CODES else None


def format_guess(guess: Code) -> str:
    """Format `guess` as an action."""
    return f"[{' '.join(guess)}]"


def pegs(guess: Code, code: Code) -> tuple[int, int]:
    """Return the numbers of black and white pegs of `guess`."""
    black = sum(map(str.__eq__, guess, code))
    return black, len(set(guess) & set(code)) - black


def observe(guess: Code, code: Code, guesses_left: int) -> str:
    """Write what the game says about `guess`, after which `guesses_left` are left."""
    if guess == code:
        return CRACKED
    black, white = pegs(guess, code)
    feedback = f"Submitted {format_guess(guess)}. Feedback: {black} black peg(s), {white} white peg(s)."
    if guesses_left:
        return feedback
    percent = 100 * share(guess, code)
    return f"{feedback}\n\nTurn limit reached. You guessed {percent:.2f} percent of the numbers correctly."


def share(guess: Code, code: Code) -> float:
    """Return the score of a game whose last guess is `guess`: one for a black peg and half for a white, by length."""
    black, white = pegs(guess, code)
    return (black + 0.5 * white) / len(code)


class MastermindFamily:
    """
    Role data of games without a code: each answer is about a code of its own, which a fifth of the guesses crack. So
    all answers are possible ones, but earlier answers say nothing about later ones, and no guess is better than
    another. Whoever learns from these samples can play by the rules, tell what followed, name the code that was found,
    and follow advice.
    """

    def dialogue(self, rng: random.Random, role: str, known: bool) -> RoleDialogue:
        """
        Draw the events around one guess.

        Args:
            rng (`random.Random`):
                Source of the draws.
            role (`str`):
                The role, which decides how much can follow.
            known (`bool`):
                Has no effect: there is no game that is known.
        """
        history: Steps = []
        for _ in range(rng.randrange(NUM_GUESSES - (role == "successor"))):
            guess = _other_guess(rng, history)
            history.append((format_guess(guess), observe(guess, _code(rng, guess, cracked=False), 1)))
        guess = _other_guess(rng, history)
        attempts: list[RoleDialogue] = []
        for _ in range(rng.choice([1, 1, 2, 3]) if role == "refine" else 1):
            future, score = _play(rng, history, guess, goes_on=role == "successor")
            won, code = score == 1, parse_guess(future[-1][0])
            is_right = won and len(future) == 1
            tried = [*history, *[(attempt.action, "") for attempt in attempts], (format_guess(guess), "")]
            refined = guess if is_right else code if won else _other_guess(rng, tried)
            attempts.append(
                RoleDialogue(
                    first_observation=FIRST_OBSERVATION,
                    history=history,
                    action=format_guess(guess),
                    future=future,
                    won=is_right,
                    advice="" if is_right else ADVICE.format(format_guess(code)) if won else NO_ADVICE,
                    refined_action=format_guess(refined),
                    tool={},
                    earlier_attempts=[(attempt.action, attempt.critique) for attempt in attempts],
                    score=score,
                )
            )
            if is_right:
                break
            guess = refined
        return attempts[-1]


def _play(rng: random.Random, history: Steps, guess: Code, goes_on: bool) -> tuple[Steps, float]:
    """Play from `guess` to the end. Return the steps and the score; with `goes_on`, there are at least two steps."""
    future: Steps = []
    while True:
        guesses_left = NUM_GUESSES - len(history) - len(future) - 1
        code = _code(rng, guess, cracked=rng.random() < 0.2 and not (goes_on and not future))
        future.append((format_guess(guess), observe(guess, code, guesses_left)))
        if code == guess or not guesses_left:
            return future, share(guess, code)
        guess = _other_guess(rng, [*history, *future])


def _code(rng: random.Random, guess: Code, cracked: bool) -> Code:
    return guess if cracked else rng.choice([code for code in CODES if code != guess])


def _other_guess(rng: random.Random, steps: Steps) -> Code:
    """Draw a guess that is not in `steps`: the game refuses a guess that was made before."""
    made = {action for action, _ in steps}
    return rng.choice([code for code in CODES if format_guess(code) not in made])
