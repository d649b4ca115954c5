# SPDX-License-Identifier: Apache-2.0

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import signal_runs
from helpers.testing_utils import assert_same, at, make_trainer, weights
from safetensors.torch import load_file

from benchmarks.tiny_run import tiny_options
from trl_nlac.cli.train import resume_command
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.records.log import read_log
from trl_nlac.training.stopping import StopSignals, closing_on_sigterm


SCRIPT = Path(signal_runs.__file__)
OPTIONS = tiny_options(
    "run",
    **dict(max_steps=4, per_device_train_batch_size=2, episodes_per_iteration=2, samples_per_iteration=2),
    **dict(max_completion_length=16, max_turns=2, logging_steps=1, save_strategy="no"),
    **dict(model_name_or_path=TINY_MODEL, environment_factory=f"{SCRIPT}:GatedDesk"),
    environment_kwargs=json.dumps({"folder": "."}),
)


class Runs:
    def __init__(self):
        tests = SCRIPT.parent.parent
        path = os.pathsep.join([str(tests), str(tests.parent)])
        self.server = subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )

    def start(self, folder: Path, **job) -> list[int]:
        self.server.stdin.write(json.dumps({"folder": str(folder), **job}) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())

    def command(self, folder: Path, options: dict | None = None, **job) -> list[int]:
        words = [f"--{name}={value}" for name, value in {**OPTIONS, **(options or {})}.items()]
        return self.start(folder, words=["train", *words], **job)

    def end(self) -> list[int]:
        return json.loads(self.server.stdout.readline())


@pytest.fixture(scope="module")
def runs():
    runs = Runs()
    yield runs
    runs.server.stdin.close()
    assert runs.server.wait(20) == 0


def wait_for(path: Path, text: str = "") -> None:
    deadline = time.monotonic() + 60
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline, f"{path} does not come:\n{(path.parent / 'output').read_text()}"
        time.sleep(0.01)


