# SPDX-License-Identifier: Apache-2.0

"""What the context of a model and of what generates has room for."""

import logging
import math

from accelerate.logging import get_logger
from transformers import PreTrainedConfig, PreTrainedModel

from ..generation.generator import Generator
from ..options.role_options import RoleOptions
from .roles import role_samplings


logger = get_logger(__name__)


def context_length(config: PreTrainedConfig) -> int | None:
    """Return the number of tokens of a model's context, `max_position_embeddings`; some models have no limit."""
    config = config.get_text_config()
    name = config.attribute_map.get("max_position_embeddings", "max_position_embeddings")
    return config.to_dict().get(name)


def context_of(generator: Generator, model: PreTrainedModel | None) -> float:
    """Return the tokens of the context: the model's, if there is one here, or the generator's where that is less."""
    of_model = None if model is None else context_length(model.config)
    return min(generator.max_model_length, of_model or math.inf)


def fit_to_context(options: RoleOptions, context: float) -> None:
    """
    Lower `max_prompt_length` to what a context of so many tokens, see [`context_of`] (infinite if there is no limit),
    has room for beside the longest answer of any role, with a warning if it is not the default. Longer histories are
    cut, as always. Raise a `ValueError` if the context has no room for more than an answer.
    """
    tokens = {name: sampling.max_tokens for name, sampling in role_samplings(options).items()}
    longest = max(tokens.values())
    role = next(role for role, number in tokens.items() if number == longest)
    is_general = longest == options.max_completion_length
    option = f"max_completion_length={longest}" if is_general else f"role_sampling[{role!r}]['max_tokens']={longest}"
    if (options.max_prompt_length or math.inf) + longest <= context:
        return
    longer = "use a longer context, of the model or of vLLM (`vllm_max_model_length`; of a server, `--max-model-len`)"
    room = context - longest
    if room < 1:
        raise ValueError(
            f"`{option}` leaves no room for a prompt in the context of {context} tokens. Lower it, or {longer}."
        )
    level = logging.INFO if options.max_prompt_length == RoleOptions.max_prompt_length else logging.WARNING
    logger.log(
        level,
        f"The context is {context} tokens, and `max_prompt_length={options.max_prompt_length}` with `{option}` needs "
        f"more: longer histories are cut to `max_prompt_length={room}`. Lower one of these options, or {longer}.",
    )
    options.max_prompt_length = room
