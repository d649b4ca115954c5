# SPDX-License-Identifier: Apache-2.0

"""The page of `trl-nlac improve`: what logs hold, what the critic found in them, and what training changed."""

from pathlib import Path
from typing import Any

from ..secrets import hide_secrets
from .rendering import write_page


def write_improvement(output: str | Path, report: dict[str, Any]) -> Path:
    """
    Write the page.

    Args:
        output (`str` or `Path`):
            File to write.
        report (`dict[str, Any]`):
            What `improve.json` has.

    Returns:
        `Path`: The file.
    """
    return write_page(Path(output), "improvement.html.jinja", ("page.css",), (), {}, report=hide_secrets(report))
