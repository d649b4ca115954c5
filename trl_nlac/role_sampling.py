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

from .generation import Sampling


if TYPE_CHECKING:
    from .nlac_config import NLACConfig


def role_samplings(args: "NLACConfig") -> dict[str, Sampling]:
    """
    How each role samples: its own options, or else those of all roles.

    Args:
        args ([`NLACConfig`]):
            Options of a run.

    Returns:
        `dict[str, Sampling]`: by the name of the role; `"evaluation"` is the policy when it is evaluated.
    """
    lengths = {
        **dict.fromkeys(("policy", "refine", "evaluation"), args.max_action_length),
        **dict.fromkeys(("backup", "critique"), args.max_critique_length),
        "successor": args.max_future_length,
    }
    temperatures = {
        "successor": args.successor_temperature,
        "backup": args.backup_temperature,
        "critique": args.critique_temperature,
        "refine": args.refine_temperature,
        "evaluation": args.eval_temperature,
    }
    top_ps = {
        "successor": args.successor_top_p,
        "backup": args.backup_top_p,
        "critique": args.critique_top_p,
        "refine": args.refine_top_p,
    }

    def own(value, default):
        return default if value is None else value

    return {
        role: Sampling(
            max_tokens=own(lengths.get(role), args.max_completion_length),
            temperature=own(temperatures.get(role), args.temperature),
            top_p=own(top_ps.get(role), args.top_p),
            top_k=args.top_k,
            min_p=own(args.refine_min_p if role == "refine" else None, args.min_p) or None,
            repetition_penalty=args.repetition_penalty,
            generation_kwargs=args.generation_kwargs or {},
            regex=args.vllm_structured_outputs_regex if role in ("policy", "refine", "evaluation") else None,
        )
        for role in ("policy", "successor", "backup", "critique", "refine", "correction", "evaluation")
    }
