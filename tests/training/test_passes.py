# SPDX-License-Identifier: Apache-2.0

import random

import pytest
import torch
from helpers.testing_utils import RecordingTrainer, make_trainer, weights
from peft import LoraConfig

from trl_nlac.method.batches import NLACCollator, fill_batches
from trl_nlac.training.passes import split_into_passes
from trl_nlac.types import Prompt, TrainingExample


def make_examples(seed: int) -> list[TrainingExample]:
    rng = random.Random(seed)
    trunks = [[rng.randrange(9) for _ in range(60)] for _ in range(3)]
    return [
        TrainingExample(
            "policy",
            Prompt.of(rng.choice(trunks)[: rng.randint(1, 60)]),
            tuple(rng.randrange(9) for _ in range(rng.randint(1, 20))),
        )
        for _ in range(rng.randint(1, 16))
    ]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shares_prefixes", [False, True])
def test_passes_are_full_and_even(seed, shares_prefixes):
    examples, collate = make_examples(seed), NLACCollator(0, shares_prefixes)

    def sizes(limit: int) -> list[int]:
        passes = split_into_passes(examples, limit, collate)
        assert sorted(map(id, sum(passes, []))) == sorted(map(id, examples))
        found = [collate(examples_of_pass).tokens.inputs["input_ids"].numel() for examples_of_pass in passes]
        assert all(size <= limit or len(part) == 1 for size, part in zip(found, passes, strict=True))
        return found

    assert len(sizes(10**6)) == 1 and split_into_passes(examples, None, collate) == [examples]
    for limit in (10, 100, 200, 400):
        found = sizes(limit)
        if max(found) > max(example.num_tokens for example in examples):  # no smaller limit has as few passes
            assert len(sizes(max(found) - 1)) > len(found)


@pytest.mark.parametrize(("limit", "ends"), [(5, [1, 2, 3, 4]), (6, [2, 4]), (11, [3, 4]), (12, [4])])
def test_a_batch_may_be_as_large_as_the_limit(limit, ends):
    assert fill_batches(4, lambda start, end: 3 * (end - start), limit) == ends


def test_a_longer_example_is_alone_and_named(caplog):
    long = TrainingExample("policy", Prompt.of([1] * 50), (2,) * 50)
    short = [TrainingExample("policy", Prompt.of([3, i]), (4,)) for i in range(3)]
    passes = split_into_passes([short[0], long, *short[1:]], 20, NLACCollator(0, True))
    assert sorted(map(len, passes)) == [1, 3] and [long] in passes
    assert "A training example has 100 tokens, more than `max_tokens_per_batch=20`" in caplog.text


@pytest.mark.parametrize("kind", ["trees", "trees, lora", "trees, checkpointing", "passes", "trees, passes"])
def test_training_is_the_same_with_and_without(tmp_path, kind):
    """Without trees of prefixes, and without a limit of tokens in a pass."""
    trained, numbers = [], []
    for is_on in (False, True):
        options = {"max_steps": 2, "logging_steps": 1, "optim": "sgd", "temperature": 0.0, "learning_rate": 1e-2}
        options |= {"policy_loss_type": "distill", "gradient_accumulation_steps": 2}
        options |= {"gradient_checkpointing": "checkpointing" in kind}
        options |= {"max_tokens_per_batch": 60 if is_on and "passes" in kind else None}
        lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM") if "lora" in kind else None
        trainer = make_trainer(tmp_path / str(is_on), options, RecordingTrainer, peft_config=lora)
        trainer.shares_prefixes = is_on and "trees" in kind
        trainer.train()
        assert trainer._collate.shares_prefixes == trainer.shares_prefixes
        (first, *_) = trainer.state.log_history
        names = ("loss", "grad_norm", "critic/loss", "policy/loss", "replay/draws_per_step")
        trained.append((weights(trainer.model), {name: first[name] for name in names}))
        numbers.append(len(trainer.micro_batches))
    (one, logged), (other, expected) = trained
    assert numbers[0] == 4 and (numbers[1] > 4) == ("passes" in kind)
    assert logged == pytest.approx(expected, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
