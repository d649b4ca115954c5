# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac train --accelerate_config NAME`, or `preflight`: start the processes of a run."""

import os
import sys
from typing import NoReturn

from ..options.of_grpo import HINTS
from ..private_names import launch_command_parser
from .errors import CommandError
from .packaged import find_yaml
from .parser import unknown_option
from .train_options import TrainParser


OPTION = "--accelerate_config"


def launch(words: list[str], command: list[str] | None = None) -> NoReturn:
    """Become `accelerate launch`, which starts `trl-nlac train`, or another command, in every process."""
    command = launch_command(words, command)
    sys.stdout.flush()
    os.execv(command[0], command)


def launch_command(words: list[str], command: list[str] | None = None) -> list[str]:
    """
    Return the command that launches `trl-nlac train`, or another `command` with the options of a training. As in TRL,
    options that the training does not have are those of `accelerate launch`. `--accelerate_config` is a file, or the
    name of one of the package's.
    """
    parser, launcher = TrainParser(), launch_command_parser()
    known, others = parser.parse_known_args(words)
    for word in others:
        if word.startswith("--") and word.partition("=")[0] not in launcher._option_string_actions:
            known = [*parser._option_string_actions, *launcher._option_string_actions, *HINTS]
            raise CommandError(unknown_option(word, known))
    file = find_yaml(OPTION, "accelerate_configs", known.accelerate_config)
    # `--quiet`: an error of a process is shown once, not again with the trace of the launcher.
    accelerate = [sys.executable, "-m", "accelerate.commands.launch", "--quiet", "--config_file", file, *others]
    return [*accelerate, "-m", "trl_nlac", *(command or ["train"]), *without_option(_own(words, others), OPTION)]


def _own(words: list[str], others: list[str]) -> list[str]:
    """Return what is left of `words` without `others`, which are some of them in their order."""
    own, others = [], [*others, None]
    for word in words:
        if word == others[0]:
            others = others[1:]
        else:
            own.append(word)
    return own


def without_option(words: list[str], option: str) -> list[str]:
    """Leave an option out of the words of a command, with its value."""
    pairs = zip(["", *words], words, strict=False)
    return [word for before, word in pairs if option not in (before, word) and not word.startswith(f"{option}=")]
