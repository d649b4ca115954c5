# SPDX-License-Identifier: Apache-2.0

"""The summary at the end of training."""

import shlex
from pathlib import Path

from rich.console import Console
from rich.table import Table
from transformers import Trainer

from ..records.folder import TRAINING_LOG, checkpoints
from ..records.log import first_and_last, read_log
from ..report.shown_notes import read_warnings
from ..secrets import hide_in_text
from ..terminal import printable
from .origin import origin_flags


MAX_WARNINGS = 5  # the last ones


def print_summary(trainer: Trainer, resume: str | None = None) -> None:
    """Print the result of training, where it is saved, and the next commands; `resume` goes on with a stopped run."""
    if not trainer.is_world_process_zero():
        return
    history, output_dir = trainer.state.log_history, trainer.args.output_dir
    saved = output_dir if resume is None else str(list(checkpoints(output_dir).values())[-1])
    evaluations = first_and_last(history)
    trained = [log for log in history if "episode/success_rate" in log]
    step, max_steps = trainer.state.global_step, trainer.state.max_steps
    title = f"Stopped at step {step:,} of {max_steps:,}" if step < max_steps else "What was learned"
    table = Table(title=title, show_header=False)
    for _, name, log in evaluations:
        low, high = log["episode/success_rate_low"], log["episode/success_rate_high"]
        success = f"success {log['episode/success_rate']:.2f} (95 %: {low:.2f} to {high:.2f})"
        table.add_row(f"{name} evaluation", f"{success} after {log['environment/steps']:,} environment steps")
    if trained and not evaluations:
        for name, log in {"first log": trained[0], "last log": trained[-1]}.items():
            success = f"success {log['episode/success_rate']:.2f}, return {log['episode/return']:.2f}"
            table.add_row(name, f"{success} of training episodes at {log['environment/steps']:,} environment steps")
    seconds = read_log(Path(output_dir, TRAINING_LOG)).seconds
    if seconds is not None:
        table.add_row("time", f"{seconds:,.0f} s, {trainer.state.global_step:,} optimizer steps")
    table.add_row("saved in", saved)
    console = Console()
    if not trainer.idle.has_trained:
        console.print("Nothing was trained: there was not one example.", style="bold red")
    console.print(table)
    if warned := read_warnings(Path(output_dir)):
        console.print("1 warning:" if len(warned) == 1 else f"{len(warned)} warnings:", style="bold yellow")
        for message, times in list(warned.items())[-MAX_WARNINGS:]:
            count = "" if times.count == 1 else f" ({times.count} times)"
            console.print(f"  {printable(message)}{count}", highlight=False, markup=False, soft_wrap=True)
    commands = [f"  {hide_in_text(resume)}"] if resume else []
    commands.append(f"  trl-nlac report {shlex.quote(output_dir)}")
    if flags := origin_flags(output_dir):
        commands.append(f"  trl-nlac play {shlex.quote(saved)} {flags}")
    console.print("Next:", *commands, sep="\n", highlight=False, markup=False, soft_wrap=True)
