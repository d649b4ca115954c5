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

"""The origin of a run: its environment and tasks. `train` writes it, `evaluate` and `play` read it."""

import argparse
import json
from pathlib import Path
from typing import Any

from .options import CommandError


# Not uploaded with the output folder, because of the underscore: keyword arguments of an environment can be secret.
ORIGIN = "_nlac_run.json"


def note_origin(
    output_dir: str | Path,
    environment_factory: list[str],
    environment_kwargs: dict[str, Any],
    dataset_name: str | None,
    dataset_config: str | None = None,
    dataset_split: str = "train",
    tools: list[str] | None = None,
    reward_funcs: list[str] | None = None,
    reward_weights: list[float] | None = None,
) -> None:
    """
    Write down the origin of a run, so that `trl-nlac evaluate` and `play` find environment and tasks again.

    Args:
        output_dir (`str` or `Path`):
            Folder of the run.
        environment_factory (`list[str]`):
            The environment's class or function, as `module:Class`.
        environment_kwargs (`dict[str, Any]`):
            Its keyword arguments.
        dataset_name (`str`, *optional*):
            Dataset of the tasks.
        dataset_config (`str`, *optional*), dataset_split (`str`, *optional*, defaults to `"train"`):
            Configuration and split of the dataset.
        tools (`list[str]`, *optional*), reward_funcs (`list[str]`, *optional*):
            Standalone tools, and functions that score episodes, as `module:function`.
        reward_weights (`list[float]`, *optional*):
            Weights of these functions.
    """
    origin = {
        "environment_factory": environment_factory,
        "environment_kwargs": environment_kwargs,
        "dataset_name": dataset_name,
        "dataset_config": dataset_config,
        "dataset_split": dataset_split,
        "tools": tools,
        "reward_funcs": reward_funcs,
        "reward_weights": reward_weights,
    }
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    Path(output_dir, ORIGIN).write_text(json.dumps(origin, indent=2) + "\n")


def fill_from_run(args: argparse.Namespace) -> None:
    """Take environment and tasks from the origin of a run, where the command line names none."""
    path = Path(args.model, ORIGIN)
    saved = json.loads(path.read_text()) if path.is_file() else {}
    if args.environment_factory is None and not args.tools:
        if "environment_factory" not in saved:
            raise CommandError(
                f"{args.model} has no {ORIGIN}, which names its environment: add --environment_factory module:Class."
            )
        args.environment_factory = saved["environment_factory"]
        args.environment_kwargs = args.environment_kwargs or json.dumps(saved["environment_kwargs"])
        args.tools = saved.get("tools")
        if args.reward_funcs is None:
            args.reward_funcs, args.reward_weights = saved.get("reward_funcs"), saved.get("reward_weights")
    if args.dataset_name is None and saved.get("dataset_name"):
        args.dataset_name, args.dataset_config = saved["dataset_name"], saved["dataset_config"]
        args.dataset_split = args.dataset_split or saved["dataset_split"]
    args.dataset_split = args.dataset_split or "train"
