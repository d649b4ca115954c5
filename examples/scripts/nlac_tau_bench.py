# SPDX-License-Identifier: Apache-2.0


# /// script
# dependencies = [
#     "trl-nlac[peft]",
#     "tau_bench @ git+https://github.com/sierra-research/tau-bench",
# ]
# ///
r"""
Train an agent on the retail tasks of τ-bench, and evaluate it on other retail tasks and on airline tasks, on which it
is not trained.

A full run needs a model that plays the user. The paper used GPT-4.1 (`OPENAI_API_KEY` must be set; every turn of an
agent is one call), and 64 GPUs for a larger policy. With LoRA adapters on one node with several GPUs:

accelerate launch --config_file trl_nlac/accelerate_configs/multi_gpu.yaml examples/scripts/nlac_tau_bench.py \
    --user_model gpt-4.1 \
    --use_peft --dtype bfloat16 --learning_rate 1e-5 \
    --max_prompt_length 16384 --max_turns 30 --episodes_per_iteration 64 --samples_per_iteration 512 \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_generation_batch_size 8 \
    --max_steps 2000 --eval_strategy steps --eval_steps 100 \
    --output_dir runs/tau-bench

The user can also be played by a model on any OpenAI-compatible server. On another GPU, run

vllm serve Qwen/Qwen3-30B-A3B-Instruct-2507 --port 8001

and add `--user_model Qwen/Qwen3-30B-A3B-Instruct-2507 --user_base_url http://localhost:8001/v1` to the command above.

A test run on a CPU needs such a server and a tiny chat model with a long context (the first prompt has 5,000 tokens):

python examples/scripts/nlac_tau_bench.py \
    --model_name_or_path PATH --use_cpu --bf16 False \
    --user_model customer --user_base_url http://localhost:8001/v1 \
    --per_device_train_batch_size 2 --num_eval_tasks 1 --max_steps 2 --max_turns 2 --max_completion_length 32
"""

from dataclasses import dataclass, field
from functools import partial

from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.cli.train import find_checkpoint
from trl_nlac.environments.tau_bench import TauBenchEnvironment, make_tasks


@dataclass
class TauBenchArguments:
    """
    Arguments of this script, in addition to those of [`NLACConfig`] and [`~trl.ModelConfig`].

    Args:
        user_model (`str`, *optional*, defaults to `"gpt-4.1"`):
            Model that plays the user.
        user_base_url (`str`, *optional*):
            Address of an OpenAI-compatible server for this model, such as `"http://localhost:8001/v1"`. If `None`,
            OpenAI's.
        user_provider (`str`, *optional*):
            Provider of the model, as litellm names it, if it is neither OpenAI nor an OpenAI-compatible server.
        num_eval_tasks (`int`, *optional*):
            Number of test tasks of each company in an evaluation. If `None`, all.
    """

    user_model: str = field(default="gpt-4.1", metadata={"help": "Model that plays the user."})
    user_base_url: str | None = field(
        default=None, metadata={"help": "Address of an OpenAI-compatible server for this model."}
    )
    user_provider: str | None = field(default=None, metadata={"help": "Provider of the model, as litellm names it."})
    num_eval_tasks: int | None = field(default=None, metadata={"help": "Number of test tasks of each company."})


def main():
    parser = TrlParser((TauBenchArguments, NLACConfig, ModelConfig))
    parser.set_defaults(model_name_or_path="Qwen/Qwen3-4B-Instruct-2507", output_dir="runs/tau-bench")
    script_args, training_args, model_args = parser.parse_args_and_config()
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }
    make_environment = partial(
        TauBenchEnvironment,
        user_model=script_args.user_model,
        user_base_url=script_args.user_base_url,
        user_provider=script_args.user_provider,
        respond_tool=training_args.action_format == "react",
    )
    eval_tasks = {company: make_tasks(company, "test") for company in ("retail", "airline")}
    if script_args.num_eval_tasks is not None:
        eval_tasks = {company: tasks.take(script_args.num_eval_tasks) for company, tasks in eval_tasks.items()}
    trainer = NLACTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        train_dataset=make_tasks("retail", "train"),
        eval_dataset=eval_tasks,
        environment_factory={
            "retail_train": partial(make_environment, "retail", "train"),
            "retail_test": partial(make_environment, "retail", "test"),
            "airline_test": partial(make_environment, "airline", "test"),
        },
        peft_config=get_peft_config(model_args),
        quantization_config=get_quantization_config(model_args),
    )
    trainer.train(resume_from_checkpoint=find_checkpoint(training_args))
    trainer.save_model()
    if training_args.push_to_hub:
        trainer.push_to_hub()
    metrics = trainer.evaluate()
    for company, tasks in eval_tasks.items():
        trainer.accelerator.print(
            f"{company}: solves {metrics[f'eval_{company}_episode/success_rate']:.0%} of {len(tasks)} test tasks "
            f"(95 % interval {metrics[f'eval_{company}_episode/success_rate_low']:.0%} to "
            f"{metrics[f'eval_{company}_episode/success_rate_high']:.0%})."
        )
    trainer.accelerator.print(
        f"The model is in {training_args.output_dir}.\nNext: trl-nlac report {training_args.output_dir}"
    )


if __name__ == "__main__":
    main()
