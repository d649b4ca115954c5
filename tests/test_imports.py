# SPDX-License-Identifier: Apache-2.0

"""Two laws. The table: who may import whom, by folder, for every file. The border: what a fresh process loads."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import trl_nlac


PACKAGE = Path(trl_nlac.__file__).parent

# Folders and modules of the root, and what they may import of the others.
FREE = ("types", "private_names", "written_files")  # to all
TRAINER = {
    "types private_names written_files secrets shards prompts": "",
    "terminal": "secrets",
    "event_loop": "terminal",
    "options": "secrets terminal",
    "chat replay": "",
    "generation": "options secrets shards event_loop terminal",
    "nlac_config": "options secrets",
    "method": "chat generation nlac_config options prompts shards event_loop",
    "episodes": "method chat generation prompts event_loop terminal secrets shards",
    "evaluation": "episodes method chat generation prompts",
    "records": "evaluation episodes options nlac_config terminal secrets",
    "training": "records evaluation episodes method generation replay chat prompts nlac_config options "
    "event_loop secrets shards terminal",
    "nlac_trainer": "training records evaluation episodes method chat prompts nlac_config",
}
WINGS = {
    "environments": "episodes gateway chat prompts",
    "gateway": "episodes chat event_loop terminal secrets",
    "log_formats": "episodes chat gateway replay",
    "agent": "gateway log_formats evaluation episodes method chat generation options prompts secrets terminal",
    "planning": "nlac_config options",
    "report": "records evaluation agent log_formats terminal secrets",
    "cli __init__ __main__": "cli nlac_trainer report agent environments log_formats gateway planning records "
    "evaluation training episodes method generation replay chat prompts nlac_config options secrets terminal",
}
ALLOWED = {
    place: others.split() for table in (TRAINER, WINGS) for places, others in table.items() for place in places.split()
}
# Where only some modules of a folder may be imported.
ONLY = {
    ("environments", "gateway"): {"gateway.environment"},
    **dict.fromkeys([("environments", "chat"), ("evaluation", "chat")], {"chat.tool_calls"}),
    **dict.fromkeys([("episodes", "generation"), ("evaluation", "generation")], {"generation.generator"}),
    ("records", "episodes"): {"episodes.conversations", "episodes.text_environment"},
}
EMBEDDED = "environments.embedded"  # the only environments that know prompts
MAKES_TRAINERS = "cli.train"  # the only module of the command line that does
# Names that are not written where they are imported; the two faces hand on public names, when they are first used.
COMPUTED = "a computed name"
COMPUTES = {"__init__", "environments.__init__", "private_names", "cli.main", "cli.options", "environments.textarena"}

# Faces that import what they hand on; all others are empty, or import it when it is first used.
EAGER = {"agent", "cli", "replay", "report", "environments.embedded", "environments.twenty_questions"}

WING_NAMES = {name for names in WINGS for name in names.split() if not name.startswith("__")}
LOADED = (
    "import sys, pathlib\n"
    "names = sorted(name for name in sys.modules if name.startswith('trl_nlac.'))\n"
    "lines = sum(len(pathlib.Path(sys.modules[name].__file__).read_text().splitlines()) for name in names)\n"
    "print(lines, *names)"
)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imported(path: Path, package: Path = PACKAGE) -> set[str]:
    """Modules of the package that a file imports in any way, as dotted names below the package."""
    parts = path.relative_to(package).with_suffix("").parts[:-1]
    found = set()

    def relative(level: int, name: str) -> str:
        return ".".join([*parts[: len(parts) - level + 1], *filter(None, name.split("."))])

    nodes, loads = list(ast.walk(ast.parse(path.read_text()))), {"import_module", "__import__"}
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "importlib":
            loads |= {alias.asname for alias in node.names if alias.name == "import_module" and alias.asname}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            name = relative(node.level, node.module or "")
            # `from . import name` names a module
            found |= {f"{name}.{alias.name}".strip(".") for alias in node.names} if node.module is None else {name}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "trl_nlac":
            found.add(f"{node.module} (not relative)")
        elif isinstance(node, ast.Import):
            found |= {f"{a.name} (not relative)" for a in node.names if a.name.split(".")[0] == "trl_nlac"}
        elif isinstance(node, ast.Call) and _name(node.func) in loads:
            name, package = ([*node.args, *(word.value for word in node.keywords)] + [None, None])[:2]
            name = name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else COMPUTED
            level = len(name) - len(name.lstrip("."))
            if level and _name(package) == "__package__":
                found.add(relative(level, name.lstrip(".")))
            elif name == "trl_nlac":
                found.add("__init__")
            elif level or name == COMPUTED:
                found.add(COMPUTED)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"trl_nlac(\.\w+)+", str(node.value)):
            found.add(node.value.removeprefix("trl_nlac."))  # for whatever loads a module by its name
        elif isinstance(node, ast.Name | ast.Attribute) and _name(node) in loads and node not in called:
            found.add(COMPUTED)
    return found


def _name(node: ast.AST | None) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def place_of(module: str) -> str:
    return module.split(".")[0]


def is_allowed(importer: str, module: str) -> bool:
    if module == COMPUTED:
        return importer in COMPUTES
    place, other = place_of(importer), place_of(module)
    if other not in (place, *FREE, *ALLOWED[place]):
        return False
    if (place, other) == ("environments", "prompts") and not importer.startswith(EMBEDDED):
        return False
    if (place, other) == ("cli", "nlac_trainer") and importer != MAKES_TRAINERS:
        return False
    return module in ONLY.get((place, other), {module})


def test_every_file_is_governed():
    assert {place_of(module_of(path)) for path in PACKAGE.rglob("*.py")} == ALLOWED.keys()


def test_imports_follow_the_table():
    refused = [
        f"{module_of(path)} -> {module}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for module in sorted(imported(path))
        if not is_allowed(module_of(path), module)
    ]
    assert not refused, "\n".join(refused)


@pytest.mark.parametrize(
    "plant",
    [
        *("from ..gateway.server import the_server", "from trl_nlac.gateway.server import the_server"),
        *("import trl_nlac.nlac_trainer", "import trl_nlac.gateway.server as server", "__import__('trl_nlac.cli')"),
        "from importlib import import_module\nimport_module('trl_nlac.gateway.server')",
        "from importlib import import_module as load\nload(name='trl_nlac.gateway.server')",
        "import importlib\nimportlib.import_module('..gateway.server', __package__)",
        "def late():\n    from .. import nlac_trainer",
        "from importlib import import_module\nimport_module('.gateway.server', 'trl_nlac')",
        "from importlib import import_module\nimport_module(f'trl_nlac.{wing}')",
        "import importlib\nload = importlib.import_module\nload(wing)",
        "import runpy\nrunpy.run_module('trl_nlac.cli')",
    ],
)
def test_every_way_to_import_is_seen(tmp_path, plant):
    (tmp_path / "replay").mkdir()
    path = tmp_path / "replay" / "planted.py"
    path.write_text(plant)
    modules = imported(path, tmp_path)
    assert modules and not all(is_allowed("replay.planted", module) for module in modules)


def test_faces_are_lazy():
    for path in PACKAGE.rglob("__init__.py"):
        own = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom) and node.level]
        assert not own or module_of(path).removesuffix(".__init__") in EAGER, path


def test_every_file_has_a_name_of_its_own():
    names = Counter(path.name for path in PACKAGE.rglob("*.py"))
    assert {name for name, number in names.items() if number > 1} == {"__init__.py"}


@pytest.mark.parametrize(
    ("code", "own"),
    [("from trl_nlac import NLACTrainer", set()), ("from trl_nlac.environments import StepResult", {"environments"})],
)
def test_the_border(code, own):
    run = subprocess.run([sys.executable, "-c", f"{code}\n{LOADED}"], capture_output=True, text=True, check=True)
    lines, *names = run.stdout.splitlines()[-1].split()
    assert {name.removeprefix("trl_nlac.") for name in names if name.split(".")[1] in WING_NAMES} == own
    assert int(lines) <= 19_500


def test_no_circles():
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
