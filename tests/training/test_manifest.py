# SPDX-License-Identifier: Apache-2.0

import json
import shutil
from pathlib import Path

import pytest

from trl_nlac.training.manifest import MANIFEST, check_manifest, write_manifest
from trl_nlac.types import RunRefused


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    for step in (2, 4, 10):
        folder = tmp_path / f"checkpoint-{step}"
        for rank in range(2):
            (folder / "nlac" / f"rank_0000{rank}").mkdir(parents=True)
            (folder / "nlac" / f"rank_0000{rank}" / "state.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(bytes(100))
        write_manifest(folder)
    return folder


def test_what_it_holds(checkpoint):
    check_manifest(checkpoint)
    files = json.loads((checkpoint / MANIFEST).read_text())["files"]
    assert files.keys() == {"model.safetensors", "nlac/rank_00000/state.json", "nlac/rank_00001/state.json"}
    assert files["model.safetensors"]["size"] == 100 and len(files["model.safetensors"]["sha256"]) == 64
    (checkpoint / "notes.txt").write_text("mine")
    check_manifest(checkpoint)


@pytest.mark.parametrize(
    ("content", "damage"),
    [
        (bytes(99) + b"\x01", "damaged"),
        (bytes(50), "50 bytes in place of 100"),
        (b"", "0 bytes in place of 100"),
        (None, "missing"),
    ],
)
def test_damaged_files(checkpoint, content, damage):
    (checkpoint / "model.safetensors").unlink()
    if content is not None:
        (checkpoint / "model.safetensors").write_bytes(content)
    with pytest.raises(RunRefused, match=rf"model.safetensors \({damage}\).*resume from .*/checkpoint-4\. ") as error:
        check_manifest(checkpoint)
    assert str(checkpoint) in str(error.value)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"files": {}}', '{"files": 3}', '{"files": {"a": {}}}', '{"files": {"a": [1]}}', "[" * 9999],
)
def test_a_damaged_manifest(checkpoint, text):
    (checkpoint / MANIFEST).write_text(text)
    with pytest.raises(RunRefused, match=rf"{MANIFEST} \(cannot be read\).*checkpoint-4"):
        check_manifest(checkpoint)


def test_a_manifest_with_another_checksum(checkpoint):
    """Of which every other file would look damaged."""
    path = checkpoint / MANIFEST
    digest = json.loads(path.read_text())["files"]["model.safetensors"]["sha256"]
    path.write_text(path.read_text().replace(digest, digest[::-1]))
    with pytest.raises(RunRefused, match=rf"{MANIFEST} \(damaged\).*checkpoint-4"):
        check_manifest(checkpoint)


def test_a_manifest_of_another_checkpoint(checkpoint):
    other = checkpoint.with_name("checkpoint-4")
    (other / "model.safetensors").write_bytes(bytes(99))
    write_manifest(other)
    shutil.copy(other / MANIFEST, checkpoint)
    with pytest.raises(RunRefused, match=rf"says its {MANIFEST}: model.safetensors"):
        check_manifest(checkpoint)


def test_the_first_checkpoint(checkpoint):
    first = checkpoint.with_name("checkpoint-2")
    (first / "model.safetensors").unlink()
    with pytest.raises(RunRefused, match="resume from another checkpoint; there is none before it"):
        check_manifest(first)


def test_a_lost_manifest(checkpoint):
    (checkpoint / MANIFEST).unlink()
    with pytest.raises(RunRefused, match=rf"{checkpoint} has no {MANIFEST}.*from .*/checkpoint-4\. .*write_manifest"):
        check_manifest(checkpoint)
