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

import ast
from pathlib import Path

import trl_nlac


PACKAGE = Path(trl_nlac.__file__).parent


def imports(path: Path) -> set[str]:
    """Modules of the package that a module imports, as dotted names below the package."""
    found = set()
    package = ["trl_nlac", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            found.add(".".join([*base[1:], *(node.module or "").split(".")]).strip("."))
    return found


def test_imports_go_one_way():
    allowed = {
        "types": set(),
        "losses": set(),
        "numerics": {"failures", "losses"},
        "saving": set(),
        "shards": set(),
        "target_weights": {"shards"},
        "generation": set(),
        "event_loop": set(),
        "vllm_generation": {"generation", "shards"},
        "vllm_weights": set(),
        "vllm_local": {"generation", "vllm_generation"},
        "vllm_colocate": {"vllm_generation", "vllm_local", "vllm_weights"},
        "vllm_offline": {"generation", "saved_roles", "vllm_generation", "vllm_local"},
        "endpoint": {"event_loop", "generation", "vllm_generation"},
        "vllm_server": {"event_loop", "generation", "vllm_generation", "vllm_weights"},
        "vllm_config": set(),
        "prompts": set(),
        "tool_calls": set(),
        "chat": {"tool_calls"},
        "metrics": {"types"},
        "sampler": set(),
        "log_history": set(),
        "report.log": {"log_history"},
        "report.charts": {"report.log"},
        "report.summary": {"report.log"},
        "report.calibration": {"metrics"},
        "report.episodes": set(),
        "report.run_files": {"report.episodes", "run_folder"},
        "environments.base": {"types"},
        **{f"environments.{name}": {"environments.base"} for name in ("gym", "math", "openenv", "textarena")},
        "environments.tau_bench": {"environments.base", "tool_calls"},
        "collator": {"losses", "types"},
        "sum_tree": set(),
        "episode_store": {"types"},
        "episode_files": {"types"},
        "resharding": {"episode_files", "types"},
        "replay": {
            "conversations",
            "episode_files",
            "episode_store",
            "hub",
            "resharding",
            "roles",
            "sum_tree",
            "types",
        },
        "hub": {"log_history", "nlac_config", "record_options", "run_folder"},
        "saved_roles": {"nlac_config", "prompts"},
        "rehearsal": {"chat", "types"},
        "checkpoint": {"replay", "target_weights", "types"},
        "roles": {"chat", "generation", "prompts", "tool_calls", "types"},
        "reasoning": {"prompts", "roles", "types"},
        "critic": {"generation", "prompts", "reasoning", "roles", "types"},
        "refinement": {"critic", "prompts", "reasoning", "roles", "types"},
        "rewards": {"environments.base", "event_loop"},
        "logs": {"conversations", "environments.pool", "nlac_config", "replay", "roles", "types"},
        "conversations": {"environments.base", "recorder", "roles", "tool_calls", "types"},
        "environments.worker": {"environments.base", "event_loop"},
        "environments.trl_env": {"environments.base", "event_loop", "tool_calls"},
        "environments.pool": {f"environments.{name}" for name in ("base", "gym", "trl_env", "worker")},
        "recorder": {"environments.base", "prompts", "roles", "types"},
        "rollout": {
            *(f"environments.{name}" for name in ("base", "pool", "worker")),
            *("generation", "prompts", "recorder", "rewards", "roles", "types"),
        },
        "health": {"metrics", "prompts", "refinement", "types"},
        "run_folder": set(),
        "improvement": {"critic", "generation", "refinement", "roles", "types"},
        "record_options": set(),
        "episode_tables": {"critic", "nlac_config", "run_folder", "types"},
        "audit": {"critic", "losses", "refinement", "roles", "run_folder", "types"},
    }
    for name, modules in allowed.items():
        assert imports(PACKAGE / f"{name.replace('.', '/')}.py") <= modules, name


def test_who_knows_the_trainer():
    """The package shows it, and a command makes one."""
    for path in PACKAGE.rglob("*.py"):
        if path.name != "__init__.py" and path != PACKAGE / "commands" / "train.py":
            assert "nlac_trainer" not in imports(path), path


def test_files_are_small():
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 500, path


def test_vllm_has_files_of_its_own():
    """`make test-vllm` reads no others, which need packages that its environment lacks."""
    for path in Path(__file__).parent.rglob("*.py"):
        if "pytest.mark." + "vllm" in path.read_text():
            assert path.match("tests/test_vllm*.py"), path
