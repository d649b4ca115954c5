# SPDX-License-Identifier: Apache-2.0

"""One odd line or file costs itself alone: it is named on the page and in the log, and the rest is shown."""

import json
import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.report_utils import make_row, make_sample, training_row, write_audit, write_episodes, write_log

from trl_nlac.records.episode_tables import EPISODE
from trl_nlac.records.folder import completions_file
from trl_nlac.report import write_report


GOOD = make_row(7, prompt="the good one")
LINES = [
    *(b"3", b"null", b"[]", b'"x"', b"{}", b"nonsense", b"\xff\xfe", b"[" * 100_000, b'{"step": 2, "lo'),
    *(b'{"step": null, "loss": 1}', b'{"step": "two"}', b'{"step": 1e999, "loss": 1}', b'{"step": [1]}'),
    b'{"step": 2, "loss": 1' + 5000 * b"0" + b"}",
]


def page_of(run, caplog) -> tuple[str, dict]:
    with caplog.at_level(logging.WARNING):
        text = write_report(run).read_text(encoding="utf-8")
    data = text.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    return text, json.loads(data)


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_odd_lines_of_the_log(tmp_path, caplog, line):
    write_log(tmp_path, [training_row(step, **{"critic/loss": 1.0}) for step in (1, 2, 3)])
    log = tmp_path / "training_log.jsonl"
    first, *others = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([first, line, b"\n", *others]))
    text, data = page_of(tmp_path, caplog)
    assert "1 line of training_log.jsonl could not be read: 2." in text
    assert f"{log}: these lines are no logs and are left out: 2." in caplog.text
    assert [chart["title"] for chart in data["charts"]["training"]] == ["Losses"] and "Optimizer steps" in text


def flip_pages(path):
    column = pq.read_metadata(path).row_group(0).column(0)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 0xFF
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-50])


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": truncate,
    "no parquet": lambda path: path.write_bytes(b"PAR1 nonsense PAR1"),
    "a page": flip_pages,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


def write_checked(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=EPISODE), path, write_page_checksum=True)


@pytest.mark.parametrize(
    ("kind", "damage"),
    [(kind, damage) for kind in ("", "eval") for damage in DAMAGES]
    + [("audit", damage) for damage in ("empty", "truncated")],
)
def test_damaged_tables(tmp_path, caplog, kind, damage):
    if kind == "audit":
        write_audit(tmp_path, [make_sample(1)], step=10)
        write_audit(tmp_path, [make_sample(2)], step=20)
        path = tmp_path / "_audit" / "audit_00020_process0.parquet"
    else:
        write_episodes(tmp_path, [make_row(1)], step=10, kind=kind)
        path = completions_file(tmp_path, 20, kind)
        write_checked(path, [make_row(2)])
    DAMAGES[damage](path)
    text, data = page_of(tmp_path, caplog)
    assert f"These files could not be read: <bdi>{path.name}</bdi>" in text and str(path) in caplog.text
    assert [episode["number"] for episode in data["episodes"]] == [1]


@pytest.mark.parametrize("turns", [None, [None], [{"text": None}]])
def test_damaged_rows_cost_themselves(tmp_path, caplog, turns):
    write_episodes(tmp_path, [make_row(8, turns=turns), GOOD], kind="eval")
    _, data = page_of(tmp_path, caplog)
    shown = [episode["prompt"] for episode in data["episodes"]]
    assert shown[-1] == "the good one" and len(shown) <= 2
    assert (len(shown) == 2) or "eval_completions_00010.parquet is damaged" in caplog.text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("README.md", b"---\nbase_model: [a\n---\n"),
        ("README.md", b"\xff\xfe"),
        ("config.json", b"{"),
        ("config.json", b"[1]"),
        ("config.json", b"\xff"),
    ],
)
def test_damaged_files_beside_the_model(tmp_path, caplog, name, content):
    write_log(tmp_path, [training_row(1)])
    (tmp_path / name).write_bytes(content)
    text, _ = page_of(tmp_path, caplog)
    assert f"These files could not be read: <bdi>{name}</bdi>" in text and f"{name} cannot be read" in caplog.text


def test_names_of_evaluations_with_a_slash(tmp_path, caplog):
    for name in ("eval_org/held out", "eval_50%", "eval"):
        write_episodes(tmp_path, [make_row(prompt=name)], kind=name)
    write_log(tmp_path, [{"step": 1, "eval_org/held out_episode/success_rate": 0.5}])
    text, data = page_of(tmp_path, caplog)
    found = {episode["prompt"]: episode.get("dataset") for episode in data["episodes"]}
    assert found == {"eval_org/held out": "org/held out", "eval_50%": "50%", "eval": None}
    assert "Success in evaluation: <bdi>org/held out</bdi>" in text
