# SPDX-License-Identifier: Apache-2.0

import json
import logging
import random
from dataclasses import replace

import pytest
from accelerate import PartialState
from helpers.testing_utils import make_episode, make_roles

from trl_nlac.evaluation.health import FormatMonitor, HealthMonitor, SuccessMonitor, backup_fidelity, health_metrics
from trl_nlac.prompts import NLACPrompts
from trl_nlac.types import Answer, Critique, Refinement, Transition


@pytest.fixture(autouse=True)
def process():
    """Loggers of accelerate need to know the process: only the first one warns."""
    PartialState(cpu=True)


ROLES = make_roles("", prompts=NLACPrompts())


class TestHealth:
    def test_backup_fidelity(self):
        transition = Transition(make_episode(text="the door is"), 0)  # next observation: the door is 0
        assert backup_fidelity(transition, Critique("The door is 0 and then it opens", True)) == 1
        assert backup_fidelity(transition, Critique("the window is 7", True)) == 0.5

    def test_an_environment_that_ends_without_a_word_is_no_fault_of_the_backup(self):
        episode = make_episode(num_turns=2, text="the door is")
        silent = replace(episode, turns=(episode.turns[0], replace(episode.turns[1], next_observation=" ")))
        transitions = [Transition(silent, 0), Transition(silent, 1)]
        told = [Critique("The door is 0", True), Critique("It ends", True)]
        targets = [Answer(None, (), "", critique) for critique in told]
        assert health_metrics(ROLES, transitions, targets, [])["health/backup_fidelity"] == 1.0
        assert "health/backup_fidelity" not in health_metrics(ROLES, transitions[1:], targets[1:], [])

    @pytest.mark.parametrize(
        ("optimal", "refined", "compliance"), [(True, "a", 1), (True, "b", 0), (False, "a", 0), (False, "b", 1)]
    )
    def test_refine_compliance(self, optimal, refined, compliance):
        refinement = Refinement("a", Critique("", optimal), Answer(None, (), refined, refined))
        assert health_metrics(ROLES, [], [], [refinement])["health/refine_compliance"] == compliance

    def test_rates_of_verdicts_and_changes(self):
        yes, no = Critique("", True), Critique("", False)
        said = [(yes, "a"), (no, "b"), (no, "b"), (no, "b")]
        refinements = [Refinement("a", critique, Answer(None, (), text, text)) for critique, text in said]
        targets = [Answer(None, (), "", critique) for critique in (yes, yes, no, None)]
        metrics = health_metrics(ROLES, [Transition(make_episode(), 0)] * 4, targets, [*refinements, None])
        assert (metrics["critic/optimal_rate"], metrics["refine/changed_rate"]) == (0.25, 0.75)
        assert metrics["backup/optimal_rate"] == 2 / 3

    @pytest.mark.parametrize(("score", "optimal", "agrees"), [(1.0, True, 1), (0.0, True, 0), (0.0, False, 1)])
    def test_verdicts_of_the_last_actions_agree_with_the_score(self, score, optimal, agrees):
        ended = make_episode(score=score)
        transitions = [Transition(ended, 0), Transition(ended, 1)]  # of the first one nothing is known
        targets = [Answer(None, (), "", Critique("", True)), Answer(None, (), "", Critique("", optimal))]
        assert health_metrics(ROLES, transitions, targets, [])["health/verdict_agrees"] == agrees

    def test_words_of_the_prompt_that_come_back(self):
        """As small models write them after their answer, or in its place."""
        echo = "Future: It opens.\nOptimality: Yes\nWrite these two lines, and nothing else: Future."
        texts = [echo, "Future: It opens.\nOptimality: Yes"]
        targets = [Answer(None, (), text, Critique("It opens.", True)) for text in texts]
        repaired = "Go left. Write only the action, in exactly this form."
        said = [Refinement("a", Critique("", False), Answer(None, (), text, text)) for text in (repaired, "Go left.")]
        metrics = health_metrics(ROLES, [Transition(make_episode(), 0)] * 2, targets, said)
        assert metrics["health/prompt_echoed"] == 0.5

    def test_an_action_that_was_kept_says_nothing_of_the_refinement_policy(self):
        kept = Refinement("a", Critique("", True), Answer(None, (), "a", "a"), is_kept=True)
        changed = Refinement("a", Critique("", False), Answer(None, (), "a", "a"))
        metrics = health_metrics(ROLES, [], [], [kept, changed, None])
        assert metrics["health/refine_compliance"] == 0.0 and metrics["critic/optimal_rate"] == 0.5
        assert "health/refine_compliance" not in health_metrics(ROLES, [], [], [kept])

    def test_warns_once_by_name(self, caplog):
        monitor, names = HealthMonitor(), ["critic/format_rate", "health/backup_fidelity", "health/refine_compliance"]
        healthy, ill = dict.fromkeys(names, 0.95), dict.fromkeys(names, 0.3)
        with caplog.at_level(logging.WARNING):
            assert not any(monitor.update(healthy) for _ in range(20))
            assert sum((monitor.update(ill) for _ in range(20)), []) == names
            assert "Bellman targets no longer repeat what was observed: `health/backup_fidelity` fell" in caplog.text
            assert "Lower `learning_rate`" in caplog.text
            for _ in range(30):
                monitor.update(healthy)
            assert sum((monitor.update(ill) for _ in range(20)), []) == names

    def test_a_fall_among_the_first_values_is_not_reported(self):
        monitor = HealthMonitor()
        assert not any(monitor.update({"critic/format_rate": value}) for value in (1.0, 0.0, 0.0, 0.0))

    def test_warns_when_advice_comes_to_name_the_criticised_actions(self, caplog):
        name, monitor = "health/advice_repeats_action", HealthMonitor()
        assert not any(monitor.update({name: 0.1}) for _ in range(10))
        resumed = HealthMonitor()
        resumed.load_state_dict(json.loads(json.dumps(monitor.state_dict())))
        assert resumed == monitor
        assert not resumed.update({name: 0.0})  # a fall is none
        assert sum((resumed.update({name: 0.8}) for _ in range(20)), []) == [name]
        assert f"followed, gives the actions that it criticises: `{name}` rose from 0.08 to 0." in caplog.text
        assert not any(resumed.update({name: 0.1}) for _ in range(20))
        assert sum((resumed.update({name: 0.8}) for _ in range(20)), []) == [name]


