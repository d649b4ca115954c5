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

import json
import logging
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
import wandb
from helpers.testing_utils import TASKS, assert_same, make_config, make_episode, make_trainer, weights
from trl.trainer.callbacks import RichProgressCallback

from trl_nlac.environments.base import StepResult
from trl_nlac.method.losses import LOSSES
from trl_nlac.prompts import Critique
from trl_nlac.records.audit import AuditTrail
from trl_nlac.records.folder import set_aside
from trl_nlac.types import Answer, Prompt, Sample, Transition


CONFIG = {"max_steps": 4, "samples_per_iteration": 8, "logging_steps": 2, "max_turns": 2}


def read(path) -> pd.DataFrame:
    return pq.read_table(path).to_pandas()


def test_training_log(tmp_path):
    trainer = make_trainer(tmp_path, CONFIG)
    trainer.evaluate(trainer.train_dataset)
    trainer.train()
    lines = [json.loads(line) for line in (tmp_path / "training_log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2, 4, 4]
    assert "eval_episode/success_rate_low" in lines[0] and "train_runtime" in lines[-1]
    assert [line["environment/steps"] for line in lines if "loss" in line] == [8, 16]
    assert lines[1:3] == trainer.state.log_history[:2]


def test_a_fall_of_success_is_told_and_survives_a_checkpoint(tmp_path, caplog):
    records = make_trainer(tmp_path / "first", CONFIG).records
    resumed = make_trainer(tmp_path / "second", CONFIG).records
    records.add_episodes([make_episode(score=1.0)] * 40, list(range(40)), 0)
    failed = replace(make_episode(score=1.0), failure="step: it broke")
    with caplog.at_level(logging.WARNING):
        records.add_episodes([failed] * 40, list(range(40)), 1)  # not the policy's fault
        assert "Success fell" not in caplog.text
        resumed.load_state_dict(json.loads(json.dumps(records.state_dict())))
        resumed.add_episodes([make_episode(score=0.0)] * 20, list(range(20)), 2)
    assert "Success fell from 1.00 to 0.50 of 40 training episodes" in caplog.text


class TestEpisodes:
    def test_rows_are_what_was_played(self, tmp_path):
        config = {**CONFIG, "log_completions": True, "eval_strategy": "steps", "eval_steps": 4, "num_eval_episodes": 2}
        trainer = make_trainer(tmp_path, config, eval_dataset=TASKS)
        trainer.train()
        names = sorted(path.name for path in (tmp_path / "completions").iterdir())
        assert names == ["completions_00002.parquet", "completions_00004.parquet", "eval_completions_00004.parquet"]
        rows = pd.concat([read(tmp_path / "completions" / name) for name in names[:2]])
        assert list(rows["step"]) == [0] * 4 + [2] * 4 and list(rows["environment_steps"]) == [0] * 4 + [8] * 4
        assert list(rows["episode"]) == list(range(0, 16, 2))
        for (_, row), episode in zip(rows.iterrows(), trainer.replay.episodes, strict=True):
            assert row["prompt"] == episode.first_observation and json.loads(row["task"]) == episode.task
            assert row["return"] == episode.score and row["success"] == (episode.score >= 1)
            told = [(turn["text"], turn["action"], turn["next_observation"]) for turn in row["turns"]]
            assert told == [(turn.action, turn.action, turn.next_observation) for turn in episode.turns]
            assert all(turn["critique"] is None for turn in row["turns"])
        evaluated = read(tmp_path / "completions" / names[2])
        assert list(evaluated["episode"]) == [0, 0, 1, 1, 2, 2, 3, 3]
        turns = [turn for turns in evaluated["turns"] for turn in turns]
        judged = [turn for turn in turns if turn["critique"] is not None]
        assert judged and all(turn["critique"].startswith("Future:") for turn in judged)
        assert all(turn["verdict"] == ("Yes" in turn["critique"]) for turn in judged)
        assert all(turn["verdict"] == (turn["verdict_score"] > 0) for turn in judged if abs(turn["verdict_score"]) > 5)

    def test_what_reward_functions_note(self, tmp_path, capsys):
        def length(completions, log_extra, **kwargs):
            log_extra("first word", [completion[0]["content"].split()[0] for completion in completions])
            log_extra("mixed", [1, "two", None, 4.0])
            return [len(completion) / 4 for completion in completions]

        trainer = make_trainer(tmp_path, {**CONFIG, "log_completions": True, "max_steps": 2}, reward_funcs=length)
        trainer.train()
        rows = read(tmp_path / "completions" / "completions_00002.parquet")
        assert list(rows["first word"]) == [turns[0]["text"].split()[0] for turns in rows["turns"]]
        assert list(rows["mixed"].fillna("nothing")) == ["1", "two", "nothing", "4.0"]
        assert list(rows["rewards/length"]) == [1.0] * 4
        assert "Step 2" in capsys.readouterr().out

    def test_notes_of_the_wrong_number(self, tmp_path):
        def odd(completions, log_extra, **kwargs):
            log_extra("odd", [1])
            return [0.0] * len(completions)

        trainer = make_trainer(tmp_path, CONFIG, reward_funcs=odd)
        with pytest.raises(ValueError, match=r"`odd` gave `log_extra\('odd', ...\)` 1 values for 4"):
            trainer.train()

    def test_a_failed_environment_is_in_the_table(self, tmp_path):
        class Broken:
            resets = 0

            def reset(self, **task):
                type(self).resets += 1
                if self.resets % 4 == 0:
                    raise RuntimeError("no such customer")
                return "situ 2"

            def step(self, action):
                return StepResult("closed win", 1.0, terminated=True)

        config = {**CONFIG, "log_completions": True, "max_steps": 2}
        make_trainer(tmp_path, config, environment_factory=Broken).train()
        rows = read(tmp_path / "completions" / "completions_00002.parquet")
        assert sorted(len(turns) for turns in rows["turns"]) == [0, 1, 1, 1]
        (failed,) = rows[rows["failure"].notna()].to_dict("records")
        assert failed["failure"] == "reset: RuntimeError: no such customer" and failed["episode"] == -1

    def test_console_shows_some(self, tmp_path, capsys):
        config = {**CONFIG, "log_completions": True, "num_completions_to_print": 1, "max_steps": 2}
        make_trainer(tmp_path, config).train()
        assert capsys.readouterr().out.count("ASSISTANT") == 2  # of the two turns of one episode

    def test_trackio(self, tmp_path):
        """In a process of its own, as trackio serves its dashboard from threads that stay."""
        script = f"""
from helpers.testing_utils import TASKS, make_trainer
trainer = make_trainer({str(tmp_path / "run")!r}, dict({CONFIG}, log_completions=True, log_unique_prompts=True, report_to="trackio"))
trainer.train_dataset = TASKS.select([0, 0, 1, 1])
trainer.train()
"""
        environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "PYTHONPATH": "tests"}
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        with sqlite3.connect(tmp_path / "trackio" / "huggingface.db") as database:
            logged = [json.loads(row) for (row,) in database.execute("SELECT metrics FROM metrics")]
        tables = [row["completions"]["_value"] for row in logged if "completions" in row]
        assert [[row["step"] for row in table] for table in tables] == [[2, 2], [4, 4]]
        assert all("assistant: route" in row["completion"] for table in tables for row in table)

    def test_wandb(self, tmp_path, monkeypatch):
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("WANDB_DIR", str(tmp_path))
        make_trainer(tmp_path / "run", {**CONFIG, "log_completions": True, "report_to": "wandb"}).train()
        wandb.finish()
        tables = [json.loads(path.read_text()) for path in tmp_path.rglob("completions_*.table.json")]
        assert sorted(row[0] for table in tables for row in table["data"]) == [2] * 4 + [4] * 4
        assert all(table["columns"] == ["step", "prompt", "completion", "return"] for table in tables)

    def test_rich_progress_callback(self, tmp_path):
        make_trainer(tmp_path, {**CONFIG, "max_steps": 2}, callbacks=[RichProgressCallback()]).train()


class TestAudit:
    def test_rows(self, tmp_path):
        """They tell of the first samples of each iteration what was trained on, with the losses that the priorities have."""
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
        for row in last.to_dict("records"):  # as long as it was not sampled twice at different losses
            assert trainer.replay._priorities[row["episode"] + row["turn"]] == pytest.approx(
                row["critic_loss"], rel=0.5
            )

    def test_training_is_the_same_with_and_without(self, tmp_path):
        with_audit = make_trainer(tmp_path / "with", {**CONFIG, "audit_samples": 8, "log_completions": True})
        with_audit.train()
        without = make_trainer(tmp_path / "without", CONFIG)
        without.train()
        assert_same(weights(with_audit.model), weights(without.model))
        told = [trainer.state.log_history[0] for trainer in (with_audit, without)]
        assert told[0].pop("time/audit") > 0
        assert {name for name in told[0] if told[0][name] != told[1][name]} <= {n for n in told[0] if "time" in n}

    def test_limit(self, tmp_path):
        trail = AuditTrail(tmp_path, process=1, num_samples=4, total_limit=5)
        episode = make_episode(num_turns=2)
        target = Answer(Prompt.of([1]), (), "Future: seen 1", Critique("seen 1", True))
        other = tmp_path / "_audit" / "audit_00001_process0.parquet"
        for step in (1, 2, 100_000):
            samples = [Sample(Transition(episode, i), 6 + i, 1.0, 0.5) for i in range(2)]
            trail._judgements = [None, None]
            trail.open(samples, [target, target], [None, None], step, 10 * step)
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
    """A micro-batch whose losses count up from zero."""
    inputs = {
        "transition_ids": torch.tensor(transition_ids),
        "loss_ids": torch.tensor([LOSSES.index(name) for name in names]),
        "weights": torch.tensor(weights),
    }
    return inputs, torch.arange(len(names)).float()


class TestSetAside:
    def test_resumed_run(self, tmp_path):
        """What was recorded after the checkpoint is set aside, and comes again."""
        config = {**CONFIG, "max_steps": 6, "log_completions": True, "audit_samples": 2}
        make_trainer(tmp_path, {**config, "save_strategy": "steps", "save_steps": 2}).train()
        before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet") if "checkpoint" not in str(path)}
        lines = (tmp_path / "training_log.jsonl").read_text().splitlines()
        resumed = make_trainer(tmp_path, config)
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
        aside = {path.name for path in (tmp_path / "_superseded").rglob("*.parquet")}
        assert aside == {"completions_00006.parquet", "audit_00006_process0.parquet"}
        for path in before:
            pd.testing.assert_frame_equal(read(path), pd.read_parquet(path))
        again = (tmp_path / "training_log.jsonl").read_text().splitlines()
        assert again[:2] == lines[:2] and len(again) == len(lines)
        assert (tmp_path / "_superseded" / "training_log.jsonl").read_text().splitlines() == lines[2:]

    def test_half_a_line_and_other_files(self, tmp_path, caplog):
        log = tmp_path / "training_log.jsonl"
        log.write_text('{"step": 1}\n{"step": 3}\n{"ste')
        (tmp_path / "completions").mkdir()
        (tmp_path / "completions" / "notes.parquet").touch()
        with caplog.at_level(logging.INFO):
            set_aside(tmp_path, 2)
            set_aside(tmp_path, 2)
        assert log.read_text() == '{"step": 1}\n'
        assert (tmp_path / "_superseded" / "training_log.jsonl").read_text() == '{"step": 3}\n{"ste'
        assert (tmp_path / "completions" / "notes.parquet").exists()


@pytest.mark.parametrize("option", [{"audit_samples": -1}, {"audit_total_limit": 0}, {"num_completions_to_print": -1}])
def test_options_out_of_range(tmp_path, option):
    with pytest.raises(ValueError, match=f"`{next(iter(option))}` must be"):
        make_config(tmp_path, **option)
    with pytest.raises(ValueError, match="None without `log_completions=True`"):
        make_config(tmp_path, log_completions_hub_repo="me/episodes")
