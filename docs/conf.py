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

"""Sphinx configuration: the Markdown pages of docs/source, in the order of its _toctree.yml, with [[autodoc]] as TRL."""

import inspect
import pydoc
import re
from pathlib import Path

import yaml


project = "trl-nlac"
html_title = "trl-nlac"
html_show_copyright = False
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
autodoc_typehints = "none"

TOCTREE = yaml.safe_load((Path(__file__).parent / "source" / "_toctree.yml").read_text())


def toctrees() -> str:
    """The navigation, one toctree per section."""
    text = ""
    for section in TOCTREE:
        pages = [f"{page['title']} <{page['local']}>" for page in section["sections"] if page["local"] != "index"]
        text += "\n".join(["\n\n```{toctree}", f":caption: {section['title']}", ":hidden:", "", *pages, "```\n"])
    return text


def autodoc(match: re.Match) -> str:
    """`[[autodoc]] Name`, with its listed methods if any, as a Sphinx directive."""
    name, methods = match[1].removeprefix("trl_nlac."), re.findall(r"- (\w+)", match[2])
    item = pydoc.locate(f"trl_nlac.{name}")
    if item is None:
        raise ValueError(f"[[autodoc]] {match[1]}: trl_nlac has no such object. Correct the name in the page.")
    kind = "autoclass" if inspect.isclass(item) else "autofunction"
    members = f"\n   :members: {', '.join(methods)}" if methods else ""
    return f"```{{eval-rst}}\n.. {kind}:: trl_nlac.{name}{members}\n```"


def on_source_read(app, docname, source):
    source[0] = re.sub(r"^\[\[autodoc\]\] ([\w.]+)((?:\n+[ \t]+- \w+)*)", autodoc, source[0], flags=re.MULTILINE)
    if docname == "index":
        source[0] += toctrees()


def setup(app):
    app.connect("source-read", on_source_read)
