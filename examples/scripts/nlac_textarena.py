# SPDX-License-Identifier: Apache-2.0


# /// script
# dependencies = ["trl-nlac[peft,textarena]"]
# ///
r"""
Train an agent on single-player games of textarena. Every seed is a task; evaluation plays other seeds than training.

A full run needs one GPU for LoRA adapters:

accelerate launch examples/scripts/nlac_textarena.py \
    --env_id Mastermind-v0 --max_turns 30 \
    --use_peft --dtype bfloat16 --learning_rate 1e-5 \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --max_generation_batch_size 16 \
    --episodes_per_iteration 16 --samples_per_iteration 128 \
    --max_steps 500 --eval_strategy steps --eval_steps 125 \
    --output_dir runs/mastermind

To train on several games, use `--env_id Mastermind-v0 GuessTheNumber-v0 Minesweeper-v0`; for several GPUs, use
`accelerate launch --config_file trl_nlac/accelerate_configs/multi_gpu.yaml`. `docs/source/textarena.md` lists the
games that need no network.

A test run on a CPU takes less than a minute. The package's tiny model learns nothing here, and few of its critiques
can be read:

python examples/scripts/nlac_textarena.py \
    --model_name_or_path trl_nlac/tiny_model --prompts trl_nlac/tiny_model/nlac_prompts.json --use_cpu --bf16 False \
    --env_id Cryptarithm-v0 --num_tasks 8 --num_eval_tasks 2 --logging_steps 1 --max_format_retries 2 \
    --max_steps 3 --max_turns 2 --max_completion_length 32 --action_format text
"""

from dataclasses import dataclass, field
from functools import partial

from datasets import Dataset
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from trl_nlac import NLACConfig, NLACPrompts, NLACTrainer
from trl_nlac.cli.train import find_checkpoint
from trl_nlac.environments.textarena import TextArenaEnvironment


@dataclass
class TextArenaArguments:
    """
    Arguments of this script, in addition to those of [`NLACConfig`] and [`~trl.ModelConfig`].

    Args:
        env_id (`list[str]`, *optional*, defaults to `["Mastermind-v0"]`):
            Registered names of the games.
        num_tasks (`int`, *optional*, defaults to `500`):
            Number of training seeds per game.
        num_eval_tasks (`int`, *optional*, defaults to `50`):
            Number of evaluation seeds per game.
        prompts (`str`, *optional*):
            File with prompts that replace the defaults, see [`NLACPrompts.from_file`].
    """

    env_id: list[str] = field(default_factory=lambda: ["Mastermind-v0"], metadata={"help": "Names of the games."})
    num_tasks: int = field(default=500, metadata={"help": "Number of training seeds per game."})
    num_eval_tasks: int = field(default=50, metadata={"help": "Number of evaluation seeds per game."})
    prompts: str | None = field(default=None, metadata={"help": "File with prompts."})


def make_tasks(games: list[str], seeds: range) -> Dataset:
    """Make a row for each game and seed; the column `environment` names the game."""
    return Dataset.from_list([{"environment": game, "seed": seed} for seed in seeds for game in games])


def main():
    parser = TrlParser((TextArenaArguments, NLACConfig, ModelConfig))
    parser.set_defaults(model_name_or_path="Qwen/Qwen3-4B-Instruct-2507", output_dir="runs/textarena")
    script_args, training_args, model_args = parser.parse_args_and_config()
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }
    games, num_tasks = script_args.env_id, script_args.num_tasks
    trainer = NLACTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        train_dataset=make_tasks(games, range(num_tasks)),
        eval_dataset=make_tasks(games, range(num_tasks, num_tasks + script_args.num_eval_tasks)),
        environment_factory={game: partial(TextArenaEnvironment, game) for game in games},
        prompts=NLACPrompts.from_file(script_args.prompts) if script_args.prompts else None,
        peft_config=get_peft_config(model_args),
        quantization_config=get_quantization_config(model_args),
    )
    trainer.train(resume_from_checkpoint=find_checkpoint(training_args))
    metrics = trainer.evaluate()
    trainer.save_model()
    if training_args.push_to_hub:
        trainer.push_to_hub()
    trainer.accelerator.print(
        f"On seeds that it was not trained on, the agent wins {metrics['eval_episode/success_rate']:.0%} of the games "
        f"with a mean reward of {metrics['eval_episode/return']:.2f}. The model is in {training_args.output_dir}.\n"
        f"Next: trl-nlac report {training_args.output_dir}"
    )


if __name__ == "__main__":
    main()
