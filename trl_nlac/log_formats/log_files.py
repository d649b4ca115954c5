# SPDX-License-Identifier: Apache-2.0

"""Log files of any known format: which one it is, and its conversations."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..chat.actions import ActionFormat
from . import chat, own_tables, spans, tau_results
from .logged import LoggedConversations, json_values


# Name, whether a value has this format, and what reads such values.
FORMATS = (
    ("results of τ²-bench", tau_results.is_results, tau_results.read_simulations),
    ("results of τ-bench", tau_results.is_result, tau_results.read_results),
    ("OpenTelemetry spans", spans.is_span, spans.read_spans),
    ("OpenAI chat requests with their answers", chat.is_request, chat.read_requests),
    ("OpenAI chat conversations", chat.is_conversation, chat.read_conversations),
)
_SUFFIXES = (".json", ".jsonl", ".parquet")


def read_logs(
    paths: Sequence[str | Path], load_actions: Callable[[Path], ActionFormat], outcome: str | None = None
) -> LoggedConversations:
    """
    Read log files, and folders of them. What cannot be read is counted by reason, and never loses the rest.
    `load_actions` loads the format of actions of a replay buffer, which has tokens. `outcome` names the place of the
    outcome; if `None`, it is where the format has it. Raise a `ValueError` if there is no file, or no file of a known
    format.
    """
    found = LoggedConversations()
    files = [file for path in paths for file in _files(Path(path))]
    formats = {}
    texts = []
    for file in files:
        if file.suffix == ".parquet":
            formats[own_tables.read_parquet(file, outcome, load_actions, found)] = None
        else:
            texts.append("".join(_lines(file, found)))
    # All files together: a conversation can go on in the next one, and evaluations can have a file of their own.
    values = [value for text in texts for value in json_values(text, found)]
    if values:
        kinds = Counter(name for value in values for name, is_it, _ in FORMATS if is_it(value))
        if not kinds:
            raise ValueError(
                f"{', '.join(map(str, paths))}: no format of logs that is known. Known are "
                f"{', '.join(name for name, _, _ in FORMATS)}, and the tables and buffers of trl_nlac."
            )
        name = kinds.most_common(1)[0][0]
        formats[name] = None
        next(read for known, _, read in FORMATS if known == name)(values, outcome, found)
    found.format = " and ".join(formats) or "nothing that is JSON"
    return found


def _lines(file: Path, found: LoggedConversations) -> Iterator[str]:
    """Read the lines of a file in Unicode. One that is in another encoding is no JSON."""
    data = file.read_bytes()
    encoding = json.detect_encoding(data)
    for line in data.splitlines(keepends=True) if encoding.startswith("utf-8") else [data]:
        try:
            yield line.decode(encoding)
        except UnicodeDecodeError:
            found.notes[f"{file.name} has text that is not in {encoding}, and is not read: write it in UTF-8"] += 1
            yield "\0\n"


def _files(path: Path) -> list[Path]:
    """List the files of a path; of a folder of a run or of a checkpoint, its buffers. No file is an error."""
    if path.is_file():
        if path.suffix not in _SUFFIXES:
            raise ValueError(f"{path} must end with {', '.join(_SUFFIXES)}.")
        return [path]
    if not path.is_dir():
        raise ValueError(f"{path}: there is no such file or folder.")
    buffers = [*path.glob("episodes.parquet"), *sorted(path.glob("nlac/rank_*/episodes.parquet"))]
    tables_of_run = sorted(path.glob("completions/completions_*.parquet"))
    files = buffers or tables_of_run or sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
    files = [file for file in files if file.is_file()]  # reading a pipe or a device may never end
    if not files:
        raise ValueError(f"{path} has no files that end with {', '.join(_SUFFIXES)}.")
    return files
