# SPDX-License-Identifier: Apache-2.0

"""Token sequences as one tree, in which a prefix that several of them share stands once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from ..generation.prefix_cache import common_prefix


BLOCK = 128  # tokens; of FlexAttention


class Part(NamedTuple):
    """A rectangle of a [`PrefixTree`]'s attention: its queries see its keys, or those before, if it `is_causal`."""

    first_query: int
    last_query: int  # exclusive, as `last_key`
    first_key: int
    last_key: int
    is_causal: bool


class PrefixTree:
    """
    Tokens of a tree in preorder, the largest subtree first. A token sees itself and its ancestors: token q sees token
    k where `k <= q < ends[k]`.

    A path on which every next token is the largest child is contiguous in this order, a *chain*. A token therefore has
    its ancestors in at most log2(N) ranges, and the attention consists of two rectangles for each chain: the chain
    itself, causally, and all that branches off behind a token of it, which sees the chain up to there.
    """

    # No dataclass: FSDP2 makes each layer one of its own, and the layouts would be made again.
    def __init__(
        self,
        input_ids: torch.Tensor,  # `(N,)`
        depths: torch.Tensor,  # `(N,)`, number of ancestors of each token, its position in its sequences
        ends: torch.Tensor,  # `(N,)`, the first token behind the subtree of each
        parts: tuple[Part, ...],  # rectangles that cover the attention without overlap, the causal ones first
        paths: list[np.ndarray],  # where the tokens of each sequence stand
    ):
        self.input_ids = input_ids
        self.depths = depths
        self.ends = ends
        self.parts = parts
        self.paths = paths
        # What an attention made of the tree for its own use, by the sliding window of the layer.
        self.layouts: dict[int | None, Any] = {}
        self.tries_gradients = False  # whether each attention computes its own gradients as well, in a trial

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> "PrefixTree":
        """Fold sequences of at least one token each."""
        root = _grow([np.asarray(sequence, dtype=np.int64) for sequence in sorted(map(list, sequences))])
        nodes, parts = _lay_out(root)
        input_ids = np.concatenate([node.tokens for node in nodes])
        depths = np.concatenate([np.arange(node.depth, node.stop) for node in nodes])
        ends = np.concatenate([np.full(len(node.tokens), node.position + node.size) for node in nodes])
        return cls(
            *map(torch.from_numpy, (input_ids, depths, ends)), parts, [_path(root, sequence) for sequence in sequences]
        )

    def __len__(self) -> int:
        return len(self.input_ids)

    def in_blocks(self, token_id: int) -> "PrefixTree":
        """Add a sequence of one token, in no path, such that the tree has whole blocks, two or more."""
        before = len(self)
        number = max(2 * BLOCK - before, -before % BLOCK)
        return PrefixTree(
            torch.cat([self.input_ids, torch.full((number,), token_id)]),
            torch.cat([self.depths, torch.arange(number)]),
            torch.cat([self.ends, torch.full((number,), before + number)]),
            (Part(before, before + number, before, before + number, True), *self.parts) if number else self.parts,
            self.paths,
        )

    def to(self, device: torch.device) -> "PrefixTree":
        """Move the tensors to a device."""
        return PrefixTree(
            *(tensor.to(device) for tensor in (self.input_ids, self.depths, self.ends)), self.parts, self.paths
        )


@dataclass
class _Node:
    """Tokens that the same sequences share."""

    tokens: np.ndarray
    depth: int
    children: "dict[int, _Node]" = field(default_factory=dict)  # by their first token
    size: int = 0  # of the subtree, in tokens
    position: int = 0  # of the first token, in preorder

    @property
    def stop(self) -> int:
        return self.depth + len(self.tokens)


def _grow(sequences: list[np.ndarray]) -> _Node:
    """Make the tree of sequences in lexicographic order; its root has no token."""
    root = _Node(np.empty(0, dtype=np.int64), 0)
    path, previous = [root], root.tokens
    for sequence in sequences:
        shared = common_prefix(previous, sequence)
        while len(path) > 1 and path[-1].depth >= shared:
            path.pop()
        last = path[-1]
        if shared < last.stop:
            tokens, cut = last.tokens, shared - last.depth
            last.tokens, below = tokens[:cut], last.children
            last.children = {int(tokens[cut]): _Node(tokens[cut:], shared, below)}
        if shared < len(sequence):
            path.append(_Node(sequence[shared:], shared))
            last.children[int(sequence[shared])] = path[-1]
        previous = sequence
    return root


def _lay_out(root: _Node) -> tuple[list[_Node], tuple[Part, ...]]:
    """Give every node its place. Returns the nodes in preorder, and the parts of the attention."""
    downwards, stack = [], [root]
    while stack:
        downwards.append(stack.pop())
        stack += downwards[-1].children.values()
    for node in reversed(downwards):
        node.size = len(node.tokens) + sum(child.size for child in node.children.values())
    nodes, chains, branches, position = [], [], [], 0
    stack = [(root, 0)]
    while stack:
        node, chain = stack.pop()  # the chain's first token
        node.position, position = position, position + len(node.tokens)
        nodes.append(node)
        largest, *others = sorted(node.children.values(), key=lambda child: -child.size) or [None]
        if node is root:
            start = node.size
            for child in reversed([largest, *others]):
                start -= child.size
                stack.append((child, start))
        elif largest is None:
            chains.append(Part(chain, position, chain, position, True))
        else:
            start, end = position + largest.size, node.position + node.size
            if others:
                branches.append(Part(start, end, chain, position, False))
            for child in reversed(others):
                end -= child.size
                stack.append((child, end))
            stack.append((largest, chain))
    return nodes, (*chains, *branches)


def _path(root: _Node, sequence: Sequence[int]) -> np.ndarray:
    """Find where the tokens of a sequence stand."""
    node, ranges = root, []
    while node.stop < len(sequence):
        node = node.children[int(sequence[node.stop])]
        ranges.append(np.arange(node.position, node.position + len(node.tokens)))
    return np.concatenate(ranges)
