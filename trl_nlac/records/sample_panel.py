# SPDX-License-Identifier: Apache-2.0

"""What one training sample taught, for the terminal."""

import re
from difflib import SequenceMatcher
from typing import Any

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..terminal import printable


MAX_TEXT = 400  # characters of each text
MAX_WIDTH = 110  # columns


def sample_panel(row: dict[str, Any], width: int) -> Panel:
    """Show a row of the audit trail: what was done, what the critic says of it, and what the policy learns."""
    is_fresh = row["attempt"] != row["action"]
    texts = {
        "state": row["observation"].rstrip().rpartition("\n")[2],
        "action": row["action"],
        "what happened": row["next_observation"],
        "critic": row["critique"].rpartition("Optimality:")[2],
        "should say": row["target"].rpartition("Optimality:")[2],
        "acts now": row["attempt"] if is_fresh else "",
        "critic now": row["attempt_critique"].rpartition("Optimality:")[2] if is_fresh else "",
    }
    table = Table.grid("", "", padding=(0, 1))
    for name, text in texts.items():
        if text:
            table.add_row(Text(name, "dim"), Text(_cut(text), "cyan" if name.startswith("critic") else ""))
    table.add_row(Text("learns to do", "dim"), marked(_cut(row["attempt"]), _cut(row["refined_action"])))
    return Panel(
        table, title=f"step {row['step']:,}: what one sample taught", title_align="left", width=min(width, MAX_WIDTH)
    )


def marked(before: str, after: str) -> Text:
    """Mark the words of a text that another one does not have."""
    words, others = (re.findall(r"\w+|\W", text) for text in (after, before))
    opcodes = SequenceMatcher(None, others, words, autojunk=False).get_opcodes()
    styles = {"equal": "", "insert": "bold underline green", "replace": "bold underline green"}
    return Text.assemble(*(("".join(words[i:j]), styles.get(kind, "")) for kind, _, _, i, j in opcodes))


def _cut(text: str) -> str:
    text = printable(text.strip())
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} [...]"
