# SPDX-License-Identifier: Apache-2.0

"""Episodes as rows of a table: on disk, on the console, and in experiment trackers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch.distributed as dist

from ..nlac_config import NLACConfig
from ..private_names import print_prompt_completions_sample
from ..secrets import hide_in_text, hide_secrets
from ..terminal import printable
from ..types import Episode, Judgement, Transition
from .folder import COMPLETIONS, EPISODES, completions_file, write_table


_TURN = pa.struct(
    {
        "text": pa.string(),
        "action": pa.string(),
        "next_observation": pa.string(),
        "reward": pa.float64(),
        "critique": pa.string(),
        "verdict": pa.bool_(),
        "verdict_score": pa.float64(),
    }
)
EPISODE = pa.schema(
    {
        "step": pa.int64(),
        "environment_steps": pa.int64(),
        "process": pa.int32(),
        "episode": pa.int64(),
        "task": pa.string(),  # JSON
        "prompt": pa.string(),
        "turns": pa.list_(_TURN),
        "return": pa.float64(),
        "success": pa.bool_(),
        "terminated": pa.bool_(),
        "truncated": pa.bool_(),
        "failure": pa.string(),
    }
)


class EpisodeTables:
    """Write episodes down, as TRL's `log_completions` does. `decode` decodes the tokens of an action."""

    def __init__(self, args: NLACConfig, decode: Callable[[list[int]], str]):
        self.args = args
        self.decode = decode

    def rows(
        self,
        episodes: list[Episode],
        numbers: list[int],
        step: int,
        environment_steps: int,
        judgements: dict[tuple[int, int], Judgement] | None = None,
    ) -> list[dict[str, Any]]:
        """
        Make rows of this process's episodes, by their numbers. `step` and `environment_steps`, over all processes,
        were made before. There are judgements of some of the actions, by index of the episode and of the turn.
        """
        judgements = judgements or {}
        rows = [
            {
                "step": step,
                "environment_steps": environment_steps,
                "process": self.args.process_index,
                "episode": number,
                "prompt": episode.first_observation,
                "turns": [self._turn(episode, t, judgements.get((i, t))) for t in range(len(episode.turns))],
                "return": episode.score,
                "success": episode.score >= self.args.success_threshold,
                "terminated": episode.terminated,
                "truncated": episode.truncated,
                "failure": episode.failure,
                "extra": episode.extra,
            }
            for i, (episode, number) in enumerate(zip(episodes, numbers, strict=True))
        ]
        hidden = hide_secrets(rows)
        for row, episode in zip(hidden, episodes, strict=True):
            # Hiding in the JSON would break it. Tasks of evaluations can be anything.
            row["task"] = json.dumps(hide_secrets(episode.task), default=lambda value: hide_in_text(str(value)))
            # A reward is no secret, whatever its function's name.
            row["extra"] |= {name: value for name, value in episode.extra.items() if name.startswith("rewards/")}
        return hidden

    def _turn(self, episode: Episode, index: int, judgement: Judgement | None) -> dict[str, Any]:
        turn = episode.turns[index]
        return {
            "text": self.decode(list(Transition(episode, index).action_ids)),
            "action": turn.action,
            "next_observation": turn.next_observation,
            "reward": turn.reward,
            **(judgement._asdict() if judgement else {}),
        }

    def write(self, rows: list[dict[str, Any]], step: int, kind: str = "") -> None:
        """Write down the rows of all processes at `step`; `kind` is the prefix of an evaluation's metrics."""
        rows = _on_first_process(rows, self.args)
        if not rows:
            return
        folder = COMPLETIONS if self.args.log_completions else EPISODES
        path, new = completions_file(self.args.output_dir, step, kind, folder), rows
        if not kind and path.exists():  # the end of training can be at the step of a log
            rows = _read_rows(path) + rows
        extra = _extra_columns(rows)
        table = pa.Table.from_pylist(rows, schema=EPISODE)
        for name, values in extra.items():
            table = table.append_column(f"extra/{name}" if name in EPISODE.names else name, _array(values))
        write_table(table, path)
        if not kind and self.args.log_completions:
            self._show(new, step)

    def _show(self, rows: list[dict[str, Any]], step: int) -> None:
        """Print rows to the console, and send them to the experiment trackers."""
        extra = _extra_columns(rows)
        prompts, returns = [row["prompt"] for row in rows], [row["return"] for row in rows]
        completions = [_messages(row["turns"]) for row in rows]
        number = self.args.num_completions_to_print
        if number != 0:
            shown = [[{**m, "content": printable(m["content"])} for m in messages] for messages in completions]
            notes = {name: [printable(str(value)) for value in values] for name, values in extra.items()}
            tasks = [printable(prompt) for prompt in prompts]
            print_prompt_completions_sample(tasks, shown, {"return": returns}, None, step, number, notes)
        if "wandb" in self.args.report_to:  # as TRL's trainers do with completions
            texts = ["\n".join(f"{m['role']}: {m['content']}" for m in messages) for messages in completions]
            columns = {"step": [step] * len(rows), "prompt": prompts, "completion": texts, "return": returns, **extra}
            _send_to_wandb("completions", pd.DataFrame(columns))
        if "trackio" in self.args.report_to:
            _log_to_trackio(rows, completions, step)


