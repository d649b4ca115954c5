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

"""Sphinx configuration: Markdown pages of docs/source in the order of _toctree.yml, with [[autodoc]] as in TRL."""

import inspect
import pydoc
import re
from pathlib import Path

import yaml


project = "trl-nlac"
html_title = "trl-nlac"
html_show_copyright = False
html_theme_options = {"page_width": "1100px"}
extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

TOCTREE = yaml.safe_load((Path(__file__).parent / "source" / "_toctree.yml").read_text())


def toctrees() -> str:
    """The navigation, one toctree per section."""
    text = ""
    for section in TOCTREE:
        pages = [f"{page['title']} <{page['local']}>" for page in section["sections"] if page["local"] != "index"]
        text += "\n".join(["\n\n```{toctree}", f":caption: {section['title']}", ":hidden:", "", *pages, "```\n"])
    return text


def autodoc(match: re.Match) -> str:
    """`[[autodoc]] Name`, with its listed methods if any, as Markdown: docstrings are Markdown in TRL's format."""
    name, methods = match[1].removeprefix("trl_nlac."), re.findall(r"- (\w+)", match[2])
    item = pydoc.locate(f"trl_nlac.{name}")
    if item is None:
        raise ValueError(f"[[autodoc]] {match[1]}: trl_nlac has no such object. Correct the name in the page.")
    parts = [described(item, f"class trl_nlac.{name}" if inspect.isclass(item) else f"trl_nlac.{name}")]
    parts += [described(getattr(item, method), f"{name.split('.')[-1]}.{method}") for method in methods]
    return "\n\n".join(parts)


def described(item, name: str) -> str:
    """Signature and docstring."""
    parameters = []
    is_error = inspect.isclass(item) and issubclass(item, Exception)  # those have no signature of their own
    for parameter in [] if is_error else inspect.signature(item).parameters.values():
        if parameter.name == "self":
            continue
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        parameters.append(f"{str(parameter).split(':')[0].split('=')[0]}{default}")
    signature = f"{name}({', '.join(parameters)})"
    if len(signature) > 100:
        signature = f"{name}(\n    " + ",\n    ".join(parameters) + ",\n)"
    return f"```python\n{signature}\n```\n\n{as_markdown(inspect.getdoc(item) or '')}"


def as_markdown(docstring: str) -> str:
    """The sections of a docstring as headed lists; everything else is Markdown already."""
    docstring = re.sub(r"\[`(~[\w.]*\.)?([\w.]+)`\](?!\()", r"`\2`", docstring)
    lines, in_section, in_code = [], False, False
    for line in docstring.splitlines():
        in_code ^= line.strip().startswith("```")
        if not in_code and re.fullmatch(
            r"(Args|Attributes|Parameters|Raises|Returns|Returns of a call|Yields):", line
        ):
            lines += ["", f"**{line[:-1]}**", ""]
            in_section = True
        elif in_section and line and not line.startswith(" "):
            in_section = False
            lines += ["", line]
        elif in_section and (entry := re.fullmatch(r"    (\w[\w, ]*) \((.*)\):", line)):
            lines.append(f"- **{entry[1]}** ({entry[2]}):")
        elif in_section and line.startswith("    >"):
            lines += ["", f"*{line[5:].strip()}*", ""]
        elif in_section:
            lines.append(re.sub("^        |^    ", "  " if line.startswith("        ") else "", line))
        else:
            lines.append(line)
    return "\n".join(lines)


def on_source_read(app, docname, source):
    source[0] = re.sub(r"^\[\[autodoc\]\] ([\w.]+)((?:\n+[ \t]+- \w+)*)", autodoc, source[0], flags=re.MULTILINE)
    source[0] = re.sub(r"\[`(~[\w.]*\.)?([\w.]+)`\](?!\()", r"`\2`", source[0])  # references, as TRL writes them
    if docname == "index":
        source[0] += toctrees()


def setup(app):
    app.connect("source-read", on_source_read)
