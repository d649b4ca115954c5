# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac train`: train an agent."""

import shlex
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers.trainer_utils import get_last_checkpoint
from trl import ModelConfig, get_peft_config, get_quantization_config

from ..nlac_config import NLACConfig
from ..nlac_trainer import NLACTrainer
from ..prompts import NLACPrompts
from ..records.folder import check_unused
from ..training.arguments import plays_prompts
from ..training.saving import TrainBeginCallback
from .end_summary import print_summary
from .errors import CommandError, one_line_errors, one_line_errors_of_files
from .launch import OPTION, launch, without_option
from .options import check_model, load_conversations, load_environment, load_objects, load_rows, try_reset
from .origin import note_origin
from .train_arguments import TrainArguments
from .train_options import TrainParser


PROMPTS = "trl_nlac.episodes.pool:Prompts"  # the environment of tasks that are prompts


def run(words: list[str]) -> None:
    if any(word.partition("=")[0] == OPTION for word in words):
        launch(words)
    parser = TrainParser()
    script_args, model_args, options = parser.read(words)
    checkpoint = find_checkpoint(options)
    if checkpoint is None and not options.overwrite_output_dir:
        with one_line_errors():
            check_unused(options.output_dir)  # again once it is locked, but a model can take minutes to load
    trainer = make_trainer(script_args, model_args, options, parser.unsupported)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except (KeyboardInterrupt, SystemExit):
        if trainer.saved_step == trainer.state.global_step:
            print_summary(trainer, resume=resume_command(words))
        raise
    if not (trainer.had_ended and _is_saved(Path(options.output_dir))):
        trainer.save_model()
        if options.push_to_hub:
            trainer.push_to_hub()
    print_summary(trainer)
    trainer.accelerator.end_training()  # else torch can abort a process that ends while its group still runs


def _is_saved(folder: Path) -> bool:
    """Whether a folder has weights, none of which are half-written."""
    paths = list(folder.glob("*.safetensors"))
    try:
        for path in paths:
            with safe_open(path, "pt"):
                pass
    except SafetensorError:
        return False
    return bool(paths)


def make_trainer(
    script_args: TrainArguments, model_args: ModelConfig, options: NLACConfig, unsupported: CommandError | None = None
) -> NLACTrainer:
    """
    Make the trainer that the options describe. When training begins, it writes the origin of the run into its folder.
    What is wrong or missing is an error before the model is loaded; at last that of this machine, `unsupported`.
    """
    tasks = load_rows(script_args.dataset_name, script_args.dataset_config, script_args.dataset_train_split)
    if not (script_args.environment_factory or script_args.tools or script_args.replay_dataset):
        if not plays_prompts(None, None, script_args.reward_funcs, tasks):
            raise CommandError(
                "--environment_factory is missing: name the environment, as module:Class. To train on logs alone, add "
                "--replay_dataset; on prompts whose answers are scored, --dataset_name and --reward_funcs (tasks have "
                "a column `prompt`)."
            )
        script_args.environment_factory = [PROMPTS]
    if not model_args.model_name_or_path:
        raise CommandError("--model_name_or_path is missing: name the base model.")
    environment = load_environment(script_args.environment_factory, script_args.environment_kwargs or {})
    tools = load_objects(script_args.tools)
    if (environment or tools) and tasks is None and options.max_steps <= 0:
        raise CommandError(
            "--dataset_name is missing: name the tasks. If the environment has its own, set --max_steps."
        )
    if script_args.eval_dataset_name:
        eval_tasks = load_rows(script_args.eval_dataset_name)
    elif script_args.dataset_test_split:
        eval_tasks = load_rows(script_args.dataset_name, script_args.dataset_config, script_args.dataset_test_split)
    else:
        eval_tasks = None
    with one_line_errors():
        if (strategy := options.eval_strategy) != "no" and eval_tasks is None:
            raise ValueError(
                f"--eval_strategy {strategy} needs tasks: add --eval_dataset_name or --dataset_test_split."
            )
        options.model_init_kwargs = {
            "revision": model_args.model_revision,
            "attn_implementation": model_args.attn_implementation,
            "dtype": model_args.dtype,
            **(options.model_init_kwargs or {}),
        }
        with one_line_errors_of_files(f"--model_name_or_path {model_args.model_name_or_path}"):
            check_model(model_args.model_name_or_path, model_args.model_revision)
        prompts = load_prompts(script_args, model_args)
        rewards = load_objects(script_args.reward_funcs)
        replay = load_conversations(script_args.replay_dataset)
        if environment or tools:
            datasets = [tasks, *([] if eval_tasks is None else [eval_tasks])]
            try_reset(environment, tools, options.environment_timeout, datasets)
        if unsupported is not None:
            raise unsupported
        trainer = NLACTrainer(
            model=model_args.model_name_or_path,
            args=options,
            train_dataset=tasks,
            eval_dataset=eval_tasks,
            environment_factory=environment,
            reward_funcs=rewards,
            tools=tools,
            prompts=prompts,
            replay_dataset=replay,
            peft_config=get_peft_config(model_args),
            quantization_config=get_quantization_config(model_args),
        )
    if trainer.is_world_process_zero():
        trainer.add_callback(NoteRunCallback(lambda: trainer.had_ended or note_run(script_args, options)))
    return trainer


def load_prompts(script_args: TrainArguments, model_args: ModelConfig) -> NLACPrompts:
    """Load the prompts of a file, where one is named, or else those of the model."""
    if script_args.prompts:
        with one_line_errors("--prompts: "):
            return NLACPrompts.from_file(script_args.prompts)
    with one_line_errors_of_files(f"--model_name_or_path {model_args.model_name_or_path}"):
        return NLACPrompts.from_pretrained(model_args.model_name_or_path, model_args.model_revision)


class NoteRunCallback(TrainBeginCallback):
    """A class of its own: transformers warns of two callbacks of the same."""


def note_run(script_args: TrainArguments, options: NLACConfig) -> None:
    """Write down the origin of the run; of its tasks those for evaluation, if there are any."""
    tasks = {"dataset_name": script_args.dataset_name, "dataset_config": script_args.dataset_config}
    if script_args.eval_dataset_name:
        tasks = {"dataset_name": script_args.eval_dataset_name}
    elif script_args.dataset_name:
        tasks["dataset_split"] = script_args.dataset_test_split or script_args.dataset_train_split
    note_origin(
        options.output_dir,
        script_args.environment_factory,
        script_args.environment_kwargs or {},
        **tasks,
        tools=script_args.tools,
        reward_funcs=script_args.reward_funcs,
        reward_weights=options.reward_weights,
        options=options,
    )


def find_checkpoint(options: NLACConfig) -> str | None:
    """Find the checkpoint to resume from; `last`, or `True`, is the newest of the run, if there is one."""
    checkpoint = options.resume_from_checkpoint
    if not checkpoint:
        return None
    if checkpoint in (True, "last", "True", "true"):
        return get_last_checkpoint(options.output_dir) if Path(options.output_dir).is_dir() else None
    if not Path(checkpoint).is_dir():
        raise CommandError(
            f"--resume_from_checkpoint {checkpoint} is not a folder: name a checkpoint, or `last` for the newest in "
            "--output_dir."
        )
    return str(Path(checkpoint).absolute())


def resume_command(words: list[str]) -> str:
    """Return the command that continues the run of `trl-nlac train` with these arguments."""
    option = "--resume_from_checkpoint"
    return shlex.join(["trl-nlac", "train", *without_option(words, option), option, "last"])
