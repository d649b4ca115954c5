# SPDX-License-Identifier: Apache-2.0

import json

import pytest
from helpers.method_utils import CRITIQUE, asked, make_transitions
from helpers.testing_utils import make_roles, make_trained, make_trainer, targets_of
from torch import nn

from trl_nlac import PrioritizedReplay, TargetWeights
from trl_nlac.method.backup import bellman_targets
from trl_nlac.training.target_reuse import TargetReuse, target_lags
from trl_nlac.types import Sample


def make_samples(roles) -> list[Sample]:
    first, last = make_transitions(roles)
    return [Sample(first, 0, 1.0), Sample(first, 0, 1.0), Sample(last, 1, 1.0)]


class Backups:
    """Roles whose every answer can be a future and a critique, and the number of questions to each role."""

    def __init__(self, critique: str = CRITIQUE, **options):
        self.roles = make_roles(critique, **options)
        self.samples = make_samples(self.roles)
        self.kept = PrioritizedReplay(2).targets

    def ask(self, version: int, lifetime: int = 0) -> list[int]:
        before = len(asked(self.roles))
        reuse = TargetReuse(self.samples, self.kept, version, lifetime)
        self.targets, self.versions = reuse.complete(bellman_targets(self.roles, reuse.due, "implicit"))
        questions = asked(self.roles)[before:]
        return [
            sum("Scenario?" in q and "Summary?" not in q for q in questions),
            sum("Summary?" in q for q in questions),
        ]


class TestTargetReuse:
    def test_every_draw_has_a_new_target(self):
        sampled = Backups(role_sampling={"backup": {"temperature": 1.0}})
        assert [sampled.ask(version=0), sampled.ask(version=0), sampled.ask(version=1)] == [[2, 3]] * 3
        assert len(sampled.kept) == 0 and sampled.versions == [1] * 3
        assert sampled.targets[0] is not sampled.targets[1]

    def test_targets_are_used_again_while_they_live(self):
        backups = Backups(role_sampling={"backup": {"temperature": 1.0}})
        assert backups.ask(version=10, lifetime=3) == [1, 2]  # one target for both draws
        assert backups.targets[0] is backups.targets[1] and backups.versions == [10] * 3
        first = backups.targets
        assert backups.ask(version=12, lifetime=3) == [0, 0] and backups.versions == [10] * 3
        again = [(t.prompt.ids, t.token_ids, t.parsed) for t in backups.targets]
        assert again == [(t.prompt.ids, t.token_ids, t.parsed) for t in first]
        assert backups.ask(version=13, lifetime=3) == [1, 2] and backups.versions == [13] * 3

    def test_a_new_draw_is_due_beside_kept_ones(self):
        backups = Backups()
        continuing, again, ended = backups.samples
        backups.samples = [continuing]
        backups.ask(version=10, lifetime=3)
        reuse = TargetReuse([continuing, ended, again, ended], backups.kept, 11, 3)
        assert reuse.due == [ended.transition]
        targets, versions = reuse.complete(bellman_targets(backups.roles, reuse.due, "implicit"))
        assert versions == [10, 11, 10, 11]
        assert targets[1] is targets[3] and targets[1].prompt.ids != targets[0].prompt.ids == targets[2].prompt.ids

    def test_targets_that_failed_are_not_asked_again_within_their_lifetime(self):
        backups = Backups("mumble", max_format_retries=0)
        assert backups.ask(version=4, lifetime=5) == [1, 2]
        assert backups.ask(version=8, lifetime=5) == [0, 0] and backups.versions == [4] * 3
        assert [(target.text, target.parsed) for target in backups.targets] == [("mumble", None)] * 3
        assert backups.ask(version=9, lifetime=5) == [1, 2] and backups.versions == [9] * 3

    def test_transitions_without_a_question_are_not_asked_again_either(self):
        backups = Backups("", max_format_retries=0)
        assert backups.ask(version=0, lifetime=5) == [1, 1]  # the last step bootstraps nothing
        assert backups.ask(version=4, lifetime=5) == [0, 0] and len(backups.kept) == 2


def test_how_old_the_weights_are_that_wrote_targets():
    """Against the average itself: a list of the weights in it, by how many samples ago they were the trained ones."""
    target_weights, batch, rate = TargetWeights(nn.Linear(1, 1), 0.1), 4, 0.1
    ages = {0: [(1.0, 0)]}  # after so many updates: (weight, sample at which it was the trained one)
    for update in range(1, 4):
        target_weights.update(nn.Linear(1, 1), batch)
        now = batch * update
        old, new = (1 - rate) ** batch, [(rate * (1 - rate) ** i, now - i) for i in range(batch)]
        ages[update] = [(old * weight, sample) for weight, sample in ages[update - 1]] + new
    lags = target_lags(target_weights, [3, 1, 0], batch, per_iteration=2 * batch)
    expected = [sum(weight * (12 - sample) for weight, sample in ages[version]) / 8 for version in (3, 1, 0)]
    assert lags["target/lag_iterations"] == pytest.approx(expected)
    assert lags["target/initial_share"] == pytest.approx([0.9**12, 0.9**4, 1.0])
    assert lags["target/reused_rate"] == [0, 1, 1]


class TestTrainer:
    def test_targets_stay_until_they_are_too_old(self, tmp_path):
        config = {"target_max_age": 4, "max_steps": 8, "logging_steps": 1, "replay_buffer_size": 16}
        trainer = make_trained(tmp_path, config)
        logs = [log for log in trainer.state.log_history if "target/reused_rate" in log]
        assert any(log["target/reused_rate"] > 0.2 for log in logs)
        kept = [json.loads(target)["version"] for target in targets_of(trainer.replay) if target is not None]
        updates = trainer.args.updates_per_iteration
        assert kept and min(kept) > trainer.target_weights.num_updates - updates - 4 * updates

    def test_a_new_run_writes_its_own_for_the_buffer_of_another(self, tmp_path):
        """Versions of another run's target weights say nothing here, and its options left transitions out."""
        config = {"target_max_age": 9, "max_steps": 1}
        other = make_trainer(tmp_path / "other", config)
        other.target_weights.num_updates = 120
        other.train()
        other.replay.leave_out([0])
        other.replay.save(tmp_path / "buffer")
        trainer = make_trainer(tmp_path / "new", config)
        trainer.replay.load(tmp_path / "buffer")
        trainer.train()
        versions = {json.loads(target)["version"] for target in targets_of(trainer.replay) if target is not None}
        assert versions == {0} and trainer.replay.num_left_out == 0
