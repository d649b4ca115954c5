# SPDX-License-Identifier: Apache-2.0

import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.records_utils import CONFIG
from helpers.testing_utils import make_episode, make_roles, make_trainer, play

from trl_nlac.evaluation.metrics import tool_metrics
from trl_nlac.types import Prompt, TrainingExample


def test_a_log_has_the_kinds_of_failures_that_occurred(tmp_path):
    records = make_trainer(tmp_path, CONFIG).records
    failed = replace(make_episode(), failure="step: it broke")
    for episodes in ([make_episode(), failed], [make_episode()] * 2):
        records.add_episodes(episodes, [0, 1], 0)
    log = records.take(0)
    rates = {name: value for name, value in log.items() if name.endswith("failure_rate")}
    assert rates == {"environment/failure_rate": 0.25, "environment/step_failure_rate": 0.25}
    assert list(log)[0] == "episode/success_rate" and log["reward"] == 1.0 and log["reward_std"] == 0.0


def test_monitors_and_means_go_on_after_a_checkpoint(tmp_path):
    records = make_trainer(tmp_path / "first", CONFIG).records
    resumed = make_trainer(tmp_path / "second", CONFIG).records
    metrics = {"critic/format_rate": 0.0, "health/backup_fidelity": 0.5}
    records.health.update(metrics)
    records.metrics["critic/loss"].append(1.0)  # not logged yet
    assert records.formats.update(metrics) == ["critic/format_rate"]
    resumed.load_state_dict(json.loads(json.dumps(records.state_dict())))
    assert resumed.formats == records.formats and resumed.health == records.health
    assert resumed.formats.update(metrics) == []
    resumed.metrics["critic/loss"].append(3.0)
    assert resumed.take(0)["critic/loss"] == 2.0


def test_losses_of_examples_without_weight_are_left_out(tmp_path):
    records = make_trainer(tmp_path, CONFIG).records
    weights = [("critic", 1.0), ("critic", 0.0), ("policy", 0.5)]
    examples = [TrainingExample(name, Prompt.of([1]), (2,), weight, 0) for name, weight in weights]
    records.add_losses(examples, torch.tensor([2.0, 90.0, 4.0]), 12, lambda sums: sums)
    log = records.take(0)
    assert (log["critic/loss"], log["policy/loss"], log["tokens/trained"]) == (2.0, 4.0, 12)


def test_a_fall_of_success_is_reported_across_a_checkpoint(tmp_path, caplog):
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


class Doors:
    """A TRL environment with a tool that fails."""

    def reset(self):
        return "There are two doors."

    def open(self, number: int) -> str:
        """
        Open a door.

        Args:
            number: Its number.
        """
        if number > 2:
            raise ValueError("no such door")
        return f"Door {number} is open."

    def get_reward(self):
        return 1.0


def test_calls_of_tools_are_counted_as_in_trl(tmp_path):
    calls = [json.dumps({"name": "open", "arguments": {"number": number}}) for number in (1, 3)]
    roles = make_roles([*calls, "done"], action_format="tool_call")
    (episode,) = episodes = play([{}], Doors, roles)
    results = [turn.next_observation for turn in episode.turns]
    assert results == ["Door 1 is open.", "{'error': 'no such door'}", ""]
    several = replace(episode.turns[0], action=f"[{', '.join(calls)}]", next_observation=json.dumps(results[:2]))
    unread = replace(episode.turns[0], action="", next_observation="{'error': 'what?'}")
    unplayed = replace(episode, failure="step: it broke")
    quiet = replace(episode, turns=(unread, episode.turns[-1]))
    longer = replace(episode, turns=(several, *episode.turns), segments=(replace(episode, turns=(several,)),))
    assert tool_metrics([episode, longer, unplayed, quiet]) == {
        "tools/call_frequency": pytest.approx(8 / 3),
        "tools/failure_frequency": 0.5,
    }
    assert tool_metrics([quiet])["tools/failure_frequency"] == 0.0
    assert tool_metrics([make_episode()]) == {}
    records = make_trainer(tmp_path, CONFIG).records
    records.add_episodes(episodes, [0], 0)
    assert records.take(0)["tools/call_frequency"] == 2.0


def test_functions_log_under_names_of_their_own(tmp_path):
    records = make_trainer(tmp_path, CONFIG).records
    for name in ("my/step", "critic_reward/format_rate", "judge/cost", "accuracy"):
        records.add_function_metric(name, 1.0)
    rows = Path(__file__).parents[2].joinpath("docs", "source", "metrics.md").read_text(encoding="utf-8").split("\n")
    documented = [name for row in rows if row.startswith("| `") for name in re.findall("`(.+?)`", row.split("|")[1])]
    assert len(documented) > 60
    for name in (*documented, "step", "epoch", "loss", "learning_rate", "grad_norm", "train_loss", "eval_reward"):
        with pytest.raises(ValueError, match=rf"`log_metric\('{re.escape(name)}', ...\)` takes a name"):
            records.add_function_metric(name, 1.0)
