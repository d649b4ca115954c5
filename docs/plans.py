# SPDX-License-Identifier: Apache-2.0

"""
Write what `trl-nlac plan` prints into the pages: into the text block behind each block with a command of it.

python docs/plans.py    # reads the models' configurations from the Hub
"""

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

from trl_nlac.cli.main import main


PAGE = Path(__file__).parent / "source" / "distributing_training.md"
BLOCKS = re.compile(r"(```bash\n(?P<line>trl-nlac plan (?:.*\n)+?)```\n\n```text\n)(?P<text>(?:.*\n)*?)(?=```$)", re.M)


def printed(line: str) -> str:
    """Run a command, and return what it prints."""
    with redirect_stdout(io.StringIO()) as output:
        assert main(shlex.split(line.replace("\\\n", " "))[1:]) == 0, line
    return "\n".join(row.rstrip() for row in output.getvalue().splitlines()) + "\n"


def filled(page: str) -> str:
    """Return the text of a page with what its commands print now."""
    return BLOCKS.sub(lambda match: match[1] + printed(match["line"]), page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
