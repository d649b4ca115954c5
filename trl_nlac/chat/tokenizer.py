# SPDX-License-Identifier: Apache-2.0

"""A tokenizer that agrees with its model."""

from transformers import AutoProcessor, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from ..private_names import get_config_model_id


def load_processing_class(
    model: PreTrainedModel, revision: str | None = None, trust_remote_code: bool = False, folder: str | None = None
) -> PreTrainedTokenizerBase | ProcessorMixin:
    """
    Load the tokenizer of a model, or the processor of a multimodal one, from `folder`. If it is `None`, it is that of
    the model, or of the base model of an adapter. Raise a `ValueError` if it cannot be loaded.
    """
    name = folder or get_config_model_id(model.config)
    try:
        return AutoProcessor.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    except Exception as error:  # its files can make the libraries raise anything
        raise ValueError(f"The tokenizer of {name} cannot be loaded: {type(error).__name__}: {error}") from error


def tokenizer_of(
    processing_class: PreTrainedTokenizerBase | ProcessorMixin, model: PreTrainedModel
) -> PreTrainedTokenizerBase:
    """
    Return a tokenizer, or that of a processor, with a padding token that it and the model use. Raise a `ValueError` if
    it has neither a padding nor an end-of-sequence token. Raise a `TypeError` if `processing_class` is neither a
    tokenizer nor a processor.
    """
    if isinstance(processing_class, ProcessorMixin):
        processing_class = processing_class.tokenizer
    if not isinstance(processing_class, PreTrainedTokenizerBase):
        raise TypeError(f"`processing_class` must be a tokenizer or a processor, got {processing_class!r}.")
    if processing_class.pad_token is None:
        if processing_class.eos_token is None:
            raise ValueError(
                "The tokenizer (`processing_class`) has neither a `pad_token` nor an `eos_token`. Set "
                "`tokenizer.pad_token`."
            )
        processing_class.pad_token = processing_class.eos_token
    model.config.get_text_config().pad_token_id = processing_class.pad_token_id
    model.generation_config.pad_token_id = processing_class.pad_token_id
    return processing_class


def ending_token_ids(
    tokenizer: PreTrainedTokenizerBase, stop_ids: list[int], generation_config: GenerationConfig | None = None
) -> list[int]:
    """List the tokens that end a completion, of template, tokenizer and model, which can be wrong: a `ValueError`."""
    declared = generation_config.eos_token_id if generation_config else None
    declared = declared if isinstance(declared, list) else [declared]
    if not all(isinstance(token_id, int | None) for token_id in declared):
        raise ValueError(f"`eos_token_id` of the model's generation_config.json is no token: {declared!r:.200}.")
    token_ids = [*stop_ids, tokenizer.eos_token_id, *declared]
    return [token_id for token_id in dict.fromkeys(token_ids) if token_id is not None]
