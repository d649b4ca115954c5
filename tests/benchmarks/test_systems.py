# SPDX-License-Identifier: Apache-2.0

from benchmarks.systems import gateway, generation, replay, rollout


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
