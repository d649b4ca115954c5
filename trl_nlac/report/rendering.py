# SPDX-License-Identifier: Apache-2.0

"""One HTML file with its styles, scripts and data."""

import base64
import hashlib
import json
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jinja2

from ..secrets import hide_secrets
from ..terminal import printable_traceback
from ..written_files import replaced


logger = logging.getLogger(__name__)

Part = TypeVar("Part")

_HERE = Path(__file__).parent
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}  # which have a meaning in HTML


class Parts:
    """Makes the parts of a page, each by itself: files that anybody can have written stop none but their own."""

    def __init__(self):
        self.failed: list[str] = []  # names of the parts that could not be made

    def make(self, name: str, make: Callable[[], Part], otherwise: Part) -> Part:
        """Make a part. One that cannot be made becomes `otherwise`."""
        try:
            return make()
        except Exception as error:
            logger.warning("The page lacks a part, %s.\n%s", name, printable_traceback(error))
            self.failed.append(name)
            return otherwise


def write_page(
    output: Path, template: str, styles: Sequence[str], scripts: Sequence[str], data: dict[str, Any], **values: Any
) -> Path:
    """Write a page at once. Scripts read `data`, without secrets; `values` are the variables of the template."""
    style, script = (
        "\n".join((_HERE / name).read_text(encoding="utf-8") for name in part) for part in (styles, scripts)
    )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE, encoding="utf-8"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"in_turns": in_turns, "duration": duration}
    page = environment.get_template(template).render(
        style=style,
        script=script,
        # Even if a text of the model or an environment were not escaped, only this script could run.
        policy=f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; base-uri 'none'",
        data=json.dumps(hide_secrets(data), allow_nan=False, separators=(",", ":")).translate(_ESCAPES),
        **values,
    )
    with replaced(output) as written:
        written.write_text(page, encoding="utf-8", errors="replace")  # names can have lone surrogates
    return output


def in_turns(text: str) -> str:
    """Put each turn that a critique foresees on a line of its own, as `episodes.js` does."""
    text = re.sub(r"([.!?:]) +(?=\w+\([^()\n]*\))", r"\1\n", text)
    return re.sub(r"(\w+\([^()\n]*\)) +(?=[A-Z])", r"\1\n", text).replace("Future:\n", "Future: ")


def duration(seconds: float) -> str:
    """Write a time in words."""
    minutes, seconds = divmod(round(max(0.0, seconds)), 60)  # a clock can go back
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _source(text: str) -> str:
    """Return the name of an inline style or script in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
