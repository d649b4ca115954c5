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

"""The roles beside a saved model: their words, and how they speak."""

import json
from pathlib import Path
from typing import Any

from transformers.utils import cached_file

from ..nlac_config import NLACConfig
from ..prompts import NLACPrompts


PROMPTS_FILE = "nlac_prompts.json"
ROLES_FILE = "nlac_roles.json"
# Options of the trainer's configuration that tell how the roles speak, and when they have succeeded.
ROLE_OPTIONS = (
    "action_format",
    "single_step",
    "num_futures",
    "reasoning",
    "max_format_retries",
    "max_turns",
    "success_threshold",
    "max_prompt_length",
    "max_completion_length",
    "max_action_length",
    "max_future_length",
    "max_critique_length",
    "temperature",
    "eval_temperature",
    "successor_temperature",
    "backup_temperature",
    "critique_temperature",
    "refine_temperature",
    "top_p",
    "successor_top_p",
    "backup_top_p",
    "critique_top_p",
    "refine_top_p",
    "top_k",
    "min_p",
    "successor_min_p",
    "backup_min_p",
    "critique_min_p",
    "refine_min_p",
    "repetition_penalty",
    "generation_kwargs",
    "chat_template_kwargs",
)


def save_roles(directory: str | Path, args: NLACConfig, prompts: NLACPrompts) -> None:
    """Write the words of the roles and the options by which they speak."""
    prompts.save(Path(directory, PROMPTS_FILE))
    options = {name: vars(args)[name] for name in ROLE_OPTIONS}
    Path(directory, ROLES_FILE).write_text(json.dumps(options, indent=2) + "\n", encoding="utf-8")


def load_roles(model: str, revision: str | None = None) -> tuple[dict[str, Any], NLACPrompts]:
    """
    What [`save_roles`] wrote into a folder or a repository on the Hub: the options and the words; the defaults where
    there is nothing.
    """
    options, prompts = (find_file(model, name, revision) for name in (ROLES_FILE, PROMPTS_FILE))
    return (
        json.loads(options.read_text(encoding="utf-8")) if options else {},
        NLACPrompts.from_file(prompts) if prompts else NLACPrompts(),
    )


def find_file(model: str, name: str, revision: str | None = None) -> Path | None:
    """A file beside a model, in its folder or on the Hub, if there is one."""
    path = cached_file(model, name, revision=revision, _raise_exceptions_for_missing_entries=False)
    return None if path is None else Path(path)