class TestFormatMonitor:
    def test_a_role_that_never_could_is_named_at_once(self, caplog):
        monitor = FormatMonitor(max_completion_length=256)
        with caplog.at_level(logging.WARNING):
            assert monitor.update({"critic/format_rate": 0.0, "policy/format_rate": 0.9}) == ["critic/format_rate"]
            assert "Only 0% of the answers of the critic" in caplog.text and "`NLACPrompts.examples`" in caplog.text
            assert monitor.update({"critic/format_rate": 0.0}) == []
            assert sum((monitor.update({"critic/format_rate": 1.0}) for _ in range(5)), []) == []
            assert monitor.causes() == {}
            again = sum((monitor.update({"critic/format_rate": 0.0}) for _ in range(20)), [])
        assert again == ["critic/format_rate"]

    def test_answers_that_are_cut_off_are_the_cause_of_broken_formats(self):
        monitor = FormatMonitor(max_completion_length=256)
        metrics = {"completions/clipped_ratio": 0.9, "critic/format_rate": 0.05, "backup/format_rate": 0.1}
        assert monitor.update(metrics) == ["completions/clipped_ratio"]
        (cause,) = monitor.causes().values()
        assert "90% of the answers are cut off" in cause and "`max_completion_length` (256)" in cause

    def test_prompts_that_are_too_long_come_first(self):
        monitor = FormatMonitor(max_completion_length=256)
        metrics = {"prompts/too_long_ratio": 0.3, "completions/clipped_ratio": 0.9, "critic/format_rate": 0.0}
        assert monitor.update(metrics) == ["prompts/too_long_ratio"] and monitor.update(metrics) == []
        (cause,) = monitor.causes().values()
        assert "30% of the prompts" in cause and "`max_prompt_length`" in cause

    def test_a_healthy_run_is_silent(self):
        monitor = FormatMonitor(max_completion_length=256)
        metrics = {"completions/clipped_ratio": 0.1, "critic/format_rate": 0.5, "health/backup_fidelity": 0.1}
        assert not any(monitor.update(metrics) for _ in range(20))


class TestSuccessMonitor:
    @staticmethod
    def play(monitor, chance, episodes, rng):
        return sum(monitor.update([rng.random() < chance for _ in range(4)]) for _ in range(episodes // 4))

    def test_warns_once_of_a_fall_and_again_after_a_recovery(self, caplog):
        monitor, rng = SuccessMonitor(), random.Random(0)
        with caplog.at_level(logging.WARNING):
            assert self.play(monitor, 0.1, 200, rng) + self.play(monitor, 0.9, 200, rng) == 0
            assert self.play(monitor, 0.1, 400, rng) == 1
            assert "Success fell from 0.9" in caplog.text and "raise `min_p`" in caplog.text
        assert self.play(monitor, 0.9, 200, rng) == 0
        assert self.play(monitor, 0.1, 200, rng) == 1

    def test_a_fall_within_the_ratio_is_not_reported(self):
        monitor = SuccessMonitor()
        assert not monitor.update([True] * 40) and not monitor.update([False] * 12)
        assert monitor.update([False] * 10)

    def test_chance_is_no_fall(self):
        rng = random.Random(0)
        monitors = [SuccessMonitor() for _ in range(50)]
        assert (
            sum(
                self.play(monitor, chance, 2000, rng)
                for monitor, chance in zip(monitors, [0.1, 0.5] * 25, strict=True)
            )
            <= 1
        )
