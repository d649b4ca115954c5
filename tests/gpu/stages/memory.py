# SPDX-License-Identifier: Apache-2.0

"""Peaks of memory in passes, against the formulas of `trl-nlac plan`. Needs torch and transformers."""

import torch
from common import config_of, main, make_model, peak_of

from trl_nlac.method.batches import NLACCollator
from trl_nlac.method.losses import batch_losses
from trl_nlac.planning.memory import Precision, activations, loss_bytes
from trl_nlac.planning.shape import model_shape
from trl_nlac.types import Prompt, TrainingExample


# Size, tokens of the prompt and of the answer. Weights are in bfloat16, as under DeepSpeed.
CASES = {False: [("0.5b", 2048, 512), ("0.5b", 7680, 1024), ("7b", 2048, 512)], True: [("small", 128, 32)]}


def run(device: torch.device, small: bool) -> dict:
    found, wrong = {}, []
    for size, prompt, answer in CASES[small]:
        if size == "7b" and device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < 60e9:
            continue
        model = make_model(size, device, torch.float32 if small else torch.bfloat16).train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        examples = [
            TrainingExample(loss, Prompt.of([5] * prompt), (token,) * answer, 1.0, 0)
            for loss, token in (("critic", 1), ("policy", 2))
        ]
        batch = NLACCollator(0, keeps_logits=False, device=device)(examples)

        def step(model=model, batch=batch):
            batch_losses(model, batch).sum().backward()

        step()
        with peak_of(device) as peak:
            step()
        shape = model_shape(config_of(size))
        precision = Precision.of("none" if small else "zero3", 4 if small else 2, not small, False)
        passing = activations(shape, precision, 2 * (prompt + answer), 2 * answer, True)
        planned = max(passing.peaks(*loss_bytes(shape, precision, 2 * answer)).values())
        name = f"{size}, {2 * (prompt + answer):,} tokens"
        found[f"{name}: GB measured"], found[f"{name}: GB planned"] = peak["bytes"] / 1e9, planned / 1e9
        if peak["bytes"] and not 0.85 < planned / peak["bytes"] < 1.15:
            wrong.append(name)
        del model, batch
    assert not wrong, (wrong, found)
    return found


if __name__ == "__main__":
    main(run)
