# SPDX-License-Identifier: Apache-2.0


import json
import re

import pytest
from datasets import Dataset, load_dataset
from helpers.chat_server import ChatServer
from helpers.testing_utils import Countdown, make_roles, make_trainer

from trl_nlac import NLACPrompts
from trl_nlac.agent.rehearsal_dataset import play_transitions
from trl_nlac.cli.main import main
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rewards import EpisodeRewards


PLAY = ["--environment_factory", "trl_nlac.environments.embedded:demo_environment"]
ROLES = {"policy", "critique", "backup", "refine"}


def teach(messages: list[dict]) -> str:
    """Answer every question in its form, every observation with the same call, and a critique with another call."""
    asked = messages[-1]["content"]
    if asked == NLACPrompts().refinement("react")[-1]["content"]:
        rounds = sum(message["content"] == asked for message in messages)
        return f"Thought: It says so.\nAction: route billing amber photo {['midnight', 'dawn'][rounds - 1]}"
    if "Optimality:" in asked:
        return "Future: The desk refuses.\nOptimality: No. Use photo."
    if "Write a few short sentences" in asked:
        return "The desk refuses again."
    return "Thought: I try.\nAction: route billing amber photo noon"


@pytest.fixture
def tasks(tmp_path):
    path = tmp_path / "tasks.jsonl"
    from trl_nlac.environments.embedded import make_tasks

    make_tasks("service_desk", 0)[1].to_json(path)
    return str(path)


class TestRehearse:
    def test_a_model_on_a_server(self, tmp_path, tasks, capsys):
        """What it wrote can be rehearsed; it was asked in messages, with the package's prompts."""
        path, server = tmp_path / "made" / "rehearsal.jsonl", ChatServer(teach)
        with server.running() as url:
            words = ["rehearse", "teacher", str(path), "--backend", url, "--num_transitions", "6", *PLAY]
            words += ["--bootstrap", "implicit", "--num_refinements", "2"]
            assert main([*words, "--dataset_name", tasks, "--option", "max_turns=2"]) == 0
        rows = load_dataset("json", data_files=str(path), split="train")
        assert {*ROLES, "successor"} <= set(rows["role"])
        refine = NLACPrompts().refinement("react")[-1]["content"]
        assert sum(request["messages"][-1]["content"] == refine for request in server.requests) == 2 * 6
        assert "critic/format_rate 1.00" in capsys.readouterr().out
        (critique, *_) = (row for row in rows if row["role"] == "critique")
        assert [message["role"] for message in critique["prompt"]][:3] == ["system", "user", "assistant"]
        (asked,) = NLACPrompts().question("critique")
        assert critique["prompt"][-1] == asked
        assert critique["completion"] == [{"role": "assistant", "content": teach([asked])}]
        assert {request["seed"] for request in server.requests} and server.requests[0]["max_completion_tokens"] == 512
        config = {"rehearsal_ratio": 1.0, "action_format": "react"}
        trainer = make_trainer(tmp_path, config, rehearsal_dataset=rows)
        trainer.train()
        assert trainer.rehearsal.draw(1)[0].loss == "rehearsal"

    def test_a_local_model(self, tmp_path, tasks):
        """The embedded model plays its roles; the rows are what it would be asked in training."""
        prompts, path = tmp_path / "prompts.json", tmp_path / "rehearsal.parquet"
        COMPACT_PROMPTS.save(prompts)
        options = ["--option", "action_format=text", "max_completion_length=32", "max_turns=2"]
        words = ["rehearse", TINY_MODEL, str(path), "--prompts", str(prompts), "--num_transitions", "8", *PLAY]
        assert main([*words, "--dataset_name", tasks, *options]) == 0
        rows = Dataset.from_parquet(str(path))
        assert ROLES <= set(rows["role"])
        policy = next(row for row in rows if row["role"] == "policy")
        assert policy["completion"][0]["content"].startswith("route ")

    def test_logs(self, tmp_path):
        log = [
            {"role": "user", "content": "A door."},
            {"role": "assistant", "content": "Thought: so\nAction: open"},
            {"role": "user", "content": "It is open."},
        ]
        logs, path = tmp_path / "logs.jsonl", tmp_path / "rehearsal.jsonl"
        logs.write_text(json.dumps({"messages": log, "reward": 1.0}) + "\n")
        with ChatServer(teach).running() as url:
            assert main(["rehearse", "teacher", str(path), "--backend", url, "--logs", str(logs)]) == 0
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert {row["role"] for row in rows} == ROLES  # one step, which ended the task: no successor
        backup = next(row for row in rows if row["role"] == "backup")
        assert "The final score is 1; a score of 1 or more is a success." in backup["prompt"][-1]["content"]

    def test_steps_of_logs_are_drawn_by_the_seed(self, tmp_path):
        """From the whole file, not its first conversations."""
        said = [{"role": "assistant", "content": "Thought: so\nAction: open"}, {"role": "user", "content": "Open."}]
        logs, path = tmp_path / "logs.jsonl", tmp_path / "rehearsal.jsonl"
        rows = [{"messages": [{"role": "user", "content": f"Door {i}."}, *said], "reward": 1.0} for i in range(40)]
        logs.write_text("".join(json.dumps(row) + "\n" for row in rows))

        def doors(seed: str) -> set[str]:
            words = ["rehearse", "teacher", str(path), "--logs", str(logs), "--num_transitions", "4", "--seed", seed]
            with ChatServer(teach).running() as url:
                assert main([*words, "--backend", url]) == 0
            return set(re.findall(r"Door \d+", path.read_text()))

        assert len(doors("0")) == 4 and doors("0") == doors("0") != doors("1")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["out.txt", *PLAY], "out.txt must end with .jsonl or .parquet"),
            (["out.jsonl"], "name either an --environment_factory"),
            (["out.jsonl", *PLAY, "--num_transitions", "0"], "--num_transitions must be at least 1, got 0"),
            (["out.jsonl", *PLAY, "--option", "action_format=tool_call"], "has no form in plain messages"),
        ],
    )
    def test_wrong_arguments(self, tmp_path, monkeypatch, capsys, words, message):
        monkeypatch.chdir(tmp_path)
        assert main(["rehearse", TINY_MODEL, *words]) == 2
        assert message in capsys.readouterr().err
        assert not list(tmp_path.iterdir())

    def test_nothing_readable_is_an_error(self, tmp_path, tasks, capsys):
        with ChatServer(lambda messages: "I am not sure.").running() as url:
            words = ["rehearse", "teacher", str(tmp_path / "out.jsonl"), "--backend", url, "--num_transitions", "2"]
            assert main([*words, *PLAY, "--dataset_name", tasks, "--option", "max_format_retries=0"]) == 2
        assert not (tmp_path / "out.jsonl").exists()

    def test_steps_that_are_played_are_drawn_from_all(self):
        """As many as asked for, with the rewards of functions."""
        pool = EnvironmentPool(Countdown)
        half = EpisodeRewards([lambda completions, **kwargs: [0.5] * len(completions)])
        played = play_transitions(make_roles("wait"), pool, [{"start": 3}], 5, rewards=half)
        pool.close()
        steps = [transition.index for transition in played]
        assert {transition.episode.score for transition in played} == {1.5}
        assert len(steps) == 5 and steps != [0, 1, 2, 0, 1]

    def test_without_tasks(self):
        with pytest.raises(ValueError, match="There are no tasks to play"):
            play_transitions(None, None, [], 1)
