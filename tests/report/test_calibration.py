# SPDX-License-Identifier: Apache-2.0

import pytest
from helpers.report_utils import make_row, make_turn, write_episodes

from trl_nlac.evaluation.metrics import CriticCalibration
from trl_nlac.report.calibration import first_and_last, probability
from trl_nlac.report.run_files import read_episodes


class TestCalibration:
    def test_bins(self):
        verdicts = [(-4.0, False), (-3.9, False), (-3.8, True), (0.0, True), (8.0, True), (800.0, True)]
        ((evaluation,),) = first_and_last({("", 5): verdicts})
        assert [(bin.count, bin.observed) for bin in evaluation.bins] == [(3, pytest.approx(1 / 3)), (1, 1), (2, 1)]
        assert evaluation.bins[0].predicted == pytest.approx(sum(probability(s) for s, _ in verdicts[:3]) / 3)
        assert 0 <= evaluation.bins[0].low < 1 / 3 < evaluation.bins[0].high <= 1
        scores, successes = [score for score, _ in verdicts], [float(success) for _, success in verdicts]
        expected = CriticCalibration(keep_in_memory=True).compute(scores=scores, successes=successes)
        assert evaluation.brier == expected["brier"] and evaluation.auroc == expected["auroc"]

    def test_first_and_newest(self):
        verdicts = {
            ("", 20): [(1.0, True)],
            ("", 0): [(0.0, True)],
            ("", 10): [(2.0, True)],
            ("far", 10): [(2.0, True)],
        }
        steps = [[(e.dataset, e.step) for e in evaluations] for evaluations in first_and_last(verdicts)]
        assert steps == [[("", 0), ("", 20)], [("far", 10)]]
        assert first_and_last(verdicts)[1][0].auroc is None

    def test_only_evaluations_that_were_played(self, tmp_path):
        judged = [make_turn(verdict=True, verdict_score=2.0), make_turn(1)]
        write_episodes(tmp_path, [make_row(turns=judged)], step=10)
        assert read_episodes(tmp_path).verdicts == {}
        rows = [make_row(turns=judged, success=False), make_row(1, turns=judged, failure="reset: no"), make_row(2)]
        write_episodes(tmp_path, rows, step=10, kind="eval")
        assert read_episodes(tmp_path).verdicts == {("", 10): [(2.0, False)]}
