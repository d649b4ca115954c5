# SPDX-License-Identifier: Apache-2.0

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer

from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.generation.prefix_cache import PrefixCache, Reading, RoomyLayer, can_be_continued


TOKEN_SIZE = 2 * 2 * 1 * 3 * 4  # bytes: keys and values of two layers with one head of three dimensions


def limit(number):
    return (1 + number) * TOKEN_SIZE


def states(sequences):
    width = max(map(len, sequences))
    rows = torch.tensor([[0] * (width - len(sequence)) + sequence for sequence in sequences], dtype=torch.float32)
    keys = rows[:, None, :, None].expand(-1, 1, -1, 3)
    return DynamicCache([(keys, -keys), (10 * keys, keys)])


def read(cache, *sequences):
    """Read a batch; returns how many tokens of each sequence were known."""
    cache.start_batch()
    readings = [Reading(sequence) for sequence in sequences]
    width = max(map(len, sequences))
    for reading in readings:
        reading.start = width - len(reading.token_ids)
    cache.find(readings)
    known = [len(reading.path) for reading in readings]
    cache.keep(readings, states(sequences))
    return known


class TestPrefixCache:
    def test_what_was_not_used_for_the_longest_time_is_dropped(self):
        cache = PrefixCache(limit(40))
        first, second, third, nines = ([1, 2, *range(10, 22)], [1, 2, *range(30, 42)], [*range(50, 62)], [9] * 10)
        assert read(cache, first) == read(cache, nines) == [0]
        assert read(cache, second) == [2]  # what the first one begins with
        assert read(cache, first) == [14]
        assert read(cache, third) == [0]  # in place of eight nines
        assert read(cache, first) == read(cache, second) == [14] and read(cache, third) == [12]
        assert read(cache, nines) == [2]  # in place of the end of the first one
        assert read(cache, second) == [14] and read(cache, third) == [12]
        assert 2 <= read(cache, first)[0] < 14

    def test_ends_are_dropped_before_beginnings(self):
        cache = PrefixCache(limit(20))
        assert read(cache, [*range(1, 21)]) == [0]
        assert read(cache, [*range(30, 34)]) == [0]
        assert read(cache, [*range(1, 21)]) == [16]

    def test_what_a_batch_uses_stays_until_its_end(self):
        cache = PrefixCache(limit(6))
        read(cache, [1, 2, 3, 4])
        cache.start_batch()
        sequences = [[1, 2, 3, 4, 5], [7, 8, 9, 10]]  # three tokens more than there is room for
        readings = [Reading(sequences[0]), Reading(sequences[1], start=1)]
        cache.find(readings)
        cache.keep(readings, states(sequences))
        assert [len(reading.path) for reading in readings] == [5, 1]
        expected = states(sequences[:1])
        for layer, other in zip(cache.load(readings[:1], 5).layers, expected.layers, strict=True):
            assert torch.equal(layer.keys, other.keys) and torch.equal(layer.values, other.values)

    def test_a_batch_that_is_too_large_keeps_what_fits(self):
        cache = PrefixCache(limit(20))
        batch = [[*range(start, start + 15)] for start in (1, 20, 40)]
        for _ in range(3):
            known = read(cache, *batch)
        assert sum(known) == 20 and cache.size == limit(20)
        none = PrefixCache(0)
        assert read(none, *batch) == read(none, *batch) == [0, 0, 0]

    @pytest.mark.parametrize("room", [20, 40, 60])
    def test_loaded_states_are_always_those_of_the_tokens(self, room):
        """Many batches with little room, also less than one needs: what is known has the keys of its own tokens."""
        generator = torch.Generator().manual_seed(room)
        cache = PrefixCache(limit(room))
        for _ in range(200):
            lengths = torch.randint(1, 12, (4,), generator=generator).tolist()
            sequences = [torch.randint(1, 4, (length,), generator=generator).tolist() for length in lengths]
            cache.start_batch()
            readings = [Reading(sequence, start=max(lengths) - len(sequence)) for sequence in sequences]
            cache.find(readings)
            width = max(lengths) - max(reading.num_unread for reading in readings)
            expected = states(sequences)
            if width:
                for layer, other in zip(cache.load(readings, width).layers, expected.layers, strict=True):
                    assert torch.equal(layer.keys, other.keys[:, :, :width])
                    assert torch.equal(layer.values, other.values[:, :, :width])
            cache.keep(readings, expected)
            assert cache.size <= limit(room)


def test_a_layer_with_room_holds_what_a_plain_one_does():
    generator = torch.Generator().manual_seed(0)
    layers = RoomyLayer(), DynamicLayer()
    for length in (5, 1, 1, 70, *[1] * 40, 3):
        states = [torch.randn(2, 3, length, 4, generator=generator) for _ in range(2)]
        for keys_or_values in zip(*(layer.update(*states) for layer in layers), strict=True):
            assert torch.equal(*keys_or_values)
        assert layers[0].get_seq_length() == layers[1].get_seq_length()
    for layer in layers:
        layer.crop(-10)
        layer.update(*states)
    assert torch.equal(layers[0].keys, layers[1].keys)


class TestModels:
    @pytest.mark.parametrize(("rope_type", "expected"), [("default", True), ("dynamic", False), ("longrope", False)])
    def test_keys_that_depend_on_the_length_of_the_text(self, rope_type, expected):
        model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
        model.config.rope_parameters["rope_type"] = rope_type
        assert can_be_continued(model) == expected

    def test_virtual_tokens_before_the_prompt(self):
        config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
        model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(TINY_MODEL), config)
        assert not can_be_continued(model)
