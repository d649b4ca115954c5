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

import json
import random

import pytest
from helpers.testing_utils import make_roles

from benchmarks.learning.mastermind import (
    REFERENCES,
    MastermindEnvironment,
    answers,
    fitting_games,
    num_won,
    num_won_after,
)
from benchmarks.learning.tasks import make_task
from trl_nlac.environments.embedded.mastermind_dialogues import (
    CODES,
    CRACKED,
    NUM_GUESSES,
    observe,
    parse_guess,
    pegs,
)
from trl_nlac.episodes.recorder import replay_actions
from trl_nlac.types import Transition


def finds(choose, code) -> bool:
    """Whether a player finds `code`; it is given the codes that fit all answers, and the number of guesses left."""
    codes = CODES
    for guesses_left in range(NUM_GUESSES, 0, -1):
        guess = choose(codes, guesses_left)
        if guess == code:
            return True
        codes = answers(guess, codes)[pegs(guess, code)]
    return False


def test_references():
    """The solver finds every code with three guesses, not with two; the other success is that of many games."""
    assert all(
        finds(lambda codes, left: max(CODES, key=lambda guess: num_won_after(guess, codes, left)), code)
        for code in CODES
    )
    assert REFERENCES["exact solver"] == 1 and num_won(CODES, 2) < len(CODES)
    rng, games = random.Random(0), 6000
    fitting = sum(finds(lambda codes, _: rng.choice(codes), rng.choice(CODES)) for _ in range(games)) / games
    assert REFERENCES["a code that fits all answers"] == pytest.approx(fitting, abs=0.02)


def test_guesses_of_fitting_games_fit_all_answers_and_win():
    tasks = [{"seed": seed} for seed in range(40)]
    games = fitting_games(tasks, seed=0)
    assert [json.loads(game["task"]) for game in games] == tasks
    assert games == fitting_games(tasks, seed=0) != fitting_games(tasks, seed=1)
    environment, roles = MastermindEnvironment(), make_roles([])
    for game in games:
        actions = [message["content"] for message in game["messages"] if message["role"] == "assistant"]
        episode = replay_actions(environment, json.loads(game["task"]), actions, roles.actions, roles.prompts)
        assert game["reward"] == episode.score == 1
        for index, action in enumerate(actions):
            given = [(parse_guess(turn.action), turn.next_observation) for turn in episode.turns[:index]]
            guess = parse_guess(action)
            assert all(answer == observe(tried, guess, 1) for tried, answer in given)


class TestOracle:
    """With seed 1 the code is 2 3. After 1 2 (one white) it is 2 3 or 2 4, 3 1 or 4 1."""

    @pytest.fixture
    def after_one(self):
        environment, roles = MastermindEnvironment(), make_roles([])
        episode = replay_actions(environment, {"seed": 1}, ["[1 2]", "[3 4]"], roles.actions, roles.prompts)
        return environment.oracle, Transition(episode, 1)

    @pytest.mark.parametrize(
        ("action", "quality"),
        [
            ("[2 3]", 1.0),  # tells all four apart
            ("[1 3]", 1.0),  # does so, too, and cannot be the code
            ("[3 4]", 0.5),  # leaves two pairs
            ("[2 1]", 0.25),  # leaves all four
            ("[1 2]", 0.0),  # was made before
            ("[2 2]", 0.0),
            ("[2 5]", 0.0),
            ("what?", 0.0),
        ],
    )
    def test_quality(self, after_one, action, quality):
        oracle, transition = after_one
        assert oracle.quality(transition, action) == quality

    @pytest.mark.parametrize(
        ("future", "is_right"),
        [
            (CRACKED, True),
            (observe(("2", "3"), ("2", "4"), 1) + " [2 4] " + CRACKED, True),
            (observe(("2", "3"), ("2", "4"), 1) + " [3 1] " + observe(("3", "1"), ("2", "4"), 0), True),
            (observe(("2", "3"), ("2", "4"), 1), False),  # does not end
            (observe(("2", "3"), ("3", "2"), 1) + " [2 4] " + CRACKED, False),  # no code fits the answer
            (observe(("2", "3"), ("2", "4"), 1) + " [3 1] " + CRACKED, False),  # another code than the first answer's
            (observe(("2", "3"), ("2", "4"), 1) + " [1 2] " + CRACKED, False),  # would be refused
            (CRACKED + " [2 4] " + CRACKED, False),
        ],
    )
    def test_futures(self, after_one, future, is_right):
        oracle, transition = after_one
        assert oracle.future_is_right(transition, "[2 3]", future) == is_right
        assert not oracle.future_is_right(transition, "[1 2]", future)

    def test_probes_are_half_best(self):
        environment, roles = MastermindEnvironment(), make_roles([])
        qualities = []
        for task, actions in environment.oracle.probes(40, seed=0):
            episode = replay_actions(environment, task, actions, roles.actions, roles.prompts)
            assert len(episode.turns) == len(actions)
            qualities.append(environment.oracle.quality(Transition(episode, len(actions) - 1), actions[-1]))
        assert qualities.count(1) == 20


def test_training_never_plays_a_game_of_evaluation():
    task = make_task("mastermind", 0)
    assert not set(task.rows["seed"]) & set(task.instances["held_out"].rows["seed"])
    environment = task.environment_factory()
    codes = set()
    for row in task.instances["held_out"].rows:
        environment.reset(**row)
        codes.add(tuple(environment.game.state.game_state["secret_code"]))
    assert len(codes) == len(CODES)
