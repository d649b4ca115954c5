# SPDX-License-Identifier: Apache-2.0

"""Construct what a run is made of: its options, environments, tasks, model, roles, rollouts and replay buffer."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from accelerate import Accelerator
from accelerate.logging import get_logger
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from transformers.training_args import OptimizerNames

from ..chat.actions import choose_format
from ..chat.encoder import ChatEncoder
from ..chat.tokenizer import ending_token_ids, load_processing_class, tokenizer_of
from ..episodes.logs import episodes_from_logs, offline_tasks
from ..episodes.pool import NO_TASK, EnvironmentFactory, EnvironmentPool, Prompts
from ..episodes.rewards import EpisodeRewards, RewardFunc, load_rewards
from ..episodes.rollout import check_prompt_length
from ..episodes.rounds import AsyncRollouts, Rollouts
from ..generation.loading import load_generator
from ..method.context import context_of, fit_to_context
from ..method.refinement import check_distillation
from ..method.roles import Roles
from ..nlac_config import NLACConfig
from ..private_names import get_config_model_id
from ..prompts import NLACPrompts
from ..replay.prioritized_replay import PrioritizedReplay
from .arguments import check_best_metric, check_optimizer, check_tasks, named, plays_prompts, warn_of_unused
from .checkpoint import describe_run
from .guards import short_thoughts
from .model import base_revision, choose_aux_loss, load_model, tokenizer_folder


if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel
    from transformers import BitsAndBytesConfig

logger = get_logger(__name__)

MAX_STALENESS = 2  # iterations, of episodes that are played beside training
Datasets = Dataset | dict[str, Dataset] | None


def checked_args(
    args: NLACConfig | None, model: "str | PreTrainedModel | PeftModel", eval_dataset: Datasets
) -> NLACConfig:
    """Return the options of a run, checked, also those that were changed since they were made."""
    if args is None:
        model_name = model if isinstance(model, str) else get_config_model_id(model.config)
        with named("The default of `args`"):
            args = NLACConfig(f"{model_name.split('/')[-1]}-NLAC")
    args.check()
    check_best_metric(args, eval_dataset)
    check_optimizer(args)
    warn_of_unused(args)
    return args


def make_environments(
    args: NLACConfig,
    environment_factory: EnvironmentFactory | dict[str, EnvironmentFactory] | None,
    tools: list[Callable] | None,
    reward_funcs: RewardFunc | list[RewardFunc] | None,
    train_dataset: Dataset | None,
) -> EnvironmentPool:
    """Make the pool of environments; a `ValueError` if an option does not fit them."""
    if plays_prompts(environment_factory, tools, reward_funcs, train_dataset):
        environment_factory = Prompts
    limits = (args.max_concurrent_environments, args.environment_timeout)
    environments = EnvironmentPool(environment_factory, tools, *limits, workers=args.environment_workers)
    if environments and args.environment_timeout is None:
        logger.warning(
            "`environment_timeout=None`: one environment, agent or server that hangs holds the run up for ever. Set "
            "it to more seconds than the slowest call needs."
        )
    if args.async_rollouts and not environments:
        raise ValueError("`async_rollouts=True` requires an `environment_factory`.")
    if environments.brings_tools and not args.keep_history:
        raise ValueError(
            "`keep_history=False` does not fit an agent, which chooses itself what its model sees. Leave it at "
            "`True`, and let the agent forget."
        )
    if environments.is_single_step:
        args.set_single_turn()
        logger.info("Tasks are prompts, whose answers are scored: `single_step` is %s.", args.single_step)
    return environments


def choose_tasks(
    args: NLACConfig,
    environments: EnvironmentPool,
    environment_factory: Any,
    train_dataset: Dataset | None,
    eval_dataset: Datasets,
    reward_funcs: RewardFunc | list[RewardFunc] | None,
    replay_dataset: Dataset | None,
) -> Dataset | None:
    """Return the tasks of training, checked with those of evaluation; stand-ins where there are none."""
    if not environments:
        for_playing = {"train_dataset": train_dataset, "eval_dataset": eval_dataset, "reward_funcs": reward_funcs}
        return offline_tasks(replay_dataset, for_playing, args.world_size)
    if train_dataset is None and args.max_steps > 0 and not isinstance(environment_factory, dict):
        train_dataset = Dataset.from_list([NO_TASK] * args.episodes_per_iteration)
    check_tasks(train_dataset, eval_dataset, environments.check_task)
    return train_dataset


def make_rewards(
    args: NLACConfig,
    environments: EnvironmentPool,
    reward_funcs: RewardFunc | list[RewardFunc] | None,
    processing_classes: Any,
    context: Callable[[], dict[str, Any]],
) -> EpisodeRewards | None:
    """Load the reward functions, to which `context` gives additional arguments."""
    return load_rewards(
        reward_funcs,
        args.reward_weights,
        context,
        environments.pays,
        args.environment_workers,
        processing_classes,
        args.device,
        init_kwargs={"trust_remote_code": args.trust_remote_code, **(args.model_init_kwargs or {})},
        chat_template_kwargs=args.chat_template_kwargs,
        is_single_step=environments.is_single_step,
    )


class Loaded(NamedTuple):
    """A model with its tokenizer, and what a generator must know of them."""

    model: "PreTrainedModel | PeftModel"
    processing_class: PreTrainedTokenizerBase | ProcessorMixin
    tokenizer: PreTrainedTokenizerBase
    chat: ChatEncoder
    revision: str | None  # of a model that is loaded by name


def load(
    model: "str | PreTrainedModel | PeftModel",
    args: NLACConfig,
    environments: EnvironmentPool,
    processing_class: PreTrainedTokenizerBase | ProcessorMixin | None,
    peft_config: "PeftConfig | None",
    quantization_config: "BitsAndBytesConfig | None",
) -> Loaded:
    """Load a model and its tokenizer, and choose the format of actions that they and the environments can read."""
    name = model if isinstance(model, str) else None
    model = load_model(model, args, peft_config, quantization_config)
    folder, revision = (None, None) if name is None else (tokenizer_folder(name), base_revision(model, args))
    choose_aux_loss(args, model)
    if processing_class is None:
        processing_class = load_processing_class(model, revision, args.trust_remote_code, folder)
    tokenizer = tokenizer_of(processing_class, model)
    if isinstance(processing_class, ProcessorMixin):
        args.set_unused_parameters()
    chat = ChatEncoder(tokenizer, args.chat_template_kwargs)
    args.action_format = choose_format(
        args.action_format, chat, environments.tool_schemas, environments.brings_tools, environments.is_single_step
    )
    if warning := short_thoughts(chat.template, args.max_completion_length):
        logger.warning(warning)
    return Loaded(model, processing_class, tokenizer, chat, revision)


def make_roles(
    loaded: Loaded,
    model: PreTrainedModel,
    args: NLACConfig,
    accelerator: Accelerator,
    prompts: NLACPrompts | None,
    is_sharded_later: bool,
) -> Roles:
    """Make the roles, which generate with the model in training."""
    generator = load_generator(
        model,
        args,
        accelerator,
        loaded.tokenizer,
        ending_token_ids(loaded.tokenizer, loaded.chat.stop_ids, loaded.model.generation_config),
        trust_remote_code=args.trust_remote_code,
        gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs,
        revision=loaded.revision,
    )
    fit_to_context(args, context_of(generator, model))
    roles = Roles(
        generator,
        loaded.chat,
        replace(prompts or NLACPrompts(), examples=[*prompts.examples] if prompts else []),
        args,
        args.vllm_structured_outputs_regex,
        shows_progress=not args.disable_tqdm and accelerator.is_main_process,
    )
    if args.policy_loss_type == "distill":
        check_distillation(roles)
    if args.generation_kwargs and not is_sharded_later:
        roles.check_generation(model)
    return roles


def make_rollouts(
    environments: EnvironmentPool, roles: Roles, rewards: EpisodeRewards | None, args: NLACConfig
) -> Rollouts:
    """Make what plays: before training, or beside it."""
    if environments:
        check_prompt_length(environments, roles)
    if not args.async_rollouts:
        return Rollouts(environments, roles, rewards)
    players = Roles(roles.generator.beside(), roles.chat, roles.prompts, args, args.vllm_structured_outputs_regex)
    updates, seed = args.updates_per_iteration, args.seed + args.process_index
    return AsyncRollouts(environments, roles, rewards, players, MAX_STALENESS * updates, updates, seed)


def make_replay(args: NLACConfig, roles: Roles, replay_dataset: Dataset | None) -> PrioritizedReplay:
    """Make the replay buffer of this process, with its share of the logs."""
    replay = PrioritizedReplay(
        args.replay_buffer_size, priority_exponent=args.priority_exponent, seed=args.seed + args.process_index
    )
    if replay_dataset is not None:
        shares = (args.process_index, args.world_size, args.max_prompt_length)
        replay.fill(episodes_from_logs(replay_dataset, roles.actions, roles.prompts, *shares))
    return replay


def identity_of(
    loaded: Loaded, args: NLACConfig, prompts: NLACPrompts, environments: EnvironmentPool, optimizer: Any
) -> dict[str, dict[str, Any]]:
    """Describe what a run must have in common with a checkpoint that it resumes from."""
    return describe_run(
        loaded.model,
        loaded.chat,
        vars(prompts),
        args.action_format,
        {"name": environments.name, "tools": environments.tool_schemas},
        optimizer=OptimizerNames(args.optim).value if optimizer is None else type(optimizer).__name__,
    )
