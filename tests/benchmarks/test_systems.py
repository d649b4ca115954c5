# SPDX-License-Identifier: Apache-2.0

import json

from benchmarks import reporting
from benchmarks.systems import gateway, generation, replay, rollout, train_step


def test_rollouts_and_the_gateway():
    row = rollout.measure("blocking", 0.0, num_episodes=4, num_turns=2, latency=0.05, runs=1)
    assert row["seconds"] >= row["ideal_seconds"] == 0.1
    load = gateway.measure_load(rate=50.0, seconds=0.2, connections=2)
    assert load["requests"] == 10 and load["lost"] == 0


def test_replay():
    kept = replay.measure(1000)
    assert kept["transitions"] == 1000 and kept["saved_bytes"] > 100_000 and kept["sample_us"] > 0


def test_a_cell_of_generation(monkeypatch):
    monkeypatch.setattr(generation, "NUM_TRANSITIONS", 2)
    row = generation.run_cell("transformers:True")
    assert 0.5 < row["prefix_hit_rate"] <= 1 and row["completion_tokens"] > 0


def test_a_gradient_step_and_its_page():
    step = train_step.time_of_step(2, turn=16, completion=4, repetitions=1)
    assert step["tokens"] == {"tree": 2 * 16 + 4 * 4, "separate": 2 * 20 + 2 * 36}
    words = ("benchmarks.systems.train_step", "--cell")
    chunked, plain = (reporting.alone(*words, side, 2048, 4096, **train_step.RETURN) for side in ("chunked", "plain"))
    assert 0 < chunked < plain
    report = json.loads((reporting.ROOT / "benchmarks" / "results" / "train_step.json").read_text())
    page = (reporting.ROOT / "docs" / "source" / "results_tables.md").read_text()
    assert report["steps"][0].keys() == step.keys() and train_step.table(report) in page
