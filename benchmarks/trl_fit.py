# SPDX-License-Identifier: Apache-2.0

"""
What TRL asks of an experimental trainer, measured here and in the experimental packages of the installed TRL.

python -m benchmarks.trl_fit --json benchmarks/results/trl_fit.json --page docs/source/contributing_to_trl.md

Reads source code, and imports none of it. The code of a trainer is every module of its package that it imports,
directly or not, also within functions; imports for type checkers do not count.
"""

import argparse
import ast
import importlib.util
import re
from pathlib import Path
from statistics import median

from benchmarks import reporting


ROOT = Path(__file__).parents[1]
COLUMNS = 119
# What users import: the package, its environments, and the command.
PUBLIC = re.compile(r"trl_nlac(\.environments(\.\w+)?|\.cli\.main)?")
STAND_INS = {"SimpleNamespace", "MagicMock", "Mock", "patch"}


def modules_of(package: Path) -> dict[str, Path]:
    """Return the modules below a package, by their dotted names."""
    name = package.name
    found = {}
    for path in package.rglob("*.py"):
        parts = [name, *path.relative_to(package).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, path: Path) -> set[str]:
    """Return the absolute names that a module imports, of modules and of what is in them."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    found, todo = set(), [ast.parse(path.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *(node.module.split(".") if node.module else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


def closure(start: str, modules: dict[str, Path]) -> set[str]:
    """Return `start` and the modules that it imports, directly or not. Folders' `__init__` count where named."""
    found, todo = set(), [start]
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            todo += [name for name in imports_of(module, modules[module]) if name in modules]
    return found


def figures_of(paths: list[Path]) -> dict[str, int]:
    """Count files, lines, calls of `getattr` and `hasattr`, and lines that are too long."""
    texts = [path.read_text() for path in paths]
    calls = [
        node.func.id
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    lines = [line for text in texts for line in text.splitlines()]
    return {
        "files": len(texts),
        "lines": len(lines),
        "probes": sum(name in ("getattr", "hasattr") for name in calls),
        "long_lines": sum(len(line) > COLUMNS for line in lines),
    }


def figures_of_tests(folder: Path) -> dict[str, int]:
    """Count test functions, those in files that import public names alone, and those with stand-ins."""
    counts = {"tests": 0, "public": 0, "stand_ins": 0}
    for path in folder.rglob("test_*.py"):
        tree = ast.parse(path.read_text())
        imported = [
            node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "trl_nlac"
        ]
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
                replaced = {
                    inner.attr
                    for inner in ast.walk(node)
                    if isinstance(inner, ast.Attribute) and ast.unparse(inner.value) == "monkeypatch"
                }
                counts["tests"] += 1
                counts["public"] += all(map(PUBLIC.fullmatch, imported))
                counts["stand_ins"] += bool(names & STAND_INS or replaced & {"setattr", "setitem"})
    return counts


def measure(package: Path, trl: Path, tests: Path) -> dict:
    """Measure this package and TRL's experimental ones."""
    ours = modules_of(package)
    experimental = {}
    for folder in sorted((trl / "experimental").iterdir()):
        trainers = sorted(folder.glob("*_trainer.py"))
        if trainers:
            experimental[folder.name] = figures_of(sorted(folder.rglob("*.py")))
    return {
        "package": figures_of(list(ours.values())),
        "trainer": figures_of([package / "nlac_trainer.py"]),
        "trainer_with_imports": figures_of([ours[name] for name in closure("trl_nlac.nlac_trainer", ours)]),
        "tests": figures_of_tests(tests),
        "trl_experimental": experimental,
    }


def as_markdown(report: dict) -> str:
    """Format the figures as a table."""
    trl, code, tests = report["trl_experimental"].values(), report["trainer_with_imports"], report["tests"]

    def row(label: str, name: str) -> str:
        values = [figures[name] for figures in trl]
        there = f"{median(values):,.0f} (at most {max(values):,})"
        return f"| {label} | {there} | {code[name]:,} | {report['trainer'][name]:,} |"

    return "\n".join(
        [
            f"| | TRL {report['versions']['trl']}: a package of `trl.experimental`, median of {len(trl)} "
            "| here: `NLACTrainer` and all it imports | here: `nlac_trainer.py` |",
            "|---|---|---|---|",
            row("files", "files"),
            row("lines", "lines"),
            row("calls of `getattr` and `hasattr`", "probes"),
            row(f"lines over {COLUMNS} columns", "long_lines"),
            "",
            f"Of {tests['tests']:,} test functions here, {tests['public']:,} are in files that"
            f" import public names alone, and {tests['stand_ins']:,} replace something with `monkeypatch` or a mock.",
            f"The whole package has {report['package']['lines']:,} lines in {report['package']['files']:,} files.",
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/trl_fit.json"))
    parser.add_argument("--page", type=Path, help="Markdown file whose results are replaced by the table")
    args = parser.parse_args()
    trl = Path(importlib.util.find_spec("trl").origin).parent
    figures = measure(ROOT / "trl_nlac", trl, ROOT / "tests")
    report = {"command": "python -m benchmarks.trl_fit", **reporting.setting("trl"), **figures}
    reporting.publish(report, as_markdown(report), "trl_fit.py", args.json, args.page)


if __name__ == "__main__":
    main()
