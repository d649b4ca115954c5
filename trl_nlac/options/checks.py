# SPDX-License-Identifier: Apache-2.0

"""Options get the types of their annotations, and are checked. Every error names the option and its value."""

import json
import math
from collections.abc import Callable
from dataclasses import Field, fields
from functools import cache
from inspect import get_annotations
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np

from ..terminal import shown


MAX_WHOLE = 10**9  # no option counts further
MAX_SECONDS = 10**9


def check(options: Any, name: str, valid: bool, requirement: str) -> None:
    """Raise a `ValueError` if an option is not `valid`."""
    if not valid:
        raise ValueError(f"`{name}` must be {requirement}, got {shown(vars(options)[name])}.")


def check_types(options: Any) -> None:
    """
    Give every option the type of its annotation: numbers of numpy become Python's own, and a whole number becomes a
    float where one is meant. Options that other packages define are only checked for being numbers, where they are.

    Raises:
        ValueError: If an option is of another type, a float that is not finite, or a whole number beyond `MAX_WHOLE`.
    """
    for option, kinds, is_own in _annotated(type(options)):
        value = vars(options)[option.name]
        value = value.item() if isinstance(value, np.generic) else value
        takes_none = NoneType in kinds or (not is_own and option.default is None)
        kinds = kinds - {NoneType}
        if is_own:
            read = next((found for kind in kinds if (found := _READERS[kind](value)) is not None), None)
            requirement = " or ".join(_NAMES[kind] for kind in _NAMES if kind in kinds)
        elif kinds <= {int, float}:
            read = value if isinstance(value, Real if float in kinds else Integral) else None
            requirement = f"a {'' if float in kinds else 'whole '}number"
        else:
            read, takes_none, requirement = value, True, ""
        valid = takes_none if value is None else read is not None
        check(options, option.name, valid, f"{requirement}{', or None' if takes_none else ''}")
        setattr(options, option.name, read)


def as_whole(value: Any) -> int | None:
    """Return a whole number as an `int`; `None` if the value is none, or beyond `MAX_WHOLE`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or abs(value) > MAX_WHOLE:
        return None
    return int(value)


def as_float(value: Any) -> float | None:
    """Return a finite number as a `float`; `None` if the value is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def is_json(value: Any) -> bool:
    """Whether JSON can hold a value."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _as_text(value: Any) -> str | None:
    """Return text as such, without what a subclass adds; `None` for half a character, which no file can hold."""
    try:
        return str.__str__(value).encode().decode() if isinstance(value, str) else None
    except UnicodeEncodeError:
        return None


def _as_dict(value: Any) -> dict[str, Any] | None:
    """Return a dict, which text holds as JSON, with Python's own numbers."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return _plain(value) if isinstance(value, dict) and all(isinstance(key, str) for key in value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _as_floats(value: Any) -> list[float] | None:
    numbers = [as_float(item) for item in value] if isinstance(value, list | tuple) else [None]
    return None if None in numbers else numbers


# How a value becomes one of a kind, `None` if it cannot, and the kinds in words.
_READERS = {int: as_whole, float: as_float, str: _as_text, dict: _as_dict, list: _as_floats}
_READERS[bool] = lambda value: value if isinstance(value, bool) else None
_NAMES = {
    bool: "True or False",
    int: "a whole number of at most 10^9",
    float: "a finite number",
    str: "text",
    dict: "a dict, or JSON of one",
    list: "a list of finite numbers",
}


@cache
def _annotated(options_class: type) -> list[tuple[Field, set[type], bool]]:
    """
    Return the options with the types that their classes annotate, because argument parsers overwrite those of the
    fields, and whether this package defines them. Text in place of a dict is JSON.
    """
    annotations, annotated = {}, []
    for base in reversed(options_class.__mro__):
        is_own = base.__module__.partition(".")[0] == __name__.partition(".")[0]
        annotations.update({name: (annotation, is_own) for name, annotation in get_annotations(base).items()})
    for option in fields(options_class):
        annotation, is_own = annotations[option.name]
        is_union = get_origin(annotation) in (Union, UnionType)
        kinds = {get_origin(kind) or kind for kind in (get_args(annotation) if is_union else [annotation])}
        annotated.append((option, kinds - {str} if dict in kinds else kinds, is_own))
    return annotated


@cache
def _takes_none(options_class: type) -> dict[str, bool]:
    return {option.name: NoneType in kinds for option, kinds, _ in _annotated(options_class)}


def check_choices(options: Any, *names: str) -> None:
    """Raise a `ValueError` unless options have one of their `choices`, or `None` where they can."""
    choices = {option.name: option.metadata.get("choices") for option in fields(options)}
    optional = _takes_none(type(options))
    for name in names:
        value, takes_none = vars(options)[name], optional[name]
        valid = value in choices[name] or takes_none and value is None
        check(options, name, valid, f"one of {choices[name]}{', or None' if takes_none else ''}")


def check_at_least(options: Any, least: int, *names: str) -> None:
    """Raise a `ValueError` if options are less than `least`; those that can be `None` can be that."""
    _check_from(options, names, lambda value: value >= least, {0: "not negative", 1: "at least 1"}[least])


def check_between(options: Any, least: float, most: float, *names: str) -> None:
    """Raise a `ValueError` if options are less or more; those that can be `None` can be that."""
    _check_from(options, names, lambda value: least <= value <= most, f"between {least:,} and {most:,}")


def _check_from(options: Any, names: tuple[str, ...], is_valid: Callable[[Any], bool], requirement: str) -> None:
    optional = _takes_none(type(options))
    for name in names:
        value, takes_none = vars(options)[name], optional[name]
        valid = takes_none if value is None else is_valid(value)
        check(options, name, valid, f"{requirement}, or None" if takes_none else requirement)
