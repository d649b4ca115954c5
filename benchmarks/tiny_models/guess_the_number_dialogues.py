# SPDX-License-Identifier: Apache-2.0

"""
Supervised samples of the roles in Guess The Number, as [textarena](https://github.com/LeonGuertler/TextArena) plays
it, for the base model of the benchmarks. They teach the form of the roles, and what the game says to random guesses.
"""

import random
import re

from benchmarks.tiny_models.dialogues import RoleDialogue, Steps


# Settings of the game: textarena allows one guess more than its `max_turns`.
GAME = {"min_number": 1, "max_number": 20, "max_turns": 4}
NUM_GUESSES = GAME["max_turns"] + 1
NUMBERS = tuple(range(GAME["min_number"], GAME["max_number"] + 1))
# A guess that is refused costs none, but the second refusal in a row ends the game.
MAX_ACTIONS = 2 * NUM_GUESSES - 1
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
LOWER, HIGHER = "The target number is lower.", "The target number is higher."
FOUND = "Congratulations! You guessed the correct number."
_REPEATED = "Invalid move. Player 0 has already guessed the number."
REFUSED = (
    f"You attempted an invalid move. Reason: {_REPEATED} Please resubmit a valid move and remember to follow the game "
    "rules to avoid penalties."
)
REFUSED_AGAIN = f"Invalid Move: {_REPEATED}"
TURN_LIMIT = "The turn limit has been reached. Guess: {}, Target: {}"
ADVICE = "The number is {}."


def parse_guess(action: str) -> int | None:
    """Return the number of an action like `[5]`, or `None` if the game cannot answer it."""
    found = re.search(r"\[(\d+)\]", action)
    return int(found[1]) if found and int(found[1]) in NUMBERS else None


def format_guess(guess: int) -> str:
    """Format `guess` as an action."""
    return f"[{guess}]"


def answered(steps: Steps) -> list[int]:
    """Return the guesses in `steps` to which the game gave a hint, not those that it refused."""
    return [parse_guess(action) for action, observation in steps if observation.startswith((LOWER, HIGHER))]


def observe(steps: Steps, guess: int, number: int) -> str:
    """Write what the game says about `guess` after `steps`. The last guess, if it is wrong, shows the `number`."""
    if guess == number:
        return FOUND
    said, made = LOWER if guess > number else HIGHER, answered(steps)
    if guess in made:
        said = REFUSED if steps[-1][1] in (LOWER, HIGHER) else REFUSED_AGAIN
    if len(made) < NUM_GUESSES - 1:
        return said
    return f"{said}\n\n{TURN_LIMIT.format(guess, number)}"


def goes_on(observation: str) -> bool:
    """Whether the game goes on after `observation`."""
    return observation in (LOWER, HIGHER, REFUSED)


def fitting(steps: Steps) -> list[int]:
    """Return the numbers that fit all hints."""
    hints = [(parse_guess(action), hint) for action, hint in steps if hint in (LOWER, HIGHER)]
    return [number for number in NUMBERS if all(observe([], guess, number) == hint for guess, hint in hints)]


def score_of(steps: Steps, number: int) -> float:
    """Return the score of a game: 1 if `number` was found, and less the farther the last guess with a hint is."""
    return 1.0 if steps[-1][1] == FOUND else closeness(answered(steps)[-1], number)


def closeness(guess: int, number: int) -> float:
    """Return 1 less the distance of `guess` from `number`, as a share of the largest distance."""
    return 1 - abs(guess - number) / (NUMBERS[-1] - NUMBERS[0])


class GuessTheNumberFamily:
    """
    Role data of games of random guesses: every number is equally likely each time, also one that was guessed before.
    Whoever learns from these samples knows what the game says, can name the number that it shows in the end, and
    follows advice; but its own guesses pay no heed to the hints.
    """

    known = None  # every game has a number of its own

    def dialogue(self, rng: random.Random, role: str, known: bool) -> RoleDialogue:
        """Draw the events around one guess; `role` decides how much must follow, and `known` has no effect."""
        number = rng.choice(NUMBERS)
        history = _begin(rng, number, rng.randrange(NUM_GUESSES - (role == "successor")))
        guess = rng.choice(NUMBERS)
        while role == "successor" and not goes_on(observe(history, guess, number)):
            guess = rng.choice(NUMBERS)
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
                    score=score_of([*history, *future], number),
                )
            )
            if is_right:
                break
            guess, number = number, rng.choice(fitting(history))  # each critique foresees a game of its own
        return attempts[-1]


def _begin(rng: random.Random, number: int, num_hints: int) -> Steps:
    """Play until there are `num_hints` hints, and perhaps a refusal after them."""
    steps: Steps = []
    while True:
        guess = rng.choice(NUMBERS)
        observation = observe(steps, guess, number)
        if len(answered(steps)) == num_hints and observation != REFUSED:
            return steps
        if goes_on(observation):
            steps.append((format_guess(guess), observation))


def _play(rng: random.Random, history: Steps, guess: int, number: int) -> Steps:
    """Play from `guess` to the end of the game."""
    future: Steps = []
    while True:
        observation = observe([*history, *future], guess, number)
        future.append((format_guess(guess), observation))
        if not goes_on(observation):
            return future
        guess = rng.choice(NUMBERS)
