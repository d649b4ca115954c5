# SPDX-License-Identifier: Apache-2.0

"""Transfer of weights from the trainer to vLLM."""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from ...private_names import VLLMGeneration


# What a run with mixed precision multiplies matrices in.
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}

_FILE_BYTES = 4 << 30


def weights_of(engine: VLLMGeneration) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all weights under vLLM's names, gathered one by one: all processes must iterate over them."""
    model = engine.model
    head, tied_name = model.get_output_embeddings(), None
    if head is not None and model.config.get_text_config().tie_word_embeddings:
        tied_name = next(name for name, parameter in model.named_parameters() if parameter is head.weight)
        head_name = next(name for name, module in model.named_modules() if module is head)
    for name, weight in engine._iter_named_params():
        yield name, weight
        if name == tied_name:
            yield f"{head_name}.weight", weight  # must be sent, although it is tied to the input embeddings


def save_weights(engine: VLLMGeneration, directory: Path) -> None:
    """Write all weights as safetensors, matrices as the run computes with them. All processes must call this."""
    precision = PRECISIONS.get(engine.accelerator.mixed_precision)
    shard: dict[str, torch.Tensor] = {}
    num_files = 0

    def flush() -> None:
        nonlocal num_files
        save_file(shard, directory / f"model-{num_files:05d}.safetensors")
        num_files += 1
        shard.clear()

    writes = engine.accelerator.is_main_process
    if writes:
        directory.mkdir(parents=True)
    for name, weight in weights_of(engine):
        if writes:
            # Vectors stay as they are: vLLM computes with some of them in float32.
            dtype = precision if weight.is_floating_point() and weight.ndim > 1 else None
            shard[name] = weight.detach().to("cpu", dtype, copy=True).contiguous()
            if sum(weight.nbytes for weight in shard.values()) > _FILE_BYTES:
                flush()
    if shard:
        flush()


def save_adapter(engine: VLLMGeneration, directory: Path, writes: bool = True) -> None:
    """Write the adapter's weights. All processes must call this; those with `writes` write."""
    adapter = [parameter for parameter in engine.model.parameters() if parameter.requires_grad]
    with engine._dist.gather_params(adapter):
        if writes:
            # "auto" would ask the Hub about the base model each time. vLLM's adapters have no embeddings.
            engine.model.save_pretrained(
                directory, selected_adapters=engine.model.active_adapters, save_embedding_layers=False
            )
            for path in directory.glob("*/*"):  # PEFT gives adapters of other names than "default" a folder of theirs
                path.rename(directory / path.name)
