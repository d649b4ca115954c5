# SPDX-License-Identifier: Apache-2.0

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
