# SPDX-License-Identifier: Apache-2.0

"""The schedule backs up: a success at the end of an episode reaches its first step."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from helpers.replay_utils import make_target, make_text_episode
from torch import nn

import trl_nlac
from trl_nlac import NLACConfig, PrioritizedReplay, TargetWeights
from trl_nlac.cli.plan import planned
from trl_nlac.training.target_reuse import TargetReuse


RECIPES = Path(trl_nlac.__file__).parent / "recipes"
STEP = 0.05  # by how much of the error a draw moves the value of its state
PROCESSES = {"lora_1gpu": 1, "thrifty": 1, "zero3_vllm_8gpu": 8, "zero3_server_16gpu": 8}


class Critic(nn.Module):
    def __init__(self, turns: int):
        super().__init__()
        self.values = nn.Parameter(torch.zeros(turns))

    def write(self, transitions):
        values = [1.0 if t.terminated else self.values[t.index + 1].item() for t in transitions]
        return [make_target(t, str(value)) for t, value in zip(transitions, values, strict=True)]

    def train_on(self, index: int, target: float) -> float:
        values = self.values.data.numpy()  # the same memory, without what a tensor costs
        error = target - values[index].item()
        values[index] += STEP * error
        return abs(error)


def first_success(args: NLACConfig, turns: int, num_iterations: int) -> int | None:
    """Return the iteration from which the value of the first step stays above a half; `None` if there is none."""
    rng = np.random.default_rng(0)
    replay = PrioritizedReplay(args.replay_buffer_size, priority_exponent=args.priority_exponent, seed=0)
    critic = Critic(turns)
    target_weights = TargetWeights(critic, args.target_update_rate)
    episode = partial(make_text_episode, rng, num_turns=turns, num_tokens=4 * turns + 4)
    lifetime = args.target_age(num_iterations * args.updates_per_iteration) * args.updates_per_iteration
    since = None
    for iteration in range(num_iterations):
        replay.add([episode() for _ in range(args.episodes_per_iteration)])
        samples = replay.sample(args.samples_per_iteration)
        reuse = TargetReuse(samples, replay.targets, target_weights.num_updates, lifetime)
        with target_weights.swapped_into(critic):
            targets, _ = reuse.complete(critic.write(reuse.due))
        pairs = list(zip(samples, targets, strict=True)) * args.num_updates_per_generation
        for start in range(0, len(pairs), args.global_batch_size):
            batch = pairs[start : start + args.global_batch_size]
            losses = [critic.train_on(s.transition.index, float(t.parsed.future)) for s, t in batch]
            replay.update_priorities([sample.transition_id for sample, _ in batch], losses)
            target_weights.update(critic, args.global_batch_size)
        is_above = critic.values[0].item() > 0.5
        since = (iteration if since is None else since) if is_above else None
    return since


def test_the_default(tmp_path):
    args = NLACConfig(str(tmp_path), use_cpu=True, bf16=False)
    since = first_success(args, args.max_turns, num_iterations=300)
    assert since is not None and since < 150


@pytest.mark.parametrize(("num_iterations", "age"), [(0, 1), (10, 1), (79, 3), (160, 8), (10_000, 8)])
def test_targets_of_a_short_run_do_not_outlive_it(num_iterations, age, tmp_path):
    args = NLACConfig(str(tmp_path), use_cpu=True, bf16=False)  # 20 turns
    num_steps = num_iterations * args.updates_per_iteration
    assert (args.target_age(num_steps), replace(args, target_max_age=0).target_age(num_steps)) == (age, 0)


# The paper's 30 iterations are no more than its turns, and a success moves by one step in an iteration.
@pytest.mark.parametrize("recipe", ["lora_1gpu", "thrifty", "zero3_vllm_8gpu", "zero3_server_16gpu"])
def test_recipes(recipe, tmp_path):
    options = yaml.safe_load((RECIPES / f"{recipe}.yaml").read_text())
    own = {name: value for name, value in options.items() if name in NLACConfig.__dataclass_fields__}
    args = planned(PROCESSES[recipe])(**{**own, "output_dir": str(tmp_path)})
    num_iterations = args.max_steps // args.updates_per_iteration
    since = first_success(args, args.max_turns, num_iterations)
    assert since is not None and since < num_iterations / 3
