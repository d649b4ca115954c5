# SPDX-License-Identifier: Apache-2.0

from argparse import Namespace

from benchmarks.systems import gateway, generation, replay, rollout, target_weights


def test_rollouts_and_the_gateway():
    row = rollout.measure("blocking", 0.0, num_episodes=4, num_turns=2, latency=0.05, runs=1)
    assert row["serial_seconds"] > row["seconds"] >= row["ideal_seconds"] == 0.1
    load = gateway.measure_load(Namespace(connections=2, rate=50.0, load_seconds=0.2))
    assert load["requests"] == 10 and load["lost"] == 0


def test_replay(tmp_path):
    kept = replay.measure(1000, "text", tmp_path)
    assert kept["transitions"] == 1000
    assert kept["saved_bytes"] > 100_000 and kept["sample_us"] > kept["sample_draw_us"] > 0


def test_target_weights():
    row = target_weights.one_process(repetitions=1)
    assert row["ours"]["copy_bytes"] >= 4 * row["parameters_of_shard"] and row["trl"]["copy_bytes"] > 0


def test_a_cell_of_generation():
    args = Namespace(
        **{"cell": "transformers:full:True", "model": None, "hidden_size": 128, "num_layers": 1, "vocab_size": 0},
        **{"dtype": "float32", "num_transitions": 2, "repetitions": 1},
    )
    row = generation.run_cell(args)
    assert 0.5 < row["prefix_hit_rate"] <= 1 and row["completion_tokens"] > 0
