# SPDX-License-Identifier: Apache-2.0

"""Keys and values of the tokens that a model has read, so that it reads a prefix of several sequences once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from accelerate.utils import is_peft_model
from torch import nn
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import (
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
)


ROOT = 0  # the place before the first token; its keys and values fill up shorter rows of a batch
NEVER = np.iinfo(np.int64).max
_ROOM = 32  # tokens
Layer = tuple[torch.Tensor | None, torch.Tensor | None]  # keys and values; `None` if it uses those of another layer


@dataclass(eq=False)
class Reading:
    """A sequence that a model reads."""

    token_ids: list[int]
    num_last: int = 1  # number of its last tokens that are read in any case, because their logits are needed
    path: list[int] = field(default_factory=list)  # places of its first tokens in a `PrefixCache`: what is known
    whole: "Reading | None" = None  # the sequence of which this is the beginning
    start: int = 0  # column of its batch in which it starts, after the padding
    num_read: int = 0  # number of tokens that the model has read for it so far

    @property
    def last_place(self) -> int:
        """Place of the last known token."""
        return self.path[-1] if self.path else ROOT

    @property
    def num_unread(self) -> int:
        """Number of last tokens that are still to be read."""
        return max(len(self.token_ids) - len(self.path), self.num_last)

    def beginning(self, length: int) -> "Reading":
        """Make a reading of the first tokens only."""
        return Reading(self.token_ids[:length], path=self.path[:length], whole=self)

    def count(self, number: int) -> None:
        """Note that the model reads up to `number` tokens."""
        number = min(number, len(self.token_ids))
        self.num_read += number
        if self.whole is not None:
            self.whole.count(number)


class RoomyLayer(DynamicLayer):
    """Keys and values of a layer, with room for more tokens, so that a new one does not copy all before it."""

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = (states[:, :, :0] for states in (key_states, value_states))
        self._keys, self._values = self.keys, self.values  # with the room
        self.device, self.is_initialized = key_states.device, True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        length, total = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        if total > self._keys.shape[-2]:
            self._keys, self._values = (
                _enlarged(states, total + max(total // 4, _ROOM), 2) for states in (self.keys, self.values)
            )
        self._keys[:, :, length:total], self._values[:, :, length:total] = key_states, value_states
        self.keys, self.values = self._keys[:, :, :total], self._values[:, :, :total]
        return self.keys, self.values


class PrefixCache:
    """
    Keys and values of tokens that a model has read, as a tree: sequences share the places of their common prefix. It
    belongs to one set of weights. Beyond `limit` bytes, tokens that were not used for the longest time are dropped.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self._layers: list[Layer] = []  # (place, head, dimension) each
        self._places: dict[tuple[int, int], int] = {}  # by the place before and the token
        self._free: list[int] = []
        self._parents, self._tokens, self._depths = (np.zeros(1, dtype=np.int64) for _ in range(3))
        self._last_used = np.full(1, NEVER)  # batch that used a place, -1 for free ones
        self._batch = 0

    @property
    def size(self) -> int:
        """Size of the keys and values, in bytes."""
        return sum(part.nbytes for part in chain(*self._layers) if part is not None)

    def start_batch(self) -> None:
        """Begin a batch. Paths are valid until the next one: no place that it uses is dropped before."""
        self._batch += 1

    def find(self, readings: list[Reading]) -> None:
        """Extend the path of each reading by the tokens that are known."""
        for reading in readings:
            start, place = len(reading.path), reading.last_place
            for token_id in reading.token_ids[start:]:
                place = self._places.get((place, token_id))
                if place is None:
                    break
                reading.path.append(place)
            self._last_used[reading.path[start:]] = self._batch

    def load(self, readings: list[Reading], width: int) -> DynamicCache:
        """Make the cache of a batch's first columns, which readings know as far as they reach there."""
        cache = DynamicCache()
        cache.layer_class_to_replicate = RoomyLayer
        if not width:
            return cache
        places = np.full((len(readings), width), ROOT)
        for row, reading in zip(places, readings, strict=True):
            known = reading.path[: max(width - reading.start, 0)]
            row[width - len(known) :] = known

        def gather(part: torch.Tensor) -> torch.Tensor:  # `(row, head, column, dimension)`
            return part[torch.from_numpy(places).to(part.device)].transpose(1, 2)

        for i, layer in enumerate(_each(gather, self._layers)):
            if layer[0] is not None:
                cache.update(*layer, i)
            else:
                cache.layers.append(RoomyLayer())
        return cache

    def keep(self, readings: list[Reading], cache: DynamicCache) -> None:
        """Keep what a batch has read, as far as there is room, and extend the paths."""
        read = [(layer.keys, layer.values) for layer in cache.layers]
        if not self._layers:
            self._layers = _each(lambda part: part.new_zeros(1, part.shape[1], part.shape[3]), read)  # of the root
        rows, columns, places = [], [], []
        for i, reading in enumerate(readings):
            self.find([reading])
            first = reading.start + len(reading.path)
            added = self._add(reading, max(cache.get_seq_length() - first, 0))
            rows += [i] * len(added)
            columns += range(first, first + len(added))
            places += added
        if not places:
            return
        rows, columns, places = map(torch.tensor, (rows, columns, places))
        for kept, new in zip(chain(*self._layers), chain(*read), strict=True):
            if kept is not None:
                device = kept.device
                kept[places.to(device)] = new[rows.to(device), :, columns.to(device)]

    def _add(self, reading: Reading, limit: int) -> list[int]:
        """Extend the path by places for unknown tokens, as many as there is room for. Returns these places."""
        depth = len(reading.path)
        places = self._take(min(len(reading.token_ids) - depth, limit))
        if places:
            token_ids = reading.token_ids[depth : depth + len(places)]
            parents = [reading.last_place, *places[:-1]]
            self._places.update(zip(zip(parents, token_ids, strict=True), places, strict=True))
            self._parents[places], self._tokens[places] = parents, token_ids
            self._depths[places] = range(depth, depth + len(places))
            self._last_used[places] = self._batch
            reading.path += places
        return places

    def _take(self, number: int) -> list[int]:
        """Take free places, at most `number`."""
        if len(self._free) < number:
            self._grow(number - len(self._free))
        if len(self._free) < number:
            self._evict(number - len(self._free))
        taken = self._free[: -number - 1 : -1]
        del self._free[len(self._free) - len(taken) :]
        return taken

    def _grow(self, number: int) -> None:
        """Make at least `number` more places if the limit allows it."""
        place_size = sum(part[0].nbytes for part in chain(*self._layers) if part is not None)
        size = len(self._last_used)
        new_size = min(self.limit // place_size, max(size + number, 2 * size))
        if new_size <= size:
            return
        self._layers = _each(lambda part: _enlarged(part, new_size, 0), self._layers)
        self._parents, self._tokens, self._depths = (
            np.resize(numbers, new_size) for numbers in (self._parents, self._tokens, self._depths)
        )
        self._last_used = np.concatenate([self._last_used, np.full(new_size - size, -1)])
        self._free = [*range(new_size - 1, size - 1, -1), *self._free]

    def _evict(self, number: int) -> None:
        """
        Free about `number` places that were not used for the longest time, none of this batch. A token was used no
        later than those before it, so that no place is freed before those behind it.
        """
        number = max(number, len(self._last_used) // 8)  # sorting takes time
        old = np.flatnonzero((self._last_used >= 0) & (self._last_used < self._batch))
        freed = old[np.lexsort((-self._depths[old], self._last_used[old]))[:number]]
        for key in zip(self._parents[freed].tolist(), self._tokens[freed].tolist(), strict=True):
            del self._places[key]
        self._last_used[freed] = -1
        self._free += freed.tolist()


def can_be_continued(model: nn.Module) -> bool:
    """Whether the keys and values of a prefix are all that a model needs to read on."""
    if is_peft_model(model) and model.active_peft_config.is_prompt_learning:
        return False  # virtual tokens stand before the prompt
    if model.config.is_encoder_decoder or model.is_remote_code() or not model._supports_default_dynamic_cache():
        return False
    if rope_of_length(model.config):
        return False
    layers = DynamicCache(config=model.config).layers
    kinds = {type(layer) for layer in layers if isinstance(layer, (CacheLayerMixin, LinearAttentionCacheLayerMixin))}
    return kinds <= {DynamicLayer, DynamicSlidingWindowLayer}  # others have no state


def rope_of_length(config: PreTrainedConfig) -> str | None:
    """Return the type of rotary embeddings whose factors follow the longest text of a batch; `None` for others."""
    rope = config.get_text_config(decoder=True).to_dict().get("rope_parameters") or {}
    ropes = [rope, *(of_layers for of_layers in rope.values() if isinstance(of_layers, dict))]
    return next((rope["rope_type"] for rope in ropes if rope.get("rope_type") in ("dynamic", "longrope")), None)


def common_prefix(first: np.ndarray, second: np.ndarray) -> int:
    """Count the tokens with which both begin."""
    length = min(len(first), len(second))
    return int(np.append(first[:length] != second[:length], True).argmax())


def _each(change: Callable[[torch.Tensor], torch.Tensor], layers: list[Layer]) -> list[Layer]:
    """Change keys and values of each layer."""
    return [tuple(None if part is None else change(part) for part in layer) for layer in layers]


def _enlarged(part: torch.Tensor, size: int, dimension: int) -> torch.Tensor:
    """Copy keys or values into a tensor that has this size in a dimension."""
    larger = part.new_empty(*part.shape[:dimension], size, *part.shape[dimension + 1 :])
    larger.narrow(dimension, 0, part.shape[dimension]).copy_(part)
    return larger
