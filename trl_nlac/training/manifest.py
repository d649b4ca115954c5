# SPDX-License-Identifier: Apache-2.0

"""What the files of a checkpoint must be: their sizes and checksums, read before anything is loaded."""

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..records.folder import checkpoints
from ..types import RunRefused
from ..written_files import checksum, write_json


MANIFEST = "nlac_manifest.json"
_THREADS = 8  # hashing releases Python's lock


def checkpoint_of(run_dir: Path, step: int) -> Path:
    """Return the path of a run's checkpoint."""
    return run_dir / f"{PREFIX_CHECKPOINT_DIR}-{step}"


def write_manifest(checkpoint: Path) -> None:
    """Write sizes and checksums of all files of a checkpoint into it, and their own, as its last file."""
    paths = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != MANIFEST)
    with ThreadPoolExecutor(_THREADS) as threads:
        files = {
            path.relative_to(checkpoint).as_posix(): {"size": path.stat().st_size, "sha256": digest}
            for path, digest in zip(paths, threads.map(checksum, paths), strict=True)
        }
    write_json(checkpoint / MANIFEST, {"files": files, "sha256": _digest(files)})


def check_manifest(checkpoint: Path) -> None:
    """Raise [`RunRefused`] if files that the manifest names, or itself, are missing or damaged; name them."""
    path = checkpoint / MANIFEST
    if not path.is_file():
        raise RunRefused(
            f"The checkpoint {checkpoint} has no {MANIFEST}, and other files may be missing, too. "
            f"{_advice(checkpoint)}"
        )
    try:
        manifest = json.loads(path.read_bytes())
        files = {name: (int(entry["size"]), str(entry["sha256"])) for name, entry in manifest["files"].items()}
        is_damaged = manifest["sha256"] != _digest(manifest["files"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RunRefused(_refusal(checkpoint, [f"{MANIFEST} (cannot be read)"])) from error
    if is_damaged:
        raise RunRefused(_refusal(checkpoint, [f"{MANIFEST} (damaged)"]))
    with ThreadPoolExecutor(_THREADS) as threads:
        results = threads.map(lambda name: _damage(checkpoint / name, *files[name]), files)
        damages = [f"{name} ({damage})" for name, damage in zip(files, results, strict=True) if damage]
    if damages:
        raise RunRefused(_refusal(checkpoint, damages))


@contextmanager
def named_in_errors(checkpoint: str | Path | None, is_over: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Raise [`RunRefused`] that names the checkpoint, until `is_over`, if a library cannot read something."""
    try:
        yield
    except Exception as error:
        is_known = isinstance(error, OSError | MemoryError | RunRefused)
        is_known |= isinstance(error, RuntimeError) and not isinstance(error, RecursionError)  # also a lack of memory
        is_known |= type(error) is ValueError and str(checkpoint) in str(error)
        if checkpoint is None or is_known or is_over():
            raise
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        raise RunRefused(f"{checkpoint} cannot be read ({reason}). {_advice(Path(checkpoint))}") from error


def _digest(files: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _damage(path: Path, size: int, digest: str) -> str | None:
    """Say what is wrong with a file, if anything is."""
    if not path.is_file():
        return "missing"
    if path.stat().st_size != size:
        return f"{path.stat().st_size:,} bytes in place of {size:,}"
    return None if checksum(path) == digest else "damaged"


def _refusal(checkpoint: Path, damages: list[str]) -> str:
    named = ", ".join(damages[:5]) + (f" and {len(damages) - 5} more" if len(damages) > 5 else "")
    return f"The checkpoint {checkpoint} is not as it was written, says its {MANIFEST}: {named}. {_advice(checkpoint)}"


def _advice(checkpoint: Path) -> str:
    earlier = list(takewhile(lambda path: path != checkpoint, checkpoints(checkpoint.parent).values()))
    before = earlier[-1] if earlier else "another checkpoint; there is none before it in its folder"
    return (
        f"Copy it again, or resume from {before}. If you changed it on purpose, write the manifest anew, "
        "with `trl_nlac.training.manifest.write_manifest`."
    )
