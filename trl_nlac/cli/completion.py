# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac completion`: let the shell complete commands and options."""

import argparse
import importlib

from .parser import Parser


OTHERS = ("--debug", "--help")
_HEAD = """\
# Completion of trl-nlac: commands, their options, values that are choices, and files.
"""
_FUNCTION = """\
_trl_nlac() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "COMMANDS" -- "$word"))
    return
  fi
  case "${COMP_WORDS[1]} $before" in
CHOICES
  esac
  if [ -z "$words" ]; then
    case "$word" in
      -*) case "${COMP_WORDS[1]}" in
OPTIONS
      esac ;;
      *) COMPREPLY=($(compgen -f -- "$word")); return ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o filenames -F _trl_nlac trl-nlac
"""
_ZSH = """\
autoload -U +X compinit && compinit
autoload -U +X bashcompinit && bashcompinit
"""


def make_parser() -> Parser:
    parser = Parser(
        prog="trl-nlac completion",
        description="Print a script by which the shell completes commands and options, those of the installed "
        "version: write it to a file once, with `trl-nlac completion bash > "
        "~/.local/share/bash-completion/completions/trl-nlac` or, for zsh, to a file that ~/.zshrc sources.",
    )
    parser.add_argument("shell", choices=["bash", "zsh"])
    return parser


def run(words: list[str]) -> None:
    args = make_parser().parse_args(words)
    print(completion_script(args.shell), end="")


def completion_script(shell: str) -> str:
    """Write the script for `"bash"`, or for `"zsh"`, which can run those of bash."""
    from .main import COMMANDS

    options, choices = [], []
    for command in COMMANDS:
        found = _actions(importlib.import_module(f".{command}", __package__).make_parser())
        if command in ("plan", "preflight", "improve"):  # take the options of training, too
            found += _actions(importlib.import_module(".train", __package__).make_parser())
        names = sorted({name for action in found for name in action.option_strings if name.startswith("--")})
        options.append(f'      {command}) words="{" ".join(sorted({*names, *OTHERS}))}" ;;')
        for action in found:
            if action.choices and action.option_strings:
                pattern = "|".join(f'"{command} {name}"' for name in action.option_strings)
                choices.append(f'    {pattern}) words="{" ".join(map(str, action.choices))}" ;;')
            elif action.choices:  # a word without an option, such as the action of `buffer`
                choices.append(f'    "{command} {command}") words="{" ".join(map(str, action.choices))}" ;;')
    function = _FUNCTION.replace("COMMANDS", " ".join([*COMMANDS, "--help", "--version"]))
    function = function.replace("CHOICES", "\n".join(choices)).replace("OPTIONS", "\n".join(options))
    return _HEAD + (_ZSH if shell == "zsh" else "") + function


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """List the actions of a parser, and of the parsers of its actions."""
    found = list(parser._actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [other for nested in action.choices.values() for other in _actions(nested)]
    return found
