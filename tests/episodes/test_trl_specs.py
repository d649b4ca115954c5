# SPDX-License-Identifier: Apache-2.0

"""TRL's specifications of environments of others, which bring tasks, environments and rewards."""

import json
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest
from helpers.testing_utils import make_roles, make_trained, play
from trl.experimental.harbor import HarborSpec
from trl.experimental.harbor._env import HarborBashEnv
from trl.experimental.openreward import OpenRewardSpec

from trl_nlac.episodes.rewards import EpisodeRewards


def call(name: str, **arguments) -> str:
    return json.dumps({"name": name, "arguments": arguments})


class LocalHarness(HarborBashEnv):
    """A harness whose sandbox is a folder of this machine: TRL takes subclasses, Harbor's own need containers."""

    async def _start(self, task_dir: str) -> str:
        await self._stop()
        self._env = tempfile.TemporaryDirectory()
        self._task = Path(task_dir)
        return (self._task / "instruction.md").read_text()

    async def _verify(self) -> float:
        answer = Path(self._env.name, "answer.txt")
        return float(answer.exists() and answer.read_text() == (self._task / "expected.txt").read_text())

    async def _stop(self) -> None:
        if self._env is not None:
            self._env.cleanup()
            self._env = None

    def _exec(self, command: str, timeout: int = 180) -> str:
        done = subprocess.run(command, shell=True, cwd=self._env.name, capture_output=True, text=True, timeout=timeout)
        return (done.stdout + done.stderr) or f"(empty output, rc={done.returncode})"


class ShortHarness(LocalHarness):
    """Words that fit the context of the embedded model."""

    PROMPT_SUFFIX = ""

    def bash(self, command: str) -> str:
        """
        Run.

        Args:
            command: A command.
        """
        return self._exec(command)


@pytest.fixture
def suite(tmp_path) -> Path:
    for name, expected in (("a", "4"), ("b", "9")):
        folder = tmp_path / "tasks" / name
        folder.mkdir(parents=True)
        (folder / "task.toml").write_text('[metadata]\ndifficulty_level = "easy"\n')
        (folder / "instruction.md").write_text(f"What is the square of {2 if name == 'a' else 3}?")
        (folder / "expected.txt").write_text(expected)
    return tmp_path


class TestHarbor:
    def test_plays_unchanged(self, suite):
        spec = HarborSpec(str(suite), agent=LocalHarness)
        answers = [call("bash", command="echo -n 4 > answer.txt && cat answer.txt"), "The answer is 4."]
        for row, number, score in zip(spec.train_dataset, (2, 3), (1.0, 0.0), strict=True):
            roles = make_roles(answers, max_turns=4)
            [episode] = play([row], spec.environment_factory, roles, rewards=EpisodeRewards([spec.reward_funcs]))
            assert episode.score == score and episode.terminated and episode.task["difficulty_level"] == "easy"
            assert f"square of {number}?" in episode.first_observation
            assert "single `bash` tool" in episode.first_observation
            assert [turn.next_observation for turn in episode.turns] == ["4", ""]
            assert [tool["function"]["name"] for tool in episode.tools] == ["bash"]

    def test_trains(self, suite, tmp_path):
        spec = HarborSpec(str(suite), agent=ShortHarness, num_tasks=1)
        trainer = make_trained(
            tmp_path / "run",
            {"max_steps": 1, "max_turns": 2},
            train_dataset=spec.train_dataset,
            environment_factory=spec.environment_factory,
            reward_funcs=spec.reward_funcs,
        )
        assert all(episode.failure is None and episode.score == 0 for episode in trainer.replay.episodes)


def ending_when_finished(factory):
    """The adapter of docs/source/environments.md."""

    def make():
        environment = factory()
        environment._is_done = lambda: environment.finished
        return environment

    return make


@pytest.fixture(scope="module")
def url():
    environments = pytest.importorskip("openreward.environments")
    uvicorn = pytest.importorskip("uvicorn")
    from pydantic import BaseModel

    class Guess(BaseModel):
        number: int

    class Guessing(environments.Environment):
        """Guess a number."""

        @classmethod
        def list_splits(cls):
            return ["train"]

        @classmethod
        def list_tasks(cls, split):
            return [{"right": 3}, {"right": 5}]

        def get_prompt(self):
            return [environments.TextBlock(text="Guess from 1 to 9.")]

        @environments.tool
        def guess(self, params: Guess) -> environments.ToolOutput:
            """Guess a number."""
            right = params.number == self.task_spec["right"]
            text = environments.TextBlock(text="Right." if right else "Wrong.")
            return environments.ToolOutput(blocks=[text], reward=float(right), finished=right)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    app = environments.Server([Guessing]).app
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENREWARD_SESSION_URL", f"http://127.0.0.1:{port}")  # in place of a subdomain
        yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


class TestOpenReward:
    def test_plays_with_the_adapter(self, url):
        spec = OpenRewardSpec(url)
        factory, answers = ending_when_finished(spec.environment_factory), [call("guess", number=i) for i in (3, 5)]
        for row, seen in zip(spec.train_dataset, (["Right."], ["Wrong.", "Right."]), strict=True):
            roles = make_roles(answers, max_turns=4)
            [episode] = play([row], factory, roles, rewards=EpisodeRewards([spec.reward_funcs]))
            assert [turn.next_observation for turn in episode.turns] == seen
            assert episode.score == 1.0 and episode.terminated
