# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""Checks of options. Every error names the option and its value."""

from collections.abc import Callable
from dataclasses import fields
from inspect import get_annotations
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin


def check(options: Any, name: str, valid: bool, requirement: str) -> None:
    """
    Raises:
        ValueError: If an option is not `valid`.
    """
    if not valid:
        raise ValueError(f"`{name}` must be {requirement}, got {vars(options)[name]!r}.")


def check_numbers(options: Any) -> None:
    """
    Check that every option that is a number has one: a whole one where it counts something.

    Raises:
        ValueError: If one has not.
    """
    defaults = {option.name: option.default for option in fields(options)}
    for name, kinds in _kinds(options).items():
        if kinds <= {int, float, NoneType}:
            value, is_whole = vars(options)[name], float not in kinds
            takes_none = NoneType in kinds or defaults[name] is None
            valid = value is None and takes_none or isinstance(value, Integral if is_whole else Real)
            requirement = f"a {'whole ' if is_whole else ''}number{', or None' if takes_none else ''}"
            check(options, name, valid, requirement)


def _kinds(options: Any) -> dict[str, set[Any]]:
    """Types of the options by name, as their classes annotate them: argument parsers overwrite those of the fields."""
    annotations = {}
    for base in reversed(type(options).__mro__):
        annotations.update(get_annotations(base))
    kinds = {}
    for option in fields(options):
        annotation = annotations[option.name]
        is_union = get_origin(annotation) in (Union, UnionType)
        kinds[option.name] = set(get_args(annotation)) if is_union else {annotation}
    return kinds


def check_choices(options: Any, *names: str) -> None:
    """
    Check options that have a list of `choices`. Those that can be `None` can be that.

    Raises:
        ValueError: If one has another value.
    """
    choices = {option.name: option.metadata.get("choices") for option in fields(options)}
    kinds = _kinds(options)
    for name in names:
        value, takes_none = vars(options)[name], NoneType in kinds[name]
        valid = value in choices[name] or takes_none and value is None
        check(options, name, valid, f"one of {choices[name]}{', or None' if takes_none else ''}")


def check_at_least(options: Any, least: int, *names: str) -> None:
    """
    Check options for their smallest value. Those that can be `None` have none then.

    Raises:
        ValueError: If one is less.
    """
    _check_from(options, names, lambda value: value >= least, {0: "not negative", 1: "at least 1"}[least])


def check_positive(options: Any, *names: str) -> None:
    """
    Check options that must be above 0. Those that can be `None` can be that.

    Raises:
        ValueError: If one is not.
    """
    _check_from(options, names, lambda value: value > 0, "above 0")


def _check_from(options: Any, names: tuple[str, ...], is_valid: Callable[[Any], bool], requirement: str) -> None:
    kinds = _kinds(options)
    for name in names:
        value, takes_none = vars(options)[name], NoneType in kinds[name]
        valid = takes_none if value is None else is_valid(value)
        check(options, name, valid, f"{requirement}, or None" if takes_none else requirement)


def check_share(options: Any, *names: str) -> None:
    """
    Check options that must be between 0 and 1.

    Raises:
        ValueError: If one is not.
    """
    for name in names:
        check(options, name, 0 <= vars(options)[name] <= 1, "between 0 and 1")
