# SPDX-License-Identifier: Apache-2.0

# /// script
# dependencies = ["trl-nlac[openai,peft]"]
# ///
r"""
Train an agent to play 20 questions (paper, section 6.1).

A full run needs one GPU for LoRA adapters. The answers come from a table of 153 everyday objects, without a model:

accelerate launch examples/scripts/nlac_twenty_questions.py \
    --use_peft --dtype bfloat16 --learning_rate 1e-5 --max_turns 25 --max_completion_length 256 \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --max_generation_batch_size 16 \
    --episodes_per_iteration 16 --samples_per_iteration 128 \
    --max_steps 1000 --eval_strategy steps --eval_steps 250 \
    --output_dir runs/twenty-questions

As in the paper, on 8 GPUs, with a chat model that answers and your own objects, one name per line of a file (the paper
takes 1,000 for training and 500 for evaluation from THINGS). The key of the endpoint is in `OPENAI_API_KEY`:

accelerate launch --config_file trl_nlac/accelerate_configs/zero3.yaml \
    examples/scripts/nlac_twenty_questions.py --model_name_or_path Qwen/Qwen2.5-7B-Instruct --max_turns 25 \
    --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --max_generation_batch_size 16 \
    --oracle_model gpt-4.1 --train_objects train.txt --eval_objects eval.txt --output_dir runs/twenty-questions

For a model on your own server, use `--oracle_model Qwen/Qwen3-4B-Instruct-2507 --oracle_base_url
http://localhost:8000/v1` and any text in `OPENAI_API_KEY`.

A test run on a CPU takes less than a minute; the package's tiny model learns nothing here:

python examples/scripts/nlac_twenty_questions.py \
    --model_name_or_path trl_nlac/tiny_model --prompts trl_nlac/tiny_model/nlac_prompts.json --use_cpu --bf16 False \
    --max_questions 3 --max_turns 3 --num_eval_objects 4 --max_completion_length 32 --action_format text \
    --per_device_train_batch_size 4 --max_steps 2
"""

from dataclasses import dataclass, field
from pathlib import Path

from datasets import Dataset
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from trl_nlac import NLACConfig, NLACPrompts, NLACTrainer
from trl_nlac.cli.train import find_checkpoint
from trl_nlac.environments.twenty_questions import ChatOracle, RuleOracle, TwentyQuestionsEnvironment, make_tasks


@dataclass
class TwentyQuestionsArguments:
    """
    Arguments of this script, in addition to those of [`NLACConfig`] and [`~trl.ModelConfig`].

    Args:
        max_questions (`int`, *optional*, defaults to `20`):
            Number of questions per game.
        oracle_model (`str`, *optional*):
            Chat model that answers. If `None`, a table does.
        oracle_base_url (`str`, *optional*):
            Address of its endpoint. If `None`, OpenAI's.
        train_objects (`str`, *optional*):
            File with training objects, one name per line. If `None`, those of the table.
        eval_objects (`str`, *optional*):
            File with evaluation objects, one name per line. If `None`, those of the table.
        num_eval_objects (`int`, *optional*):
            Number of evaluation objects. If `None`, all of them.
        prompts (`str`, *optional*):
            YAML or JSON file with prompts, see [`NLACPrompts.from_file`].
    """

    max_questions: int = field(default=20, metadata={"help": "Number of questions per game."})
    oracle_model: str | None = field(
        default=None, metadata={"help": "Chat model that answers. If None, a table does."}
    )
    oracle_base_url: str | None = field(default=None, metadata={"help": "Address of its endpoint."})
    train_objects: str | None = field(default=None, metadata={"help": "File with training objects, one per line."})
    eval_objects: str | None = field(default=None, metadata={"help": "File with evaluation objects, one per line."})
    num_eval_objects: int | None = field(default=None, metadata={"help": "Number of evaluation objects."})
    prompts: str | None = field(default=None, metadata={"help": "File with prompts."})


def load_objects(path: str | None, split: str) -> Dataset:
    if path is None:
        return make_tasks(split)
    names = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    return Dataset.from_dict({"object": [name for name in names if name]})


def main():
    parser = TrlParser((TwentyQuestionsArguments, NLACConfig, ModelConfig))
    parser.set_defaults(model_name_or_path="Qwen/Qwen3-4B-Instruct-2507", output_dir="runs/twenty-questions")
    script_args, training_args, model_args = parser.parse_args_and_config()
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }
    if script_args.oracle_model is None:
        oracle = RuleOracle()
    else:
        oracle = ChatOracle(script_args.oracle_model, script_args.oracle_base_url)
    eval_dataset = load_objects(script_args.eval_objects, "eval")
    if script_args.num_eval_objects is not None:
        eval_dataset = eval_dataset.select(range(min(script_args.num_eval_objects, len(eval_dataset))))
    trainer = NLACTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        train_dataset=load_objects(script_args.train_objects, "train"),
        eval_dataset=eval_dataset,
        environment_factory=lambda: TwentyQuestionsEnvironment(oracle, script_args.max_questions),
        prompts=NLACPrompts.from_file(script_args.prompts) if script_args.prompts else None,
        peft_config=get_peft_config(model_args),
        quantization_config=get_quantization_config(model_args),
    )
    trainer.train(resume_from_checkpoint=find_checkpoint(training_args))
    trainer.save_model()
    if training_args.push_to_hub:
        trainer.push_to_hub()
    metrics = trainer.evaluate()
    trainer.accelerator.print(
        f"The agent finds {metrics['eval_episode/success_rate']:.0%} of {len(eval_dataset)} objects that it was not "
        f"trained on. The model is in {training_args.output_dir}.\n"
        f"Next: trl-nlac report {training_args.output_dir}"
    )


if __name__ == "__main__":
    main()
