# SPDX-License-Identifier: Apache-2.0

import json
import logging

import pytest
from helpers.records_utils import CONFIG
from helpers.report_utils import Page, make_row, training_row, write_episodes, write_log
from helpers.testing_utils import make_config, make_trained, make_trainer

from trl_nlac.records.folder import SETTINGS, WARNINGS
from trl_nlac.records.written_notes import MAX_WARNINGS, noted_warnings, write_settings
from trl_nlac.report import write_comparison, write_report
from trl_nlac.report.run_files import MAX_REASONS, read_episodes
from trl_nlac.report.shown_notes import read_settings, read_warnings


class TestSettings:
    def test_a_run_writes_its_options(self, tmp_path):
        secret = "hf_" + 20 * "x"
        make_trained(tmp_path, {**CONFIG, "max_steps": 2, "learning_rate": 0.125, "hub_token": secret})
        settings = read_settings(tmp_path)
        assert settings.chosen["learning_rate"] == "0.125" and settings.chosen["max_turns"] == "2"
        assert settings.others["num_futures"] == "1" and "output_dir" not in {**settings.chosen, **settings.others}
        assert not settings.chosen.keys() & settings.others.keys()
        assert secret not in (tmp_path / SETTINGS).read_text()
        page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
        assert "learning_rate 0.125" in " ".join(page.text.split())

    def test_what_the_configuration_filled_in_is_not_chosen(self, tmp_path):
        args = make_config(tmp_path, samples_per_iteration=None, episodes_per_iteration=2)
        write_settings(args, "a model")
        settings = read_settings(tmp_path)
        assert {"samples_per_iteration", "target_max_age"} <= settings.others.keys()
        assert settings.chosen["episodes_per_iteration"] == "2"

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": 1, "chosen": [], "others": {}}', "\x00", "[" * 10**5])
    def test_damage_costs_the_settings_alone(self, tmp_path, text):
        write_log(tmp_path, [training_row(1)])
        (tmp_path / SETTINGS).write_text(text)
        assert not read_settings(tmp_path).chosen and write_report(tmp_path).exists()


class TestWarnings:
    def test_a_run_notes_what_it_warns_of(self, tmp_path):
        logger, steps = logging.getLogger("trl_nlac.somewhere"), iter(range(10_000))
        with noted_warnings(tmp_path, lambda: next(steps)):
            logger.warning("The environment %s.", "failed")
            logger.warning("The environment failed.")
            logger.info("All is well.")
            logger.error("password=verysecret1")
        logger.warning("Not of this run.")
        warnings = read_warnings(tmp_path)
        assert {message: (w.count, w.first, w.last) for message, w in warnings.items()} == {
            "The environment failed.": (2, 0, 1),
            "password=<hidden>": (1, 2, 2),
        }
        with noted_warnings(tmp_path, lambda: 0):
            for _ in range(MAX_WARNINGS + 9):
                logger.warning("again")
        assert read_warnings(tmp_path)["again"].count == MAX_WARNINGS

    def test_those_of_later_steps_are_set_aside_on_a_resume(self, tmp_path):
        config = {**CONFIG, "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
        make_trainer(tmp_path, config).train()
        lines = [{"step": step, "message": f"at {step}"} for step in (0, 1, 2)]
        (tmp_path / WARNINGS).write_text("".join(json.dumps(line) + "\n" for line in lines))
        make_trainer(tmp_path, {**config, "max_steps": 3}).train(str(tmp_path / "checkpoint-1"))
        assert [message for message in read_warnings(tmp_path) if message.startswith("at")] == ["at 0", "at 1"]

    def test_lines_that_are_damaged(self, tmp_path):
        write_log(tmp_path, [training_row(1)])
        (tmp_path / WARNINGS).write_bytes(b'\xff\n[]\n{"step": 1}\n{"step": 3, "message": "<b>ok"}\n{"step": 4, "mes')
        assert list(read_warnings(tmp_path)) == ["<b>ok"]
        page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
        assert "<b>ok 1 3" in " ".join(page.text.split()) and "b" not in page.names()


def test_failures_by_reason(tmp_path):
    failed = {"success": False, "terminated": False, "truncated": True}
    for step in range(3):
        rows = [make_row(i, step, failure="step: no line", **failed) for i in range(2)]
        rows += [make_row(9 + i, step, failure=f"reset: {10 * step + i}", **failed) for i in range(10)]
        write_episodes(tmp_path, rows, step, kind="eval" if step == 1 else "")
    failures = read_episodes(tmp_path).failures
    first, second = list(failures.items())[:2]
    assert first[0] == "other reasons" and first[1].count == 30 - (MAX_REASONS - 1)
    assert second[0] == "step: no line" and (second[1].count, second[1].first, second[1].last) == (6, 0, 2)
    text = " ".join(Page(write_report(tmp_path).read_text(encoding="utf-8")).text.split())
    assert "36 failed environments" in text and "step: no line 6 0 to 2" in text


class TestComparison:
    def write(self, run, rate: float, seconds: float | None = None, **options):
        rows = [{"step": 2, "eval_environment/steps": 20, "eval_episode/success_rate": rate}]
        rows += [training_row(2, **{"critic/loss": rate, "tokens/generated": 1000})]
        write_log(run, rows + ([{"step": 2, "train_runtime": seconds, "train_loss": 0.4}] if seconds else []))
        settings = {"model": "tiny", "chosen": options, "others": {"num_futures": 1}}
        (run / SETTINGS).write_text(json.dumps(settings))
        return run

    def test_results_and_differences(self, tmp_path):
        runs = [
            self.write(tmp_path / "a" / "run", 0.25, 60.0, learning_rate=0.1, seed=3),
            self.write(tmp_path / "b" / "run", 0.75, learning_rate=0.2, seed=3, beta=0.5),
        ]
        path = write_comparison(runs, tmp_path / "pages" / "both.html", refresh=10)
        page = Page(path.read_text(encoding="utf-8"))
        text = " ".join(page.text.split())
        assert "a/run 0.25 0.25 20 2 1,000" in text and "1 min 0 s tiny" in text and "goes on tiny" in text
        assert "learning_rate 0.1 0.2" in text and "beta – 0.5" in text and "seed" not in text
        charts = {chart["title"]: chart for chart in page.data["charts"]["comparison"]}
        assert [series["name"] for series in charts["Critic loss"]["series"]] == ["a/run", "b/run"]
        assert page.data["refresh"] == 10

    def test_what_cannot_be_compared(self, tmp_path):
        run = self.write(tmp_path / "run", 0.5)
        with pytest.raises(ValueError, match="names a folder twice"):
            write_comparison([run, run], tmp_path / "page.html")
        with pytest.raises(ValueError, match="other, which has no readable training_log.jsonl"):
            write_comparison([run, tmp_path / "other"], tmp_path / "page.html")
        assert not (tmp_path / "page.html").exists()
