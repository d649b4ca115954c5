# SPDX-License-Identifier: Apache-2.0

"""The parser of the commands' arguments, which imports next to nothing: some commands need no more."""

import argparse
import json
from difflib import get_close_matches
from typing import Any, NoReturn

from ..options.of_grpo import hint_of_grpo
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


def unknown_option(word: str, options: Any) -> str:
    """Report a word that is not an option."""
    if hint := hint_of_grpo([word.partition("=")[0].removeprefix("--")]):
        return f"there is no option {word!r}. {hint}"
    close = get_close_matches(word, list(options), n=1)
    return f"there is no option {word!r}" + (f", did you mean {close[0]!r}?" if close else ".")


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
