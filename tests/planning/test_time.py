# SPDX-License-Identifier: Apache-2.0

"""The formulas of the time: tokens of an iteration, counted by hand or in a run."""

import json
import random

import pytest
from helpers.hub_configs import CONFIGS
from helpers.testing_utils import make_config
from transformers import AutoConfig

from trl_nlac.planning.memory import Sharing
from trl_nlac.planning.rates import Rates
from trl_nlac.planning.run_plan import Machines, Plan
from trl_nlac.planning.shape import model_shape
from trl_nlac.planning.time import Lengths, Phase, answers, phases, written_share


SHAPE = model_shape(AutoConfig.for_model(**json.loads((CONFIGS / "Qwen2.5-7B-Instruct.json").read_text())))
LENGTHS = Lengths(prompt=1000, answer=100, turns=5)


def plan(tmp_path, lengths: Lengths = LENGTHS, **options) -> dict[str, Phase]:
    options = {"samples_per_iteration": 64, "episodes_per_iteration": 4, "target_max_age": 0, **options}
    options["use_vllm"] = True
    args = make_config(tmp_path, **options)
    found = phases(SHAPE, Sharing("zero3", 1), args, Rates(), lengths, 0, 2, True)
    return {phase.name: phase for phase in found}


def test_updates_repeat_the_training_alone(tmp_path):
    one, three = plan(tmp_path), plan(tmp_path, num_updates_per_generation=3)
    assert three.pop("train")[3:] == pytest.approx([3 * value for value in one.pop("train")[3:]])
    assert one == three


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_vllm_reads_an_episode_once(tmp_path, turns):
    """Prompts grow by the same number of tokens in each turn; the last one has all."""
    prompts = [100 * turn for turn in range(1, turns + 1)]
    lengths = Lengths(sum(prompts) / turns, 10, turns)
    assert plan(tmp_path, lengths)["rollout"].read == pytest.approx(4 * prompts[-1])


@pytest.mark.parametrize("age", [0, 1, 3, 9, 500])
def test_share_of_targets_that_are_written(tmp_path, age):
    """Against a simulated buffer of 200 transitions, of which each iteration replaces 8 and draws 64."""
    sizes = dict(per_device_train_batch_size=8, gradient_accumulation_steps=4, samples_per_iteration=64)
    sizes |= dict(replay_buffer_size=200, episodes_per_iteration=2)
    config = make_config(tmp_path, target_max_age=age, max_steps=10**6, **sizes)
    rng, written, shares = random.Random(0), {}, []
    for iteration in range(600):
        drawn = rng.sample(range(8 * iteration, 8 * iteration + 200), 64)
        due = [number for number in drawn if number not in written or iteration - written[number] >= age]
        written.update(dict.fromkeys(due, iteration))
        shares.append(len(due) / 64)
    assert written_share(config, 1, 4) == pytest.approx(sum(shares[100:]) / 500, rel=0.15)


def make_plan(tmp_path, **options) -> Plan:
    options = {"per_device_train_batch_size": 16, "samples_per_iteration": 64, **options}
    args = make_config(tmp_path, max_prompt_length=8192, gradient_checkpointing=True, **options)
    return Plan(SHAPE, Machines(8, 80e9), Sharing("zero3", 8), args, Rates(), 4, 32768)


def test_the_limit_of_a_pass_is_planned(tmp_path):
    whole, limited = make_plan(tmp_path), make_plan(tmp_path, max_tokens_per_batch=9000)
    assert whole.batch_tokens > 100_000 and limited.batch_tokens == 9000 and limited.peak < whole.peak / 2
    assert any("max_tokens_per_batch" in options for options, _ in whole.changes())
    least = make_plan(tmp_path, max_tokens_per_batch=100)
    assert least.batch_tokens == sum(least.longest)  # an example is not divided


def test_all_that_is_generated_at_once_is_planned(tmp_path):
    samples = {"samples_per_iteration": 64, "max_generation_batch_size": 500, "episodes_per_iteration": 8}
    sequences = [make_plan(tmp_path, **samples, **changes).sequences for changes in ({}, {"num_futures": 2})]
    assert sequences == [8, 16]
    assert make_plan(tmp_path, **{**samples, "episodes_per_iteration": 800}).sequences == 100
    assert make_plan(tmp_path, **{**samples, "episodes_per_iteration": 8000}).sequences == 500


def test_limits_of_single_roles_are_planned(tmp_path):
    plain, long = make_plan(tmp_path), make_plan(tmp_path, role_sampling={"refine": {"max_tokens": 16384}})
    assert plain.longest == (8192, plain.options.max_completion_length) and long.longest == (8192, 16384)
    assert long.batch_tokens > plain.batch_tokens


def test_rewritten_thoughts_are_answers(tmp_path):
    plain, thoughtful = (answers(make_config(tmp_path, reasoning=reasoning)) for reasoning in (False, True))
    assert [after - before for before, after in zip(plain, thoughtful, strict=True)] == [1, 1]
    plain, thoughtful = (
        answers(make_config(tmp_path, reasoning=reasoning, policy_loss_type="distill")) for reasoning in (False, True)
    )
    assert [after - before for before, after in zip(plain, thoughtful, strict=True)] == [1, 0]


def test_hindsight_asks_for_a_target_and_a_refined_action(tmp_path):
    options = {"bootstrap": "monte_carlo", "critic_loss_coef": 0.0}
    assert answers(make_config(tmp_path, **options)) == (1, 1)
    assert answers(make_config(tmp_path, **options, policy_loss_type="distill")) == (1, 0)


def test_explicit_futures_are_one_answer(tmp_path):
    for number, expected in ((1, 3), (4, 3)):
        target, _ = answers(make_config(tmp_path, num_futures=number, bootstrap="explicit"))
        assert target == expected
