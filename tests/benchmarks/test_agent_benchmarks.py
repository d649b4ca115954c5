# SPDX-License-Identifier: Apache-2.0

import json
import shutil
from dataclasses import replace

import pytest

from benchmarks import agent as agent_benchmark
from benchmarks import improve as improve_benchmark
from benchmarks import offline as offline_benchmark
from benchmarks import reporting
from benchmarks.learning.figures.seeds import over_seeds
from benchmarks.learning.tasks import make_task
from trl_nlac.environments.embedded import TINY_MODEL


def test_tables_on_pages(tmp_path):
    """Only the text between the markers of a script is replaced."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results of benchmarks/agent.py -->\nold\n<!-- end of results -->\nafter\n")
    success = over_seeds({"0": 0.9, "1": 1.0})
    way = {
        "success": success,
        "gain": over_seeds({"0": -0.1, "1": 0.1}),
        "tokens_per_decision": over_seeds({"0": 10.0}),
    }
    table = agent_benchmark.as_markdown({"ways": {"base, alone": way, "base, refine 1": way}})
    assert table.splitlines()[2:] == [
        "| base | alone | 0.95 (0.31 to 1.00) |  | 10 |",
        "| base | refine 1 | 0.95 (0.31 to 1.00) | +0.00 (-1.27 to +1.27) | 10 |",
    ]
    for _ in range(2):
        reporting.insert(table, page, "agent.py")
    start, end = "<!-- results of benchmarks/agent.py -->", "<!-- end of results -->"
    assert page.read_text() == f"before\n{start}\n{table}\n{end}\nafter\n"
    with pytest.raises(ValueError, match="page.md has no lines .*offline.py"):
        reporting.insert(table, page, "offline.py")
    cell = {"num_successes": 3, **{method: {"success": 0.5} for method in offline_benchmark.METHODS}}
    logs = {"num_episodes": 256, "success": dict.fromkeys(offline_benchmark.METHODS, success), "seeds": {"0": cell}}
    assert offline_benchmark.as_markdown({"logs": [logs]}).splitlines()[-1].startswith("| 256 | 3 | 0.95 (0.31")


def test_ways_of_acting(tmp_path):
    """The base model and the trained model are the same here."""
    trained = tmp_path / "trained"
    shutil.copytree(TINY_MODEL, trained)
    options = {"action_format": "text", "max_turns": 2, "max_completion_length": 48}
    (trained / "nlac_roles.json").write_text(json.dumps(options))
    ways = agent_benchmark.measure_world("service_desk", 0, trained, num_episodes=4)
    assert len(ways) == 2 * len(agent_benchmark.IMPROVEMENTS)
    for way in agent_benchmark.IMPROVEMENTS:
        base, same = ways[f"base, {way}"], ways[f"trained, {way}"]
        assert base["success"] == same["success"] < 0.3
        assert base["tokens_per_decision"] == same["tokens_per_decision"]
    cost = {way: ways[f"base, {way}"]["tokens_per_decision"] for way in agent_benchmark.IMPROVEMENTS}
    assert 3 * cost["alone"] < cost["refine 1"] < cost["refine 2"]


def test_learning_from_logs(monkeypatch):
    """All methods run on the same logs. Without successes SFT on successes is not trained."""
    task = replace(make_task("service_desk_told", 0), final_episodes=1)
    monkeypatch.setattr(offline_benchmark, "make_task", lambda name, seed: task)
    cell = offline_benchmark.run_seed("service_desk_told", 0, num_episodes=16, max_steps=1)
    assert cell["num_episodes"] == 16 and 16 <= cell["num_transitions"] <= 32
    assert ("remark" in cell["sft_successes"]) == (cell["num_successes"] == 0)
    assert all(0 <= cell[method]["success"] < 0.2 for method in ("base", "nlac", "sft_all", "sft_successes"))


def test_fine_tuning_on_what_the_expert_won(monkeypatch, tmp_path):
    """Only won conversations are learned from, those of the expert among them."""
    task, learned = replace(make_task("service_desk_told", 0), final_episodes=1), []
    monkeypatch.setattr(improve_benchmark, "task_of", lambda name, seed: task)
    train = improve_benchmark.train_sft
    monkeypatch.setattr(improve_benchmark, "train_sft", lambda *args: learned.append(args[2]) or train(*args))
    cell = improve_benchmark.fine_tune("service_desk_told", 0, 16, 0.25, max_steps=1, folder=tmp_path)
    assert set(learned[0]["reward"]) == {1.0}
    assert cell["num_successes"] == len(learned[0]) >= 4
    assert sum(len(messages) == 3 for messages in learned[0]["messages"]) >= 4  # the expert's first call wins
    assert 0 <= cell["episode/success_rate_low"] <= cell["episode/success_rate"] < 0.3
