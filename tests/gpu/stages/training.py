# SPDX-License-Identifier: Apache-2.0

"""Gradient steps over an episode: trees (FlexAttention, and the head in chunks) against separate sequences."""

import torch
from common import LeftOut, main, make_examples, make_model, options_of_run, peak_of, seconds_of

from trl_nlac.method.batches import NLACCollator, split
from trl_nlac.method.losses import batch_losses
from trl_nlac.training.tree_attention import FLEX_DEVICES, start_sharing


def run(device: torch.device, small: bool) -> dict:
    if device.type not in FLEX_DEVICES | {"cpu"}:
        raise LeftOut("there is no FlexAttention for this device")
    size, dtype = ("small", torch.float32) if small else ("0.5b", torch.bfloat16)
    model = make_model(size, device, dtype)
    turns, turn, answer = (4, 40, 16) if small else (8, 512, 256)
    examples = make_examples(turns, turn, answer, model.config.vocab_size)
    assert start_sharing(model, model.config, options_of_run(device)), "the model cannot read trees"

    def step(shares: bool) -> torch.Tensor:
        model.zero_grad()
        collate = NLACCollator(0, shares, keeps_logits=False, device=device)
        losses = []
        for of_pass in [examples] if shares else split(examples, len(examples) // 2):
            losses.append(batch_losses(model, collate(of_pass)))
            losses[-1].sum().backward()
        return torch.cat(losses).detach().float().cpu()

    found = {}
    for side, shares in (("trees", True), ("separate", False)):
        step(shares)
        with peak_of(device) as peak:
            step(shares)
        found[f"{size}, {side}: GB"] = peak["bytes"] / 1e9
        found[f"{size}, {side}: seconds"] = seconds_of(lambda shares=shares: step(shares), device, 1 if small else 3)
    one, other = step(True), step(False)
    found[f"{size}: difference of the losses"] = float((one - other).norm() / other.norm())
    assert found[f"{size}: difference of the losses"] < (1e-5 if small else 0.02), found
    return found


if __name__ == "__main__":
    main(run)
