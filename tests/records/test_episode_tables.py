# SPDX-License-Identifier: Apache-2.0

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from datasets import Dataset
from helpers.launch import run_program
from helpers.records_utils import CONFIG, read
from helpers.testing_utils import TASKS, Countdown, make_config, make_episode, make_trained, make_trainer
from trl.trainer.callbacks import RichProgressCallback

from trl_nlac.records.episode_tables import SAMPLE_TEXTS, EpisodeTables
from trl_nlac.records.folder import completions_file


class TestEpisodes:
    def test_rows_are_what_was_played(self, tmp_path):
        config = {**CONFIG, "log_completions": True, "eval_strategy": "steps", "eval_steps": 4, "num_eval_episodes": 2}
        trainer = make_trained(tmp_path, config, eval_dataset=TASKS)
        names = sorted(path.name for path in (tmp_path / "completions").iterdir())
        assert names == ["completions_00002.parquet", "completions_00004.parquet", "eval_completions_00004.parquet"]
        rows = pd.concat([read(tmp_path / "completions" / name) for name in names[:2]])
        assert list(rows["step"]) == [0] * 4 + [2] * 4 and list(rows["environment_steps"]) == [0] * 4 + [8] * 4
        assert list(rows["episode"]) == list(range(0, 16, 2))
        for (_, row), episode in zip(rows.iterrows(), trainer.replay.episodes, strict=True):
            assert row["prompt"] == episode.first_observation and json.loads(row["task"]) == episode.task
            assert row["return"] == episode.score and row["success"] == (episode.score >= 1)
            turns = [(turn["text"], turn["action"], turn["next_observation"]) for turn in row["turns"]]
            assert turns == [(turn.action, turn.action, turn.next_observation) for turn in episode.turns]
            assert all(turn["critique"] is None for turn in row["turns"])
        evaluated = read(tmp_path / "completions" / names[2])
        assert list(evaluated["episode"]) == [0, 0, 1, 1, 2, 2, 3, 3]
        turns = [turn for turns in evaluated["turns"] for turn in turns]
        judged = [turn for turn in turns if turn["critique"] is not None]
        assert judged and all(turn["critique"].startswith("Future:") for turn in judged)
        assert all(turn["verdict"] == ("Yes" in turn["critique"]) for turn in judged)
        assert all(turn["verdict"] == (turn["verdict_score"] > 0) for turn in judged if abs(turn["verdict_score"]) > 5)

    def test_columns_of_reward_functions(self, tmp_path, capsys):
        def length(completions, log_extra, **kwargs):
            log_extra("first word", [completion[0]["content"].split()[0] for completion in completions])
            log_extra("mixed", [1, "two", None, 4.0])
            log_extra("nested", [{"a": [{}], "half a character": ["\ud83d"]} for _ in completions])
            log_extra("empty", [{} for _ in completions])
            log_extra("password", ["hunter2" for _ in completions])
            return [len(completion) / 4 for completion in completions]

        make_trained(tmp_path, {**CONFIG, "log_completions": True, "max_steps": 2}, reward_funcs=length)
        rows = read(tmp_path / "completions" / "completions_00002.parquet")
        assert list(rows["first word"]) == [turns[0]["text"].split()[0] for turns in rows["turns"]]
        assert list(rows["mixed"].fillna("nothing")) == ["1", "two", "nothing", "4.0"]
        assert list(rows["nested"]) == ["{'a': [{}], 'half a character': ['\\ud83d']}"] * 4
        assert list(rows["empty"]) == ["{}"] * 4 and list(rows["password"]) == ["<hidden>"] * 4
        assert list(rows["rewards/length"]) == [1.0] * 4
        assert "Step 2" in capsys.readouterr().out

    def test_a_task_with_secrets_is_json(self, tmp_path):
        class Login:
            def __str__(self):
                return 'password="hunter2"'

        note = 'say "hi" then password="hunter2" ok'
        episode = replace(make_episode(), task={"note": note, "login": Login()})
        tables = EpisodeTables(make_config(tmp_path), lambda ids: "act")
        (row,) = tables.rows([episode], [0], 0, 0)
        task = json.loads(row["task"])
        assert task == {"note": 'say "hi" then password="<hidden>" ok', "login": 'password="<hidden>"'}

    def test_episodes_at_the_step_of_a_log_are_added_and_an_evaluation_is_replaced(self, tmp_path):
        args = make_config(tmp_path, log_completions=True, num_completions_to_print=0)
        tables, notes = EpisodeTables(args, str), ({"a": 1.5, "turns": "x"}, {"a": "text"}, {"b": None})
        for number, extra in enumerate(notes):
            for kind in ("", "eval"):
                episode = replace(make_episode(num_turns=1), extra=extra)
                tables.write(tables.rows([episode], [number], 3, 0), 3, kind)
        rows = read(completions_file(str(tmp_path), 3))
        assert list(rows["episode"]) == [0, 1, 2] and list(rows["a"].fillna("")) == ["1.5", "text", ""]
        assert list(rows["extra/turns"].fillna("")) == ["x", "", ""] and len(rows["turns"][0]) == 1
        assert list(read(completions_file(str(tmp_path), 3, "eval"))["episode"]) == [2]

    def test_a_process_that_dies_while_it_writes_keeps_the_rows_before(self, tmp_path, monkeypatch):
        def die(table, path, **kwargs):
            Path(path).write_bytes(b"PAR1 cut")
            raise OSError("no space left")

        args = make_config(tmp_path, log_completions=True, num_completions_to_print=0)
        tables = EpisodeTables(args, str)
        tables.write(tables.rows([make_episode()], [0], 3, 0), 3)
        monkeypatch.setattr("pyarrow.parquet.write_table", die)
        with pytest.raises(OSError, match="no space left"):
            tables.write(tables.rows([make_episode()], [1], 3, 0), 3)
        assert list(read(completions_file(str(tmp_path), 3))["episode"]) == [0]

    def test_a_failed_environment_is_in_the_table(self, tmp_path):
        tasks = Dataset.from_dict({"start": [1] * 4, "fails_at": ["reset", None, None, None]})
        config = {**CONFIG, "log_completions": True, "max_steps": 2}
        make_trained(tmp_path, config, environment_factory=Countdown, train_dataset=tasks)
        rows = read(tmp_path / "completions" / "completions_00002.parquet")
        assert sorted(len(turns) for turns in rows["turns"]) == [0, 1, 1, 1]
        (failed,) = rows[rows["failure"].notna()].to_dict("records")
        assert failed["failure"] == "reset: ConnectionError: no line" and failed["episode"] == -1

    def test_trackers(self, tmp_path):
        """In a separate process, as trackio serves its dashboard from threads that stay."""
        script = f"""
import wandb
from helpers.testing_utils import TASKS, make_trainer
config = dict({CONFIG}, log_completions=True, report_to=["trackio", "wandb"], audit_samples=2)
trainer = make_trainer({str(tmp_path / "run")!r}, config)
trainer.train_dataset = TASKS.select([0, 0, 1, 1])
trainer.train()
wandb.finish()
"""
        folders = {"TRACKIO_DIR": str(tmp_path / "trackio"), "WANDB_DIR": str(tmp_path)}
        run_program("-c", script, WANDB_MODE="offline", **folders)
        with sqlite3.connect(tmp_path / "trackio" / "huggingface.db") as database:
            found = database.execute("SELECT messages, metadata FROM traces WHERE key = 'episodes'").fetchall()
            logged = [json.loads(text) for (text,) in database.execute("SELECT metrics FROM metrics")]
        samples = [row["sample"] for row in logged if "sample" in row]
        assert len(samples) == 2 and all(sample["_type"] == "trackio.table" for sample in samples)
        sent = sorted(tmp_path.glob("wandb/offline-run-*/files/media/table/sample_*.json"))
        rows = [
            dict(zip(table["columns"], *table["data"], strict=True))
            for table in (json.loads(path.read_text()) for path in sent)
        ]
        assert rows == [sample["_value"][0] for sample in samples]
        conversations, metadata = ([json.loads(text) for text in column] for column in zip(*found, strict=True))
        assert [row["step"] for row in metadata] == [2] * 4 + [4] * 4
        assert {row["task"] for row in metadata} == {json.dumps(TASKS[i]) for i in (0, 1)}
        for messages, row in zip(conversations, metadata, strict=True):
            assert [message["role"] for message in messages[:2]] == ["user", "assistant"]
            assert messages[1]["content"].startswith("route") and row["success"] == (row["return"] >= 1)

        tables, samples = (
            [json.loads(path.read_text()) for path in tmp_path.rglob(f"{name}_*.table.json")]
            for name in ("completions", "sample")
        )
        assert sorted(row[0] for table in tables for row in table["data"]) == [2] * 4 + [4] * 4
        assert all(table["columns"] == ["step", "prompt", "completion", "return"] for table in tables)
        assert sorted(table["data"][0][0] for table in samples) == [0, 2]
        assert all(table["columns"] == ["step", *SAMPLE_TEXTS] and len(table["data"]) == 1 for table in samples)
        assert all("Optimality:" in table["data"][0][4] for table in samples)  # the critique

    def test_rich_progress_callback(self, tmp_path):
        make_trainer(tmp_path, {**CONFIG, "max_steps": 2}, callbacks=[RichProgressCallback()]).train()
