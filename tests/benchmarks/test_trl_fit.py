# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path

from benchmarks.trl_fit import as_markdown, closure, figures_of, figures_of_tests, modules_of


ROOT = Path(__file__).parents[2]


def write(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_closure_follows_every_import_but_those_of_types(tmp_path):
    package = write(
        tmp_path / "house",
        start="import json\nfrom typing import TYPE_CHECKING\nfrom .rooms import hall\n"
        "if TYPE_CHECKING:\n    from .types_only import Type\n\n"
        "def later():\n    from house.rooms.attic import view\n",
        rooms__hall="from ..floor import tiles\n",
        rooms__attic="view = 1\n",
        floor="tiles = 1\n",
        types_only="",
        unused="",
    )
    (package / "rooms" / "__init__.py").write_text("")
    found = closure("house.start", modules_of(package))
    assert found == {"house.start", "house.rooms", "house.rooms.hall", "house.rooms.attic", "house.floor"}


def test_figures(tmp_path):
    text = "# getattr(a, b) in a comment\nx = getattr(1, 'y', hasattr(2, 'z'))\n" + "é" * 119 + " = 1\n"
    write(tmp_path, one=text)
    assert figures_of([tmp_path / "one.py"]) == {"files": 1, "lines": 3, "probes": 2, "long_lines": 1}


def test_figures_of_tests(tmp_path):
    write(
        tmp_path,
        test_public="from trl_nlac import NLACTrainer\nfrom trl_nlac.environments.math import MathEnvironment\n\n"
        "def test_a():\n    pass\n\ndef helper():\n    pass\n",
        test_private="from trl_nlac.method.critic import parse\n\ndef test_b(monkeypatch):\n"
        "    monkeypatch.setattr('a', 1)\n\ndef test_c(monkeypatch):\n    monkeypatch.chdir('/')\n",
    )
    assert figures_of_tests(tmp_path) == {"tests": 3, "public": 1, "stand_ins": 1}


def test_the_page_has_the_committed_figures():
    report = json.loads((ROOT / "benchmarks" / "results" / "trl_fit.json").read_text())
    assert as_markdown(report) in (ROOT / "docs" / "source" / "contributing_to_trl.md").read_text()
