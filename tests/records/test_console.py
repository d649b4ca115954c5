# SPDX-License-Identifier: Apache-2.0

"""What a run shows in the terminal, and what is recorded without any option."""

import io
import json

import pytest
from helpers.records_utils import CONFIG, read
from helpers.testing_utils import TASKS, make_trainer
from rich.console import Console
from transformers import PrinterCallback, ProgressCallback, TrainerState

from trl_nlac.options.record_options import RecordOptions
from trl_nlac.records.audit import AuditTrail
from trl_nlac.records.console import ConsoleCallback, lines_of_log
from trl_nlac.records.sample_panel import sample_panel
from trl_nlac.report import write_report


ROW = {
    "step": 76,
    "observation": "At the desk.\nMy bowl went to a neighbour. Two calls left.",
    "action": 'route(team="warehouse", day="Wednesday")',
    "next_observation": "Refused: too late.\x1b[2J",
    "critique": "Future: Refused.\nOptimality: No. Do it by Thursday.",
    "target": "Future: Refused.\nOptimality: No. Do it by Friday.",
    "attempt": 'route(team="warehouse", day="Wednesday")',
    "attempt_critique": "Future: [bold]Refused.\nOptimality: No. Do it by Thursday.",
    "refined_action": 'route(team="warehouse", day="Thursday")',
}


def test_a_log_is_a_line():
    log = {"loss": 0.5, "episode/success_rate": 0.154, "environment/steps": 1080, "num_tokens": 846_000}
    log |= {"critic/format_rate": 0.15, "policy/format_rate": 0.42, "replay/size": 9, "rewards/a{b}/mean": 1.0}
    assert lines_of_log(log, 40, 200, 725.4) == [
        "step 40/200 · 1,080 environment steps · success 0.15 · weakest format 0.15 (critic) · 846,000 tokens · "
        "0:12:05 left"
    ]
    assert lines_of_log({"loss": 0.5}, 1, 2, 1.0) == ["step 1/2 · 0:00:01 left"]  # of logs alone
    assert lines_of_log({"train_loss": 0.5, "train_seconds": 3725.2}, 200, 200, 0.0) == [
        "step 200/200 · trained in 1:02:05"
    ]


def test_an_evaluation_has_a_line_for_each_dataset():
    rates = {"episode/success_rate": 0.96, "episode/success_rate_low": 0.8, "episode/success_rate_high": 0.99}
    log = {f"eval_easy_{name}": rate for name, rate in rates.items()}
    log |= {"eval_hard\x1b_environment/failure_rate": 1.0}
    assert lines_of_log(log, 40, 200, 1.0) == [
        "step 40/200 · evaluation easy · success 0.96 (0.80 to 0.99)",
        "step 40/200 · evaluation hard\\x1b · no episode could be played",
    ]


def test_the_panel_of_a_sample():
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    console.print(sample_panel(ROW, 100))
    lines = [line.strip("│ \n") for line in console.file.getvalue().splitlines()]
    assert "step 76: what one sample taught" in lines[0]
    assert lines[1:-1] == [
        "state         My bowl went to a neighbour. Two calls left.",
        'action        route(team="warehouse", day="Wednesday")',
        "what happened Refused: too late.\\x1b[2J",
        "critic        No. Do it by Thursday.",
        "should say    No. Do it by Friday.",
        'learns to do  route(team="warehouse", day="Thursday")',
    ]
    console.print(sample_panel({**ROW, "attempt": "route(x)"}, 100))  # a fresh action, with a critique of its own
    assert "acts now      route(x)" in console.file.getvalue() and "critic now    No." in console.file.getvalue()


def test_what_is_logged_once_in_an_iteration_stays_in_the_lines(capsys):
    callback, state = ConsoleCallback(lambda: None), TrainerState(max_steps=4)
    first = {"loss": 1.0, "episode/success_rate": 0.5, "policy/format_rate": 0.9}
    for state.global_step, logs in enumerate([first, {"loss": 0.5, "num_tokens": 7.0}], 1):
        callback.on_log(None, state, None, logs=logs)
    assert "step 2/4 · success 0.50 · weakest format 0.90 (policy) · 7 tokens" in capsys.readouterr().out


@pytest.mark.parametrize("rewritten", [0, 1, None])
def test_a_rewritten_action_is_shown_rather_than_a_newer_one_that_is_not(tmp_path, rewritten):
    trail = AuditTrail(str(tmp_path), 0)
    rows = [{**ROW, "refined_action": ROW["attempt"], "completions": {}, "number": i} for i in range(2)]
    if rewritten is not None:
        rows[rewritten] |= {"refined_action": "route()"}
    trail._open = {i: [row] for i, row in enumerate(rows)}
    trail.close()
    assert trail.newest["number"] == (1 if rewritten is None else rewritten) and len(trail._rows) == 2


@pytest.mark.parametrize("bar", [False, True])
def test_a_run_shows_lines_and_a_sample(tmp_path, capsys, bar):
    config = {**CONFIG, "max_steps": 4, "logging_steps": 2, "audit_samples": 2, "disable_tqdm": not bar}
    trainer = make_trainer(tmp_path, {**config, "eval_strategy": "steps", "eval_steps": 4}, eval_dataset=TASKS)
    shown = [type(callback) for callback in trainer.callback_handler.callbacks]
    assert ConsoleCallback in shown and not {PrinterCallback, ProgressCallback} & {*shown}
    trainer.train()
    printed = capsys.readouterr().out
    lines = [line.split(" · ")[0] for line in printed.splitlines() if line.startswith("step ")]
    assert lines == ["step 2/4", "step 4/4", "step 4/4", "step 4/4"] and "{" not in printed
    assert printed.count("what one sample taught") == 1 and "learns to do" in printed  # one a minute
    logged = json.loads((tmp_path / "training_log.jsonl").read_text().splitlines()[0])
    assert len(logged) > 50


def test_without_any_option_a_report_has_episodes(tmp_path):
    """A few of each iteration and evaluation, in folders that the Hub does not get; `log_completions` writes all."""
    config = {
        "max_steps": 4,
        "logging_steps": 2,
        "num_eval_critiques": 2,
        "audit_samples": RecordOptions.audit_samples,
    }
    config |= {"eval_strategy": "steps", "eval_steps": 4, "episodes_per_iteration": 8, "samples_per_iteration": 8}
    make_trainer(tmp_path, config, eval_dataset=TASKS.select(range(2))).train()
    assert not (tmp_path / "completions").exists()
    names = sorted(path.name for path in (tmp_path / "_episodes").iterdir())
    assert names == ["completions_00002.parquet", "completions_00004.parquet", "eval_completions_00004.parquet"]
    assert list(read(tmp_path / "_episodes" / names[0])["step"]) == [0] * 4  # of 8
    page = write_report(tmp_path).read_text()
    assert "No episodes were recorded" not in page and "No verdicts on evaluation" not in page
    assert 'id="browser"' in page and list((tmp_path / "_audit").iterdir())
