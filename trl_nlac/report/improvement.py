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
