# SPDX-License-Identifier: Apache-2.0

"""The parser of the commands' arguments, which imports next to nothing: some commands need no more."""

import argparse
import json
from collections.abc import Iterable
from typing import Any, NoReturn

from ..options.of_grpo import no_option
from .errors import CommandError


class Parser(argparse.ArgumentParser):
    """A parser with one-line errors."""

    def __init__(self, **kwargs):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def parse_args(self, args=None, namespace=None):
        known, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(unknown_option(unknown[0], self._option_string_actions))
        return known

    def flags(self) -> list[str]:
        """Return the options, those of actions included."""
        actions = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        parsers = [parser for action in actions for parser in action.choices.values()]
        return [*self._option_string_actions, *(flag for parser in parsers for flag in parser.flags())]

    def error(self, message: str) -> NoReturn:
        raise CommandError(message)


def unknown_option(word: str, options: Iterable[str]) -> str:
    """Report a word that is none of the `options`. Of two spellings of one the first is proposed."""
    name, *names = [option.lstrip("-").replace("-", "_") for option in (word.partition("=")[0], *options)]
    return no_option(f"there is no option {word!r}", name, dict(zip(names[::-1], [*options][::-1], strict=True)))


def read_json(text: str) -> dict[str, Any]:
    """Parse a JSON object of the command line."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise CommandError(f"{text!r} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise CommandError(f'{text!r} is not a JSON object like {{"name": "value"}}.')
    return value


def read_value(text: str) -> Any:
    """Read JSON, or else a string."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
