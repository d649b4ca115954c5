# SPDX-License-Identifier: Apache-2.0

"""What measures systems: each script measures something."""

from argparse import Namespace

import pytest

from benchmarks import reporting
from benchmarks.systems import gateway, generation, loss_memory, replay, rollout, target_weights, train_step


def test_rollouts_and_the_gateway():
    row = rollout.measure("blocking", 0.0, num_episodes=4, num_turns=2, latency=0.05, runs=1)
    assert row["serial_seconds"] > row["seconds"] >= row["ideal_seconds"] == 0.1
    sizes = Namespace(num_episodes=2, num_turns=2, latency=0.0, repetitions=1, rate=50.0, load_seconds=0.2)
    assert gateway.measure_ratio(sizes, 0.0)["gateway_seconds"] > 0
    load = gateway.measure_load(sizes)
    assert load["requests"] == 10 and load["lost"] == 0


def test_replay(tmp_path):
    kept = replay.measure(1000, "text", tmp_path)
    assert kept["transitions"] == 1000
    assert kept["saved_bytes"] > 100_000 and kept["sample_us"] > kept["sample_draw_us"] > 0


def test_target_weights():
    row = target_weights.one_process(repetitions=1)
    assert row["ours"]["copy_bytes"] >= 4 * row["parameters_of_shard"] and row["trl"]["copy_bytes"] > 0


def test_the_loss_needs_less_memory_than_all_logits():
    words = ("--tokens", 2048, "--cell")
    peaks = {side: reporting.alone(loss_memory.__name__, *words, side, 4096) for side in loss_memory.SIDES}
    assert 0 < peaks["answers"] < peaks["all_logits"]


def test_a_training_step_on_a_tree_has_fewer_tokens():
    args = Namespace(turn=16, branch=4, size="2m", dtype="float32", repetitions=1, threads=1, memory=False)
    cells = [{"side": side, "turns": 2, **train_step.run(side, 2, args)} for side in ("tree", "separate")]
    assert cells[0]["tokens"] == 2 * 16 + 4 * 4 and cells[1]["tokens"] == 2 * 16 + 2 * 32 + 4 * 4
    assert train_step.summary(cells, args)["tokens_ratio_2"] == pytest.approx(112 / 48)


def test_a_cell_of_generation():
    args = Namespace(
        **{"cell": "transformers:full:True", "model": None, "hidden_size": 128, "num_layers": 1, "vocab_size": 0},
        **{"dtype": "float32", "num_transitions": 2, "repetitions": 1},
    )
    row = generation.run_cell(args)
    assert 0.5 < row["prefix_hit_rate"] <= 1 and row["completion_tokens"] > 0
