# SPDX-License-Identifier: Apache-2.0

from pathlib import Path

import pyarrow as pa
import pytest
from helpers.report_utils import make_row, make_sample, make_turn, write_audit, write_episodes

from trl_nlac.report.episodes import MAX_CHARACTERS
from trl_nlac.report.run_files import read_episodes


class TestEpisodes:
    def show(self, run: Path, **kwargs) -> list[dict]:
        return read_episodes(run, **kwargs).shown

    @pytest.mark.parametrize(
        ("changes", "outcome"),
        [
            ({}, "success"),
            ({"success": True, "truncated": True}, "success"),
            ({"success": False}, "failure"),
            ({"success": False, "truncated": True}, "cut"),
            ({"success": False, "truncated": True, "failure": "step: it broke"}, "broken"),
        ],
    )
    def test_outcomes(self, tmp_path, changes, outcome):
        write_episodes(tmp_path, [make_row(**changes)])
        (episode,) = self.show(tmp_path)
        assert episode["outcome"] == outcome and episode.get("failure") == changes.get("failure")

    @pytest.mark.parametrize(
        ("success", "failure", "verdict", "wrong"),
        [
            (True, None, False, True),
            (False, None, True, True),
            (True, None, True, False),
            (False, None, False, False),
            (False, None, None, False),
            (False, "timeout: 60 seconds", True, False),  # a failed environment proves nothing about the critic
        ],
    )
    def test_wrong_verdicts(self, tmp_path, success, failure, verdict, wrong):
        turns = [make_turn(0), make_turn(1, verdict=verdict, critique="It is so.")]
        write_episodes(tmp_path, [make_row(success=success, failure=failure, turns=turns)], kind="eval")
        (episode,) = self.show(tmp_path)
        assert episode["wrong"] == wrong and [turn["wrong"] for turn in episode["turns"]] == [False, wrong]

    def test_audited_samples_join_their_turns(self, tmp_path):
        write_episodes(tmp_path, [make_row(3, process=0), make_row(3, process=1), make_row(4)])
        write_audit(
            tmp_path, [make_sample(3, turn=1, step=8), make_sample(3, turn=1, step=8, process=1, verdict=False)]
        )
        write_audit(tmp_path, [make_sample(3, turn=1, step=12)], step=20)
        first, second, other = self.show(tmp_path)
        assert [len(turn["samples"]) for turn in first["turns"]] == [0, 2]
        assert first["audited"] and second["audited"] and not other["audited"]
        assert first["wrong"] and not second["wrong"]  # critique and target disagree only in the first
        sample = first["turns"][1]["samples"][0]
        assert sample["step"] == 8 and sample["wrong"] and sample["refined_action"] == "better idea"
        assert "policy_loss" not in sample  # it was not finite
        assert first["turns"][1]["text"].startswith("Thought") and "observation" not in first["turns"][1]

    def test_audited_samples_alone(self, tmp_path):
        write_audit(tmp_path, [make_sample(5, turn=2), make_sample(5, turn=0, step=6), make_sample(6)])
        found = read_episodes(tmp_path)
        episode, other = found.shown
        assert episode["outcome"] == "unknown" and episode["step"] == 4 and episode["number"] == 5
        assert [(t["number"], t["observation"]) for t in episode["turns"]] == [(0, "before 0"), (2, "before 2")]
        assert other["number"] == 6 and found.num_train == 2 and found.num_eval == 0

    def test_datasets_and_columns_of_rewards(self, tmp_path):
        columns = {"style": pa.float64(), "words": pa.list_(pa.string()), "nothing": pa.string()}
        write_episodes(tmp_path, [make_row(style=1 / 3, words=["a", "b"])], kind="eval_held_out", **columns)
        (episode,) = self.show(tmp_path)
        assert episode["split"] == "eval" and episode["dataset"] == "held_out"
        assert episode["extra"] == {"style": "0.33333", "words": "['a', 'b']"}

    def test_long_texts_are_clipped(self, tmp_path):
        text = "start" + "x" * 2 * MAX_CHARACTERS + "end"
        write_episodes(tmp_path, [make_row(turns=[make_turn(text=text)])])
        shown = self.show(tmp_path)[0]["turns"][0]["text"]
        assert shown.startswith("start") and shown.endswith("end") and len(shown) < MAX_CHARACTERS + 60
        assert f"{len(text) - MAX_CHARACTERS:,} characters omitted" in shown

    def test_failed_environments_are_no_failures_of_a_task(self, tmp_path):
        broken = [make_row(failure="step: it broke", success=False) for _ in range(3)]
        others = [make_row(1, success=False), make_row(2, num_turns=0, success=False)]
        write_episodes(tmp_path, [make_row(), *broken, *others], kind="eval")
        assert read_episodes(tmp_path).tasks == {"": {0: {0: [1, 1]}, 1: {0: [0, 1]}}}

    def test_a_choice_of_many(self, tmp_path):
        for step in (10, 20, 30):
            write_episodes(tmp_path, [make_row(i, step) for i in range(40)], step, kind="eval")
            write_episodes(tmp_path, [make_row(10 * step + i, step) for i in range(100)], step)
        write_audit(tmp_path, [make_sample(100), make_sample(399), make_sample(7, step=25)])
        found = read_episodes(tmp_path, limit=60)
        assert found.num_eval == 120 and found.num_train == 301
        evaluations = [episode for episode in found.shown if episode["split"] == "eval"]
        training = [episode for episode in found.shown if episode["split"] == "train"]
        times = [(episode["number"], episode["step"]) for episode in evaluations]  # of few tasks, all times
        assert sorted(times) == [*((i, step) for i in range(7) for step in (10, 20, 30)), (7, 10), (7, 30)] + [
            (i, 30) for i in range(8, 15)
        ]
        assert sorted(episode["number"] for episode in training if episode["audited"]) == [7, 100, 399]
        steps = [episode["step"] for episode in training if not episode["audited"]]
        assert [steps.count(step) for step in (10, 20, 30)] == [9, 9, 9]
        assert [episode["step"] for episode in found.shown] == sorted(episode["step"] for episode in found.shown)

    def test_evaluations_leave_the_room_that_training_needs(self, tmp_path):
        write_episodes(tmp_path, [make_row(i) for i in range(80)], kind="eval")
        write_episodes(tmp_path, [make_row(i) for i in range(5)])
        splits = [episode["split"] for episode in self.show(tmp_path, limit=60)]
        assert splits.count("eval") == 55 and splits.count("train") == 5
