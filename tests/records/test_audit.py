# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.


import pandas as pd
import pytest
import torch
from helpers.records_utils import CONFIG, read
from helpers.testing_utils import assert_same, make_episode, make_trainer, priorities_of, weights

from trl_nlac.records.audit import AuditTrail
from trl_nlac.types import LOSSES, Answer, Critique, Prompt, Sample, Transition


class TestAudit:
    def test_rows(self, tmp_path):
        """They show what the first samples of each iteration were trained on. Priorities are the critic's losses."""
        config = {**CONFIG, "audit_samples": 3, "samples_per_iteration": 8, "max_steps": 6}
        trainer = make_trainer(tmp_path, config)
        trainer.train()
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
            assert row["critic_loss"] > 0 and row["policy_loss"] > 0
        assert set(rows["priority"][rows["step"] == 0]) == {1.0}
        last = rows.drop_duplicates(["episode", "turn"], keep="last").query("step == 4")
        priorities = priorities_of(trainer.replay)
        for row in last.to_dict("records"):  # a sample that was drawn twice has two losses
            assert priorities[row["episode"] + row["turn"]] == pytest.approx(row["critic_loss"], rel=0.5)

    def test_training_is_the_same_with_and_without(self, tmp_path):
        with_audit = make_trainer(tmp_path / "with", {**CONFIG, "audit_samples": 8, "log_completions": True})
        with_audit.train()
        without = make_trainer(tmp_path / "without", CONFIG)
        without.train()
        assert_same(weights(with_audit.model), weights(without.model))
        log, other = (trainer.state.log_history[0] for trainer in (with_audit, without))
        assert log.pop("time/audit") > 0
        assert {name for name in log if log[name] != other[name]} <= {name for name in log if "time" in name}

    def test_limit(self, tmp_path):
        trail = AuditTrail(tmp_path, process=1, total_limit=5)
        episode = make_episode(num_turns=2)
        target = Answer(Prompt.of([1]), (), "Future: seen 1", Critique("seen 1", True))
        other = tmp_path / "_audit" / "audit_00001_process0.parquet"
        for step in (1, 2, 100_000):
            samples = [Sample(Transition(episode, i), 6 + i, 1.0, 0.5) for i in range(2)]
            trail.open(samples, [None, None], [target, target], [None, None], step, 10 * step)
            trail.add_losses(*losses([6, 6, -1], ["critic", "policy", "rehearsal"], [1.0, 0.0, 1.0]))
            trail.close()
            trail.write(step)
            other.touch()
        names = [path.name for path in sorted((tmp_path / "_audit").glob("*process1*"))]
        assert names == ["audit_00002_process1.parquet", "audit_100000_process1.parquet"] and other.exists()
        rows = read(tmp_path / "_audit" / names[0]).to_dict("records")
        assert [(row["episode"], row["turn"], row["target_verdict"]) for row in rows] == [(6, 0, True), (6, 1, True)]
        assert rows[0]["critic_loss"] == 0.0 and pd.isna(rows[0]["policy_loss"])  # whose weight was zero
        assert pd.isna(rows[1]["critic_loss"]) and pd.isna(rows[0]["critique"])


def losses(transition_ids: list[int], names: list[str], weights: list[float]) -> tuple[dict, torch.Tensor]:
    """Make a micro-batch whose losses count up from zero."""
    inputs = {
        "transition_ids": torch.tensor(transition_ids),
        "loss_ids": torch.tensor([LOSSES.index(name) for name in names]),
        "weights": torch.tensor(weights),
    }
    return inputs, torch.arange(len(names)).float()
