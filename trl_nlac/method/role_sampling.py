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

"""How each role samples, by the options of a run."""

from typing import TYPE_CHECKING

from ..generation.base import Sampling


if TYPE_CHECKING:
    from ..nlac_config import NLACConfig


def role_samplings(args: "NLACConfig") -> dict[str, Sampling]:
    """
    How each role samples: its own options, or else those of all roles.

    Args:
        args ([`NLACConfig`]):
            Options of a run.

    Returns:
        `dict[str, Sampling]`: by the name of the role; `"evaluation"` is the policy when it is evaluated.
    """
    action, critique = args.max_action_length, args.max_critique_length
    own = {
        "policy": (action, None, None, None),
        "successor": (args.max_future_length, args.successor_temperature, args.successor_top_p, args.successor_min_p),
        "backup": (critique, args.backup_temperature, args.backup_top_p, args.backup_min_p),
        "critique": (critique, args.critique_temperature, args.critique_top_p, args.critique_min_p),
        "refine": (action, args.refine_temperature, args.refine_top_p, args.refine_min_p),
        "correction": (None, None, None, None),
        "evaluation": (action, args.eval_temperature, None, None),
    }
    return {
        role: Sampling(
            max_tokens=max_tokens or args.max_completion_length,
            temperature=args.temperature if temperature is None else temperature,
            top_p=top_p or args.top_p,
            top_k=args.top_k,
            min_p=(args.min_p if min_p is None else min_p) or None,
            repetition_penalty=args.repetition_penalty,
            generation_kwargs=args.generation_kwargs or {},
            regex=args.vllm_structured_outputs_regex if role in ("policy", "refine", "evaluation") else None,
        )
        for role, (max_tokens, temperature, top_p, min_p) in own.items()
    }
