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
Mastermind, played by [textarena](https://github.com/LeonGuertler/TextArena), with an exact solver as its oracle: codes
of two different digits from 1 to 4, and three guesses.
"""

import json
import random
import re
from collections import defaultdict
from functools import cache
from typing import Any

from trl_nlac.environments.embedded.mastermind_dialogues import (
    CODES,
    CRACKED,
    GAME,
    NUM_GUESSES,
    Code,
    format_guess,
    observe,
    parse_guess,
    pegs,
)
from trl_nlac.environments.textarena import TextArenaEnvironment
from trl_nlac.types import Transition


_PEGS = re.compile(r"Feedback: (\d) black peg\(s\), (\d) white peg\(s\)\.")


def answers(guess: Code, codes: tuple[Code, ...]) -> dict[tuple[int, int], tuple[Code, ...]]:
    """Group possible codes by the pegs that the game would give `guess`."""
    groups = defaultdict(list)
    for code in codes:
        groups[pegs(guess, code)].append(code)
    return {given: tuple(group) for given, group in groups.items()}


@cache
def num_won(codes: tuple[Code, ...], guesses_left: int) -> int:
    """Return how many of the codes best play finds with `guesses_left` guesses."""
    if guesses_left <= 1 or not codes:
        return min(guesses_left, len(codes))
    return max(num_won_after(guess, codes, guesses_left) for guess in CODES)


def num_won_after(guess: Code, codes: tuple[Code, ...], guesses_left: int) -> int:
    """Return how many of the codes `guess`, and best play from then on, find with `guesses_left` guesses."""
    return sum(
        1 if group == (guess,) else num_won(group, guesses_left - 1) for group in answers(guess, codes).values()
    )


@cache
def success_of_fitting(codes: tuple[Code, ...] = CODES, guesses_left: int = NUM_GUESSES) -> float:
    """Return the success of a player whose every guess is drawn from the codes that fit all answers."""
    if not guesses_left:
        return 0.0
    found = 0.0
    for guess in codes:
        for group in answers(guess, codes).values():
            found += 1 if group == (guess,) else len(group) * success_of_fitting(group, guesses_left - 1)
    return found / len(codes) ** 2


# Success of players that need no training. The last one never repeats a guess, as the base model.
REFERENCES = {
    "exact solver": num_won(CODES, NUM_GUESSES) / len(CODES),
    "a code that fits all answers": success_of_fitting(),
    "any other guess": NUM_GUESSES / len(CODES),
}


def fitting_games(tasks: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """
    Play each task as a player whose every guess is drawn from the codes that fit all answers.

    Returns:
        `list[dict]`: conversations, each with `task`, `messages` and `reward`, see
        [`~episodes.logs.episodes_from_logs`].
    """
    rng, environment, logs = random.Random(f"fitting {seed}"), MastermindEnvironment(), []
    for task in tasks:
        messages, codes = [{"role": "user", "content": environment.reset(**task)}], CODES
        while True:
            guess = rng.choice(codes)
            result = environment.step(format_guess(guess))
            messages.append({"role": "assistant", "content": format_guess(guess)})
            messages.append({"role": "user", "content": result.observation})
            if result.terminated:
                break
            codes = answers(guess, codes)[_pegs_of(result.observation)]
        logs.append({"task": json.dumps(task), "messages": messages, "reward": result.reward})
    return logs


class MastermindOracle:
    """The ground truth of every game, see [`~trl_nlac.environments.Oracle`]: the codes that fit all answers."""

    def quality(self, transition: Transition, action: str) -> float:
        """Return the chance to win after `action`, relative to that of a best guess; 0 if the game refuses it."""
        guess, (tried, codes) = parse_guess(action), _known(transition)
        if guess is None or guess in tried:
            return 0.0
        guesses_left = NUM_GUESSES - len(tried)
        return num_won_after(guess, codes, guesses_left) / num_won(codes, guesses_left)

    def future_is_right(self, transition: Transition, action: str, future: str) -> bool:
        """Whether `future` is, word for word, a game that can follow `action`, with the same code up to its end."""
        guess, (tried, codes) = parse_guess(action), _known(transition)
        return guess is not None and guess not in tried and _can_follow(guess, tried, codes, future)

    def probes(self, number: int, seed: int) -> list[tuple[dict[str, Any], list[str]]]:
        """Draw games of random guesses; every second one ends with a best guess, the others with a worse one."""
        rng, game, probes = random.Random(seed), MastermindEnvironment(), []
        while len(probes) < number:
            task = {"seed": rng.randrange(10**6)}
            game.reset(**task)
            code = tuple(map(str, game.game.state.game_state["secret_code"]))
            tried = rng.sample([other for other in CODES if other != code], rng.randrange(NUM_GUESSES))
            codes, left = CODES, NUM_GUESSES - len(tried)
            for guess in tried:
                codes = answers(guess, codes)[pegs(guess, code)]
            most, wants_best = num_won(codes, left), len(probes) % 2 == 0
            wanted = [
                guess
                for guess in CODES
                if guess not in tried and (num_won_after(guess, codes, left) == most) == wants_best
            ]
            if wanted:
                probes.append((task, [format_guess(guess) for guess in [*tried, rng.choice(wanted)]]))
        return probes


class MastermindEnvironment(TextArenaEnvironment):
    """The game. `reset(seed=...)` draws the code."""

    oracle = MastermindOracle()

    def __init__(self):
        super().__init__("Mastermind-v0", **GAME)


def _known(transition: Transition) -> tuple[tuple[Code, ...], tuple[Code, ...]]:
    """Return the guesses that were answered before a transition, and the codes that fit these answers."""
    tried, codes = [], CODES
    for turn in transition.episode.turns[: transition.index]:
        given = _pegs_of(turn.next_observation)
        if given:
            guess = parse_guess(turn.action)
            tried.append(guess)
            codes = answers(guess, codes)[given]
    return tuple(tried), codes


def _pegs_of(observation: str) -> tuple[int, int] | None:
    """Return the black and white pegs that an observation tells, if it does."""
    given = _PEGS.search(observation)
    return (int(given[1]), int(given[2])) if given else None


def _can_follow(guess: Code, tried: tuple[Code, ...], codes: tuple[Code, ...], future: str) -> bool:
    guesses_left = NUM_GUESSES - len(tried) - 1
    for group in answers(guess, codes).values():
        observation = observe(guess, group[0], guesses_left)
        if observation == CRACKED or not guesses_left:
            if future.strip() == observation:
                return True
        elif future.startswith(observation):
            rest = future.removeprefix(observation).lstrip()
            follows = re.match(r"\[\d \d\]", rest)
            then = parse_guess(follows[0]) if follows else None
            if then is None or then in (*tried, guess):
                return False
            return _can_follow(then, (*tried, guess), group, rest[follows.end() :].lstrip())
    return False
