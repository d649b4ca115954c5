# SPDX-License-Identifier: Apache-2.0

# /// script
# dependencies = ["trl-nlac[math,peft]"]
# ///
r"""
Train a model on math problems, where a task is a single step: the critic judges solutions, and the policy learns from
solutions that were refined with its critiques (paper, section 6.1).

A full run needs one GPU for LoRA adapters and downloads MATH from the Hub. As in the paper, 500 problems of the
highest level are for evaluation, the other 12,000 for training.

accelerate launch examples/scripts/nlac_math.py \
    --use_peft --dtype bfloat16 --learning_rate 1e-5 --max_completion_length 2048 \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --max_generation_batch_size 16 \
    --max_steps 1000 --eval_strategy steps --eval_steps 200 \
    --output_dir runs/math

For several GPUs, use `accelerate launch --config_file trl_nlac/accelerate_configs/multi_gpu.yaml`. Your own problems
are rows of a JSONL file, `--dataset PATH`, with the columns `problem` and `answer`, or `problem` and a `solution` with
the answer in \boxed{}.

A test run on a CPU takes less than a minute; the package's tiny model learns nothing here:

for i in 1 2 3 4 5 6 7 8; do echo '{"problem": "'$i' + 1", "solution": "\\boxed{'$((i + 1))'}"}'; done > sums.jsonl
python examples/scripts/nlac_math.py \
    --model_name_or_path trl_nlac/tiny_model --prompts trl_nlac/tiny_model/nlac_prompts.json --use_cpu --bf16 False \
    --dataset sums.jsonl --num_eval_problems 2 --max_completion_length 32 --per_device_train_batch_size 4 --max_steps 2
"""

from dataclasses import dataclass, field

from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from trl_nlac import NLACConfig, NLACPrompts, NLACTrainer
from trl_nlac.cli.train import find_checkpoint
from trl_nlac.environments.math import MathEnvironment, make_tasks


PROMPTS = NLACPrompts(
    policy="You solve mathematical problems. Answer in exactly this form:\n{action_format}",
    format_text="<the solution, step by step, with the final answer in \\boxed{} at its end>",
)


@dataclass
class MathArguments:
    """
    Arguments of this script, in addition to those of [`NLACConfig`] and [`~trl.ModelConfig`].

    Args:
        dataset (`str`, *optional*, defaults to `"DigitalLearningGmbH/MATH-lighteval"`):
            Dataset on the Hub, or path of a JSONL file.
        num_eval_problems (`int`, *optional*, defaults to `500`):
            Number of evaluation problems, drawn from the split `test`, or from `train` if it is the only one. All
            others are for training.
        eval_level (`str`, *optional*, defaults to `"Level 5"`):
            Value of the column `level` of evaluation problems, if the dataset has this column.
        prompts (`str`, *optional*):
            YAML or JSON file with prompts, see [`NLACPrompts.from_file`]. If `None`, those of this script.
    """

    dataset: str = field(
        default="DigitalLearningGmbH/MATH-lighteval", metadata={"help": "Dataset on the Hub, or path of a JSONL file."}
    )
    num_eval_problems: int = field(default=500, metadata={"help": "Number of evaluation problems."})
    eval_level: str = field(default="Level 5", metadata={"help": "Column `level` of evaluation problems."})
    prompts: str | None = field(default=None, metadata={"help": "File with prompts."})


def main():
    parser = TrlParser((MathArguments, NLACConfig, ModelConfig))
    parser.set_defaults(
        model_name_or_path="Qwen/Qwen3-4B-Instruct-2507",
        output_dir="runs/math",
        single_step=True,
        max_turns=1,
        action_format="text",
    )
    script_args, training_args, model_args = parser.parse_args_and_config()
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }
    train_dataset, eval_dataset = make_tasks(
        script_args.dataset, script_args.num_eval_problems, script_args.eval_level
    )
    trainer = NLACTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        environment_factory=MathEnvironment,
        prompts=NLACPrompts.from_file(script_args.prompts) if script_args.prompts else PROMPTS,
        peft_config=get_peft_config(model_args),
        quantization_config=get_quantization_config(model_args),
    )
    trainer.train(resume_from_checkpoint=find_checkpoint(training_args))
    trainer.save_model()
    if training_args.push_to_hub:
        trainer.push_to_hub()
    metrics = trainer.evaluate()
    trainer.accelerator.print(
        f"The model solves {metrics['eval_episode/success_rate']:.0%} of {len(eval_dataset)} problems that it was not "
        f"trained on. It is saved in {training_args.output_dir}.\n"
        f"Next: trl-nlac report {training_args.output_dir}"
    )


if __name__ == "__main__":
    main()
