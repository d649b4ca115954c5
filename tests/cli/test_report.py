# SPDX-License-Identifier: Apache-2.0

import json
import threading
import time

from helpers.report_utils import Page, training_row, write_log

from trl_nlac.cli.main import main


def page_of(path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def test_a_run_is_followed_until_it_ends(tmp_path, capsys):
    run, seen = tmp_path / "run", []
    run.mkdir()

    def train():
        time.sleep(0.2)
        rows = [training_row(1, **{"critic/loss": 1.0})]
        for row in (training_row(2, **{"critic/loss": 0.5}), {"step": 2, "train_runtime": 9.0, "train_loss": 0.4}):
            write_log(run, rows)
            rows.append(row)
            deadline = time.monotonic() + 60
            while len(seen) < len(rows) - 1 and time.monotonic() < deadline:
                time.sleep(0.05)
                if (run / "report.html").exists():
                    charts = page_of(run / "report.html").data["charts"]["training"]
                    if len(charts[0]["series"][0]["x"]) == len(rows) - 1:
                        seen.append(page_of(run / "report.html").data["refresh"])
        write_log(run, rows)

    thread = threading.Thread(target=train)
    thread.start()
    assert main(["report", str(run), "--follow"]) == 0
    thread.join()
    assert seen == [10, 10] and page_of(run / "report.html").data["refresh"] is None
    output = capsys.readouterr().out
    assert output.startswith("Waiting for the first log") and output.count("Open ") == 1
    assert "trained in 9 s" in page_of(run / "report.html").text


def test_runs_are_compared(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        write_log(tmp_path / name, [training_row(1, **{"critic/loss": 1.0})])
    assert main(["report", "one", "two"]) == 0
    assert "Open comparison.html" in capsys.readouterr().out
    assert json.dumps("two") in json.dumps(page_of(tmp_path / "comparison.html").data)
    assert main(["report", "one", "one"]) == 2
    assert "names a folder twice" in capsys.readouterr().err
    assert main(["report", "nowhere", "--follow"]) == 2
    assert "there is no such folder" in capsys.readouterr().err
