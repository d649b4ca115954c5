# SPDX-License-Identifier: Apache-2.0

"""The weights before training, near which `beta` keeps the policy."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, extract_model_from_parallel, is_peft_model
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from trl.models import prepare_deepspeed, prepare_fsdp
from trl.trainer.utils import disable_dropout_in_model, get_config_model_id, use_adapter

from ..method.batches import MicroBatch
from ..method.head import answer_values
from ..method.losses import token_logps
from ..nlac_config import NLACConfig
from ..shards import is_zero3
from .model import REFERENCE_ADAPTER, load_by_name


if TYPE_CHECKING:
    from transformers import BitsAndBytesConfig


class Reference:
    """
    The weights before training. With an adapter this is the trained model without it, or with a copy of it from before
    training; otherwise a second, frozen model: a copy, or where weights are sharded the one of the same name.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model to train.
        args ([`NLACConfig`]):
            Options of the run.
        accelerator ([`~accelerate.Accelerator`]):
            How the models are distributed.
        quantization_config ([`~transformers.BitsAndBytesConfig`], *optional*):
            How to quantize the second model.

    Raises:
        ValueError: If a second model must be loaded, and the first has no name or path.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: NLACConfig,
        accelerator: Accelerator,
        quantization_config: "BitsAndBytesConfig | None" = None,
    ):
        self.model: nn.Module | None = None
        if is_peft_model(model):
            return
        if is_zero3(args.deepspeed_plugin) or accelerator.distributed_type == DistributedType.FSDP:
            reference = _load_again(model, args, quantization_config)
        else:
            reference = deepcopy(model).requires_grad_(False)
        if accelerator.distributed_type == DistributedType.DEEPSPEED:
            self.model = prepare_deepspeed(reference, accelerator)
        elif accelerator.distributed_type == DistributedType.FSDP:
            self.model = prepare_fsdp(reference, accelerator)
        else:
            self.model = accelerator.prepare_model(reference, evaluation_mode=True)

    def use_attention(self, config: PreTrainedConfig) -> None:
        """Let the second model attend as the model with this configuration does."""
        if self.model is not None:
            own = extract_model_from_parallel(self.model).config.get_text_config()
            own._attn_implementation = config.get_text_config()._attn_implementation

    @torch.no_grad()
    def logps(self, model: nn.Module, batch: MicroBatch) -> torch.Tensor:
        """
        Compute the log-probabilities that the initial weights give to the tokens of the policy's completions.

        Args:
            model (`nn.Module`):
                The model in training, wrapped or not.
            batch ([`~method.batches.MicroBatch`]):
                A batch with `anchored`.

        Returns:
            `torch.Tensor` of dtype `float32`: of each token of `batch.anchored`.
        """
        labels = batch.anchored.labels
        with self._initial(model) as initial:
            return answer_values(initial, batch.anchored, lambda logits, chunk: token_logps(logits, labels[chunk]))

    @contextmanager
    def _initial(self, model: nn.Module) -> Iterator[nn.Module]:
        """Yield a model with the initial weights: the second one, or the one in training with another adapter."""
        if self.model is not None:
            yield self.model
            return
        with_adapters = extract_model_from_parallel(model, keep_torch_compile=False)
        model.eval()
        with use_adapter(with_adapters, REFERENCE_ADAPTER if REFERENCE_ADAPTER in with_adapters.peft_config else None):
            yield model
        model.train()


def _load_again(
    model: PreTrainedModel, args: NLACConfig, quantization_config: "BitsAndBytesConfig | None"
) -> PreTrainedModel:
    """Load a model by its name a second time: of weights in shards no copy can be made."""
    name = get_config_model_id(model.config)
    if not name:
        raise ValueError(
            f"`beta={args.beta}` loads the initial weights again, and `model` has no name or path in its "
            "configuration. Pass `model` by name or path, train an adapter (`peft_config`), or set `beta=0`."
        )
    like_model = {"dtype": model.dtype, "attn_implementation": model.config._attn_implementation}
    reference = load_by_name(name, args, quantization_config, **like_model)
    if args.disable_dropout:
        disable_dropout_in_model(reference)
    return reference
