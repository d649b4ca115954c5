# SPDX-License-Identifier: Apache-2.0

import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.scripts import run_script

from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.environments.textarena import TextArenaEnvironment


pytest.importorskip("textarena")

ROOT = Path(__file__).parents[2]

# Some moves, and whether the seed changes their observations.
GAMES = {
    "2048-v0": (["[Up]", "[Left]", "[Down]", "[Right]", "[Up]", "[Left]"], True),
    "Bandit-v0": (["[red]", "[blue]", "[green]", "[red]", "[blue]", "[green]", "[red]", "[blue]"], True),
    "Blackjack-v0": (["[hit]", "[stand]", "[hit]", "[stand]"], True),
    "Countdown-v0": (["[0 1 +]", "[0 1 -]"], False),
    "Crosswords-v0": (["[0 0 a]"], True),
    "Cryptarithm-v0": (["[S 9]", "[E 5]"], False),
    "FifteenPuzzle-v0": (["up", "left", "down", "right"], True),
    "FrozenLake-v0": (["[down]", "[right]"], True),
    "GuessTheNumber-v0": (["[10]", "[5]", "[15]"], True),
    "LightsOut-v0": (["[0 0]", "[1 1]"], True),
    "LogicPuzzle-v0": (["[a b X]"], True),
    "Mastermind-v0": (["1 2 3 4", "[4 3 2 1]"], True),
    "Minesweeper-v0": (["[0 0]", "[7 7]"], True),
    "PegJump-v0": (["[12 5]", "[14 12]"], False),
    "RushHour-v0": (["[X+]", "[A-]"], True),
    "Secretary-v0": (["[continue]", "[accept]"], True),
    "Slitherlink-v0": (["[h 0 0]", "[v 1 1]"], True),
    "Sokoban-v0": (["[up]", "[left]"], True),
    "Sudoku-v0": (["[1 1 1]"], True),
    "ThreeCardMonte-v0": (["[0]"], True),
    "TowerOfHanoi-v0": (["[A C]", "[A B]"], False),
}


def play(environment: TextArenaEnvironment, seed: int, actions: list[str]) -> list:
    seen = [environment.reset(seed=seed)]
    for action in actions:
        result = environment.step(action)
        seen.append((result.observation, result.reward, result.terminated))
        assert result.observation and not result.truncated
        if result.terminated:
            break
    return seen


def hanoi(disks: int, source: str, target: str, other: str) -> list[str]:
    if not disks:
        return []
    first, last = hanoi(disks - 1, source, other, target), hanoi(disks - 1, other, target, source)
    return [*first, f"[{source} {target}]", *last]


