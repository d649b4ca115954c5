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

"""`trl-nlac train`: what a script around [`NLACTrainer`] would do."""

import argparse
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NoReturn

from transformers import TrainingArguments
from transformers.trainer_utils import get_last_checkpoint
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config
from trl.trainer.base_config import _BaseConfig

from ..nlac_config import NLACConfig
from ..nlac_trainer import NLACTrainer
from ..options.records import RecordOptions
from ..options.saved_roles import load_roles
from ..options.vllm import VLLMOptions
from ..prompts import NLACPrompts
from ..records.folder import note_origin
from .options import (
    CommandError,
    check_model,
    load_environment,
    load_objects,
    load_rows,
    read_json,
    told_in_a_line,
    unknown_option,
)
from .summary import print_summary


@dataclass
class TrainArguments:
    """
    What to train in, and on which tasks.

    Args:
        environment_factory (`list[str]`):
            What makes the environment, `module:Class` or `path/to/file.py:Class`; several as `name=module:Class`, of which
            the column `environment` of the tasks chooses one.
        environment_kwargs (`str` or `dict[str, Any]`, *optional*):
            Keywords for it.
        dataset_name (`str`, *optional*):
            Tasks: a dataset of the Hub, or a file (JSON, JSON lines, CSV, parquet). If `None`, the environment owns its data.
        dataset_config (`str`, *optional*):
            Configuration of the dataset.
        dataset_train_split (`str`, *optional*, defaults to `"train"`):
            Split to train on.
        dataset_test_split (`str`, *optional*):
            Split to evaluate on.
        eval_dataset_name (`str`, *optional*):
            Tasks to evaluate on, in place of a split.
        reward_funcs (`list[str]`, *optional*):
            Functions that score episodes, `module:function`.
        tools (`list[str]`, *optional*):
            Standalone tools, `module:function`.
        prompts (`str`, *optional*):
            File with words of the roles. If `None`, those saved beside the model, or else the defaults.
        replay_dataset (`str`, *optional*):
            Logged conversations that fill the replay buffer before training.
        rehearsal_dataset (`str`, *optional*):
            Supervised samples of the roles.
    """

    environment_factory: list[str] = field(
        default_factory=list,
        metadata={"help": "What makes the environment: module:Class, file.py:Class, or several as name=module:Class."},
    )
    environment_kwargs: str | None = field(default=None, metadata={"help": "Keywords for it, as a JSON object."})
    dataset_name: str | None = field(
        default=None,
        metadata={"help": "Tasks: a dataset of the Hub or a file. Without it the environment owns its data."},
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of the dataset."})
    dataset_train_split: str = field(default="train", metadata={"help": "Split to train on."})
    dataset_test_split: str | None = field(default=None, metadata={"help": "Split to evaluate on."})
    eval_dataset_name: str | None = field(
        default=None, metadata={"help": "Tasks to evaluate on, in place of a split."}
    )
    reward_funcs: list[str] | None = field(
        default=None, metadata={"help": "Functions that score episodes, module:function."}
    )
    tools: list[str] | None = field(default=None, metadata={"help": "Standalone tools, module:function."})
    prompts: str | None = field(default=None, metadata={"help": "File with words of the roles."})
    replay_dataset: str | None = field(
        default=None, metadata={"help": "Logged conversations that fill the replay buffer before training."}
    )
    rehearsal_dataset: str | None = field(default=None, metadata={"help": "Supervised samples of the roles."})

    def __post_init__(self):
        if isinstance(self.environment_kwargs, str):
            self.environment_kwargs = read_json(self.environment_kwargs)
        for name in ("environment_factory", "reward_funcs", "tools"):
            if isinstance(vars(self)[name], str):  # as YAML has it where there is one
                vars(self)[name] = [vars(self)[name]]


# Options of `TrainingArguments` that are shown with those of NLAC.
_SHOWN = {
    *(
        "output_dir",
        "learning_rate",
        "max_steps",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "seed",
    ),
    *("logging_steps", "eval_strategy", "eval_steps", "save_strategy", "save_steps", "save_total_limit"),
    *("resume_from_checkpoint", "use_cpu", "bf16", "report_to", "push_to_hub", "hub_model_id"),
}


def _names(dataclass_type: type) -> set[str]:
    return {option.name for option in fields(dataclass_type)}


def _is_negation(action: argparse.Action) -> bool:
    """Whether it is the `--no_...` that a flag has besides."""
    return action.option_strings[0].startswith("--no_") and not action.dest.startswith("no_")


class _OptionsFormatter(argparse.HelpFormatter):
    """Names each option once, with the kind of its value, and defaults only where there are any."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if action.nargs == 0:
            return action.option_strings[-1]
        if action.choices:
            kind = "{" + ",".join(map(str, action.choices)) + "}"
        else:
            kinds = {int: "INTEGER", float: "NUMBER"}
            kind = action.metavar or ("[TRUE|FALSE]" if action.nargs == "?" else kinds.get(action.type, "VALUE"))
        return f"{action.option_strings[0]} {kind}{' ...' if action.nargs == '+' else ''}"

    def _get_help_string(self, action: argparse.Action) -> str:
        shows_default = action.default not in (None, argparse.SUPPRESS, [], "") and "%(default)" not in action.help
        return f"{action.help} (default: %(default)s)" if shows_default else action.help


class TrainParser(TrlParser):
    """TRL's parser, with errors of one line, and a help that shows what is special to NLAC, by subject."""

    def __init__(self):
        super().__init__(
            (TrainArguments, ModelConfig, NLACConfig),
            prog="trl-nlac train",
            usage="trl-nlac train --config run.yaml [--name value ...]",
            description="Train an agent. Options come from a YAML file, from the command line, or from both, which wins.",
            formatter_class=_OptionsFormatter,
            allow_abbrev=False,
        )
        self.add_argument("--config", metavar="FILE", help="YAML file of options")
        self.add_argument("--help_all", action="help", help="show all options, those of transformers' too")
        self.shows_all = False
        resume = next(action for action in self._actions if action.dest == "resume_from_checkpoint")
        resume.help = "Checkpoint to go on from: its folder, or `last` for the newest one in `output_dir`, if any."

    def error(self, message: str) -> NoReturn:
        raise CommandError(message)

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        inherited = _names(TrainingArguments) - _SHOWN
        subjects = {
            "general": {"config", "help", "help_all"},
            "what to train in": _names(TrainArguments),
            "the base model": _names(ModelConfig),
            "what is written down": _names(RecordOptions) - _names(_BaseConfig),
            "generation with vLLM": _names(VLLMOptions) - _names(_BaseConfig),
            "training": _names(NLACConfig) - inherited,
            "training, as in transformers": inherited if self.shows_all else set(),
        }
        told: set[str] = set()
        for subject, names in subjects.items():
            formatter.start_section(subject)
            formatter.add_arguments(a for a in self._actions if a.dest in names - told and not _is_negation(a))
            formatter.end_section()
            told |= names
        return formatter.format_help()

    def read(self, words: list[str]) -> tuple[TrainArguments, ModelConfig, NLACConfig]:
        """
        Read the command line and the file that it names.

        Raises:
            CommandError: If an option does not exist or has no valid value.
        """
        if "--config" not in words and any(word.startswith("--config=") for word in words):
            words = [
                part for word in words for part in (word.split("=", 1) if word.startswith("--config=") else [word])
            ]
        with told_in_a_line():
            *parsed, from_file, left = self.parse_args_and_config(
                words, return_remaining_strings=True, separate_remaining_strings=True
            )
        for word in [word for word in from_file + left if word.startswith("--")]:
            raise CommandError(unknown_option(word, self._option_string_actions))
        if from_file or left:
            raise CommandError(f"{(from_file + left)[0]!r} belongs to no option.")
        return tuple(parsed[:3])


def run(words: list[str]) -> None:
    parser = TrainParser()
    parser.shows_all = "--help_all" in words
    script_args, model_args, args = parser.read(words)
    checkpoint = find_checkpoint(args)
    trainer = make_trainer(script_args, model_args, args)
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    if args.push_to_hub:
        trainer.push_to_hub()
    print_summary(trainer)


def make_trainer(script_args: TrainArguments, model_args: ModelConfig, args: NLACConfig) -> NLACTrainer:
    """
    The trainer that the options describe; what it trains in is noted in the run's folder.

    Raises:
        CommandError: If anything does not fit.
    """
    if not script_args.environment_factory and not script_args.tools and not script_args.replay_dataset:
        raise CommandError(
            "--environment_factory is missing: name what makes the environment, as module:Class. To train on logs alone, "
            "add --replay_dataset."
        )
    if not model_args.model_name_or_path:
        raise CommandError("--model_name_or_path is missing: name the base model.")
    environment = load_environment(script_args.environment_factory, script_args.environment_kwargs or {})
    tasks = load_rows(script_args.dataset_name, script_args.dataset_config, script_args.dataset_train_split)
    if script_args.eval_dataset_name:
        eval_tasks = load_rows(script_args.eval_dataset_name)
    elif script_args.dataset_test_split:
        eval_tasks = load_rows(script_args.dataset_name, script_args.dataset_config, script_args.dataset_test_split)
    else:
        eval_tasks = None
    with told_in_a_line():
        if args.eval_strategy != "no" and eval_tasks is None:
            raise ValueError(
                f"--eval_strategy {args.eval_strategy} needs tasks: add --eval_dataset_name or --dataset_test_split."
            )
        args.model_init_kwargs = {
            "revision": model_args.model_revision,
            "attn_implementation": model_args.attn_implementation,
            "dtype": model_args.dtype,
            **(args.model_init_kwargs or {}),
        }
        with told_in_a_line(f"--model_name_or_path {model_args.model_name_or_path}: "):
            name, revision = model_args.model_name_or_path, model_args.model_revision
            check_model(name, revision)
            _, saved_prompts = load_roles(name, revision)
        trainer = NLACTrainer(
            model=model_args.model_name_or_path,
            args=args,
            train_dataset=tasks,
            eval_dataset=eval_tasks,
            environment_factory=environment,
            reward_funcs=load_objects(script_args.reward_funcs),
            tools=load_objects(script_args.tools),
            prompts=NLACPrompts.from_file(script_args.prompts) if script_args.prompts else saved_prompts,
            replay_dataset=load_rows(script_args.replay_dataset),
            rehearsal_dataset=load_rows(script_args.rehearsal_dataset),
            peft_config=get_peft_config(model_args),
            quantization_config=get_quantization_config(model_args),
        )
    if trainer.is_world_process_zero():
        _note(script_args, args)
    return trainer


def _note(script_args: TrainArguments, args: NLACConfig) -> None:
    """Write down what the run was trained in; its tasks for evaluation if there are any."""
    tasks = {"dataset_name": script_args.dataset_name, "dataset_config": script_args.dataset_config}
    if script_args.eval_dataset_name:
        tasks = {"dataset_name": script_args.eval_dataset_name}
    elif script_args.dataset_name:
        tasks["dataset_split"] = script_args.dataset_test_split or script_args.dataset_train_split
    note_origin(
        *(args.output_dir, script_args.environment_factory, script_args.environment_kwargs or {}),
        **tasks,
        tools=script_args.tools,
        reward_funcs=script_args.reward_funcs,
        reward_weights=args.reward_weights,
    )


def find_checkpoint(args: NLACConfig) -> str | None:
    """
    Where to go on: `--resume_from_checkpoint last`, or `True`, is the newest checkpoint of the run, if there is one.

    Raises:
        CommandError: If it is a folder that does not exist.
    """
    checkpoint = args.resume_from_checkpoint
    if checkpoint in ("last", "True", "true"):
        return get_last_checkpoint(args.output_dir) if Path(args.output_dir).is_dir() else None
    if checkpoint is not None and not Path(checkpoint).is_dir():
        raise CommandError(
            f"--resume_from_checkpoint {checkpoint} is no folder: name a checkpoint, or `last` for the newest in --output_dir."
        )
    return checkpoint
