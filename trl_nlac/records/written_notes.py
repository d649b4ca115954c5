# SPDX-License-Identifier: Apache-2.0

"""What a run was told, what it logged and what it warned of, for the report."""

import json
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ..nlac_config import NLACConfig
from ..secrets import hide_in_text, hide_secrets
from ..terminal import RANK, printed_warnings
from ..written_files import append_line, replaced
from .folder import SETTINGS, TRAINING_LOG, WARNINGS


MAX_WARNINGS = 1000
_OF_THE_PLACE = {"output_dir", "run_name", "logging_dir", "project", "trackio_space_id"}


def write_settings(args: NLACConfig, model: str) -> None:
    """Write the options of a run into its folder, without secrets, and those at their defaults apart."""
    values = hide_secrets(args.to_dict())
    chosen: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for field in fields(args):
        if field.init and field.name in values and field.name not in _OF_THE_PLACE:
            default = field.default if field.default_factory is MISSING else field.default_factory()
            value = vars(args)[field.name]
            # Left out, and filled in by transformers: an empty value, or an object that stands for several options.
            is_object = isinstance(values[field.name], dict) and not isinstance(value, dict)
            is_filled_in = default in (None, "", "none") and (not value or is_object)
            is_chosen = value != default and not is_filled_in and field.name not in args.filled_in
            (chosen if is_chosen else others)[field.name] = values[field.name]
    settings = {"model": hide_in_text(model), "chosen": chosen, "others": others}
    with replaced(Path(args.output_dir, SETTINGS)) as written:
        written.write_text(json.dumps(settings, indent=1, default=str) + "\n", encoding="utf-8")


@contextmanager
def noted_warnings(run: str | Path, step: Callable[[], int]) -> Iterator[None]:
    """Write the warnings of this package down while a run goes on, one line of JSON each, with the step."""
    logger = logging.getLogger(__name__.partition(".")[0])
    handler = _Notes(Path(run, WARNINGS), step)
    with printed_warnings():  # a logger without handlers prints warnings; with this one it would not
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)


class _Notes(logging.Handler):
    def __init__(self, path: Path, step: Callable[[], int]):
        super().__init__(logging.WARNING)
        self.path = path
        self.step = step
        self.num_left = MAX_WARNINGS

    def emit(self, record: logging.LogRecord) -> None:
        if not self.num_left:
            return
        self.num_left -= 1
        try:
            line = {"step": self.step(), "message": hide_in_text(record.getMessage().removeprefix(RANK))}
            append_line(self.path, json.dumps(line))
        except Exception:
            self.handleError(record)  # as any handler: a full disk must not end the run


class TrainingLogCallback(TrainerCallback):
    """Write every log of a [`~transformers.Trainer`] as a line of JSON to `training_log.jsonl` in `output_dir`."""

    is_on = True  # whether it does; can be changed

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and self.is_on:
            # JSON has neither NaN nor infinities.
            finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in logs.items()}
            line = {"step": state.global_step, **finite}
            append_line(Path(args.output_dir, TRAINING_LOG), json.dumps(line, default=float))
