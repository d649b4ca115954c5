# SPDX-License-Identifier: Apache-2.0

"""What commands share: reading arguments, and loading what they name."""

import argparse
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset, disable_progress_bars, load_dataset
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
from huggingface_hub.constants import HF_HUB_OFFLINE
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError
from transformers.utils import cached_file, logging

from ..agent.agent import NLACAgent
from ..episodes.logs import load_logs
from ..episodes.pool import NO_TASK, EnvironmentPool
from ..episodes.recorder import checked_opening
from ..episodes.rewards import EpisodeRewards, load_rewards
from ..episodes.text_environment import describe_error
from ..options.environment_options import EnvironmentOptions
from ..records.folder import checkpoints
from ..secrets import remember_secrets
from ..training.arguments import first_rows
from .errors import CommandError, one_line_errors, one_line_errors_of_files
from .parser import read_json, read_value


_MISSING = object()
FILES = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}


def load_object(name: str) -> Any:
    """Load the object `module:Name` or `path/to/file.py:Name`. Modules are also searched in the current folder."""
    module_name, colon, attribute = name.rpartition(":")
    if not colon:
        raise CommandError(f"{name!r} must be written `module:Name` or `path/to/file.py:Name`.")
    try:
        module = _load_file(Path(module_name)) if module_name.endswith(".py") else _load_module(module_name)
        found = getattr(module, attribute, _MISSING)  # a lazy module imports now
    except (ImportError, OSError) as error:
        raise CommandError(f"{name!r}: {error}") from error
    except Exception as error:  # of the user's code
        raise CommandError(f"{name!r}: {type(error).__name__}: {describe_error(error)}") from error
    if found is _MISSING:
        close = get_close_matches(attribute, dir(module), n=1)
        raise CommandError(
            f"{module_name!r} has no {attribute!r}" + (f", did you mean {close[0]!r}?" if close else ".")
        )
    return found


def _load_module(name: str) -> Any:
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        _search(Path())
    return importlib.import_module(name)


_loaded_files: list[Any] = []


