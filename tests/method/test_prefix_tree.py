# SPDX-License-Identifier: Apache-2.0

import random

import pytest
import torch

from trl_nlac.method.batches import NLACCollator, spread_by_prefix
from trl_nlac.method.prefix_tree import PrefixTree
from trl_nlac.types import Prompt, TrainingExample


def random_sequences(rng: random.Random) -> list[list[int]]:
    sequences: list[list[int]] = []
    for _ in range(rng.randint(1, 12)):
        start: list[int] = []
        if sequences and rng.random() < 0.7:
            other = rng.choice(sequences)
            start = other[: rng.randint(1, len(other))]
        sequences.append(start + [rng.randint(0, 3) for _ in range(rng.randint(0 if start else 1, 8))])
    return sequences


@pytest.mark.parametrize("seed", range(100))
def test_every_token_sees_its_own_sequence(seed):
    sequences = random_sequences(random.Random(seed))
    tree = PrefixTree.of(sequences)
    number = len(tree)
    assert number == len({tuple(s[: i + 1]) for s in sequences for i in range(len(s))})
    expected = torch.zeros(number, number, dtype=torch.bool)
    for sequence, path in zip(sequences, tree.paths, strict=True):
        assert tree.input_ids[path].tolist() == sequence
        assert tree.depths[path].tolist() == list(range(len(sequence)))
        for i, token in enumerate(path):
            expected[token, path[: i + 1]] = True
    q, k = torch.arange(number)[:, None], torch.arange(number)[None]
    assert torch.equal(expected, (k <= q) & (q < tree.ends[None]))
    # The parts cover the same, without overlap.
    covered = torch.zeros(number, number, dtype=torch.int)
    for part in tree.parts:
        rectangle = covered[part.first_query : part.last_query, part.first_key : part.last_key]
        rectangle += torch.ones_like(rectangle).tril() if part.is_causal else 1
    assert torch.equal(covered, expected.int())


def test_an_episode_needs_two_parts_for_each_branch():
    """And one range of keys for each: no key is gathered for it."""
    trunk, branches = list(range(1000)), [[2000 + i] * 20 for i in range(10)]
    tree = PrefixTree.of([trunk, *(trunk[: 90 * (i + 1)] + branch for i, branch in enumerate(branches))])
    assert len(tree) == 1000 + 10 * 20
    assert len(tree.parts) == 1 + 2 * 10
    assert tree.input_ids[:1000].tolist() == trunk


def test_samples_that_share_most_are_in_the_same_batch():
    rng = random.Random(0)
    states = [[1, 2, *(rng.randint(3, 9) for _ in range(30))] for _ in range(8)]
    examples = [
        TrainingExample("policy", Prompt.of(state), tuple(rng.randint(3, 9) for _ in range(4)), transition_id=i)
        for _ in range(3)
        for i, state in enumerate(states)
    ]
    rng.shuffle(examples)
    batches = spread_by_prefix(examples, 4)
    assert sorted(map(id, sum(batches, []))) == sorted(map(id, examples))
    assert [len({e.transition_id for e in batch}) for batch in batches] == [2] * 4
    sizes = [batch.tokens.inputs["input_ids"].numel() for batch in map(NLACCollator(0, True), batches)]
    assert max(sizes) - min(sizes) <= 12


@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize("lengths", [[200, 1, 1, 1], [1, 1, 1, 200], [0, 0, 0, 0]], ids=["first", "last", "same"])
def test_no_batch_is_empty(lengths, number):
    examples = [TrainingExample("policy", Prompt.of([0] + [i] * length), (9,)) for i, length in enumerate(lengths)]
    batches = spread_by_prefix(examples, number)
    assert len(batches) == number and all(batches)


@pytest.mark.parametrize("number", [1, 2])
def test_sequences_that_come_twice_are_all_trained_on(number):
    """A transition that is drawn twice, and whose target is kept, makes the same sequence twice."""
    places = enumerate([[1, 2], [3, 4], [3, 4], [3, 4]])
    examples = [TrainingExample("critic", Prompt.of(ids), (5,), transition_id=i) for i, ids in places]
    batches = spread_by_prefix(examples, number)
    assert sorted(example.transition_id for batch in batches for example in batch) == [0, 1, 2, 3]


def test_only_the_places_before_answers_have_logits():
    examples = [
        TrainingExample("policy", Prompt.of([1, 2, 3]), (4, 5)),
        TrainingExample("critic", Prompt.of([1, 2, 3, 6]), (7,)),
    ]
    tokens = NLACCollator(0, shares_prefixes=True)(examples).tokens
    ids, kept = tokens.inputs["input_ids"][0], tokens.inputs["logits_to_keep"][tokens.places]
    assert ids.numel() == 7
    assert ids[kept].tolist() == [3, 4, 6] and tokens.labels.tolist() == [4, 5, 7]
    assert tokens.rows.tolist() == [0, 0, 1]
