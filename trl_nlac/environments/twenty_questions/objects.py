# SPDX-License-Identifier: Apache-2.0

"""Everyday objects and facts about them, for [`~environments.twenty_questions.RuleOracle`]: see `objects.yaml`."""

from pathlib import Path

import yaml


_FACTS = yaml.safe_load(Path(__file__).with_name("objects.yaml").read_text(encoding="utf-8"))


def _attributes(category: str, own: str) -> frozenset[str]:
    words = own.split()
    taken_away = {word[1:] for word in words if word.startswith("-")}
    return frozenset({*category.split(), *words} - taken_away - {f"-{word}" for word in taken_away})


ATTRIBUTES = _FACTS["attributes"]
OBJECTS = {
    name: _attributes(category, own)
    for category, listed in _FACTS["categories"].items()
    for name, own in listed.items()
}
ALIASES = _FACTS["aliases"]
SYNONYMS = _FACTS["synonyms"]
