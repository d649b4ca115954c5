# SPDX-License-Identifier: Apache-2.0

"""Pages about folders that anybody can have filled: odd keys and values stop no page, and a part fails alone."""

import json
import logging
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.report_utils import Page, make_row, training_row, write_episodes, write_log
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trl_nlac.records.folder import completions_file
from trl_nlac.report import page, write_comparison, write_report
from trl_nlac.secrets import HIDDEN


HEADS = (
    *("health/", "tokens/", "tokens/generated/", "episode/pass^", "environment/", "time/", "oracle/", "eval_episode/"),
    *("eval_x_critic/", "critic/", "policy/", "refine/", "replay/", "target/", "eval_", "eval_/rewards/", "rewards/"),
)
NAMES = (
    *("step", "loss", "environment/steps", "episode/success_rate", "train_loss", "train_runtime", "time/rollout"),
    *("eval_episode/success_rate", "eval_episode/success_rate_low", "eval_x_critic/brier", "critic/loss"),
    *("tokens/generated", "tokens/generated/act", "environment/failure_rate", "environment/a_failure_rate"),
)
CUT = ("health/", "health//", "health/ ", "/", "tokens/generated/", "episode/pass^")  # names that end early
KEYS = st.one_of(
    st.sampled_from(NAMES),
    st.builds("".join, st.tuples(st.sampled_from(HEADS), st.text(max_size=6))),
    st.text(max_size=8),
    st.sampled_from(["__proto__", "constructor", "</script>", "/", "//", "health/ ", "_", "\u2028", "\ud800"]),
)
VALUES = st.one_of(
    st.floats(),
    st.integers(),
    st.integers(-(10**320), 10**320),
    st.sampled_from([1.7e308, -1.7e308, 5e-324, 0.0, -0.0, 10**308]),
    st.none() | st.booleans() | st.text(max_size=5) | st.lists(st.integers(), max_size=2),
)
LOGS = st.lists(st.dictionaries(KEYS, VALUES, max_size=8), max_size=5)
JSON = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


def check_page(path) -> Page:
    """It is whole, and its data is JSON for every browser."""
    found = Page(path.read_text(encoding="utf-8"))

    def refuse(name):
        raise AssertionError(name)

    json.loads(found.raw[1], parse_constant=refuse)
    assert found.names().count("script") == 2 and found.names().count("footer") <= 1
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=LOGS, config=JSON, options=JSON, warnings=st.lists(JSON, max_size=3))
def test_any_log(tmp_path_factory, rows, config, options, warnings):
    run = tmp_path_factory.mktemp("run")
    good = [training_row(step, **{"critic/loss": 1.0}, **dict.fromkeys(CUT, 0.5)) for step in (1, 2)]
    write_log(run, good)
    with (run / "training_log.jsonl").open("a") as file:
        file.writelines(json.dumps({"step": 3, "loss": 1.0, **row}) + "\n" for row in rows)
    (run / "config.json").write_text(json.dumps(config))
    (run / "_settings.json").write_text(json.dumps({"model": config, "chosen": options, "others": {"a": options}}))
    (run / "_warnings.jsonl").write_text("".join(json.dumps(warning) + "\n" for warning in warnings))
    (run / "README.md").write_text(f"---\nbase_model: {json.dumps(config)}\n---\n")
    found = check_page(write_report(run))
    assert "could not be made" not in found.text, found.text[-500:]
    other = tmp_path_factory.mktemp("other")
    write_log(other, good)
    found = check_page(write_comparison([run, other], run / "comparison.html"))
    assert "could not be made" not in found.text, found.text[-500:]


ODD = [
    pa.array([float("nan")] * 4),
    pa.array([[float("nan")]] * 4),
    pa.array([b"\xff\x00"] * 4),
    pa.array([10**18] * 4),
    pa.array([None] * 4, pa.string()),
    pa.array([{"__proto__": "x"}] * 4),
    pa.array(["</script><script>alert(1)</script>"] * 4),
    pa.array([0] * 4, pa.timestamp("ns")),
    pa.array([[[[1.5]]]] * 4),
]


@pytest.mark.parametrize("kind", ["", "eval"])
def test_columns_of_any_type(tmp_path, kind):
    rng = random.Random(kind)
    columns = make_row().keys()
    for i, column in enumerate(columns):
        for odd in (None, *rng.sample(ODD, 3)):
            run = tmp_path / f"{i}-{odd and odd.type}".replace("/", "")
            write_log(run, [training_row(1)])
            write_episodes(run, [make_row(n) for n in range(4)], 5, kind)
            write_episodes(run, [make_row(n + 10) for n in range(4)], 10, kind)
            path = completions_file(run, 5, kind)
            table = pq.read_table(path)
            index = table.column_names.index(column)
            pq.write_table(table.remove_column(index) if odd is None else table.set_column(index, column, odd), path)
            found = check_page(write_report(run))
            assert len(found.data["episodes"]) >= 4, column


def test_a_part_fails_alone_and_says_so(tmp_path, monkeypatch, caplog):
    write_log(tmp_path, [training_row(step, **{"critic/loss": 1.0}) for step in (1, 2)])
    write_episodes(tmp_path, [make_row(1)])

    def fail(*args):
        raise ZeroDivisionError("\x1b[2J of a foreign file, with token=hf_abcdefghijklmnopqrstuvwxyzabcdefgh")

    for name in ("summarize", "read_settings", "read_warnings", "spent_tokens", "find_highlights", "first_and_last"):
        monkeypatch.setattr(page, name, fail)
    monkeypatch.setitem(page._CHARTS, "roles", fail)
    with caplog.at_level(logging.WARNING):
        found = check_page(write_report(tmp_path))
    parts = "charts of roles, reliability, highlights, summary, settings, warnings, tokens"
    assert f"could not be made of the files of the run: {parts}." in found.text
    assert [chart["title"] for chart in found.data["charts"]["training"]] and len(found.data["episodes"]) == 1
    assert "\x1b" not in caplog.text and "hf_abc" not in caplog.text and HIDDEN in caplog.text
    monkeypatch.setattr(page, "read_episodes", fail)
    assert "could not be made of the files of the run: episodes, " in check_page(write_report(tmp_path)).text


def test_fifty_thousand_turns(tmp_path):
    write_log(tmp_path, [training_row(1)])
    write_episodes(tmp_path, [make_row(n, num_turns=25) for n in range(2000)])
    found = write_report(tmp_path)
    assert found.stat().st_size < 30e6 and len(check_page(found).data["episodes"]) == 1000
