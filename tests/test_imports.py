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

"""Who may import whom in the package: one table, by folder, for every file."""

import ast
from pathlib import Path

import trl_nlac


PACKAGE = Path(trl_nlac.__file__).parent

# Folders and modules of the root, and what they may import of the others. `types` is free to all.
TABLE = {
    "types secrets shards prompts": "",
    "terminal": "secrets",
    "options": "secrets terminal",
    "event_loop": "terminal",
    "chat replay": "",
    "gateway": "chat event_loop terminal",
    "generation": "options secrets shards event_loop",
    "nlac_config": "options secrets",
    "planning": "nlac_config",
    "method": "chat generation options prompts shards",
    "environments": "chat gateway prompts event_loop terminal secrets",
    "episodes": "method environments chat generation prompts event_loop terminal secrets shards",
    "log_formats": "episodes chat replay",
    "training": "method replay chat prompts nlac_config options event_loop secrets shards terminal",
    "evaluation": "episodes method environments chat generation prompts",
    "records": "evaluation episodes environments options nlac_config terminal secrets",
    "agent": "evaluation episodes method environments gateway chat generation options prompts secrets terminal",
    "report": "records evaluation terminal secrets",
    "nlac_trainer": "report records evaluation training episodes environments method generation replay chat prompts "
    "nlac_config shards",
    "cli __init__ __main__": "cli nlac_trainer report agent records evaluation training episodes environments method "
    "log_formats gateway planning nlac_config generation replay chat prompts options secrets terminal",
}
ALLOWED = {place: others.split() for places, others in TABLE.items() for place in places.split()}
# Where only one module of a folder may be imported: for every importer, or for those that are named.
ONLY = {
    "environments": {"chat": {"chat.tool_calls"}},
    "episodes": {"generation": {"generation.base"}},
    "evaluation": {"generation": {"generation.base"}, "chat": {"chat.tool_calls"}},
    "records": {"environments": {"environments.base"}},
}
EMBEDDED = "environments.embedded"  # the only environments that know prompts
TRAINER = "cli.train"  # the only module that makes a trainer


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imported(path: Path) -> set[str]:
    """Modules of the package that a file imports, as dotted names below the package."""
    package, found = module_of(path).split(".")[:-1], set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            name = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            # `from . import name` names a module
            found |= {f"{name}.{alias.name}".strip(".") for alias in node.names} if node.module is None else {name}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "trl_nlac":
            found.add(f"{node.module} (not relative)")
    return found


def place_of(module: str) -> str:
    """The folder of a module; of one in the root, the module."""
    return module.split(".")[0]


def test_every_file_is_governed():
    assert {place_of(module_of(path)) for path in PACKAGE.rglob("*.py")} == ALLOWED.keys()


def test_imports_follow_the_table():
    refused = []
    for path in sorted(PACKAGE.rglob("*.py")):
        importer = module_of(path)
        place = place_of(importer)
        for module in imported(path):
            other = place_of(module)
            allowed = other in (place, "types", *ALLOWED[place])
            if other in ONLY.get(place, {}):
                allowed &= module in ONLY[place][other]
            if place == "environments" and other == "prompts":
                allowed &= importer.startswith(EMBEDDED)
            if place == "cli" and other == "nlac_trainer":
                allowed &= importer == TRAINER
            if not allowed:
                refused.append(f"{importer} -> {module}")
    assert not refused, "\n".join(refused)


def test_no_circles():
    """Also within folders, whose `__init__` only exports."""
    graph = {}
    for path in PACKAGE.rglob("*.py"):
        module = module_of(path)
        if not module.endswith("__init__"):
            graph[module] = {name for name in imported(path) if (PACKAGE / f"{name.replace('.', '/')}.py").exists()}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join([*trail[trail.index(module) :], module])
        if module not in done:
            for other in graph[module]:
                visit(other, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_vllm_has_files_of_its_own():
    """`make test-vllm` reads no others, which need packages that its environment lacks."""
    for path in Path(__file__).parent.rglob("*.py"):
        if "pytest.mark." + "vllm" in path.read_text():
            assert path.name.startswith("test_vllm"), path
