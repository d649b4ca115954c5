# SPDX-License-Identifier: Apache-2.0

"""What a run shows in the terminal: one line for each log, and by the clock what a sample taught."""

import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from rich.console import Console
from tqdm.auto import tqdm
from transformers import ProgressCallback, TrainerCallback

from ..terminal import printable, say
from .folder import END_OF_TRAINING, SECONDS
from .log import find_evaluations


SECONDS_BETWEEN_SAMPLES = 60


class ProgressBar(ProgressCallback):
    """The progress bar of transformers, which prints no metrics."""

    on_log = TrainerCallback.on_log


class ConsoleCallback(TrainerCallback):
    """Print a line for each log in place of all metrics, and at times a row of the audit trail, of `take_row`."""

    def __init__(self, take_row: Callable[[], dict[str, Any] | None]):
        self.take_row = take_row
        self.console = Console()
        self._began = (0.0, 0)  # time, and the step
        self._showed = float("-inf")
        self._seen: dict[str, float] = {}  # of logs of training: some values are logged once in an iteration

    def on_train_begin(self, args, state, control, **kwargs):
        self._began = (time.monotonic(), state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        start, first = self._began
        if state.is_world_process_zero and state.global_step - first == args.updates_per_iteration:
            seconds = time.monotonic() - start
            number = math.ceil((state.max_steps - first) / args.updates_per_iteration)
            one, whole = timedelta(seconds=round(seconds)), timedelta(seconds=round(number * seconds))
            say(f"the first iteration took {one}; {number:,} like it take {whole}")

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero:
            return
        now, (start, first) = time.monotonic(), self._began
        if "loss" in logs:
            logs = self._seen = {**self._seen, **logs}
        left = (now - start) / max(1, state.global_step - first) * (state.max_steps - state.global_step)
        for line in lines_of_log(logs, state.global_step, state.max_steps, left):
            say(line)
        with tqdm.external_write_mode():
            is_due = "loss" in logs and now - self._showed >= SECONDS_BETWEEN_SAMPLES
            if is_due and (row := self.take_row()) is not None:
                from .sample_panel import sample_panel  # what is shown once in a while is loaded then

                self.console.print(sample_panel(row, self.console.width))
                self._showed = now


def lines_of_log(logs: dict[str, float], step: int, max_steps: int, seconds_left: float) -> list[str]:
    """Write the lines of a log: one, and of evaluations one for each dataset."""
    at = f"step {step:,}/{max_steps:,}" if max_steps > 0 else f"step {step:,}"
    if END_OF_TRAINING in logs:
        return [f"{at} · trained in {timedelta(seconds=round(logs[SECONDS]))}"]
    lines, rate = [], "episode/success_rate"
    for dataset, (log,) in find_evaluations([{**logs, "step": step}]).items():
        interval = f"success {{{rate}:.2f}} ({{{rate}_low:.2f}} to {{{rate}_high:.2f}})"
        success = interval.format(**log) if rate in log else "no episode could be played"
        lines.append(" · ".join([at, printable(f"evaluation {dataset}".rstrip()), success]))
    formats = {name.partition("/")[0]: value for name, value in logs.items() if name.endswith("/format_rate")}
    weakest = min(formats, key=formats.__getitem__, default="")
    parts = {"environment/steps": "{:,.0f} environment steps", rate: "success {:.2f}"}
    parts |= {f"{weakest}/format_rate": f"weakest format {{:.2f}} ({weakest})", "num_tokens": "{:,.0f} tokens"}
    shown = [text.format(logs[name]) for name, text in parts.items() if name in logs]
    return lines or [" · ".join([at, *shown, f"{timedelta(seconds=round(seconds_left))} left"])]
