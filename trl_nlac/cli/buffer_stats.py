# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac buffer stats`: count the content of a buffer."""

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from ..replay.files import read_episodes
from ..types import Episode
from .errors import CommandError, one_line_errors


def print_stats(args: argparse.Namespace) -> None:
    """Count the episodes of a buffer, and show its priorities."""
    with one_line_errors():
        items = [item for path in files_of(args.buffer) for item in read_episodes(path)]
    print_counts(args.buffer, [item.episode for item in items], args.success_threshold)
    if items:
        priorities = np.concatenate([item.priorities for item in items])
        low, middle, high = np.quantile(priorities, [0.05, 0.5, 0.95])
        print(
            f"priorities: mean {priorities.mean():.4g}, 5 % below {low:.4g}, half below {middle:.4g}, 95 % below "
            f"{high:.4g}"
        )


def files_of(folder: str) -> list[Path]:
    """List the files of the buffers of all processes."""
    if not Path(folder).is_dir():
        raise CommandError(f"there is no folder {folder}.")
    paths = [Path(folder, "episodes.parquet"), *sorted(Path(folder).glob("nlac/rank_*/episodes.parquet"))]
    paths = [path for path in paths if path.is_file()]
    if not paths:
        raise CommandError(
            f"{folder} has no replay buffer: it has neither episodes.parquet nor nlac/rank_*/episodes.parquet."
        )
    return paths


def print_counts(name: str, episodes: list[Episode], success_threshold: float) -> None:
    """Print how many episodes there are, of which kinds."""
    table = Table("", "number", title=name)
    scores = [episode.score for episode in episodes]
    counts = {
        "episodes": len(episodes),
        "successes": sum(score >= success_threshold for score in scores),
        "cut (truncated)": sum(episode.truncated for episode in episodes),
        "with a failed environment": sum(episode.failure is not None for episode in episodes),
        "from logs": sum(episode.is_log for episode in episodes),
        "transitions": sum(len(episode.turns) for episode in episodes),
        "tokens": sum(len(episode.token_ids) for episode in episodes),
    }
    for label, number in counts.items():
        table.add_row(label, f"{number:,}")
    if scores:
        table.add_row("mean return", f"{sum(scores) / len(scores):.3f}")
    Console().print(table)
