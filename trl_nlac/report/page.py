# SPDX-License-Identifier: Apache-2.0

"""The page of the report."""

import html
from dataclasses import asdict, dataclass
from pathlib import Path

from ..records.folder import AUDIT, COMPLETIONS, TRAINING_LOG
from ..records.log import TrainingLog, read_log
from .calibration import first_and_last
from .charts import MAX_POINTS, axis_of, critic_charts, learning_charts, role_charts, time_charts, training_charts
from .highlights import find_highlights
from .rendering import Parts, write_page
from .run_files import MAX_EPISODES, Episodes, read_episodes
from .run_summary import Summary, spent_tokens, summarize
from .shown_notes import Settings, read_settings, read_warnings


MAX_TASKS = 40  # of a dataset, in the table of tasks over time


@dataclass(frozen=True)
class RunReport:
    """
    A written report. A notebook shows it inline, in a frame that can reach neither the notebook nor a network.

    Args:
        path (`Path`):
            The page.
    """

    path: Path

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"))
        style = "width: 100%; height: 800px; border: 1px solid #8888"
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="{style}" title="Run report"></iframe>'


def write_report(
    run: str | Path, output: str | Path | None = None, refresh: int | None = None, max_episodes: int = MAX_EPISODES
) -> Path:
    """
    Write one HTML page about a training run: its settings, curves, highlights, the critic's calibration, its episodes
    turn by turn, and its warnings. The page needs neither a network nor a server, and can be written during the run.

    Args:
        run (`str` or `Path`):
            Folder of the run, the `output_dir` of its configuration.
        output (`str` or `Path`, *optional*):
            File to write. If `None`, `report.html` in the folder of the run.
        refresh (`int`, *optional*):
            Seconds after which an open page loads itself again, for a run that goes on. If `None`, it does not.
        max_episodes (`int`, *optional*, defaults to `1000`):
            Number of episodes on the page, at most.

    Returns:
        `Path`: The file.

    Raises:
        ValueError: If there is no such folder, or it has no data of a run.
    """
    run = Path(run).resolve()
    if not run.is_dir():
        raise ValueError(f"`run` is {run}, and there is no such folder.")
    output = run / "report.html" if output is None else Path(output)
    parts = Parts()
    log = parts.make("log", lambda: read_log(run / TRAINING_LOG), TrainingLog([], {}, None, []))
    empty = Episodes([], 0, 0, {}, {}, None, {}, [])
    episodes = parts.make("episodes", lambda: read_episodes(run, max_episodes), empty)
    if not any([log.training, log.evaluations, episodes.shown]):
        raise ValueError(
            f"`run` is {run}, which has no readable {TRAINING_LOG}, {COMPLETIONS}/*.parquet or {AUDIT}/*.parquet. "
            "Pass the `output_dir` of a training run that has logged at least once."
        )
    return _write(run, log, episodes, output, refresh if log.seconds is None else None, parts)


_CHARTS = {
    "learning": learning_charts,
    "training": training_charts,
    "roles": role_charts,
    "critic": critic_charts,
    "time": time_charts,
}


def _write(run: Path, log: TrainingLog, episodes: Episodes, output: Path, refresh: int | None, parts: Parts) -> Path:
    axis = axis_of(log)
    charts = {
        key: parts.make(f"charts of {key}", lambda make=make: [asdict(chart) for chart in make(log)], [])
        for key, make in _CHARTS.items()
    }
    reliability = parts.make("reliability", lambda: first_and_last(episodes.verdicts), [])
    highlights = parts.make("highlights", lambda: find_highlights(episodes.shown, episodes.first_success), [])
    data = {
        "axis": axis,
        "charts": charts,
        "reliability": [[asdict(evaluation) for evaluation in evaluations] for evaluations in reliability],
        "episodes": episodes.shown,
        "tasks": {dataset: dict(sorted(tasks.items())[:MAX_TASKS]) for dataset, tasks in episodes.tasks.items()},
        "highlights": [highlight._asdict() for highlight in highlights],
        "refresh": refresh,
    }
    has_times = any(len({step for task in tasks.values() for step in task}) > 1 for tasks in episodes.tasks.values())
    return write_page(
        output,
        "page.html.jinja",
        ("page.css", "episodes.css"),
        ("dom.js", "charts.js", "episodes.js", "highlights.js", "follow.js"),
        data,
        summary=parts.make("summary", lambda: summarize(run, log), Summary(run.name)),
        settings=parts.make("settings", lambda: read_settings(run), Settings()),
        warnings=parts.make("warnings", lambda: read_warnings(run), {}),
        num_failed=sum(failures.count for failures in episodes.failures.values()),
        spent=parts.make("tokens", lambda: spent_tokens(log.training[-1]) if log.training else None, None),
        failed=parts.failed,
        log=log,
        charts=charts,
        axis=axis,
        max_points=MAX_POINTS,
        reliability=reliability,
        highlights=highlights,
        episodes=episodes,
        refresh=refresh,
        has_times=has_times,
        max_tasks=MAX_TASKS,
    )