class TestGames:
    @pytest.mark.parametrize("env_id", GAMES)
    def test_same_seed_is_same_game(self, env_id):
        actions, seed_matters = GAMES[env_id]
        environment = TextArenaEnvironment(env_id)
        seen = [play(environment, seed, actions) for seed in range(4)]
        random.seed(0)
        assert [play(environment, seed, actions) for seed in range(4)] == seen
        assert play(TextArenaEnvironment(env_id), 3, actions) == seen[3]
        assert (len({str(game) for game in seen}) > 1) == seed_matters

    def test_global_random_is_left_alone(self):
        random.seed(5)
        expected = random.random()
        random.seed(5)
        play(TextArenaEnvironment("Bandit-v0"), 0, ["[red]", "[blue]"])
        assert random.random() == expected

    def test_games_in_threads(self):
        def play_all(seed: int) -> list:
            environments = [TextArenaEnvironment(env_id) for env_id in ("Bandit-v0", "2048-v0", "Secretary-v0")]
            return [play(environment, seed, GAMES[environment.env_id][0]) for environment in environments]

        alone = [play_all(seed) for seed in range(16)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(8) as threads:
                assert list(threads.map(play_all, range(16))) == alone
        finally:
            sys.setswitchinterval(interval)

    def test_settings(self):
        environment = TextArenaEnvironment("GuessTheNumber-v0", max_number=3, max_turns=1)
        assert "between 1 and 3 within 1 turns" in environment.reset(seed=1, split="train")


class TestEpisodes:
    def test_observations_are_what_is_new(self):
        environment = TextArenaEnvironment("TowerOfHanoi-v0")
        opening = environment.reset()
        assert opening.startswith("You are playing Tower of Hanoi") and "A: [3, 2, 1]" in opening
        for action, expected in [("[A C]", "C: [1]"), ("[A B]", "B: [2]")]:
            observation = environment.step(action).observation
            assert expected in observation and "You are playing" not in observation and action not in observation
            assert observation.count("Current Board") == 1
        assert "You are playing" in environment.reset()

    def test_invalid_moves(self):
        environment = TextArenaEnvironment("Mastermind-v0")
        environment.reset(seed=3)
        result = environment.step("I do not know")
        assert "space-separated list of numbers" in result.observation
        assert (result.reward, result.terminated) == (0.0, False)
        assert "Feedback" in environment.step("[1 2 3 4]").observation
        assert "Duplicate numbers" in environment.step("[1 1 1 1]").observation
        result = environment.step("[9 9 9 9]")  # the second in a row
        assert result.terminated and not result.truncated and 0 <= result.reward < 1
        assert result.info["invalid_move"] and "between 1 and 6" in result.observation

    @pytest.mark.parametrize("env_id", ["Countdown-v0", "Cryptarithm-v0", "Slitherlink-v0"])
    def test_reason_and_reward_in_the_wrong_order(self, env_id):
        environment = TextArenaEnvironment(env_id)
        environment.reset()
        assert "invalid move" in environment.step("?").observation
        result = environment.step("?")
        assert result.terminated and 0 <= result.reward < 1
        assert "format" in result.observation and "format" in result.info["reason"]

    def test_tower_of_hanoi_won(self):
        *actions, last = hanoi(3, "A", "C", "B")
        environment = TextArenaEnvironment("TowerOfHanoi-v0")
        assert all(not terminated for _, _, terminated in play(environment, 0, actions)[1:])
        result = environment.step(last)
        assert (result.reward, result.terminated) == (1.0, True)
        assert result.info["turn_count"] == 7

    def test_lost_by_a_choice(self):
        environment = TextArenaEnvironment("Secretary-v0")
        rewards = set()
        for seed in range(5):
            environment.reset(seed=seed)
            draws = environment.game.state.game_state["draws"]
            result = environment.step("accept")
            assert result.terminated and result.reward == float(draws[0] == max(draws))
            rewards.add(result.reward)
        assert rewards == {0.0, 1.0}


class TestErrors:
    @pytest.mark.parametrize("env_id", ["TicTacToe-v0", "SpiteAndMalice-v0", "PublicGoodsGame-v0", "Snake-v0"])
    def test_more_than_one_player(self, env_id):
        with pytest.raises(ValueError, match=f"{env_id}.*single player"):
            TextArenaEnvironment(env_id)

    def test_unknown_game(self):
        with pytest.raises(ValueError, match="no game `env_id='Master'`"):
            TextArenaEnvironment("Master")

    def test_quiet_and_offline(self):
        code = """
import socket, sys

def refuse(*args, **kwargs):
    raise OSError("offline")

socket.socket.connect = socket.getaddrinfo = refuse
sys.modules["trl_nlac"] = package = type(sys)("trl_nlac")
package.__path__ = ["trl_nlac"]  # this module alone, without what the trainer imports

from trl_nlac.environments.textarena import TextArenaEnvironment

assert "textarena" not in sys.modules
TextArenaEnvironment("Mastermind-v0").reset(seed=1)
"""
        finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
        assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")


def test_example(tmp_path):
    arguments = f"""--output_dir {tmp_path}
        --model_name_or_path {TINY_MODEL} --prompts {TINY_MODEL}/nlac_prompts.json --use_cpu --bf16 False
        --env_id Cryptarithm-v0 --num_tasks 8 --num_eval_tasks 2 --logging_steps 1 --max_format_retries 2
        --max_steps 3 --max_turns 2 --max_completion_length 32 --action_format text --report_to none"""
    output = run_script("examples/scripts/nlac_textarena.py", *arguments.split())
    logs = [json.loads(line) for line in (tmp_path / "training_log.jsonl").read_text().splitlines()]
    losses = [log["loss"] for log in logs if "loss" in log]
    assert not any(log.get("environment/failure_rate") for log in logs)
    assert len(losses) == 3 and max(losses) > 0  # the tiny model's critiques of an unknown game are rarely readable
    assert "On seeds that it was not trained on, the agent wins" in output
    assert (tmp_path / "model.safetensors").exists()
