# SPDX-License-Identifier: Apache-2.0

"""Folders that others filled: a link at any name that the package writes is refused or replaced, never followed."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest
from helpers.report_utils import training_row, write_log
from helpers.testing_utils import make_trainer

from benchmarks.chat_server import ChatServer
from trl_nlac import JudgeReward, NLACPrompts
from trl_nlac.agent.guard import Guard
from trl_nlac.cli.main import main
from trl_nlac.cli.origin import note_origin
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.options.role_options import RoleOptions
from trl_nlac.records.folder import set_aside
from trl_nlac.records.lock import locked
from trl_nlac.records.written_notes import TrainingLogCallback
from trl_nlac.replay.prioritized_replay import PrioritizedReplay
from trl_nlac.report import write_comparison, write_report
from trl_nlac.training.manifest import write_manifest
from trl_nlac.training.saving import recover
from trl_nlac.types import RunRefused
from trl_nlac.written_files import write_json


MINE = "what only I may change"
FRESH = re.compile(r"_[0-9a-f]{32}\.new")
_WATCHED: list[tuple[Path, set[str]]] = []


def _note(event: str, arguments: tuple) -> None:
    if not _WATCHED or event not in ("open", "os.mkdir", "os.rename"):
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        return
    folder, names = _WATCHED[-1]
    for path in arguments[: 1 + (event == "os.rename")]:
        if isinstance(path, str | os.PathLike) and Path(path).is_relative_to(folder):
            names.add(str(Path(path).relative_to(folder)))


sys.addaudithook(_note)


def written_by(action, folder: Path) -> set[str]:
    """The names in a folder that an action writes: those that Python saw, and what is there at the end."""
    names: set[str] = set()
    _WATCHED.append((folder, names))
    try:
        action()
    finally:
        _WATCHED.pop()
    names |= {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {name for name in names if not FRESH.search(name) and name != "."}


def plant(folder: Path, name: str, outside: Path) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(outside / ("file" if path.suffix or name == "_lock" else "folder"))


def make_outside(parent: Path) -> Path:
    outside = parent / "outside"
    (outside / "folder" / "replaced-checkpoint-9").mkdir(parents=True)
    for path in (outside / "file", outside / "folder" / "mine.txt"):
        path.write_text(MINE)
    return outside


def is_untouched(outside: Path) -> bool:
    found = sorted(str(path.relative_to(outside)) for path in outside.rglob("*"))
    texts = {(outside / name).read_text() for name in ("file", "folder/mine.txt")}
    return found == ["file", "folder", "folder/mine.txt", "folder/replaced-checkpoint-9"] and texts == {MINE}


def test_training_follows_no_link(tmp_path):
    options = {
        **{"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "logging_steps": 1},
        **{"save_total_limit": 1, "max_turns": 2, "log_completions": True, "audit_samples": 2},
    }
    outside = make_outside(tmp_path)
    trainer = make_trainer(tmp_path / "whole", options)

    def train():
        trainer.train()
        trainer.save_model()

    names = written_by(train, tmp_path / "whole")
    assert {"training_log.jsonl", "_settings.json", "_lock", "model.safetensors", "nlac_prompts.json"} <= names
    assert {"completions", "_audit", "_incomplete"} <= names
    names |= {"README.md", "_superseded", "_warnings.jsonl", "_incomplete/replaced-checkpoint-9"}
    # What is written into a new folder, once that of a crash is deleted, cannot have been there.
    names = {name for name in names if not name.startswith(("checkpoint-", "_incomplete/checkpoint-"))}
    for i, name in enumerate(sorted(names)):
        run = tmp_path / str(i)
        plant(run, name, outside)
        trainer.args.output_dir = str(run)
        with pytest.raises(RunRefused, match="is a link"):
            trainer.train()
        assert is_untouched(outside), name
    for name in sorted(names & {path.name for path in (tmp_path / "whole").iterdir() if path.is_file()}):
        plant(tmp_path / "saved" / name, name, outside)
        with pytest.raises(RunRefused, match="is a link"):
            trainer.save_model(str(tmp_path / "saved" / name))
        assert is_untouched(outside), name
    # A user who keeps a checkpoint elsewhere resumes from it, and loses nothing of it.
    run = tmp_path / "linked"
    run.mkdir()
    (checkpoint,) = (tmp_path / "whole").glob("checkpoint-*")
    before = sorted(path.name for path in checkpoint.iterdir())
    (run / checkpoint.name).symlink_to(checkpoint)
    (run / "latest").symlink_to(checkpoint.name)
    with pytest.raises(RunRefused, match="is a link out of the folder"):
        with locked(run):
            pass
    (run / "latest").unlink()
    with locked(run):
        set_aside(run, 0, 0)
    assert sorted(path.name for path in checkpoint.iterdir()) == before


def write_run(run: Path) -> None:
    write_log(run, [training_row(step, **{"critic/loss": 1.0}) for step in (1, 2)])


def export(buffer: Path, output: Path) -> None:
    PrioritizedReplay(1).save(buffer)
    assert main(["buffer", "export", str(buffer), str(output), "--model", TINY_MODEL]) == 0


def keep_score(cache: Path) -> None:
    with ChatServer(lambda messages: "Score: 5").running() as url:
        judge = JudgeReward(url, "Short answers.", "judge", cache=cache)
        assert asyncio.run(judge(["situ"], ["route"])) == [0.5]


WRITERS = {
    "report": (lambda run: write_report(run), ["report.html", ".report.html.new"]),
    "comparison": (
        lambda run: write_comparison([run, run.parent / "other"], run / "comparison.html"),
        ["comparison.html", ".comparison.html.new"],
    ),
    "log set aside": (lambda run: set_aside(run, 1, 1), ["training_log.jsonl.new"]),
    "origin": (
        lambda run: note_origin(run, [], {}, str(run.parent / "tasks.jsonl")),
        ["_nlac_run.json", "_nlac_tasks.jsonl"],
    ),
    "prompts": (lambda run: NLACPrompts().save_pretrained(run), ["nlac_prompts.json"]),
    "roles": (lambda run: RoleOptions().save_pretrained(run), ["nlac_roles.json"]),
    "guard": (lambda run: Guard().save_pretrained(run), ["nlac_guard.json"]),
    "manifest": (write_manifest, ["nlac_manifest.json", "nlac_manifest.json.new"]),
    "log": (
        lambda run: TrainingLogCallback().on_log(State(run), State(run), None, {"loss": 1.0}),
        ["training_log.jsonl"],
    ),
    "figures": (lambda run: write_json(str(run / "figures.json"), {}), ["figures.json"]),
    "buffer": (lambda run: PrioritizedReplay(1).save(run), ["episodes.parquet", "replay.json"]),
    "conversations": (
        lambda run: [export(run.parent / "buffer", run / f"out.{suffix}") for suffix in ("jsonl", "parquet")],
        ["out.jsonl", "out.parquet"],
    ),
    "scores": (lambda run: keep_score(run / "scores.jsonl"), ["scores.jsonl"]),
    "recovery": (recover, ["_incomplete", "_incomplete/replaced-checkpoint-9"]),
}


class State:
    is_world_process_zero, global_step = True, 1

    def __init__(self, run):
        self.output_dir = str(run)


@pytest.mark.parametrize("writer", WRITERS)
def test_writers_follow_no_link(tmp_path, writer):
    write, known = WRITERS[writer]
    outside = make_outside(tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"number": 1}\n')
    for name in ("run", "other"):
        write_run(tmp_path / name)
    names = written_by(lambda: write(tmp_path / "run"), tmp_path / "run") - {"training_log.jsonl"}
    for i, name in enumerate(sorted({*names, *known})):
        run = tmp_path / f"planted{i}"
        if name != "training_log.jsonl":
            write_run(run)
        plant(run, name, outside)
        try:
            write(run)
        except (RunRefused, FileExistsError):
            pass
        if writer == "recovery" and name == "_incomplete/replaced-checkpoint-9":
            assert (run / "checkpoint-9").is_symlink()  # it moved the link, and nothing through it
        assert is_untouched(outside), name


def test_paths_that_a_user_names(tmp_path):
    """A link in a folder of the path is the user's way to it, and a device is not replaced."""
    (tmp_path / "there").mkdir()
    (tmp_path / "here").symlink_to(tmp_path / "there")
    write_json(str(tmp_path / "here" / "figures.json"), 1)
    assert (tmp_path / "there" / "figures.json").read_text() == "1\n"
    for device in ("/dev/null", "/dev/fd/1"):
        before = os.lstat(device)
        write_json(device, 1)
        assert os.path.samestat(before, os.lstat(device))


def test_improve_refuses_a_folder_with_links(tmp_path, capsys, monkeypatch):
    outside = make_outside(tmp_path)
    (tmp_path / "logs.jsonl").write_text("{}\n")
    for name in ("logs", "model", "report.html", "improve.json.new", "logs/held_out.jsonl"):
        plant(tmp_path / name.replace("/", "_"), name, outside)
        words = [str(tmp_path / "logs.jsonl"), "--output_dir", str(tmp_path / name.replace("/", "_"))]
        assert main(["improve", *words]) == 2
        assert "is a link out of the folder" in capsys.readouterr().err and is_untouched(outside)
