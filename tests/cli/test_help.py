# SPDX-License-Identifier: Apache-2.0

"""Help, mistakes, and what only reads files: at once, without the libraries that take seconds to import."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from helpers.report_utils import training_row, write_log

from trl_nlac import PrioritizedReplay
from trl_nlac.cli.end_summary import print_summary
from trl_nlac.cli.main import COMMANDS, main
from trl_nlac.cli.train_options import TrainParser


SLOW = {"torch", "transformers", "trl", "peft", "datasets", "accelerate", "evaluate"}
IN_A_FRESH_PROCESS = """
import sys
from types import SimpleNamespace
from trl_nlac.cli.main import main
for words in {commands}:
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    assert code == {code}, words
    loaded = {slow} & sys.modules.keys()
    assert not loaded, (words, loaded)
"""


def run_all(commands: list[list[str]], code: int = 0) -> str:
    script = IN_A_FRESH_PROCESS.format(commands=commands, code=code, slow=SLOW)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_no_help_loads_a_slow_library():
    actions = [["buffer", action, "--help"] for action in ("stats", "export", "import")]
    run_all([[], ["--help"], ["--version"], *([name, "--help"] for name in COMMANDS), *actions])


def test_mistakes_are_told_without_the_libraries():
    commands = ("evaluat", "evaluate run --num_episode 3", "play", "plan --config run.yaml", "serve run --port a")
    printed = run_all([command.split() for command in commands], code=2)
    assert "there is no command 'evaluat'. Did you mean 'evaluate'?" in printed
    assert "there is no option '--num_episode', did you mean '--num_episodes'?" in printed


def test_commands_that_only_read_files(tmp_path):
    write_log(tmp_path / "run", [training_row(2)])
    PrioritizedReplay(4).save(tmp_path / "buffer")
    others = [["env"], ["init", str(tmp_path / "task")], ["buffer", "stats", str(tmp_path / "buffer")]]
    run_all([["report", str(tmp_path / "run")], *others])
    assert (tmp_path / "run" / "report.html").is_file()


def test_the_help_of_train_is_that_of_its_options(capsys):
    parser = TrainParser()
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    lines = capsys.readouterr().out.splitlines()
    options = {line.split()[0] for line in lines if line.startswith("  --")}
    assert options <= parser._option_string_actions.keys() and len(options) > 20


def test_warnings_have_lines_of_their_own(tmp_path):
    script = """
import logging
from tqdm import tqdm
from trl_nlac.terminal import printed_warnings
with printed_warnings(), tqdm(total=12) as bar:
    logging.getLogger("trl_nlac.method.roles").warning("[RANK 0] Only 0% of the answers \\x1b[2J")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if "it/s" not in line and "?it" not in line]
    assert "warning: Only 0% of the answers \\x1b[2J" in lines


def test_the_summary_repeats_warnings_and_what_was_not_trained(tmp_path, capsys):
    warnings = ['{"step": 1, "message": "one"}'] * 3 + ['{"step": 2, "message": "two"}']
    (tmp_path / "_warnings.jsonl").write_text("\n".join(warnings))
    state = SimpleNamespace(log_history=[], global_step=2, max_steps=2)
    trainer = SimpleNamespace(state=state, args=SimpleNamespace(output_dir=str(tmp_path)))
    trainer.is_world_process_zero, trainer.idle = lambda: True, SimpleNamespace(has_trained=False)
    print_summary(trainer)
    printed = capsys.readouterr().out
    assert printed.startswith("Nothing was trained") and "2 warnings:\n  one (3 times)\n  two\n" in printed
