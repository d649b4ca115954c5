# SPDX-License-Identifier: Apache-2.0

"""
The origin of a run: its environment and tasks. `train` writes it. `evaluate` and `play` read it, and import what it
names only if they are told to: the folder of a run can come from anybody. Paths in it are relative to the folder,
which can be moved and copied.
"""

import argparse
import json
import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..options.environment_options import EnvironmentOptions
from ..secrets import HIDDEN, hide_secrets
from ..written_files import replaced, write_json
from .errors import CommandError, one_line_errors
from .options import FILES, check_model, split_name


# Not uploaded with the output folder, because of the underscore: it has paths of this machine.
ORIGIN = "_nlac_run.json"
_TASKS = "_nlac_tasks"  # a copy of the file of the tasks
_MAX_TASKS = 64 << 20  # bytes of a file that is copied
_CODE = ("environment_factory", "tools", "reward_funcs")  # names of objects to import


def note_origin(
    output_dir: str | Path,
    environment_factory: list[str],
    environment_kwargs: dict[str, Any],
    dataset_name: str | None,
    dataset_config: str | None = None,
    dataset_split: str = "train",
    tools: list[str] | None = None,
    reward_funcs: list[str] | None = None,
    reward_weights: list[float] | None = None,
    options: EnvironmentOptions | None = None,
) -> None:
    """
    Write down the origin of a run, for `trl-nlac evaluate` and `play`. A file of tasks is copied into the folder,
    unless it is larger than 64 MB. Secrets among the keyword arguments are left out, see [`~secrets.hide_secrets`].
    """
    run = Path(output_dir)
    run.mkdir(parents=True, exist_ok=True)
    origin = {
        "environment_factory": _of_run(environment_factory, run),
        "environment_kwargs": environment_kwargs,
        "dataset_name": _tasks_of_run(dataset_name, run),
        "dataset_config": dataset_config,
        "dataset_split": dataset_split,
        "tools": _of_run(tools, run),
        "reward_funcs": _of_run(reward_funcs, run),
        "reward_weights": reward_weights,
        "environment_options": environment_options(options or EnvironmentOptions()),
    }
    write_json(run / ORIGIN, hide_secrets(origin))


def environment_options(options: EnvironmentOptions) -> dict[str, Any]:
    """Return the options of environments alone, which can be among those of a run."""
    return {option.name: vars(options)[option.name] for option in fields(EnvironmentOptions)}


def _of_run(names: list[str] | None, run: Path) -> list[str] | None:
    """Write the files in `path/to/file.py:Name`, or in `name=path/to/file.py:Name`, relative to the run."""
    return names and [
        _with_path(name, lambda path: os.path.relpath(Path(path).resolve(), run.resolve())) for name in names
    ]


def _tasks_of_run(name: str | None, run: Path) -> str | None:
    """Write the file of the tasks relative to the run, into which it is copied; names on the Hub stay."""
    if name is None or Path(name).suffix not in FILES:
        return name
    path = Path(name)
    if not path.resolve().is_relative_to(run.resolve()) and path.stat().st_size <= _MAX_TASKS:
        with replaced(run / f"{_TASKS}{path.suffix}") as written:
            shutil.copyfile(path, written)
        path = run / f"{_TASKS}{path.suffix}"
    return os.path.relpath(path.resolve(), run.resolve())


def _with_path(name: str, change: Callable[[str], str]) -> str:
    """Change the file in `path/to/file.py:Name` or `name=path/to/file.py:Name`; modules have none."""
    place, colon, attribute = name.rpartition(":")
    key, path = split_name(place)
    return f"{key}{key and '='}{change(path)}{colon}{attribute}" if path.endswith(".py") else name


def _found_code(names: list[str], run: Path) -> list[str]:
    """Find the files in names of an origin."""
    return [_with_path(name, lambda path: os.path.normpath(run / path)) for name in names]


def _here(names: list[str] | None, run: Path) -> list[str] | None:
    """Find the files in names of an origin, all of which must exist."""
    found = names and _found_code(names, run)
    for name in found or []:
        _, path = split_name(name.rpartition(":")[0])
        if path.endswith(".py") and not Path(path).exists():
            raise CommandError(
                f"{path}, which the run in {run} needs, does not exist: was the run moved without it? Name it with "
                "--environment_factory, and with --tools or --reward_funcs where the run had some."
            )
    return found


