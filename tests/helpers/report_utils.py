# SPDX-License-Identifier: Apache-2.0

import json
import math
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trl_nlac.records.audit import SAMPLE
from trl_nlac.records.episode_tables import EPISODE
from trl_nlac.records.folder import audit_file, completions_file


class Page(HTMLParser):
    """The parsed page: all tags with their attributes, and the text of every script and style."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[str] = []  # of scripts and styles, in order
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.text += " "
        if tag in ("script", "style"):
            self.raw.append("")

    def handle_data(self, data):
        if self.cdata_elem:
            self.raw[-1] += data
        else:
            self.text += data

    def names(self) -> list[str]:
        return [tag for tag, _ in self.tags]

    def classes(self, name: str) -> int:
        return sum(name in (attrs.get("class") or "").split() for _, attrs in self.tags)

    @property
    def data(self) -> dict:
        return json.loads(self.raw[1])


def make_turn(number: int = 0, **kwargs) -> dict:
    said = f"Thought: I try {number}.\nAction: act {number}"
    turn = dict(text=said, action=f"act {number}", next_observation=f"seen {number}", reward=0.0)
    return {**turn, **kwargs}


def make_row(number: int = 0, step: int = 0, num_turns: int = 2, **kwargs) -> dict:
    row = {
        **dict(step=step, environment_steps=10 * step, process=0, episode=number),
        **dict(task=json.dumps({"number": number}), prompt=f"begin {number}"),
        **{"turns": [make_turn(i) for i in range(num_turns)], "return": 1.0},
        **dict(success=True, terminated=True, truncated=False, failure=None),
    }
    return {**row, **kwargs}


def make_sample(number: int = 0, turn: int = 0, step: int = 4, **kwargs) -> dict:
    row = {
        **dict(step=step, environment_steps=10 * step, process=0, episode=number, turn=turn),
        **dict(task=json.dumps({"number": number}), observation=f"before {turn}"),
        **{"action": f"act {turn}", "next_observation": f"seen {turn}", "reward": 0.0, "return": 1.0},
        **dict(critique="Future: all ends well. Optimality: Yes", verdict=True, verdict_score=1.5),
        **dict(target="Future: a door closes. Optimality: No", target_verdict=False),
        **dict(attempt="first idea", attempt_critique="No, knock before", attempt_verdict=False),
        **dict(refined_action="better idea", critic_loss=0.25, policy_loss=math.nan, priority=0.75),
    }
    return {**row, **kwargs}


def write_rows(path: Path, rows: list[dict], schema: pa.Schema) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def write_episodes(run: Path, rows: list[dict], step: int = 10, kind: str = "", **columns) -> None:
    schema = pa.schema([*EPISODE, *(pa.field(name, kind_of) for name, kind_of in columns.items())])
    write_rows(completions_file(run, step, kind), rows, schema)


def write_audit(run: Path, rows: list[dict], step: int = 10) -> None:
    write_rows(audit_file(run, step, process=0), rows, SAMPLE)


def write_log(run: Path, rows: list[dict], end: str = "") -> None:
    run.mkdir(parents=True, exist_ok=True)
    new = run / ".training_log.new"
    new.write_text("".join(json.dumps(row) + "\n" for row in rows) + end)
    new.replace(run / "training_log.jsonl")  # a run only appends: whoever follows it never sees less


def training_row(step: int, **metrics) -> dict:
    return {"step": step, "loss": 1.0, "environment/steps": 10 * step, **metrics}