def _load_file(path: Path) -> Any:
    """Load a module from a file, which can import others of its folder."""
    name = path.stem
    known = sys.modules.get(name)
    if known is not None and known not in _loaded_files:
        raise CommandError(f"{path}: there is a module {name!r} already, which others use. Rename the file.")
    _search(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as dataclasses and pickle expect
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    _loaded_files.append(module)
    return module


def _search(folder: Path) -> None:
    """Find modules in a folder, too."""
    if (place := str(folder.resolve())) not in sys.path:
        sys.path.insert(0, place)


def load_objects(names: list[str] | None) -> list[Any] | None:
    """Load several objects, see [`load_object`]; `None` if there are no names."""
    return [load_object(name) for name in names] if names else None


def split_name(name: str) -> tuple[str, str]:
    """Split `name=module:Class` into the name, empty if there is none, and the rest. A path with a `=` is no name."""
    key, equals, target = name.partition("=")
    return (key, target) if equals and Path(key).name == key else ("", name)


def load_environment(names: list[str] | None, options: dict[str, Any]) -> Callable | dict[str, Callable] | None:
    """Load the environment factory, or several that are written `name=module:Class`; `None` if there are no names."""
    remember_secrets(options)
    if not names:
        return None
    factories = {}
    for name in names:
        key, target = split_name(name)
        factory = load_object(target)
        if not callable(factory):
            raise CommandError(f"--environment_factory {name} is {factory!r}, which is not a class or function.")
        factories[key] = partial(factory, **options) if options else factory
    if len(factories) < len(names) or "" in factories and len(names) > 1:
        raise CommandError(
            "several environments need names of their own: `--environment_factory one=module:One two=module:Two`."
        )
    return factories.get("", factories)


def try_reset(
    environment: Callable | dict[str, Callable] | None,
    tools: list[Callable] | None,
    timeout: float | None,
    datasets: list[Dataset | None],
) -> None:
    """Reset each environment with its first task in each dataset, or without a task, before anything takes long."""
    with one_line_errors_of_user("--environment_factory"):
        pool = EnvironmentPool(environment, tools, timeout=timeout)
    try:
        for rows in datasets:
            for task in [NO_TASK] if rows is None else first_rows(rows, is_routed=isinstance(environment, dict)):
                columns = "without tasks" if task == NO_TASK else f"with the columns {', '.join(task)}"
                with one_line_errors_of_user(f"the environment cannot be reset {columns}"):
                    checked_opening(pool.try_reset(task))
    finally:
        pool.close()


@contextmanager
def one_line_errors_of_user(subject: str) -> Iterator[None]:
    """Turn whatever the user's code raises into a [`CommandError`] that begins with its subject."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise CommandError(f"{subject}: {type(error).__name__}: {describe_error(error)}") from error


def load_rows(name: str | None, config: str | None = None, split: str = "train") -> Dataset | None:
    """Load a dataset of the Hub, or a file (JSON, JSON lines, CSV, parquet), all of which is the split `"train"`."""
    if name is None:
        return None
    path = Path(name)
    if path.suffix in FILES and not path.is_file():
        raise CommandError(f"there is no file {name}.")
    with one_line_errors_of_files(name):
        if path.suffix in FILES:
            if config is not None:
                raise ValueError(f"a file has no configuration {config!r}.")
            if not path.stat().st_size:
                raise ValueError("the file is empty.")
            try:
                return load_dataset(FILES[path.suffix], data_files=str(path), split=split)
            except DatasetGenerationError as error:
                raise ValueError(f"it cannot be read: {error.__cause__ or error}") from error
        try:
            return load_dataset(name, config, split=split)
        except DatasetNotFoundError as error:
            raise ValueError(
                "there is no such file or folder, and no such dataset on the Hub that you can read."
            ) from error
        except ConnectionError as error:
            raise ValueError(f"there is no such file or folder, and {_unasked('dataset')}") from error


def load_conversations(name: str | None, split: str = "train") -> Dataset | None:
    """Load logged conversations, see [`load_rows`]. Values of a JSON file stay as they are; it has no splits."""
    if name is None or not Path(name).is_file() or Path(name).suffix not in (".json", ".jsonl"):
        return load_rows(name, split=split)
    if split != "train":
        raise CommandError(
            f"--split {split}: {name} is read as a whole. Leave the option out, or give a parquet file."
        )
    with one_line_errors():
        return load_logs(Path(name))


def check_model(name: str, revision: str | None = None) -> None:
    """Raise a `ValueError` or `OSError` if there is no such model, in a folder, on the Hub or in its cache."""
    files = ("config.json", "adapter_config.json")
    try:
        if any(cached_file(name, f, revision=revision, _raise_exceptions_for_missing_entries=False) for f in files):
            return
        if not Path(name).is_dir():
            cached_file(name, files[0], revision=revision)  # raises, also where the Hub cannot be asked
    except OSError as error:
        if isinstance(error.__cause__, HFValidationError):
            raise ValueError("there is no such folder.") from error
        if isinstance(error.__cause__, RepositoryNotFoundError):
            raise ValueError("there is no such folder, and no such model on the Hub that you can read.") from error
        if isinstance(error.__cause__, LocalEntryNotFoundError):
            raise ValueError(f"there is no such folder, and {_unasked('model')}") from error
        raise
    found = list(checkpoints(name).values())
    hint = f" Its newest checkpoint is one: {found[-1]}." if found else ""
    raise ValueError(f"it is no model: it has neither {' nor '.join(files)}.{hint}")


def _unasked(kind: str) -> str:
    why = "HF_HUB_OFFLINE is set" if HF_HUB_OFFLINE else "is there a network?"
    return f"the Hub cannot be asked for a {kind} of this name ({why}). Its cache has none."


def load_agent(
    args: argparse.Namespace,
    tools: list[dict[str, Any]] | None = None,
    brings_tools: bool = False,
    is_single_step: bool = False,
) -> NLACAgent:
    """Load the agent of [`add_model_arguments`] and [`add_role_options`]; the rest is as for [`NLACAgent`]."""
    options = read_options(args.option)
    with one_line_errors_of_files(args.model):
        return NLACAgent.from_pretrained(
            args.model,
            args.backend,
            args.prompts,
            tools,
            trust_remote_code=args.trust_remote_code,
            brings_tools=brings_tools,
            is_single_step=is_single_step,
            **options,
        )


def load_player(args: argparse.Namespace) -> tuple[NLACAgent, EnvironmentPool, EpisodeRewards | None]:
    """Load the agent, the environments and the reward functions of [`add_agent_arguments`]."""
    pool, rewards = load_environments(args)
    agent = load_agent(args, pool.tool_schemas, pool.brings_tools, pool.is_single_step)
    return agent, pool, rewards


def load_environments(args: argparse.Namespace) -> tuple[EnvironmentPool, EpisodeRewards | None]:
    """Load the environments and the reward functions of [`add_agent_arguments`]."""
    environment = load_environment(args.environment_factory, read_json(args.environment_kwargs or "{}"))
    tools, reward_funcs = load_objects(args.tools), load_objects(args.reward_funcs)
    given = {option.name for option in fields(EnvironmentOptions)} & vars(args).keys()
    with one_line_errors():
        options = EnvironmentOptions(**{name: vars(args)[name] for name in given})
    with one_line_errors_of_user("--environment_factory"):
        pool = EnvironmentPool(
            environment,
            tools,
            options.max_concurrent_environments,
            options.environment_timeout,
            options.environment_workers,
        )
    with one_line_errors():
        untrained = {"trainer_state": None, "log_metric": lambda name, value: None}  # what functions can take
        rewards = load_rewards(
            reward_funcs,
            args.reward_weights,
            lambda: untrained,
            pool.pays,
            options.environment_workers,
            is_single_step=pool.is_single_step,
        )
    return pool, rewards


def read_options(words: list[str]) -> dict[str, Any]:
    """Parse `name=value`; each value is JSON, or else a string."""
    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise CommandError(f"--option {word} must be written name=value.")
        options[name] = read_value(value)
    return options


def silence_libraries() -> None:
    """Hide progress bars and warnings of other libraries, which are not for those who only look."""
    warnings.simplefilter("ignore", FutureWarning)
    logging.disable_progress_bar()
    disable_progress_bars()
