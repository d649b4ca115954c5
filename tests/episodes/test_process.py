# SPDX-License-Identifier: Apache-2.0

"""Environments in processes of their own: the same as in threads, and a process that dies is one failed episode."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from helpers.testing_utils import make_roles, make_trainer, play
from helpers.workers import check_same_as_in_threads, check_training, make_faulty, wait_until

from trl_nlac.environments import AgentEnvironment, EnvironmentFailure, StepResult, TextEnvironment
from trl_nlac.episodes import process
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.process import ProcessEnvironment
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.evaluation.metrics import episode_metrics


def play_in(workers, factory, tasks, **kwargs):
    pool = EnvironmentPool(factory, workers=workers, **kwargs)
    try:
        # A seed of its own: threads that other tests left may draw from torch's global generator.
        episodes = play_episodes(pool, tasks, make_roles("take red", max_turns=8), seed=0)
        if workers == "process":
            wait_until(lambda: not pool.num_left_behind)  # unlike a thread, a process that hangs is ended
        return episodes
    finally:
        pool.close()


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("max_instances", [None, 2])
def test_the_same_as_in_threads(tmp_path, max_instances):
    def play(workers, factory, tasks):
        most = max_instances if workers == "process" else None
        return play_in(workers, factory, tasks, max_instances=most, timeout=300)

    check_same_as_in_threads(tmp_path, play, "process")


def test_modules_can_be_imported_meanwhile(monkeypatch):
    class Name(str):
        def startswith(self, prefix):
            modules["imported by another thread"] = None
            return False

    modules = {Name("a module"): None, Name("another"): None}
    monkeypatch.setattr(process, "sys", SimpleNamespace(modules=modules))
    environment = ProcessEnvironment(make_faulty(None))
    try:
        assert environment.reset(seed=1, at=9) == "win 1"
    finally:
        environment.close()


def test_columns_can_have_any_name():
    def make():
        class Named(TextEnvironment):
            def reset(self, method, args, self_=0):
                return f"{method} {args}"

            def step(self, action):
                return StepResult("win", 1.0, terminated=True)

        return Named()

    for workers in ("thread", "process"):
        [episode] = play_in(workers, make, [{"method": "add", "args": 2}], max_instances=1)
        assert episode.failure is None and episode.score == 1.0


def test_a_process_that_dies_is_one_failed_episode(tmp_path):
    faults = ["killed", None, "hang", "cannot travel", None]
    tasks = [{"fault": fault, "at": 2} for fault in faults]
    play_in("process", make_faulty(tmp_path), tasks[1:2], timeout=300)  # starts the server of processes
    episodes = play_in("process", make_faulty(tmp_path), tasks, timeout=8)
    killed, _, hung, odd, _ = episodes
    assert killed.failure == "step: EnvironmentFailure: the process of the environment ended with the exit code -9"
    assert hung.failure == "timeout: TimeoutError: step took longer than `environment_timeout=8` seconds"
    assert odd.failure.startswith("step: EnvironmentFailure: Odd: broken 1 (it could not leave the process: ")
    for episode, fault in zip(episodes, faults, strict=True):
        assert len(episode.turns) == (1 if fault else 3) and episode.terminated == (fault is None)
    metrics = episode_metrics(episodes, success_threshold=1.0)
    assert metrics["environment/failure_rate"] == 0.6 and metrics["environment/timeout_failure_rate"] == 0.2


def test_instances_live_in_different_processes_until_they_are_closed():
    class Where:
        def reset(self):
            return "win"

        def step(self, action):
            time.sleep(0.2)  # so that no instance plays two episodes
            return StepResult(f"win {os.getpid()}", terminated=True)

    pool = EnvironmentPool(Where, workers="process")
    roles = make_roles("take red", max_turns=2)
    first, second = (
        {int(episode.turns[0].next_observation.split()[1]) for episode in play_episodes(pool, [{}] * 3, roles)}
        for _ in range(2)
    )
    assert len(first) == 3 and first == second and os.getpid() not in first  # they are reused
    pool.close()
    assert not any(map(is_running, first))
    assert play_episodes(pool, [{}], roles)[0].terminated  # new ones are made when they are needed
    pool.close()


def test_tools():
    class Desk:
        def reset(self, prompt, number):
            self.number = number

        def look(self, where: str) -> str:
            """
            Look around.

            Args:
                where: In which direction.
            """
            if where == "down":
                raise EnvironmentFailure("the server is down")
            return f"{where} {self.number} {os.getpid()}"

        async def get_reward(self):
            return self.number

    answers = ['{"name": "look", "arguments": {"where": "up"}}', "done"]
    tasks = [{"prompt": [{"role": "user", "content": "win"}], "number": 7}]
    (episode,) = play(tasks, Desk, make_roles(answers, max_turns=3), workers="process")
    assert episode.turns[0].next_observation.startswith("up 7 ") and episode.score == 7
    assert int(episode.turns[0].next_observation.split()[2]) != os.getpid()
    down = ['{"name": "look", "arguments": {"where": "down"}}']
    (episode,) = play(tasks, Desk, make_roles(down, max_turns=3), workers="process")
    assert episode.failure == "step: EnvironmentFailure: the server is down"


def test_signals_are_for_the_trainer():
    """Sent to all processes of a run, as a terminal does, they spoil no episode. Programs of environments obey."""

    class Signalled(TextEnvironment):
        def reset(self):
            return "begin"

        def step(self, action):
            ends = []
            for number in (signal.SIGTERM, signal.SIGINT):
                os.kill(os.getpid(), number)
                program = subprocess.Popen(["sleep", "20"])
                program.send_signal(number)
                ends.append(program.wait())
            return StepResult(f"{ends}", reward=1.0, terminated=True)

    (episode,) = play([{}], lambda: Signalled(), workers="process")
    assert episode.failure is None
    assert episode.turns[0].next_observation == f"{[-signal.SIGTERM, -signal.SIGINT]}"


def test_an_environment_can_have_processes_of_its_own():
    class Sandbox(TextEnvironment):
        def reset(self):
            return "begin"

        def step(self, action):
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
            child.start()
            child.terminate()
            child.join(20)
            return StepResult(f"{child.exitcode}", reward=1.0, terminated=True)

    (episode,) = play([{}], lambda: Sandbox(), workers="process")
    assert episode.failure is None and episode.turns[0].next_observation == f"{-signal.SIGTERM}"


def test_a_program_ends_although_a_pool_is_open(tmp_path):
    """Also where what Python does at its end was set up in another order, as `import wandb` does."""
    program = tmp_path / "program.py"
    program.write_text(
        "import tempfile\n"
        "folder = tempfile.TemporaryDirectory()  # has a finalizer\n"
        "from trl_nlac.environments import TextEnvironment\n"
        "from trl_nlac.episodes.pool import EnvironmentPool\n"
        "class Greeting(TextEnvironment):\n"
        "    def reset(self): return 'hello'\n"
        "    def step(self, action): ...\n"
        "if __name__ == '__main__':\n"
        "    pool = EnvironmentPool(Greeting, workers='process')\n"
        "    print(pool.try_reset({}))\n"
    )
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "hello\n"), ended.stderr


def test_processes_draw_different_numbers():
    class Drawing(TextEnvironment):
        def reset(self):
            return f"{random.random()} {np.random.random()} {float(torch.rand(()))}"

        def step(self, action):
            pass

    environments = [ProcessEnvironment(lambda: Drawing()) for _ in range(2)]
    first, second = (environment.reset().split() for environment in environments)
    for environment in environments:
        environment.close()
    assert len({*first, *second}) == 6


def test_errors_bring_their_traceback(tmp_path):
    environment = ProcessEnvironment(make_faulty(tmp_path))
    with pytest.raises(RuntimeError, match="broken") as raised:
        environment.reset(seed=1, fault="exception")
    assert "in _fault" in str(raised.value.__cause__)
    environment.close()
    with pytest.raises(EnvironmentFailure, match="ended with the exit code"):
        environment.reset(seed=1)


class Browser(TextEnvironment):
    """Starts a program, which only `close` ends, and hangs."""

    def __init__(self, command):
        self.command = command

    def reset(self):
        self.program = subprocess.Popen(self.command, start_new_session=True)
        time.sleep(600)

    def step(self, action):
        pass

    def close(self):
        self.program.kill()


@pytest.mark.parametrize("environment", [Browser, AgentEnvironment])
def test_what_an_environment_started_ends_with_it_in_a_call(tmp_path, environment):
    pid_file = tmp_path / "pid"
    command = ["sh", "-c", f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 600"]
    played = ProcessEnvironment(lambda: environment(command))
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(played.reset)
        while not (pid_file.exists() or hanging.done()):
            time.sleep(0.01)
        played.close()
        with pytest.raises(EnvironmentFailure):
            hanging.result(timeout=20)
    pid = int(pid_file.read_text())
    wait_until(lambda: not is_running(pid))


@pytest.mark.parametrize("seconds", [pytest.param(0, marks=pytest.mark.slow), 600])
def test_processes_end_with_the_trainer(tmp_path, seconds):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        "from trl_nlac.episodes.process import ProcessEnvironment\n"
        "from trl_nlac.environments import TextEnvironment\n"
        "class Env(TextEnvironment):\n"
        "    def reset(self):\n"
        "        print(os.getpid(), flush=True)\n"
        "        time.sleep(int(sys.argv[1]))\n"
        "    def step(self, action): pass\n"
        "if __name__ == '__main__':\n"
        "    environment = ProcessEnvironment(lambda: Env())\n"
        "    environment.reset()\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, script, f"{seconds}"], stdout=subprocess.PIPE, text=True) as trainer:
        pid = int(trainer.stdout.readline())
        trainer.kill()
        wait_until(lambda: not is_running(pid))


def test_training(tmp_path):
    check_training(tmp_path, "process")
    with pytest.raises(ValueError, match="`environment_workers` must be one of"):
        make_trainer(tmp_path, {"environment_workers": "fork"})
