# SPDX-License-Identifier: Apache-2.0

"""
Sphinx configuration: Markdown pages of docs/source in the order of _toctree.yml, with [[autodoc]] and references as in
TRL. Docstrings are Markdown in TRL's format, which neither autodoc nor napoleon reads: the objects of the package are
described here, as objects of Sphinx, so that names link to them and the search finds them.
"""

import inspect
import pydoc
import re
from pathlib import Path

import yaml


project = "trl-nlac"
html_title = "trl-nlac"
html_theme = "furo"
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_extra_path = ["source/sample_report.html"]
extensions = ["myst_parser", "sphinx_copybutton"]
myst_enable_extensions = ["attrs_inline", "dollarmath"]
myst_heading_anchors = 3
add_module_names = False
python_maximum_signature_line_length = 80
copybutton_exclude = ".linenos, .gp, .go"

SOURCE = Path(__file__).parent / "source"
TOCTREE = yaml.safe_load((SOURCE / "_toctree.yml").read_text())
AUTODOC = re.compile(r"^\[\[autodoc\]\] ([\w.]+)((?:\n+[ \t]+- \w+)*)", re.MULTILINE)
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./\.\./[\w./]+(?:#[\w-]+)?\)")  # links to files that are no pages
READY = re.compile(r"\[([^\]]+)\]\((\w+\.html)\)")  # links to `html_extra_path`, which Sphinx would make downloads
REFERENCE = re.compile(r"\[`(~?)([\w.]+)`\](?!\()")


def toctrees() -> str:
    """The navigation, one toctree per section."""
    text = ""
    for section in TOCTREE:
        pages = [f"{page['title']} <{page['local']}>" for page in section["sections"] if page["local"] != "index"]
        text += "\n".join(["\n\n```{toctree}", f":caption: {section['title']}", ":hidden:", "", *pages, "```\n"])
    return text


def located(name: str):
    """The object of the package with this name, with or without the package's."""
    return pydoc.locate(f"trl_nlac.{name.removeprefix('trl_nlac.')}")


def origin(item) -> str | None:
    """Where a class, function or method was defined; `None` for anything else."""
    return f"{item.__module__}.{item.__qualname__}" if inspect.isclass(item) or inspect.isroutine(item) else None


def documented() -> dict[str | None, str]:
    """The names of all objects that the pages describe, by their origins."""
    names = {}
    for page in SOURCE.glob("*.md"):
        for name, methods in AUTODOC.findall(page.read_text()):
            name = f"trl_nlac.{name.removeprefix('trl_nlac.')}"
            item = pydoc.locate(name)
            names[origin(item)] = name
            for method in re.findall(r"- (\w+)", methods):
                names[origin(getattr(item, method))] = f"{name}.{method}"
    names.pop(None, None)
    return names


DOCUMENTED = documented()


def autodoc(match: re.Match) -> str:
    """`[[autodoc]] Name`, with its listed methods if any, as objects of Sphinx."""
    name, methods = match[1].removeprefix("trl_nlac."), re.findall(r"- (\w+)", match[2])
    item = located(name)
    if item is None:
        raise ValueError(f"[[autodoc]] {match[1]}: trl_nlac has no such object. Correct the name in the page.")
    kind = "class" if inspect.isclass(item) else "function"
    parts = [described(item, kind, f"trl_nlac.{name}")]
    parts += [described(getattr(item, method), "method", f"trl_nlac.{name}.{method}") for method in methods]
    return "\n\n".join(parts)


def described(item, kind: str, name: str) -> str:
    """Signature and docstring, as a directive."""
    parameters = []
    is_error = inspect.isclass(item) and issubclass(item, Exception)  # those have no signature of their own
    for parameter in [] if is_error else inspect.signature(item).parameters.values():
        if parameter.name == "self":
            continue
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        parameters.append(f"{str(parameter).split(':')[0].split('=')[0]}{default}")
    fence = "`" * 6  # around the blocks of the docstring
    text = as_markdown(inspect.getdoc(item) or "")
    return f"{fence}{{py:{kind}}} {name}({', '.join(parameters)})\n{text}\n{fence}"


def as_markdown(docstring: str) -> str:
    """The sections of a docstring as headed lists; everything else is Markdown already."""
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


def reference(match: re.Match) -> str:
    """A reference as TRL writes it: a link to what a page describes, and otherwise the name alone."""
    shown = match[2].split(".")[-1] if match[1] else match[2]
    target = DOCUMENTED.get(origin(located(match[2])))
    return f"`{shown}`" if target is None else f"{{py:obj}}`{shown} <{target}>`"


def on_source_read(app, docname, source):
    source[0] = AUTODOC.sub(autodoc, source[0])
    source[0] = REFERENCE.sub(reference, source[0])
    source[0] = OUTSIDE.sub(r"\1", source[0])
    source[0] = READY.sub(r'<a href="\2">\1</a>', source[0])
    if docname == "index":
        source[0] += toctrees()


def setup(app):
    app.connect("source-read", on_source_read)
