# SPDX-License-Identifier: Apache-2.0

"""Text of models, environments and exceptions does not control the terminal that shows it."""

import json
import logging
from dataclasses import replace

import pytest
from helpers.testing_utils import Countdown, make_config, make_episode, play

from trl_nlac.cli import main
from trl_nlac.environments import StepResult, TextEnvironment
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.episodes.failures import FailureMonitor, nothing_played
from trl_nlac.records.episode_tables import EpisodeTables
from trl_nlac.report import write_report
from trl_nlac.terminal import MAX_TRACEBACK, printable, printable_traceback


ATTACK = "\x1b]52;c;aGk=\x07\x1b[2J\x9b2J\x08\x08\rhidden\x00"
SHOWN = r"\x1b]52;c;aGk=\x07\x1b[2J\x9b2J\x08\x08\rhidden\x00"


def controls(text: str) -> set[str]:
    return {character for character in text if not character.isprintable()} - {"\n", "\t", " "}


class Hostile(TextEnvironment):
    def reset(self, prompt=None):
        return f"{ATTACK} situ 2"

    def step(self, action):
        return StepResult(ATTACK, terminated=True)

    def close(self):
        raise OSError(ATTACK)


class Failing(Countdown):
    def step(self, action):
        raise ConnectionError(ATTACK)


def test_every_control_character_is_an_escape():
    text = "".join(map(chr, range(0x300))) + "\u2028\u202e\u2066\ud800 ä\U0001f600"
    shown = printable(text)
    assert not controls(shown.replace("\xa0", "").replace("\xad", ""))
    assert "\t\n" in shown and "ä\U0001f600" in shown and r"\x1b" in shown and r"\u202e" in shown
    assert printable("a\r\nb\tc") == "a\nb\tc" and printable(ATTACK) == SHOWN


SOURCE = f"""
from trl_nlac.environments import StepResult

ATTACK = {ATTACK!r}


class Ends:
    def reset(self):
        return [{{"role": "user", "content": ATTACK}}]

    def step(self, action):
        return StepResult(ATTACK, terminated=True)


class Reset(Ends):
    def reset(self):
        raise ConnectionError(ATTACK)


class Step(Ends):
    def step(self, action):
        raise SystemExit(ATTACK)


class Nothing(Ends):
    def step(self, action):
        return ATTACK
"""
PLAYED = {
    "hostile.py:Ends": None,
    "hostile.py:Reset": "the environment failed (reset): ",
    "hostile.py:Step": "the environment failed (step): ",
    "hostile.py:Nothing": "the environment failed (step): ",
    "failing.py:Env": "'failing.py:Env': KeyError: ",
    "wrong.py:Env": "'wrong.py:Env': SyntaxError: ",
    f"no{ATTACK}.py:Env": r"\x1b[2J",
}


@pytest.mark.parametrize("name", PLAYED)
def test_playing(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    for file, text in {"hostile": SOURCE, "failing": f"raise KeyError({ATTACK!r})", "wrong": "def ("}.items():
        (tmp_path / f"{file}.py").write_text(text)
    words = ["--option", "action_format=text", "max_turns=1", "max_completion_length=8"]
    words += ["--debug"] if name.startswith("hostile") else []
    status = main(["play", TINY_MODEL, "--environment_factory", name, "--auto", *words])
    printed, problem = capsys.readouterr(), PLAYED[name]
    assert status == (2 if problem else 0) and not controls(printed.out) and not controls(printed.err)
    if problem is None:
        assert printed.out.count(r"\x1b]52;c;aGk=\x07") >= 2
        return
    *traceback, line = printed.err.splitlines()
    assert line.startswith("trl-nlac play: error: ") and problem in line
    assert ("Traceback" in "".join(traceback)) == ("--debug" in words)


def test_failures_of_environments(caplog):
    with caplog.at_level(logging.WARNING):
        (failed,) = play([{"start": 3}], Failing)
        play([{}], Hostile)
    messages = [record.getMessage() for record in caplog.records]
    assert any(message.startswith("An environment failed") and SHOWN in message for message in messages)
    assert any(message.startswith("An environment could not be closed") and SHOWN in message for message in messages)
    assert not controls("".join(caplog.text.splitlines(keepends=True)))
    assert ATTACK in failed.failure  # the record keeps what was said
    assert SHOWN in nothing_played([failed])


def test_the_error_that_ends_training():
    monitor = FailureMonitor(0.1)
    monitor.update([True] * 100)
    assert SHOWN in monitor.report(f"Traceback\nConnectionError: {ATTACK}")


@pytest.mark.parametrize("note", [ATTACK, 3])
def test_printed_examples(tmp_path, capsys, note):
    tables = EpisodeTables(make_config(tmp_path, log_completions=True, num_completions_to_print=1), lambda _: ATTACK)
    opening = ({"role": "user", "content": ATTACK},)
    episode = replace(make_episode(num_turns=1, text=ATTACK), opening=opening, extra={"note": note})
    tables.write(tables.rows([episode], [0], 1, 0), 1)
    printed = capsys.readouterr().out
    assert r"\x1b" in printed and not controls(printed)


def test_tracebacks():
    class Silent(Exception):
        def __str__(self):
            raise OSError(ATTACK)

    def trace(error):
        try:
            raise error
        except BaseException as raised:
            return printable_traceback(raised)

    text = trace(ConnectionError(f"{ATTACK} api_key=velvet-otter-17"))
    assert SHOWN in text and "velvet-otter-17" not in text and not controls(text)
    assert text.startswith("Traceback") and "test_terminal.py" in text
    assert len(trace(ValueError("x" * 10**6 + "the end"))) <= MAX_TRACEBACK and "Silent" in trace(Silent())


def test_files_of_a_run_that_others_named(tmp_path, caplog):
    (tmp_path / "training_log.jsonl").write_text(json.dumps({"loss": 1.0, "step": 1}) + f"\n{ATTACK}\n")
    folder = tmp_path / "completions"
    folder.mkdir()
    (folder / "completions_00001.parquet").write_text(ATTACK)
    (folder / f"eval_\x1b[2J{ATTACK[:5]}_completions_00001.parquet").write_text(ATTACK)
    (tmp_path / "README.md").write_text(f"---\nbase_model: [{ATTACK}\n---\n")
    (tmp_path / "config.json").write_text(f'{{"{ATTACK}')
    write_report(tmp_path)
    assert len(caplog.records) >= 4
    assert not controls("".join(record.getMessage() for record in caplog.records))
