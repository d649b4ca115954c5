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

"""Configurations of models of the Hub, without a network and without weights."""

import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest


CONFIGS = Path(__file__).parents[1] / "planning" / "configs"


def cache_configs(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Let the cache of the Hub in `folder` have the `config.json` of the models that recipes and scripts name."""
    patch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    commit = 40 * "0"
    for path in CONFIGS.glob("*.json"):
        of_model = folder / f"models--Qwen--{path.stem}"
        (of_model / "refs").mkdir(parents=True)
        (of_model / "refs" / "main").write_text(commit)
        (of_model / "snapshots" / commit).mkdir(parents=True)
        shutil.copy(path, of_model / "snapshots" / commit / "config.json")