def assert_no_process_is_left(folder: Path) -> None:
    for number in map(int, (folder / "processes").read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    folder.mkdir()
    (folder / "gate").touch()
    yield
    (folder / "gate").unlink()


def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(runs, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    whole.mkdir()
    runs.command(whole)
    assert runs.end() == [0] and "What was learned" in (whole / "output").read_text()
    with held(stopped):
        (process,) = runs.command(stopped)
        wait_for(stopped / "reached")
        os.kill(process, signal.SIGINT)
    assert runs.end() == [130]
    assert_no_process_is_left(stopped)
    output = (stopped / "output").read_text()
    assert "SIGINT: training stops with a checkpoint at the end of the step" in output
    assert "Stopped at step 2 of 4" in output and "What was learned" not in output and "Traceback" not in output
    assert [path.name for path in stopped.glob("run/checkpoint-*")] == ["checkpoint-2"]
    assert (stopped / "run/checkpoint-2/nlac/rank_00000/episodes.parquet").exists()
    (command,) = [line.strip() for line in output.splitlines() if line.startswith("  trl-nlac train")]
    assert command.endswith("--resume_from_checkpoint last")
    assert f"  trl-nlac play {stopped / 'run' / 'checkpoint-2'} --environment_factory " in output
    before = json.loads((stopped / "run" / "training_log.jsonl").read_text().splitlines()[-1])["train_seconds"]
    runs.start(stopped, words=shlex.split(command)[1:])
    assert runs.end() == [0]
    assert "What was learned" in (stopped / "output").read_text().removeprefix(output)
    first, second = (load_file(folder / "run" / "model.safetensors") for folder in (whole, stopped))
    assert first.keys() == second.keys() and all(value.equal(second[name]) for name, value in first.items())
    log = read_log(stopped / "run" / "training_log.jsonl")
    assert log.seconds >= log.training[-1]["train_seconds"] > log.training[1]["train_seconds"] == before > 0


def test_the_second_signal_stops_at_once(runs, tmp_path):
    run = tmp_path / "run"
    with held(run):
        (process,) = runs.command(run)
        wait_for(run / "reached")
        os.kill(process, signal.SIGTERM)
        wait_for(run / "output", "Another one stops it at once")
        time.sleep(0.7)
        os.kill(process, signal.SIGTERM)
        assert runs.end() == [143]
    assert not list(run.rglob("checkpoint-*"))
    assert_no_process_is_left(run)


def test_a_script_ends_with_a_keyboard_interrupt(runs, tmp_path):
    run = tmp_path / "run"
    with held(run):
        (process,) = runs.start(run, options={"max_steps": 4})
        wait_for(run / "reached")
        os.kill(process, signal.SIGINT)
    assert runs.end() == [-signal.SIGINT]  # 130 in a shell
    output = (run / "output").read_text()
    assert f"SIGINT at step 2 of 4; {run}/run/checkpoint-2 is saved" in output and "KeyboardInterrupt" in output
    assert_no_process_is_left(run)


def test_processes_stop_at_the_same_step(runs, tmp_path):
    run = tmp_path / "run"
    with held(run), socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        processes = runs.command(run, {"per_device_train_batch_size": 1}, world_size=2, port=port)
        wait_for(run / "reached")
        os.kill(processes[1], signal.SIGTERM)
    assert runs.end() == [143, 143]
    assert sorted(path.name for path in run.glob("run/checkpoint-2/nlac/*")) == ["rank_00000", "rank_00001"]
    assert len(list(run.glob("run/_audit/audit_00001_*"))) == 2
    assert (run / "output").read_text().count("Stopped at step 2 of 4") == 1  # one process says it
    assert_no_process_is_left(run)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(("save_only_model", "follows"), [(False, "goes on"), (True, "save_only_model=True")])
def test_a_signal_in_the_last_step(tmp_path, caplog, save_only_model, follows):
    def make(**options):
        return make_trainer(tmp_path, {"save_only_model": save_only_model, **options})

    stopped = make()
    stopped.add_callback(at("step_end", terminate, 2))
    with pytest.raises(SystemExit):
        stopped.train()
    assert "checkpoint-2 is saved" in caplog.text and follows in caplog.text
    resumed = make()
    if save_only_model:
        with pytest.raises(FileNotFoundError, match="has no replay buffer.*save_only_model=True"):
            resumed.train(resume_from_checkpoint=True)
    else:
        resumed.train(resume_from_checkpoint=True)
        assert resumed.state.global_step == 2 and not resumed.had_ended
        assert_same(weights(resumed.model), weights(stopped.model))


def test_a_signal_after_the_last_step(tmp_path):
    trainer = make_trainer(tmp_path, {"max_steps": 1}, callbacks=[at("train_end", terminate)])
    with pytest.raises(SystemExit):
        trainer.train()


class TestSignals:
    def test_handlers_are_restored(self):
        signals = StopSignals()
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        with pytest.raises(ValueError), signals.noted():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)  # at once, as launchers pass it on
            assert signals.received == signal.SIGTERM
            raise ValueError
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
        with signals.noted():
            assert not signals.received

    @pytest.mark.parametrize("noted", [StopSignals().noted, closing_on_sigterm])
    def test_a_storm_is_one_signal(self, noted):
        """Also where it takes longer than launchers do: none of it interrupts what closes."""
        closed = False
        with pytest.raises(SystemExit) as stopped, noted():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.1)
            finally:
                for _ in range(14):
                    os.kill(os.getpid(), signal.SIGTERM)
                    time.sleep(0.05)
                closed = True
        assert closed and stopped.value.code == 143

    def test_handlers_of_the_program_stay(self):
        def handle(number, frame):
            received.append(number)

        received = []
        before = signal.signal(signal.SIGTERM, handle)
        try:
            with StopSignals().noted():
                os.kill(os.getpid(), signal.SIGTERM)
        finally:
            signal.signal(signal.SIGTERM, before)
        assert received == [signal.SIGTERM]

    def test_other_threads_leave_signals_alone(self):
        def train():
            with StopSignals().noted():
                handlers.append(signal.getsignal(signal.SIGINT))

        handlers = []
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        assert handlers == [signal.getsignal(signal.SIGINT)]


def test_commands_that_resume():
    for words in ["--seed 1", "--resume_from_checkpoint a --seed 1", "--seed 1 --resume_from_checkpoint=last"]:
        command = resume_command(words.split())
        assert command == "trl-nlac train --seed 1 --resume_from_checkpoint last"
