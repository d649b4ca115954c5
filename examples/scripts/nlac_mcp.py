# SPDX-License-Identifier: Apache-2.0

# /// script
# dependencies = ["trl-nlac[mcp,peft]"]
# ///
r"""
Train an agent that uses the tools of an MCP server. The server is part of this script, which starts itself with
`--serve`: it looks up orders and parcels of a shop, over stdio. Put the command of your own server in its place.

A full run needs one GPU for LoRA adapters:

accelerate launch examples/scripts/nlac_mcp.py \
    --use_peft --dtype bfloat16 --learning_rate 1e-5 --max_turns 6 \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --max_generation_batch_size 16 \
    --episodes_per_iteration 16 --samples_per_iteration 128 \
    --max_concurrent_environments 16 --max_steps 500 --eval_strategy steps --eval_steps 125 \
    --output_dir runs/mcp

A test run on a CPU, with the package's tiny model, which learns nothing here:

python examples/scripts/nlac_mcp.py \
    --model_name_or_path trl_nlac/tiny_model --use_cpu --bf16 False --num_tasks 4 --num_eval_tasks 2 \
    --max_concurrent_environments 2 --max_steps 1 --max_turns 2 --max_completion_length 32
"""

import random
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from datasets import Dataset
from mcp import StdioServerParameters
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.cli.train import find_checkpoint
from trl_nlac.environments.mcp import MCPEnvironment


INSTRUCTIONS = "You answer customers of a shop. Look up what you do not know. Answer in one sentence."
CITIES = ["Lagos", "Lima", "Lisbon", "Ljubljana", "London", "Lusaka", "Luxembourg", "Lyon"]


@dataclass
class MCPArguments:
    """
    Arguments of this script, in addition to those of [`NLACConfig`] and [`~trl.ModelConfig`].

    Args:
        num_tasks (`int`, *optional*, defaults to `500`):
            Number of customers in training.
        num_eval_tasks (`int`, *optional*, defaults to `50`):
            Number of customers in evaluation.
    """

    num_tasks: int = field(default=500, metadata={"help": "Number of customers in training."})
    num_eval_tasks: int = field(default=50, metadata={"help": "Number of customers in evaluation."})


def city_of(number: str) -> str:
    """Where a parcel is: the server and the tasks agree, without a database."""
    return random.Random(number).choice(CITIES)


def serve() -> None:
    """Serve the shop's tools on standard input and output."""
    from mcp.server.fastmcp import FastMCP

    server = FastMCP("shop")

    @server.tool()
    def parcel_of(order: str) -> str:
        """Look up the parcel of an order."""
        return f"Sent as parcel P{order.removeprefix('A')}."

    @server.tool()
    def where_is(parcel: str) -> str:
        """Look up where a parcel is."""
        return f"In {city_of(parcel)}."

    server.run()


def score(task: dict[str, Any], answer: str) -> float:
    """Whether the final answer names the city."""
    return float(task["city"] in answer)


def make_tasks(number: int, seed: int) -> Dataset:
    """Make one row for each customer."""
    rng = random.Random(seed)
    orders = [rng.randrange(10**4) for _ in range(number)]
    question = "In which city is my order A{} now?"
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": question.format(order)}], "city": city_of(f"P{order}")}
            for order in orders
        ]
    )


def main():
    parser = TrlParser((MCPArguments, NLACConfig, ModelConfig))
    parser.set_defaults(model_name_or_path="Qwen/Qwen3-4B-Instruct-2507", output_dir="runs/mcp")
    script_args, training_args, model_args = parser.parse_args_and_config()
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }
    server = StdioServerParameters(command=sys.executable, args=[__file__, "--serve"])

    trainer = NLACTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        train_dataset=make_tasks(script_args.num_tasks, seed=0),
        eval_dataset=make_tasks(script_args.num_eval_tasks, seed=1),
        environment_factory=partial(MCPEnvironment, server, INSTRUCTIONS, score),
        peft_config=get_peft_config(model_args),
        quantization_config=get_quantization_config(model_args),
    )
    trainer.train(resume_from_checkpoint=find_checkpoint(training_args))
    trainer.save_model()
    if training_args.push_to_hub:
        trainer.push_to_hub()
    metrics = trainer.evaluate()
    trainer.accelerator.print(
        f"The agent answers {metrics['eval_episode/success_rate']:.0%} of {script_args.num_eval_tasks} customers "
        f"rightly. The model is in {training_args.output_dir}.\n"
        f"Next: trl-nlac report {training_args.output_dir}"
    )


if __name__ == "__main__":
    serve() if "--serve" in sys.argv else main()