SAMPLE_TEXTS = "observation action next_observation critique target attempt attempt_critique refined_action".split()


def log_sample(row: dict[str, Any], report_to: list[str]) -> None:
    """Send a row of the audit trail to the experiment trackers, as a table."""
    table = pd.DataFrame([{name: row[name] for name in ("step", *SAMPLE_TEXTS)}])
    if "wandb" in report_to:
        _send_to_wandb("sample", table)
    if "trackio" in report_to:
        import trackio

        trackio.log({"sample": trackio.Table(dataframe=table)})


def _send_to_wandb(name: str, table: pd.DataFrame) -> None:
    import wandb

    if wandb.run is not None:
        wandb.log({name: wandb.Table(dataframe=table)})


def _on_first_process(rows: list[dict[str, Any]], args: NLACConfig) -> list[dict[str, Any]]:
    """Gather the rows of all processes on the first; the others get none, since nobody reads them there."""
    if args.world_size == 1:
        return rows
    gathered = [None] * args.world_size if args.process_index == 0 else None
    dist.gather_object(rows, gathered)
    return [row for of_process in gathered or [] for row in of_process]


def _extra_columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Collect what reward functions noted beside episodes, by name; `None` where an episode has no such note."""
    return {name: [row["extra"].get(name) for row in rows] for row in rows for name in row["extra"]}


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a file that [`EpisodeTables.write`] wrote."""
    rows = pq.read_table(path).to_pylist()
    return [
        {
            **{name: row.pop(name) for name in EPISODE.names},
            "extra": {name.removeprefix("extra/"): value for name, value in row.items()},
        }
        for row in rows
    ]


def _messages(turns: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Write turns as messages."""
    messages = []
    for turn in turns:
        messages.append({"role": "assistant", "content": turn["text"]})
        if turn["next_observation"]:
            messages.append({"role": "user", "content": turn["next_observation"]})
    return messages


def _array(values: list[Any]) -> pa.Array:
    """Make a column of any type, as text if the types are mixed or parquet has no such type."""
    try:
        column = pa.array(values)
        if not _has_empty_struct(column.type):
            return column
    except (pa.ArrowException, OverflowError):
        pass
    return pa.array([None if value is None else str(value) for value in values])


def _has_empty_struct(of: pa.DataType) -> bool:
    parts = [of.field(i) for i in range(of.num_fields)]
    return (pa.types.is_struct(of) and not parts) or any(_has_empty_struct(part.type) for part in parts)


def _log_to_trackio(rows: list[dict[str, Any]], completions: list[list[dict[str, str]]], step: int) -> None:
    """Send episodes as conversations, which the dashboard shows as such and searches."""
    import trackio

    names = ("task", "episode", "return", "success", "terminated", "truncated", "failure")
    traces = [
        trackio.Trace(
            [{"role": "user", "content": row["prompt"]}, *messages],
            {**{name: row[name] for name in names}, **row["extra"], "step": step},
        )
        for row, messages in zip(rows, completions, strict=True)
    ]
    trackio.log({"episodes": traces})
