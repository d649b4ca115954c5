# SPDX-License-Identifier: Apache-2.0

"""Logged conversations as episodes, for the replay buffer."""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from datasets import Dataset, LargeList, List

from ..chat.actions import ActionFormat
from ..chat.message_reader import first_answer, read_conversation
from ..prompts import NLACPrompts
from ..types import Episode
from .conversations import FEATURES, as_json, dataset_of, record_conversation
from .pool import NO_TASK
from .recorder import MalformedResult, Recorder, checked_reward


logger = logging.getLogger(__name__)


def load_logs(path: str | Path) -> Dataset:
    """
    Load logs from a file of JSON lines, or of a JSON list, with every value as it stands there. `datasets` would guess
    types: a date in an argument would become one, an absent key a null. Raise a `ValueError` if the file is not in
    UTF-8 or in what its first bytes say, a line is not JSON, or rows are malformed.
    """
    data = Path(path).read_bytes()
    encoding = json.detect_encoding(data)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in {encoding}: write it in UTF-8. ({error})") from error
    if text.lstrip().startswith("["):
        return logs_dataset(_parse(text, str(path)))
    lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    return logs_dataset(_parse(line, f"line {i} of {path}") for i, line in lines)


def logs_dataset(rows: Iterable[dict[str, Any]]) -> Dataset:
    """
    Make a dataset of logged conversations that keeps them as they are. [`~datasets.Dataset.from_list`] merges the
    arguments of tool calls: it fills absent ones with nulls, and turns 1 into 1.0 where another row has a fraction.

    Args:
        rows (`Iterable[dict[str, Any]]`):
            Rows with the columns of [`episodes_from_logs`].

    Returns:
        [`~datasets.Dataset`]: `messages` (with arguments as JSON text), `reward`, `terminated`, `task`, `tools` and
        `first_action`. Other columns are left out.

    Raises:
        ValueError: If rows are malformed; the message names the first ones by number and reason.
    """
    given, rows, problems = list(rows), [], {}
    for i, row in enumerate(given):
        try:
            rows.append(read_row(row))
        except ValueError as error:
            problems[i] = str(error)
    _refuse(problems, len(given))
    _warn_of_misspelt({name for row in given for name in row})
    as_text = {name: [_as_text(row.get(name)) for row in rows] for name in ("task", "tools")}
    return dataset_of(
        [
            {**{name: row.get(name) for name in FEATURES}, **{name: texts[i] for name, texts in as_text.items()}}
            for i, row in enumerate(rows)
        ]
    )


def episodes_from_logs(
    dataset: Dataset,
    actions: ActionFormat,
    prompts: NLACPrompts,
    rank: int = 0,
    world_size: int = 1,
    max_prompt_length: int | None = None,
) -> list[Episode]:
    """
    Read logged conversations, by any agent, as episodes, one for each row of this process's share.

    The columns are `messages` (chat messages in OpenAI's form, see [`~chat.message_reader`]) and `reward` (the final
    score). In a column `terminated`, `False` marks a conversation that was cut, and a null stands for `True`; `tools`
    has JSON schemas of the tools, `task` the JSON of a dataset's row, `first_action` the index of the message with the
    first action, where the assistant has spoken before.

    A history is cut where a state has more than `max_prompt_length` tokens. Texts that are too long for a prompt are
    shortened as in an episode that is played; a warning counts the rows. Another warns of arguments that
    [`~datasets.Dataset.from_list`] may have changed, see [`logs_dataset`]. Raise a `ValueError` if rows are malformed
    or too long; the message names the first ones by number and reason.
    """
    missing = {"messages", "reward"} - set(dataset.column_names)
    if missing:
        raise ValueError(f"`replay_dataset` has no column `{min(missing)}`; its columns are {dataset.column_names}.")
    _warn_of_misspelt(set(dataset.column_names))
    episodes, problems, num_shortened = [], {}, 0
    numbers = range(rank, len(dataset), world_size)
    for i in numbers:
        try:
            row = read_row(_row_of(dataset, i))
            recorder = record_conversation(
                row["messages"],
                actions,
                prompts,
                _parsed(row, "tools", []),
                max_prompt_length,
                first_action=row.get("first_action"),
            )
            recorder.add_reward(float(row["reward"]))
            episodes.append(_episode(row, recorder))
            num_shortened += recorder.num_shortened > 0
        except ValueError as error:
            problems[i] = str(error)
    _refuse(problems, len(numbers))
    if num_shortened:
        logger.warning(
            f"{num_shortened} rows of `replay_dataset` have texts that are too long for `max_prompt_length="
            f"{max_prompt_length}`: their middle is left out."
        )
    if _merges_arguments(dataset.features.get("messages")):
        logger.warning(
            "The arguments of tool calls in `replay_dataset` are structures, in which `datasets` has merged those of "
            "all rows: nulls are taken for absent arguments, and 1 may have become 1.0. To keep arguments as they "
            "are, write them as JSON text, or make the dataset with `trl_nlac.episodes.logs.logs_dataset`."
        )
    return episodes


