# SPDX-License-Identifier: Apache-2.0

"""
FlexAttention over trees of many lengths, in layers with and without windows: it stays compiled, and its memory grows
with the number of tokens, not with its square. Needs torch and transformers.
"""

import random
from types import SimpleNamespace

import torch
from common import LeftOut, main, peak_of

from trl_nlac.method.prefix_tree import PrefixTree
from trl_nlac.training.tree_attention import attend


HEADS, KEY_HEADS, SIZE = 14, 2, 64  # Qwen2.5 0.5B
NUMBERS = (90, 300, 520, 1024, 350, 111, 4096, 8192, 16384)  # of tokens


def tree_of(number: int, device: torch.device) -> PrefixTree:
    rng = random.Random(0)
    trunk = [rng.randrange(900) for _ in range(number)]
    ends = [[rng.randrange(900) for _ in range(5)] for _ in range(4)]
    return PrefixTree.of([trunk[: number * (i + 1) // 4] + end for i, end in enumerate(ends)]).in_blocks(0).to(device)


def layer(tree: PrefixTree, window: int | None, grad: bool) -> None:
    options = {"device": tree.input_ids.device, "dtype": torch.bfloat16, "requires_grad": grad}
    query = torch.randn(1, HEADS, len(tree), SIZE, **options)
    key, value = (torch.randn(1, KEY_HEADS, len(tree), SIZE, **options) for _ in range(2))
    with torch.set_grad_enabled(grad):
        module = SimpleNamespace(training=True)
        output, _ = attend(module, query, key, value, None, tree, scaling=SIZE**-0.5, sliding_window=window)
        if grad:
            output.float().square().sum().backward()


def run(device: torch.device, small: bool) -> dict:
    if device.type != "cuda":
        raise LeftOut("FlexAttention is not used on this device")
    found = {}
    for name, windows, reentrant in (("full", [None], False), ("windows, reentrant", [64, None], True)):
        torch._dynamo.reset()
        for number in NUMBERS:
            tree = tree_of(number, device)
            with peak_of(device) as peak:
                for window in windows:
                    if reentrant:
                        layer(tree, window, False)
                    layer(tree, window, True)
            scores = 4 * HEADS * len(tree) ** 2  # bytes of one matrix of them
            assert number < 4096 or peak["bytes"] < scores / 2, (name, number, peak["bytes"], scores)
        found[f"{name}: GB at {number:,} tokens"] = peak["bytes"] / 1e9
    return found


if __name__ == "__main__":
    main(run)
