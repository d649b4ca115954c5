# SPDX-License-Identifier: Apache-2.0

import json
import random
import shutil

import pytest
from helpers.testing_utils import DESK

from trl_nlac.agent.guard import GUARD_FILE, Guard, calibrate_by_half, outcomes
from trl_nlac.cli.main import main
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.types import Judgement


def draw(number: int, seed: int) -> tuple[list[float], list[bool]]:
    """Draw scores that overlap: those of failures are around -1, of successes around 1."""
    rng = random.Random(seed)
    failures = [rng.random() < 0.4 for _ in range(number)]
    return [rng.gauss(-1 if failed else 1, 1) for failed in failures], failures


def decide(guard: Guard, scores: list[float]) -> list[str]:
    return [guard.decide(Judgement("", score > 0, score)) for score in scores]


class TestCalibration:
    def test_shares_are_kept_on_other_actions_of_the_kind(self):
        guard = Guard.calibrated(*draw(4000, 0), max_false_blocks=0.05, max_false_passes=0.1)
        scores, failures = draw(4000, 1)
        decisions = decide(guard, scores)
        measured = outcomes(decisions, failures)
        assert measured["false_blocks"] == pytest.approx(0.05, abs=0.015)
        passed = [decision for decision, failed in zip(decisions, failures, strict=True) if failed]
        assert passed.count("pass") / len(passed) == pytest.approx(0.1, abs=0.02)
        assert 0.1 < measured["abstained"] < 0.5

    def test_no_abstention_where_scores_are_apart(self):
        guard = Guard.calibrated([-2.0, -1.5, 3.0, 4.0], [True, True, False, False])
        assert guard.block_below == guard.pass_above == 0.75
        assert decide(guard, [-2.0, 0.74, 0.76, 4.0]) == ["block", "block", "pass", "pass"]

    def test_what_cannot_be_judged(self):
        assert Guard().decide(None) == "abstain"

    def test_at_a_threshold_it_abstains(self):
        assert decide(Guard(-1.0, 1.0), [-1.5, -1.0, 0.0, 1.0, 1.5]) == ["block", *["abstain"] * 3, "pass"]

    def test_it_is_measured_on_conversations_that_did_not_calibrate_it(self):
        drawn = zip(*draw(400, 0), strict=True)
        judged = [(i, Judgement("", score > 0, score), failed) for i, (score, failed) in enumerate(drawn)]
        guard, measured, number = calibrate_by_half(judged, max_false_blocks=0.0)
        assert guard.num_actions + number == 400 and measured["false_blocks"] > 0

    @pytest.mark.parametrize("failures", [[], [True, True], [False]])
    def test_outcomes_of_one_kind(self, failures):
        number = "1 action" if failures == [False] else "0 actions"
        with pytest.raises(ValueError, match=f"{number} of successes and {sum(failures)} of failures"):
            Guard.calibrated([0.0] * len(failures), failures)

    @pytest.mark.parametrize("num_won", [2, 3, 4, 5])
    def test_a_single_failure_calibrates(self, num_won):
        """However many successes there are: without one in its half, there would be no guard."""
        judged = [(i, Judgement("", i > 0, 1.0 if i else -1.0), i == 0) for i in range(1 + num_won)]
        guard, _, number = calibrate_by_half(judged)
        assert (guard.num_actions, number) == (1 + (num_won + 1) // 2, num_won // 2)

    def test_a_half_with_outcomes_of_one_kind(self):
        """The critiques of failures cannot be read, or nothing is left for the other half."""
        won, lost = Judgement("", True, 1.0), Judgement("", False, -1.0)
        unreadable = [(0, won, False), (1, None, True), (2, won, False), (3, None, True)]
        with pytest.raises(ValueError, match="has 1 action of successes and 0 .* in the half .* cannot be read"):
            calibrate_by_half(unreadable)
        with pytest.raises(ValueError, match="none is left to measure"):
            calibrate_by_half([(0, won, False), (1, lost, True)])


class TestFiles:
    def test_round_trip(self, tmp_path):
        assert Guard.from_pretrained(str(tmp_path)) == Guard()
        guard = Guard(-0.5, 1.25, 40)
        guard.save_pretrained(tmp_path)
        assert Guard.from_pretrained(str(tmp_path)) == guard

    @pytest.mark.parametrize("text", ["", "[]", '{"block_below": "low"}', "[" * 10_000])
    def test_damage(self, tmp_path, text):
        (tmp_path / GUARD_FILE).write_text(text)
        with pytest.raises(ValueError, match="has no thresholds of a guard"):
            Guard.from_pretrained(str(tmp_path))


def test_measures():
    decisions = ["block", "abstain", "pass", "block", "pass", "abstain"]
    failures = [True, True, True, False, False, False]
    assert outcomes(decisions, failures) == {
        "recall": pytest.approx(1 / 3),
        "false_blocks": pytest.approx(1 / 3),
        "abstained": pytest.approx(1 / 3),
        "recall_of_decided": 0.5,
        "false_blocks_of_decided": 0.5,
    }
    assert json.dumps(outcomes([], [])) == json.dumps(dict.fromkeys(outcomes([], []), 0.0))


class TestCommand:
    @pytest.fixture
    def files(self, tmp_path):
        """A folder with a model, and a file of logs: each request of the desk with its right call, and a wrong one."""
        shutil.copytree(TINY_MODEL, tmp_path / "model")
        rows = []
        for request in DESK.requests:
            for call in (DESK.rules[request], ("legal", "ruby", "badge", "night")):
                action = {"role": "assistant", "content": " ".join(("route", *call))}
                reward = float(call == DESK.rules[request])
                rows.append({"messages": [{"role": "user", "content": f"{request} 2"}, action], "reward": reward})
        (tmp_path / "logs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return tmp_path

    def test_thresholds_are_stored_with_the_model(self, files, capsys, monkeypatch):
        shares = []
        monkeypatch.setattr(
            "trl_nlac.cli.calibrate.calibrate_by_half",
            lambda judged, *given: shares.append(given) or calibrate_by_half(judged, *given),
        )
        words = ["calibrate", str(files / "model"), str(files / "logs.jsonl"), "--option", "action_format=text"]
        assert main([*words, "--max_false_blocks", "0.1", "--max_false_passes", "0.2"]) == 0
        assert shares == [(0.1, 0.2)]
        printed = capsys.readouterr().out
        guard = Guard.from_pretrained(str(files / "model"))
        assert guard.num_actions > 0 and guard.block_below <= guard.pass_above
        assert f"blocks below {guard.block_below:.3f}" in printed and "false_blocks_of_decided" in printed

    def test_a_model_of_the_hub_has_no_folder(self, files, capsys):
        assert main(["calibrate", "org/model", str(files / "logs.jsonl")]) == 2
        assert "is no folder" in capsys.readouterr().err
