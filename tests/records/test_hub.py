# SPDX-License-Identifier: Apache-2.0

import io
import json
import sys
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from helpers.hub_server import HubServer
from helpers.launch import run_program
from helpers.testing_utils import TASKS, make_trained, make_trainer
from huggingface_hub import ModelCard

from trl_nlac.cli.end_summary import print_summary
from trl_nlac.environments.embedded import COMPACT_PROMPTS
from trl_nlac.records import hub as hub_module


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    home = tmp_path_factory.mktemp("hub")
    with HubServer() as server:
        script = f"""
import json
from helpers.testing_utils import TASKS, make_trainer
from huggingface_hub import list_repo_files
from trl_nlac import NLACAgent
config = dict(max_steps=2, max_turns=2, logging_steps=1, log_completions=True)
config |= dict(hub_model_id="me/agent", push_to_hub=True, save_strategy="steps", save_steps=2, audit_samples=2)
config |= dict(eval_strategy="steps", eval_steps=1, hub_private_repo=True, num_eval_episodes=2)
trainer = make_trainer({str(home / "run")!r}, config, eval_dataset=TASKS)
trainer.train()
print("uploaded:", *list_repo_files("me/agent"))
trainer.push_to_hub(dataset_name="me/tasks")
print(trainer.push_replay_to_hub("replay", private=True))
trainer.replay = type(trainer.replay)(10)
try:
    trainer.push_replay_to_hub("me/nothing")
except ValueError as error:
    print(error)
agent = NLACAgent.from_pretrained("me/agent", temperature=0.0)
turn = agent.act([{{"role": "user", "content": "situ 2"}}])
options = [agent.options.max_turns, agent.options.action_format, agent.options.temperature]
print(json.dumps([turn.action, *options, agent.roles.prompts.critique]))
"""
        server.printed = run_program("-c", script, **server.variables(home))
        yield server


FILES = {"model.safetensors", "tokenizer.json", "nlac_prompts.json", "nlac_roles.json", "README.md"}


class TestPush:
    def test_model(self, hub):
        files = hub.files["models/me/agent"]
        assert FILES <= files.keys()
        assert not any(name.startswith(("_", "checkpoint")) for name in files), sorted(files)
        assert hub.private["models/me/agent"]
        assert hub.unknown == []

    def test_what_a_run_uploads_while_it_trains(self, hub):
        (line,) = [line for line in hub.printed.splitlines() if line.startswith("uploaded:")]
        assert set(line.split()) >= FILES

    def test_card(self, hub):
        card = ModelCard(hub.files["models/me/agent"]["README.md"].decode())
        assert sorted(card.data.tags) == ["generated_from_trainer", "nlac", "trl"]
        assert card.data.to_dict()["library_name"] == "transformers" and card.data.base_model is None
        assert card.data.datasets == "me/tasks"
        (result,) = card.data.eval_results
        assert result.metric_type == "success_rate" and result.dataset_name == "ServiceDeskEnvironment"
        for text in (
            'NLACAgent.from_pretrained("me/agent")',
            "| environment | ServiceDeskEnvironment |",
            "| dataset | [me/tasks](https://huggingface.co/datasets/me/tasks) |",
            "| tasks to train on | 4 |",
            "| `max_turns` | `2` |",
            "@article{hong2025nlac,",
        ):
            assert text in card.text, text
        rows = [line for line in card.text.splitlines() if line.startswith(("| first |", "| last |"))]
        assert len(rows) == 2 and " to " in rows[1] and "hf_of_nobody" not in card.text and "None" not in card.text

    def test_replay(self, hub):
        files = hub.files["datasets/me/replay"]
        (name,) = (name for name in files if name.endswith(".parquet"))
        rows = pq.read_table(io.BytesIO(files[name])).to_pylist()
        speakers = [json.loads(message)["role"] for message in rows[0]["messages"]]
        assert hub.private["datasets/me/replay"]
        assert len(rows) == 8 and speakers == ["user", "assistant", "user", "assistant", "user"]
        assert "8 episodes" in files["README.md"].decode() and "configs:" in files["README.md"].decode()
        assert f"{hub.url}/datasets/me/replay" in hub.printed
        assert "The replay buffer is empty: there is nothing to upload to 'me/nothing'." in hub.printed


def test_agent_from_the_hub(hub):
    action, *restored = json.loads(hub.printed.splitlines()[-1])
    assert action.startswith("route ") and restored == [2, "text", 0.0, COMPACT_PROMPTS.critique]


def test_evaluations_on_named_datasets(tmp_path, capsys):
    config = {"max_steps": 2, "max_turns": 2, "eval_strategy": "steps", "eval_steps": 1}
    datasets = {"easy": TASKS.select([0]), "very_hard": TASKS.select([1])}
    trainer = make_trained(tmp_path, config, eval_dataset=datasets)
    trainer.create_model_card()
    card = ModelCard.load(tmp_path / "README.md")
    assert [result.dataset_split for result in card.data.eval_results] == ["easy", "very_hard"]
    for row in ("easy, first", "easy, last", "very_hard, first", "very_hard, last"):
        assert f"\n| {row} | " in card.text
    print_summary(trainer)
    printed = capsys.readouterr().out
    assert "easy, last evaluation" in printed and "very_hard, first evaluation" in printed


def test_card_of_a_local_run_without_evaluation(tmp_path):
    """Or with one in which nothing was played."""
    trainer = make_trainer(tmp_path)
    for history in ([], [{"step": 1, "eval_environment/failure_rate": 1.0, "eval_environment/steps": 4}]):
        trainer.state.log_history = history
        trainer.create_model_card(tags="my-tag")
        card = ModelCard.load(tmp_path / "README.md")
        assert "my-tag" in card.data.tags and "Not evaluated during training." in card.text and "None" not in card.text


def test_the_card_links_the_trackers_as_trl_does(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path)
    trainer.create_model_card(tags=["trackio:https://old.hf.space"])
    card = ModelCard.load(tmp_path / "README.md")
    assert "The run in" not in card.text and card.data.tags == ["generated_from_trainer", "trl", "nlac"]
    space, run = "https://me-space.hf.space?project=a&runs=b", "https://wandb.ai/me/a/runs/b"
    monkeypatch.setattr(hub_module, "get_trackio_space_url", lambda: space)
    monkeypatch.setattr(hub_module, "is_wandb_available", lambda: True)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=SimpleNamespace(url=run)))
    monkeypatch.setenv("JOB_ID", "7")
    trainer.create_model_card(tags=["trackio:https://old.hf.space"])
    card = ModelCard.load(tmp_path / "README.md")
    assert f"The run in [Trackio]({space}), [Weights & Biases]({run}).\n" in card.text
    assert card.data.tags == ["generated_from_trainer", "trl", "nlac", "hf_jobs", f"trackio:{space}"]
