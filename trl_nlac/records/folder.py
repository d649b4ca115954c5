# SPDX-License-Identifier: Apache-2.0

"""The folder of a run: names of its files. What belongs to later steps is set aside on a resume."""

import json
import logging
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from ..types import RunRefused
from ..written_files import refuse_links, replaced


logger = logging.getLogger(__name__)

TRAINING_LOG = "training_log.jsonl"
COMPLETIONS = "completions"
# Not uploaded with the output folder, because of the underscore.
AUDIT = "_audit"
EPISODES = "_episodes"  # a few, without `log_completions`
SETTINGS = "_settings.json"
WARNINGS = "_warnings.jsonl"
SUPERSEDED = "_superseded"
# Files of episodes and of audited samples; those of an evaluation begin with its kind.
RECORD_FILE = re.compile(r"(?:(?P<kind>.+)_)?(?:completions|audit)_(?P<step>\d+)(?:_process\d+)?\.parquet")
# Files of a model that is saved into a folder, with what this package saves beside it.
_WEIGHTS = ("model*.safetensors", "adapter_model*.safetensors", "pytorch_model*.bin", "adapter_model*.bin")
_SAVED = (
    *_WEIGHTS,
    *("*.index.json", "*config.json", "*token*.json", "vocab.*", "merges.txt", "*.jinja", "training_args.bin"),
    *("nlac_*.json", "_nlac_*", "README.md", "report.html", SETTINGS),
)
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
END_OF_TRAINING = "train_loss"  # a metric that the last log of a run alone has
SECONDS = "train_seconds"  # of all sessions of a run until a log


def completions_file(output_dir: str | Path, step: int, kind: str = "", folder: str = COMPLETIONS) -> Path:
    """
    Name the file of the episodes until a step; `kind` is the prefix of an evaluation, such as `"eval"`. Slashes in it
    are quoted, see [`kind_of`], and other characters stay, so that names are short and can be read.
    """
    kind = kind.replace("%", "%25").replace("/", "%2F")
    return Path(output_dir, folder, f"{kind}_{COMPLETIONS}_{step:05d}.parquet".lstrip("_"))


def kind_of(match: re.Match) -> str:
    """Return the prefix of the evaluation of a `RECORD_FILE`; empty in training."""
    return unquote(match["kind"] or "")


def audit_file(output_dir: str | Path, step: int, process: int) -> Path:
    """Name the file of the samples that one process trained on until a step."""
    return Path(output_dir, AUDIT, f"audit_{step:05d}_process{process}.parquet")


def checkpoints(run: str | Path) -> dict[int, Path]:
    """Find the checkpoints of a run by their steps, oldest first."""
    found = {int(match[1]): path for path in Path(run).glob("*") if (match := _CHECKPOINT.fullmatch(path.name))}
    return dict(sorted(found.items()))


def check_unused(run: str | Path) -> None:
    """Raise [`RunRefused`] if a folder has a checkpoint, an ended run, or a model; other leftovers are fine."""
    found, weights, ends = list(checkpoints(run).values()), _matching(Path(run), _WEIGHTS), last_steps(run)
    if found or weights or ends:
        resume = f"resume it (`resume_from_checkpoint={str(found[-1])!r}`), " if found else ""
        seen = found[-1].name if found else TRAINING_LOG if ends else weights[0].name
        raise RunRefused(
            f"`output_dir` {str(run)!r} has a {'run' if found or ends else 'model'} already, see {seen}: "
            f"{resume}choose another folder, or set `overwrite_output_dir=True`, which moves this one's files aside."
        )


def last_steps(run: str | Path) -> list[int]:
    """Return the steps at which training ended, says the log of a run; several if it was resumed with more."""
    return [logged["step"] for logged in map(_parse, _lines(Path(run, TRAINING_LOG))) if END_OF_TRAINING in logged]


def set_aside(run: str | Path, step: int, recorded: int, with_model: bool = False) -> None:
    """
    Move what belongs to steps of a run after `step`, that of the checkpoint which it resumes from, into a new folder
    in its folder `_superseded`: checkpoints, logs, evaluations, `with_model` a model that is saved in the folder, and
    records of training after the step `recorded`, since the checkpoint has their rows. Raise [`RunRefused`] if the
    folder has links out of it.
    """
    run = Path(run)
    refuse_links(run)
    logs = {name: _split(run / name, step) for name in (TRAINING_LOG, WARNINGS)}
    files = [path for found, path in checkpoints(run).items() if found > step]
    for path in (path for folder in (COMPLETIONS, EPISODES, AUDIT) for path in run.glob(f"{folder}/*.parquet")):
        match = RECORD_FILE.fullmatch(path.name)
        if match and int(match["step"]) > (step if match["kind"] else recorded):
            files.append(path)
    files += _matching(run, _SAVED) if with_model else []
    if not any(later for _, later in logs.values()) and not files:
        return
    numbers = [int(path.name) for path in run.glob(f"{SUPERSEDED}/*") if path.name.isdecimal()]
    aside = run / SUPERSEDED / str(1 + max(numbers, default=0))
    aside.mkdir(parents=True)
    for path in files:
        (aside / path.parent.relative_to(run)).mkdir(exist_ok=True)
        path.rename(aside / path.relative_to(run))
    for name, (before, later) in logs.items():
        if later:
            (aside / name).write_bytes(b"".join(later))
            with replaced(run / name) as written:  # a process that is killed meanwhile leaves one or the other
                written.write_bytes(b"".join(before))
    logger.warning(f"Training starts at step {max(0, step)}: what {run} had of other steps is now in {aside}.")


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table as parquet. A process that is killed meanwhile leaves the file that was there before."""
    with replaced(path) as written:
        pq.write_table(table, written, compression="zstd", write_page_checksum=True)


def _matching(run: Path, patterns: tuple[str, ...]) -> list[Path]:
    """Find the files directly in a folder whose names match one of the patterns."""
    return sorted({path for pattern in patterns for path in run.glob(pattern) if path.is_file()})


def _lines(log: Path) -> list[bytes]:
    return log.read_bytes().splitlines(keepends=True) if log.is_file() else []


def _split(log: Path, step: int) -> tuple[list[bytes], list[bytes]]:
    """Split the lines of a log into those until `step` and those of later ones."""
    before, later = [], []
    for line in _lines(log):
        is_later = not line.endswith(b"\n") or _parse(line)["step"] > step  # or half-written
        (later if is_later else before).append(line)
    return before, later


def _parse(line: bytes) -> dict[str, Any]:
    """Parse a line of the log; one that is damaged belongs to step 0, so that it stays where it is."""
    try:
        logged = json.loads(line)
        return {**logged, "step": int(logged["step"])}
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return {"step": 0}
