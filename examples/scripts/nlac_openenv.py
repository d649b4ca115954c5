# SPDX-License-Identifier: Apache-2.0


# /// script
# dependencies = ["trl-nlac[peft,openenv]"]
# ///
r"""
Train an agent on a text game behind an OpenEnv server: Wordle, or another game of the TextArena environment.

OpenEnv environments run on servers, often as Spaces on the Hugging Face Hub; this script needs only the openenv
package. For training, run a copy of the server on your own machine, with at least as many sessions as concurrent
episodes:

docker run -d -p 8001:8000 -e MAX_CONCURRENT_ENVS=64 registry.hf.space/openenv-wordle:latest

A full run needs one GPU for LoRA adapters:

accelerate launch examples/scripts/nlac_openenv.py \
    --env_url http://localhost:8001 --max_concurrent_environments 64 \
    --use_peft --dtype bfloat16 --learning_rate 1e-5 \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --max_generation_batch_size 16 \
    --episodes_per_iteration 16 --samples_per_iteration 128 \
    --max_turns 6 --max_steps 500 --eval_strategy steps --eval_steps 125 \
    --output_dir runs/openenv

A test run on a CPU, with the package's tiny model, which learns nothing here, and a local server whose game needs no
download:

git clone https://github.com/huggingface/OpenEnv && pip install ./OpenEnv/envs/textarena_env
TEXTARENA_ENV_ID=GuessTheNumber-v0 TEXTARENA_DOWNLOAD_NLTK=0 \
    python -m uvicorn textarena_env.server.app:app --port 8001 &
python examples/scripts/nlac_openenv.py \
    --env_url http://localhost:8001 --model_name_or_path trl_nlac/tiny_model --use_cpu --bf16 False \
    --num_tasks 8 --num_eval_tasks 2 --max_steps 2 --max_turns 3 --max_completion_length 32 --action_format text
"""

from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset
from openenv.core import GenericEnvClient
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.cli.train import find_checkpoint
from trl_nlac.environments.openenv import OpenEnvEnvironment


@dataclass
class OpenEnvArguments:
    """
    Arguments of this script, in addition to those of [`NLACConfig`] and [`~trl.ModelConfig`].

    Args:
        env_url (`str`, *optional*, defaults to `"https://openenv-wordle.hf.space"`):
            Address of a server of OpenEnv's TextArena environment.
        num_tasks (`int`, *optional*, defaults to `500`):
            Number of training games.
        num_eval_tasks (`int`, *optional*, defaults to `50`):
            Number of evaluation games.
    """

    env_url: str = field(default="https://openenv-wordle.hf.space", metadata={"help": "Address of the server."})
    num_tasks: int = field(default=500, metadata={"help": "Number of training games."})
    num_eval_tasks: int = field(default=50, metadata={"help": "Number of evaluation games."})


class News:
    """Returns the new text of an observation: the server repeats all earlier messages, which the agent has read."""

    def __init__(self):
        self.seen = ""

    def __call__(self, observation: dict[str, Any]) -> str:
        text = "".join(message["content"] for message in observation["messages"])
        news = text.removeprefix(self.seen) or text  # only a new game can have the same text as before
        self.seen = text
        return news.strip()


def make_tasks(seeds: range) -> Dataset:
    """Make one row for each game. The server gets the seed, but some games ignore it."""
    return Dataset.from_dict({"seed": list(seeds)})


def main():
    parser = TrlParser((OpenEnvArguments, NLACConfig, ModelConfig))
    parser.set_defaults(model_name_or_path="Qwen/Qwen3-4B-Instruct-2507", output_dir="runs/openenv")
    script_args, training_args, model_args = parser.parse_args_and_config()
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }
    num_tasks = script_args.num_tasks

    def make_environment() -> OpenEnvEnvironment:
        # The generic client uses dicts. With an environment's own package, use its client and action class.
        return OpenEnvEnvironment(
            make_client=lambda: GenericEnvClient(base_url=script_args.env_url).sync(),
            to_action=lambda text: {"message": text},
            to_text=News(),
        )

    trainer = NLACTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        train_dataset=make_tasks(range(num_tasks)),
        eval_dataset=make_tasks(range(num_tasks, num_tasks + script_args.num_eval_tasks)),
        environment_factory=make_environment,
        peft_config=get_peft_config(model_args),
        quantization_config=get_quantization_config(model_args),
    )
    trainer.train(resume_from_checkpoint=find_checkpoint(training_args))
    trainer.save_model()
    if training_args.push_to_hub:
        trainer.push_to_hub()
    metrics = trainer.evaluate()
    trainer.accelerator.print(
        f"The agent wins {metrics['eval_episode/success_rate']:.0%} of {script_args.num_eval_tasks} games on "
        f"{script_args.env_url}, with a mean reward of {metrics['eval_episode/return']:.2f}. The model is in "
        f"{training_args.output_dir}.\n"
        f"Next: trl-nlac report {training_args.output_dir}"
    )


if __name__ == "__main__":
    main()