def offline_tasks(replay_dataset: Dataset | None, for_playing: dict[str, Any], world_size: int = 1) -> Dataset:
    """
    Make a row for each logged conversation, so that an epoch is as long as if they had been played. `for_playing` are
    arguments that need an environment, by name; `None` where there is none. Raise a `ValueError` if there are no logs,
    or fewer than processes, or an argument needs an environment.
    """
    if replay_dataset is None or len(replay_dataset) == 0:
        raise ValueError(
            "There is nothing to learn from: give an `environment_factory` to play in, a `train_dataset` with the "
            "column `prompt` and `reward_funcs`, or a `replay_dataset` of logs."
        )
    if len(replay_dataset) < world_size:
        raise ValueError(
            f"`replay_dataset` has {len(replay_dataset)} rows for {world_size} processes, and each learns from its "
            "own. Give more, or start fewer processes."
        )
    for name, value in for_playing.items():
        if value is not None:
            raise ValueError(
                f"`{name}` is for playing, and there is no `environment_factory`. Leave it out, or give one."
            )
    return Dataset.from_list([NO_TASK]).select([0] * len(replay_dataset))


def _refuse(problems: dict[int, str], num_rows: int) -> None:
    """Raise a `ValueError` if rows have problems. It names the first ones, and counts the others by reason."""
    if not problems:
        return
    first = [f"row {i}: {problem}" for i, problem in list(problems.items())[:5]]
    message = (
        f"{len(problems)} of {num_rows} rows of `replay_dataset` are malformed. The first ones: {'; '.join(first)}."
    )
    if len(problems) > len(first):
        reasons = Counter(re.sub(r"\d+", "N", problem) for problem in problems.values())
        counts = [f"{number} times, {reason}" for reason, number in reasons.most_common(10)]
        message = f"{message} All, with N for numbers: {'; '.join(counts)}."
    raise ValueError(message)


def _warn_of_misspelt(columns: set[str]) -> None:
    """Warn of columns that are not read, and whose names are almost those of columns that are, and are not there."""
    for name in sorted(columns - set(FEATURES)):
        meant = get_close_matches(name, set(FEATURES) - columns, n=1, cutoff=0.8)
        if meant:
            logger.warning(f"The column `{name}` of logged conversations is not read. Is it meant as `{meant[0]}`?")


def read_row(row: Any) -> dict[str, Any]:
    """Read a row of the columns of [`episodes_from_logs`]; raise a `ValueError` if something is wrong with it."""
    if not isinstance(row, dict):
        raise ValueError("it is not an object with columns")
    messages, places = read_conversation(row.get("messages"))
    first, first_action = first_answer(messages), row.get("first_action")
    actions = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i >= first]
    if not actions:
        raise ValueError("there is no message of the assistant that answers a user")
    if first_action is not None:
        if not (isinstance(first_action, int) and 0 <= first_action < len(places) and places[first_action] in actions):
            expected = [i for i, place in enumerate(places) if place in actions]
            raise ValueError(
                f"its `first_action` is {first_action!r}, expected that of a message of the assistant: {expected}"
            )
        first_action = places[first_action]
    try:
        checked_reward(row.get("reward"))
    except MalformedResult as error:
        raise ValueError(str(error)) from error
    if row.get("terminated") not in (None, True, False):  # 1 and 0, too
        raise ValueError(f"`terminated` is {row['terminated']!r}, expected true, false or null")
    task, tools = _parsed(row, "task", {}), _parsed(row, "tools", [])
    for message in messages:
        as_json(message)
    try:
        json.dumps([task, tools], ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"its `task` or `tools` cannot be written as JSON: {error}") from error
    if not isinstance(task, dict):
        raise ValueError("its `task` is not a JSON object")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError("its `tools` are not a list of JSON schemas")
    functions = [tool.get("function", tool) for tool in tools]
    if not all(isinstance(function, dict) and isinstance(function.get("name"), str) for function in functions):
        raise ValueError("one of its `tools` has no name")
    return {**row, "messages": messages, "first_action": first_action}


def _parsed(row: dict[str, Any], name: str, default: Any) -> Any:
    """The value of a column that can be JSON text."""
    value = row.get(name)
    return _parse(value, f"its `{name}`") if isinstance(value, str) and value else value or default


def _parse(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON: {error}") from error


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _row_of(dataset: Dataset, number: int) -> dict[str, Any]:
    try:
        row = dataset[number]
    except ValueError as error:  # of a number in a column of JSON
        raise ValueError(f"`datasets` cannot read it: {error}") from error
    return {name: _without_padding(value, dataset.features.get(name)) for name, value in row.items()}


def _without_padding(value: Any, feature: Any) -> Any:
    """Drop nulls from structures of Arrow, which stand for absent keys."""
    if isinstance(feature, dict) and isinstance(value, dict):
        parts = {name: _without_padding(part, feature.get(name)) for name, part in value.items()}
        return {name: part for name, part in parts.items() if part is not None}
    if isinstance(feature, (List, LargeList)) and isinstance(value, list):
        return [_without_padding(part, feature.feature) for part in value]
    return value


def _merges_arguments(feature: Any, name: str = "") -> bool:
    """Whether arguments of tool calls are structures of Arrow."""
    if isinstance(feature, (List, LargeList)):
        return _merges_arguments(feature.feature, name)
    if not isinstance(feature, dict):
        return False
    return name == "arguments" or any(_merges_arguments(part, name) for name, part in feature.items())


def _episode(row: dict[str, Any], recorder: Recorder) -> Episode:
    terminated = row.get("terminated") in (None, True)
    return replace(
        recorder.episode(),
        task=_parsed(row, "task", {}),
        terminated=terminated,
        truncated=not terminated,
        is_log=True,
        messages=tuple(row["messages"]),
    )
