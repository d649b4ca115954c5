# SPDX-License-Identifier: Apache-2.0

"""A page that compares runs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..records.folder import TRAINING_LOG
from ..records.log import read_log
from .charts import axis_of, comparison_charts
from .rendering import Parts, write_page
from .run_summary import TOKEN_KINDS, Summary, summarize
from .shown_notes import Settings, read_settings


def write_comparison(
    runs: Sequence[str | Path], output: str | Path = "comparison.html", refresh: int | None = None
) -> Path:
    """
    Write one HTML page that compares the runs of several folders: results and costs, the settings that differ, and
    curves. `refresh` is as in [`write_report`], while one of the runs goes on. Raise a `ValueError` if a folder has no
    log of a run.
    """
    folders = [Path(run).resolve() for run in runs]
    names = short_names(folders)
    parts = Parts()
    logs = [read_log(folder / TRAINING_LOG) for folder in folders]
    for folder, log in zip(folders, logs, strict=True):
        if not (log.training or log.evaluations):
            raise ValueError(f"`run` is {folder}, which has no readable {TRAINING_LOG}. Leave it out.")
    settings = [parts.make("settings", lambda folder=folder: read_settings(folder), Settings()) for folder in folders]
    options = [{**of_run.others, **of_run.chosen} for of_run in settings]
    known = dict.fromkeys(name for of_run in options for name in of_run)
    different = {name: [of_run.get(name) for of_run in options] for name in known}
    axis = axis_of(*logs)
    charts = parts.make("charts", lambda: comparison_charts(dict(zip(names, logs, strict=True))), [])
    summaries = [
        parts.make("summary", lambda folder=folder, log=log: summarize(folder, log), Summary(folder.name))
        for folder, log in zip(folders, logs, strict=True)
    ]
    refresh = refresh if any(log.seconds is None for log in logs) else None
    return write_page(
        Path(output),
        "comparison.html.jinja",
        ("page.css",),
        ("dom.js", "charts.js", "follow.js"),
        {"axis": axis, "charts": {"comparison": [asdict(chart) for chart in charts]}, "refresh": refresh},
        axis=axis,
        names=names,
        summaries=summaries,
        failed=parts.failed,
        models=[of_run.model for of_run in settings],
        different={name: values for name, values in different.items() if len(set(values)) > 1},
        token_kinds=TOKEN_KINDS,
    )


def short_names(folders: list[Path]) -> list[str]:
    """Name folders by their last parts, as many as tell them apart."""
    for length in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-length:]) for folder in folders]
        if max(Counter(names).values()) == 1:
            return names
    raise ValueError(f"`runs` names a folder twice: {', '.join(map(str, folders))}.")
