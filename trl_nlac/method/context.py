# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""What a model's context has room for."""

import math

from accelerate.logging import get_logger
from transformers import PreTrainedConfig

from ..options.roles import RoleOptions
from .roles import role_samplings


logger = get_logger(__name__)


def context_length(config: PreTrainedConfig) -> int | None:
    """Return the number of tokens of a model's context, `max_position_embeddings`; some models have no limit."""
    config = config.get_text_config()
    name = config.attribute_map.get("max_position_embeddings", "max_position_embeddings")
    return config.to_dict().get(name)


def fit_to_context(options: RoleOptions, context: float | None) -> None:
    """
    Lower `max_prompt_length` to what a context has room for beside the longest answer of any role, with a warning.
    Longer histories are cut, as always.

    Args:
        options ([`~options.roles.RoleOptions`]):
            Options of the roles, which change.
        context (`float`, *optional*):
            Number of tokens of the context. If `None`, there is no limit.

    Raises:
        ValueError: If the context has no room for more than an answer.
    """
    tokens = {name: sampling.max_tokens for name, sampling in role_samplings(options).items()}
    longest = max(tokens.values())
    role = next(role for role, number in tokens.items() if number == longest)
    is_general = longest == options.max_completion_length
    option = f"max_completion_length={longest}" if is_general else f"role_sampling[{role!r}]['max_tokens']={longest}"
    if context is None or (options.max_prompt_length or math.inf) + longest <= context:
        return
    room = context - longest
    if room < 1:
        raise ValueError(
            f"`{option}` leaves no room for a prompt in the context of the model, which is {context} tokens. Lower it."
        )
    logger.warning(
        f"The context of the model is {context} tokens, and `max_prompt_length={options.max_prompt_length}` with "
        f"`{option}` needs more: longer histories are cut to `max_prompt_length={room}`. Lower one of these options, "
        "or use a model with a longer context."
    )
    options.max_prompt_length = room
