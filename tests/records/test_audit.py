# SPDX-License-Identifier: Apache-2.0

import json

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from helpers.records_utils import CONFIG, read
from helpers.testing_utils import assert_same, make_episode, make_trained, make_trainer, priorities_of, weights
from pyarrow.parquet import ParquetFile

from trl_nlac.records import audit
from trl_nlac.records.audit import AuditTrail
from trl_nlac.types import Answer, Critique, Prompt, Refinement, Sample, TrainingExample, Transition


class TestAudit:
    def test_rows(self, tmp_path):
        """They show what the first samples of each iteration were trained on. Priorities are the critic's losses."""
        config = {**CONFIG, "audit_samples": 3, "samples_per_iteration": 8, "max_steps": 6}
        trainer = make_trained(tmp_path, config)
        paths = sorted((tmp_path / "_audit").iterdir())
        assert [path.name for path in paths] == [f"audit_0000{i}_process0.parquet" for i in (2, 4, 6)]
        rows = pd.concat([read(path) for path in paths])
        assert list(rows["step"]) == [0] * 3 + [2] * 3 + [4] * 3
        episodes = dict(zip(range(0, 100, 2), trainer.replay.episodes, strict=False))
        for row in rows.to_dict("records"):
            transition = Transition(episodes[row["episode"]], row["turn"])
            assert row["action"] == transition.turn.action and row["observation"] == transition.observation
            assert row["next_observation"] == transition.turn.next_observation and row["return"] == 0
            assert row["critique"].startswith("Future:") and row["target"].startswith("Future:")
            assert "Optimality:" in row["attempt_critique"] and row["refined_action"]
            complies = (row["refined_action"] == row["attempt"]) == row["attempt_verdict"]
            assert row["critic_loss"] > 0 and pd.notna(row["policy_loss"]) == complies
            assert not complies or row["policy_loss"] > 0
        assert set(rows["priority"][rows["step"] == 0]) == {1.0}
        last = rows.drop_duplicates(["episode", "turn"], keep="last").query("step == 4")
        priorities = priorities_of(trainer.replay)
        for row in last.to_dict("records"):  # a sample that was drawn twice has two losses
            assert priorities[row["episode"] + row["turn"]] == pytest.approx(row["critic_loss"], rel=0.5)

    def test_training_is_the_same_with_and_without(self, tmp_path):
        with_audit = make_trained(tmp_path / "with", {**CONFIG, "audit_samples": 8, "log_completions": True})
        without = make_trained(tmp_path / "without", CONFIG)
        assert_same(weights(with_audit.model), weights(without.model))
        log, other = (trainer.state.log_history[0] for trainer in (with_audit, without))
        assert log.pop("time/audit") > 0
        differing = {name for name in log if log[name] != other.get(name)}
        costs = {name for name in log if "time" in name or "tokens" in name or name == "train_seconds"}
        assert differing <= {*costs, "generation/prefix_hit_rate"}  # it reads and writes more

    def test_limit(self, tmp_path, monkeypatch):
        monkeypatch.setattr(audit, "MAX_ROWS", 5)
        trail = AuditTrail(tmp_path, process=1)
        episode = make_episode(num_turns=2)
        target = Answer(Prompt.of([1]), (2,), "Future: seen 1", Critique("seen 1", True))
        other = tmp_path / "_audit" / "audit_00001_process0.parquet"
        for step in (1, 2, 100_000):
            samples = [Sample(Transition(episode, i), 6 + i, 0.5) for i in range(2)]
            trail.open(samples, [None, None], [target, target], [None, None], step, 10 * step)
            trail.add_losses(*losses([6, 6, None], ["critic", "policy", "policy"], [1.0, 0.0, 1.0]))
            trail.close()
            trail.write(step)
            other.touch()
        names = [path.name for path in sorted((tmp_path / "_audit").glob("*process1*"))]
        assert names == ["audit_00002_process1.parquet", "audit_100000_process1.parquet"] and other.exists()
        rows = read(tmp_path / "_audit" / names[0]).to_dict("records")
        assert [(row["episode"], row["turn"], row["target_verdict"]) for row in rows] == [(6, 0, True), (6, 1, True)]
        assert rows[0]["critic_loss"] == 0.0 and pd.isna(rows[0]["policy_loss"])  # whose weight was zero
        assert pd.isna(rows[1]["critic_loss"]) and pd.isna(rows[0]["critique"])

    def test_losses_of_a_transition_that_was_drawn_twice(self, tmp_path):
        trail = AuditTrail(tmp_path, process=0)
        critique = Critique("seen 1", True)
        target = Answer(Prompt.of([1]), (9,), "Future: seen 1", critique)
        completions = [(2, 3, 4), (5,)]
        refinements = [
            Refinement("a", critique, Answer(Prompt.of([1]), completion, "b", "b")) for completion in completions
        ]
        sample = Sample(Transition(make_episode(num_turns=1), 0), 6, 0.5)
        trail.open([sample] * 2, [None], [target] * 2, refinements, 1, 1)
        resumed = AuditTrail(tmp_path, process=0)
        resumed.load_state_dict(json.loads(json.dumps(trail.state_dict())))
        first, second = (TrainingExample("policy", Prompt.of([1]), completion, 1.0, 6) for completion in completions)
        resumed.add_losses([second, first], torch.tensor([9.0, 1.0]))
        resumed.close()
        resumed.write(1)
        (row,) = read(tmp_path / "_audit" / "audit_00001_process0.parquet").to_dict("records")
        assert row["policy_loss"] == 1.0

    def test_a_write_costs_the_same_after_many(self, tmp_path, monkeypatch):
        monkeypatch.setattr(audit, "MAX_ROWS", 50)
        first = write_one(AuditTrail(tmp_path, process=0), range(1, 40))
        assert len(first) == 39
        reads = []
        monkeypatch.setattr(pq, "read_metadata", lambda path: reads.append(path) or ParquetFile(path).metadata)
        (tmp_path / "_audit" / "audit_00003_process0.parquet").write_bytes(b"damaged")
        names = write_one(AuditTrail(tmp_path, process=0), range(40, 80))
        assert len(reads) == 39
        assert names == [f"audit_{step:05d}_process0.parquet" for step in range(30, 80)]

    def test_the_end_within_an_iteration_at_the_step_of_a_log(self, tmp_path):
        config = {**CONFIG, "audit_samples": 12, "samples_per_iteration": 12, "max_steps": 5, "logging_steps": 5}
        make_trainer(tmp_path, config).train()
        rows = read(tmp_path / "_audit" / "audit_00005_process0.parquet")
        assert list(rows["step"]) == [0] * 12 + [3] * 12 and 0 < rows["critic_loss"][12:].notna().sum() < 12


def write_one(trail: AuditTrail, steps: range) -> list[str]:
    target = Answer(Prompt.of([1]), (), "Future: seen 1", Critique("seen 1", True))
    for step in steps:
        samples = [Sample(Transition(make_episode(num_turns=1), 0), 6, 0.5)]
        trail.open(samples, [None], [target], [None], step, step)
        trail.close()
        trail.write(step)
    return sorted(path.name for path in (trail.output_dir / "_audit").iterdir())


def losses(
    transition_ids: list[int | None], names: list[str], weights: list[float]
) -> tuple[list[TrainingExample], torch.Tensor]:
    examples = [
        TrainingExample(name, Prompt.of([1]), (2,), weight, transition_id)
        for transition_id, name, weight in zip(transition_ids, names, weights, strict=True)
    ]
    return examples, torch.arange(len(names)).float()