def read_origin(run: str | Path) -> dict[str, Any]:
    """Read the origin of a run; empty without one, and refused where it is damaged."""
    path = Path(run, ORIGIN)
    if not path.is_file():
        return {}
    try:
        origin = json.loads(path.read_text())
        if not all(isinstance(origin.get(option) or [], list) for option in _CODE):
            raise ValueError("it has a name where there should be a list of them")
        names = [name for option in _CODE for name in origin.get(option) or []]
        texts = [origin.get(name) or "" for name in ("dataset_name", "dataset_config", "dataset_split")]
        if not all(name.isprintable() for name in [*names, *texts]):  # it is shown in a terminal
            raise ValueError("a name in it cannot be printed")
        [*map(float, origin.get("reward_weights") or [])]
        options = EnvironmentOptions(**origin.get("environment_options") or {})
        return {
            **origin,
            "environment_kwargs": dict(origin.get("environment_kwargs") or {}),
            "environment_options": environment_options(options),
        }
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise CommandError(f"{path} is damaged: {error}.") from error


def run_of(model: str | Path) -> Path:
    """Return the folder of the run that a model is of: its own, or, of a checkpoint, the one around it."""
    path = Path(model)
    is_inside = not (path / ORIGIN).is_file() and (path.resolve().parent / ORIGIN).is_file()
    return path.resolve().parent if is_inside else path


def origin_flags(run: str | Path) -> str:
    """Return the flags that name environment, tools and reward functions of a run as it does, to copy to a shell."""
    origin = read_origin(run)
    words: list[str] = []
    for option in (*_CODE, "reward_weights"):
        if origin.get(option):
            values = _found_code(origin[option], Path(run)) if option in _CODE else origin[option]
            words += [f"--{option}", *map(str, values)]
        if option == "environment_factory" and origin.get("environment_kwargs"):
            words += ["--environment_kwargs", json.dumps(origin["environment_kwargs"])]
    for option in fields(EnvironmentOptions) if origin else ():
        value = origin["environment_options"][option.name]
        if value not in (None, option.default):
            words += [f"--{option.name}", str(value)]
    return shlex.join(words)


def fill_from_run(args: argparse.Namespace) -> None:
    """Take environment and tasks from the origin of a run where none are named; code only if the folder is trusted."""
    with one_line_errors(f"{args.model}: "):
        check_model(args.model)
    run = run_of(args.model)
    saved = read_origin(run)
    if args.environment_factory is None and not args.tools:
        _take_code(args, saved)
    if args.dataset_name is None and saved.get("dataset_name"):
        args.dataset_name, args.dataset_config = saved["dataset_name"], saved.get("dataset_config")
        if Path(args.dataset_name).suffix in FILES:
            args.dataset_name = os.path.normpath(run / args.dataset_name)
            if not Path(args.dataset_name).exists():
                raise CommandError(
                    f"the tasks of the run, {args.dataset_name}, do not exist: was it moved without them? Name them "
                    "with --dataset_name."
                )
        args.dataset_split = args.dataset_split or saved.get("dataset_split")
    args.dataset_split = args.dataset_split or "train"


def _take_code(args: argparse.Namespace, saved: dict[str, Any]) -> None:
    run = run_of(args.model)
    path = run / ORIGIN
    names = [name for option in _CODE for name in _found_code(saved.get(option) or [], run)]
    if not names:
        raise CommandError(
            f"{args.model} has no {ORIGIN} that names an environment: add --environment_factory module:Class."
        )
    if not args.trust_remote_code:
        raise CommandError(
            f"{path} names {', '.join(names)}, which is not imported because a folder says so. If you trust it, add: "
            f"{origin_flags(run)} (or --trust_remote_code, which imports all that the folder names)"
        )
    if args.environment_kwargs is None:
        hidden = [name for name, value in saved["environment_kwargs"].items() if HIDDEN in json.dumps(value)]
        if hidden:
            raise CommandError(
                f"{path} does not have the secret `{hidden[0]}` of the environment: add --environment_kwargs with all "
                "of its keyword arguments."
            )
        args.environment_kwargs = json.dumps(saved["environment_kwargs"])
    for name, value in saved["environment_options"].items():
        vars(args).setdefault(name, value)
    args.environment_factory, args.tools = _here(saved.get("environment_factory"), run), _here(saved.get("tools"), run)
    if args.reward_funcs is None:
        args.reward_funcs = _here(saved.get("reward_funcs"), run)
        args.reward_weights = saved.get("reward_weights")
    print(f"Importing {', '.join(names)}, as {path} says.")
