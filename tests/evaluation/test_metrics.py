# SPDX-License-Identifier: Apache-2.0

import itertools
import random
from dataclasses import replace
from statistics import mean, stdev

import pytest
from helpers.testing_utils import make_episode

from trl_nlac.evaluation import metrics
from trl_nlac.evaluation.metrics import (
    CriticCalibration,
    PassHatK,
    SuccessRate,
    episode_metrics,
    reward_metrics,
    why_not_comparable,
    without_zero_kinds,
)


class TestSuccessRate:
    def test_wilson_interval(self):
        result = SuccessRate().compute(successes=[1] * 8 + [0] * 2)
        assert result["success_rate"] == 0.8
        assert result["success_rate_low"] == pytest.approx(0.490, abs=1e-3)
        assert result["success_rate_high"] == pytest.approx(0.943, abs=1e-3)
        assert SuccessRate().compute(successes=[0] * 10)["success_rate_high"] == pytest.approx(0.278, abs=1e-3)


class TestPassHatK:
    def test_definition(self):
        rng = random.Random(0)
        tasks = [task for task in range(5) for _ in range(4)] + [5, 5]
        successes = [rng.randrange(2) for _ in tasks]
        rates = PassHatK(keep_in_memory=True).compute(tasks=tasks, successes=successes)
        for k in range(1, 5):
            chances = []
            for task in set(tasks):
                won = [success for other, success in zip(tasks, successes, strict=True) if other == task]
                choices = list(itertools.combinations(won, k))
                if choices:
                    chances.append(sum(map(all, choices)) / len(choices))
            assert rates[f"pass^{k}"] == pytest.approx(sum(chances) / len(chances))
        assert set(rates) == {"pass^1", "pass^2", "pass^3", "pass^4"}


class TestEpisodeMetrics:
    def test_names_and_meaning_are_those_of_grpo(self):
        """Mean and corrected deviation over episodes; a function that gives `None` or NaN is left out, as in TRL."""
        scores, helpful = [1.0, 0.0, 0.25], [0.5, None, float("nan")]
        extras = [{"rewards/helpful": h, "rewards/short": s, "note": 3} for h, s in zip(helpful, scores, strict=True)]
        played = [
            replace(make_episode(num_turns=turns, score=score), extra=extra)
            for turns, score, extra in zip((1, 2, 3), scores, extras, strict=True)
        ]
        failed = replace(make_episode(score=9.0), failure="step: it broke")
        metrics = reward_metrics([*played, failed])
        assert metrics == {
            "reward": pytest.approx(mean(scores)),
            "reward_std": pytest.approx(stdev(scores)),
            "rewards/helpful/mean": 0.5,
            "rewards/short/mean": pytest.approx(mean(scores)),
            "rewards/short/std": pytest.approx(stdev(scores)),
            "completions/mean_length": 4.0,  # two tokens in each turn
            "completions/min_length": 2.0,
            "completions/max_length": 6.0,
        }
        assert metrics["reward"] == pytest.approx(episode_metrics(played, 1.0)["episode/return"])
        assert reward_metrics([failed]) == {}

    def test_success_comes_first_and_failures_only_where_there_are_any(self):
        episode = make_episode()
        fine = episode_metrics([episode], 1.0)
        assert list(without_zero_kinds(fine)) == [
            *("episode/success_rate", "episode/return", "episode/length", "environment/failure_rate")
        ]
        failed = replace(episode, failure="timeout: 60 s")
        kinds = without_zero_kinds(episode_metrics([episode, failed], 1.0))
        assert {name: rate for name, rate in kinds.items() if name.startswith("environment/")} == {
            "environment/failure_rate": 0.5,
            "environment/timeout_failure_rate": 0.5,
        }

    def test_segments_are_part_of_their_episode(self):
        whole = make_episode(num_turns=1)
        segmented = replace(whole, segments=(make_episode(num_turns=2),))
        assert reward_metrics([whole, segmented])["completions/max_length"] == 6.0  # two tokens in each turn
        assert episode_metrics([whole, segmented], 1.0)["episode/num_segments"] == 1.5
        assert "episode/num_segments" not in episode_metrics([whole], 1.0)


def test_metrics_are_those_of_the_episodes_of_all_processes(monkeypatch):
    won, lost = make_episode(num_turns=1, score=1.0), make_episode(num_turns=3, score=0.0)
    monkeypatch.setattr(metrics, "gather_object", lambda own: [*own, metrics.Outcome.of(lost)])
    found = metrics.episode_metrics([won, won], 1.0)
    assert found["episode/return"] == found["episode/success_rate"] == pytest.approx(2 / 3)
    assert found["episode/length"] == pytest.approx(5 / 3)
    monkeypatch.setattr(metrics, "gather_object", lambda own: own)
    assert metrics.episode_metrics([], 1.0) == {}


def test_the_mean_is_over_the_processes_that_have_a_metric(monkeypatch):
    monkeypatch.setattr(metrics, "gather_object", lambda own: [*own, {"a": 3.0}, {}])
    assert metrics.mean_over_processes({"a": 1.0, "b": 2.0}) == {"a": 2.0, "b": 2.0}


def test_evaluations_without_the_metric_are_not_compared():
    results = {"eval_environment/failure_rate": 0.0, "eval_episode/success_rate": 1.0}
    assert why_not_comparable(results, "episode/success_rate", 0.5) is None
    assert "it has no `critic/auroc`" in why_not_comparable(results, "critic/auroc", 0.5)
    assert why_not_comparable(results, "episode/sucess_rate", 0.5).endswith("it has `episode/success_rate`")
    assert why_not_comparable({**results, "eval_critic/auroc": 0.7}, "eval_critic/auroc", 0.5) is None
    unplayed = {"eval_environment/failure_rate": 0.5}  # the others had no turn
    assert "not one of its episodes was played" in why_not_comparable(unplayed, "episode/success_rate", 0.5)


def test_a_dataset_is_not_compared_by_one_whose_name_begins_alike():
    results = {"eval_a_environment/failure_rate": 1.0}
    results |= {"eval_a_b_environment/failure_rate": 0.0, "eval_a_b_episode/success_rate": 1.0}
    assert why_not_comparable(results, "eval_a_b_episode/success_rate", 0.5) is None
    assert "failed in 100% of its episodes" in why_not_comparable(results, "eval_a_episode/success_rate", 0.5)


def test_area_under_the_curve():
    rng = random.Random(0)
    scores = [rng.randrange(20) / 4 for _ in range(300)]
    successes = [float(rng.random() < 0.4) for _ in scores]
    calibration = CriticCalibration(keep_in_memory=True)
    found = calibration.compute(scores=scores, successes=successes)["auroc"]
    by_outcome = {outcome: [s for s, o in zip(scores, successes, strict=True) if o == outcome] for outcome in (0, 1)}
    pairs = [(s > f) + (s == f) / 2 for s in by_outcome[1] for f in by_outcome[0]]
    assert found == pytest.approx(mean(pairs))
