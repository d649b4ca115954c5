# SPDX-License-Identifier: Apache-2.0

# /// script
# dependencies = ["trl-nlac[gateway,openai,peft]"]
# ///
r"""
Train an agent that exists already: a loop with OpenAI's client, which answers the customers of a shop with the help of
one tool. Nothing in it knows the trainer. Put your own agent, of any framework, in the place of `run_agent`.

A full run needs one GPU for LoRA adapters:

accelerate launch examples/scripts/nlac_agent.py \
    --use_peft --dtype bfloat16 --learning_rate 1e-5 --max_turns 6 \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --max_generation_batch_size 16 \
    --episodes_per_iteration 16 --samples_per_iteration 128 \
    --max_steps 500 --eval_strategy steps --eval_steps 125 \
    --output_dir runs/agent

A test run on a CPU, with the package's tiny model, which learns nothing here:

python examples/scripts/nlac_agent.py \
    --model_name_or_path trl_nlac/tiny_model --use_cpu --bf16 False --num_tasks 8 --num_eval_tasks 2 \
    --max_steps 2 --max_turns 3 --max_completion_length 32
"""

import json
import random
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset
from openai import OpenAI
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.cli.train import find_checkpoint
from trl_nlac.environments import AgentEnvironment


INSTRUCTIONS = "You answer customers of a shop. Look up what you do not know. Answer in one sentence."
LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look up an order, or where a parcel is.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "string", "description": "Number of the order or the parcel."}},
            "required": ["number"],
        },
    },
}


@dataclass
class AgentArguments:
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


def run_agent(task: dict[str, Any], base_url: str, api_key: str) -> float:
    """Answer a customer, and return whether the answer was right."""
    shop = {task["order"]: f"Sent as parcel {task['parcel']}.", task["parcel"]: f"In {task['city']}."}
    messages: list[Any] = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": f"In which city is my order {task['order']} now?"},
    ]
    with OpenAI(base_url=base_url, api_key=api_key) as client:
        while True:
            completion = client.chat.completions.create(model="policy", messages=messages, tools=[LOOK_UP])
            message = completion.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return float(task["city"] in (message.content or ""))
            for call in message.tool_calls:
                number = str(json.loads(call.function.arguments).get("number", ""))
                result = shop.get(number, f"There is no {number!r}.")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def make_tasks(number: int, seed: int) -> Dataset:
    """Make one row for each customer."""
    rng = random.Random(seed)
    cities = ["Lagos", "Lima", "Lisbon", "Ljubljana", "London", "Lusaka", "Luxembourg", "Lyon"]
    return Dataset.from_list(
        [
            {"order": f"A{rng.randrange(10**4)}", "parcel": f"P{rng.randrange(10**4)}", "city": rng.choice(cities)}
            for _ in range(number)
        ]
    )


def main():
    parser = TrlParser((AgentArguments, NLACConfig, ModelConfig))
    parser.set_defaults(model_name_or_path="Qwen/Qwen3-4B-Instruct-2507", output_dir="runs/agent")
    script_args, training_args, model_args = parser.parse_args_and_config()
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }

    trainer = NLACTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        train_dataset=make_tasks(script_args.num_tasks, seed=0),
        eval_dataset=make_tasks(script_args.num_eval_tasks, seed=1),
        environment_factory=AgentEnvironment(run_agent),
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
    main()
