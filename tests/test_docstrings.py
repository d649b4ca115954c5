# SPDX-License-Identifier: Apache-2.0

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
from inspect import get_annotations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from trl.trainer.base_config import _BaseConfig

import trl_nlac
from trl_nlac import NLACConfig, environments
from trl_nlac.cli.train_arguments import TrainArguments
from trl_nlac.options.documented import subjects
from trl_nlac.options.environment_options import EnvironmentOptions
from trl_nlac.options.generation_options import GenerationOptions
from trl_nlac.options.record_options import RecordOptions
from trl_nlac.options.role_options import RoleOptions
from trl_nlac.options.training_options import TrainingOptions


PAGES = Path(__file__).parent.parent / "docs" / "source"
OPTIONS = [RoleOptions, TrainingOptions, GenerationOptions, EnvironmentOptions, RecordOptions]
OPTION = re.compile(r"^        (\w+) \((.*)\):$", re.MULTILINE)


def public_items() -> dict[str, Any]:
    items = {name: getattr(trl_nlac, name) for name in trl_nlac.__all__}
    for module in pkgutil.iter_modules(environments.__path__):
        items.update(_own(importlib.import_module(f"{environments.__name__}.{module.name}")))
    return items


def _own(module: ModuleType) -> dict[str, Any]:
    return {
        f"{module.__name__}.{name}": item
        for name, item in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(item) or inspect.isfunction(item))
        and item.__module__ == module.__name__
    }


@pytest.mark.parametrize(("name", "item"), public_items().items())
def test_public_names_have_docstrings(name, item):
    """Methods and properties too; an override needs none where the overridden method has one."""
    assert inspect.getdoc(item), name
    for member, value in vars(item).items() if inspect.isclass(item) else []:
        if not member.startswith("_") and (
            callable(value) or isinstance(value, (property, classmethod, staticmethod))
        ):
            assert inspect.getdoc(getattr(item, member)), f"{name}.{member}"


def test_environments_names_what_it_exports():
    assert all(inspect.getdoc(getattr(environments, name)) for name in environments.__all__)


def test_every_option_is_in_the_docstring_and_the_other_way_round():
    inherited = {field.name for field in dataclasses.fields(_BaseConfig)}
    fields = {field.name: field for field in dataclasses.fields(NLACConfig)}
    overridden = {name for config in OPTIONS for name in config.__annotations__} & fields.keys()
    documented = dict(OPTION.findall("".join(config.__doc__ for config in OPTIONS)))
    assert documented.keys() == (fields.keys() - inherited) | overridden
    for name, description in documented.items():
        default = re.search(r"defaults to `(.*)`", description)
        assert "*optional*" in description, name
        assert fields[name].default == (ast.literal_eval(default[1]) if default else None), name


@pytest.mark.parametrize("options", [*OPTIONS, TrainArguments])
def test_the_help_of_an_option_is_its_first_sentence(options):
    """Which stands alone; what other packages define keeps its own."""
    own = {field.name: field.metadata["help"] for field in dataclasses.fields(options)}
    entries = re.split(r"^ {8}(?=\w+ \(.*\):$)", options.__doc__, flags=re.MULTILINE)[1:]
    for entry in entries:
        name, text = entry.split(" ", 1)[0], re.sub(r"\[`~?[\w.]*?(\w+)`\]", r"\1", " ".join(entry.split()))
        sentence = own.pop(name)
        assert sentence.endswith(".") and f"): {sentence}" in text, name
        assert not re.search(r"\. [A-Z`]", sentence) and len(sentence) < 400, name
    inherited = {field.name: field.metadata["help"] for field in dataclasses.fields(_BaseConfig)}
    of_bases = {field.name: field.metadata["help"] for base in OPTIONS[1:] for field in dataclasses.fields(base)}
    assert own.items() <= {**inherited, **of_bases}.items()


def test_every_option_has_a_subject():
    for options in OPTIONS:
        listed = subjects(options)
        assert "" not in listed and all(listed.values())
        assert sorted(sum(listed.values(), [])) == sorted(get_annotations(options).keys() - {"_VALID_DICT_FIELDS"})


@pytest.mark.parametrize("options", OPTIONS)
def test_docstrings_that_python_has_cleaned(options):
    cleaned = type("Cleaned", (), {"__doc__": inspect.cleandoc(options.__doc__)})
    assert subjects(cleaned) == subjects(options)


@pytest.mark.parametrize("name", trl_nlac.__all__)
def test_every_public_class_is_on_a_page(name):
    pages = "\n".join(page.read_text() for page in PAGES.glob("*.md"))
    assert re.search(rf"^\[\[autodoc\]\] {name}$", pages, re.MULTILINE)
