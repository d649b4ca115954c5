# SPDX-License-Identifier: Apache-2.0

"""
Peak memory of the loss: bytes for each token of a micro-batch and each word of the vocabulary, for samples of which 94
% are prompt. `distill` learns from a teacher's distributions (`policy_loss_type="distill"`). `all_logits` is the loss
of the logits of all tokens, as a model returns them by default.

Each side runs in a process of its own, once with a large vocabulary and once with a tiny one; what both need is not
counted, nor are the weights and their gradients.

    python -m benchmarks.systems.loss_memory --json benchmarks/results/loss_memory.json
"""

from contextlib import nullcontext

import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import reporting
from trl_nlac.method.batches import NLACCollator
from trl_nlac.method.losses import batch_losses
from trl_nlac.types import Prompt, TrainingExample


SIDES = ("answers", "distill", "all_logits")
PROMPT_SHARE, SAMPLES = 0.94, 4
HIDDEN = 16


def peak_bytes(side: str, tokens: int, vocabulary: int) -> int:
    """Measure the peak of a forward and a backward pass, without weights and their gradients."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=HIDDEN, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        max_position_embeddings=tokens,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    length = tokens // SAMPLES
    start = int(PROMPT_SHARE * length)
    examples = [
        TrainingExample(
            "critic",
            Prompt.of(ids[:start]),
            tuple(ids[start:]),
            teacher_prompt=Prompt.of(ids[:start][::-1]) if side == "distill" else None,
        )
        for ids in torch.randint(vocabulary, (SAMPLES, length)).tolist()
    ]
    batch = NLACCollator(0, keeps_logits=False)(examples)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = reporting.peak_bytes()
    if side == "all_logits":
        labels = batch.tokens.inputs["input_ids"].clone()
        labels[:, :start] = -100
        logits = model(**batch.tokens.inputs, use_cache=False).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
    else:
        loss = batch_losses(model, batch, nullcontext if side == "distill" else None).sum()
    loss.backward()
    return reporting.peak_bytes() - before


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--cell", nargs=2, metavar=("SIDE", "VOCABULARY"), help="measure this alone, and print it")
    args = parser.parse_args()
    if args.cell:
        print(peak_bytes(args.cell[0], args.tokens, int(args.cell[1])))
        return
    sides = {}
    for side in SIDES:
        words = ("--tokens", args.tokens, "--cell", side)
        # So that glibc returns memory that is freed, and the peak is that of what is in use.
        variables = {"MALLOC_MMAP_THRESHOLD_": "65536"}
        large, tiny = (
            reporting.alone("benchmarks.systems.loss_memory", *words, vocabulary, **variables)
            for vocabulary in (args.vocabulary, 32)
        )
        per_token_word = (large - tiny) / args.tokens / args.vocabulary
        sides[side] = {"peak_bytes": [large, tiny], "bytes_per_token_word": per_token_word}
        print(side, sides[side], flush=True)
    shape = {"tokens": args.tokens, "vocabulary": args.vocabulary, "prompt_share": PROMPT_SHARE, "dtype": "float32"}
    found = sides["answers"]["bytes_per_token_word"]
    setting = reporting.setting("torch", "transformers")
    reporting.write({**setting, "shape": shape, "bytes_per_token_word": found, "sides": sides}, args.json)


if __name__ == "__main__":
    main()
