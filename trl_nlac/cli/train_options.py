# SPDX-License-Identifier: Apache-2.0

"""The options of `trl-nlac train`."""

import argparse
from dataclasses import fields
from typing import NoReturn

from trl import ModelConfig, TrlParser

from ..nlac_config import NLACConfig
from ..options.documented import subjects
from ..options.environment_options import EnvironmentOptions
from ..options.generation_options import GenerationOptions
from ..options.of_grpo import HINTS
from ..options.record_options import RecordOptions
from ..options.role_options import RoleOptions
from ..options.training_options import TrainingOptions
from .errors import CommandError, one_line_errors
from .packaged import find_path, find_yaml
from .parser import unknown_option
from .parsers import OF_TRAIN, add_train_arguments
from .train_arguments import TrainArguments


def _names(dataclass_type: type) -> list[str]:
    return [option.name for option in fields(dataclass_type)]


class _OptionsFormatter(argparse.HelpFormatter):
    """Shows each option once, with the type of its value, and with its default if it has one."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if action.nargs == 0:
            return action.option_strings[-1]
        if action.choices:
            kind = "{" + ",".join(map(str, action.choices)) + "}"
        else:
            kinds, type_name = {"int": "INTEGER", "float": "NUMBER"}, action.type.__name__ if action.type else ""
            kind = action.metavar or ("[TRUE|FALSE]" if action.nargs == "?" else kinds.get(type_name, "VALUE"))
        return f"{action.option_strings[0]} {kind}{' ...' if action.nargs == '+' else ''}"

    def _get_help_string(self, action: argparse.Action) -> str:
        shows_default = action.default not in (None, argparse.SUPPRESS, [], "") and "%(default)" not in action.help
        return f"{action.help} (default: %(default)s)" if shows_default else action.help


class TrainParser(TrlParser):
    """TRL's parser with one-line errors, and a help that lists all options by subject."""

    def __init__(self, config: type[NLACConfig] = NLACConfig):
        super().__init__(
            (TrainArguments, ModelConfig, config), **OF_TRAIN, formatter_class=_OptionsFormatter, allow_abbrev=False
        )
        add_train_arguments(self)
        self.add_argument("--help_all", action="help", help="show all options, including those of transformers")
        # Why this machine cannot train with the options that were read last, for example without a GPU where none was
        # asked for. All else can be checked before that is said.
        self.unsupported: CommandError | None = None
        resume = next(action for action in self._actions if action.dest == "resume_from_checkpoint")
        resume.help = "Checkpoint to resume from: its folder, or `last` for the newest in `output_dir`, if any."

    def error(self, message: str) -> NoReturn:
        raise CommandError(message)

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        general = ["config", "accelerate_config", "help", "help_all"]
        shown = {"general": general, "model and tasks": ["model_name_or_path", *_names(TrainArguments)]}
        for options in (RoleOptions, TrainingOptions, GenerationOptions, EnvironmentOptions, RecordOptions):
            shown |= subjects(options)
        shown |= {"model, as in TRL": _names(ModelConfig), "training, as in transformers": _names(NLACConfig)}
        actions = {}
        for action in self._actions:
            actions.setdefault(action.dest, action)  # the `--no_...` form of a flag comes after it
        for subject, names in shown.items():
            formatter.start_section(subject)
            formatter.add_arguments(actions.pop(name) for name in names if name in actions)
            formatter.end_section()
        return formatter.format_help()

    def read(self, words: list[str]) -> tuple[TrainArguments, ModelConfig, NLACConfig]:
        """Read words and configuration file. That this machine has no GPU is no error yet: it is `unsupported`."""
        self.unsupported = None
        try:
            return self._read(words)
        except CommandError as error:
            found = self._read([*words, "--use_cpu", "True"])  # raises again if that was not the reason
            self.unsupported = CommandError(f"{error} On the CPU: --use_cpu --bf16 False.")
            return found

    def _read(self, words: list[str]) -> tuple[TrainArguments, ModelConfig, NLACConfig]:
        if "--config" not in words and any(word.startswith("--config=") for word in words):
            words = [
                part for word in words for part in (word.split("=", 1) if word.startswith("--config=") else [word])
            ]
        if "--config" in words[:-1]:
            place = words.index("--config") + 1
            words = [*words[:place], find_yaml("--config", "recipes", words[place]), *words[place + 1 :]]
        with one_line_errors():
            *parsed, from_file, left = self.parse_args_and_config(
                words, return_remaining_strings=True, separate_remaining_strings=True
            )
        for word in [word for word in from_file + left if word.startswith("--")]:
            raise CommandError(unknown_option(word, [*self._option_string_actions, *HINTS]))
        if from_file or left:
            raise CommandError(f"{(from_file + left)[0]!r} does not belong to an option.")
        script_args, model_args, options, others = parsed
        if others.accelerate_config is not None:
            raise CommandError(
                f"accelerate_config: {others.accelerate_config} starts the processes, and stands in a file that each "
                "of them reads. Write --accelerate_config on the command line."
            )
        for name in ("prompts", "dataset_name", "eval_dataset_name"):
            setattr(script_args, name, find_path(vars(script_args)[name]))
        model_args.model_name_or_path = find_path(model_args.model_name_or_path)
        return script_args, model_args, options
