# SPDX-License-Identifier: Apache-2.0
"""
One method on one task of table 1, in every process of a launch by Accelerate: see run.py, which starts it.

    accelerate launch --config_file trl_nlac/accelerate_configs/zero3.yaml -m benchmarks.table1.cell --method nlac \\
        --task 20q --stage train --config examples/recipes/table1_nlac.yaml --output_dir runs/table1/nlac/20q
"""

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl import ModelConfig, TrlParser, get_peft_config

from benchmarks import reporting
from benchmarks.table1.baselines import RFTTrainer, make_grpo_trainer
from benchmarks.table1.paper import LABELS
from benchmarks.table1.tasks import TASKS, Task, TaskOptions
from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.cli.errors import CommandError
from trl_nlac.cli.preflight import Trial, conclude
from trl_nlac.cli.train import find_checkpoint


STAGES = ("evaluate", "preflight", "train")
NLAC_TRAINERS = {"nlac": NLACTrainer, "rft": RFTTrainer}
# Of stages that train for nothing or one iteration only.
ASIDE = {
    **dict(save_strategy="no", eval_strategy="no", eval_on_start=False, load_best_model_at_end=False),
    **dict(report_to=[], push_to_hub=False, overwrite_output_dir=True, logging_steps=1),
}


@dataclass
class CellArguments(TaskOptions):
    """
    Arguments of a cell, in addition to those of [`NLACConfig`] and [`~trl.ModelConfig`]. The stage `"evaluate"`
    measures the model's success, `"preflight"` tries one iteration of NLAC, and `"train"` trains and saves the model,
    from the last checkpoint if there is one. `results` is for what the first two measure.
    """

    method: str = field(default="nlac", metadata={"help": "The method.", "choices": list(LABELS)})
    task: str = field(default="math", metadata={"help": "The task.", "choices": list(TASKS)})
    stage: str = field(default="train", metadata={"help": "What to do.", "choices": list(STAGES)})
    results: str | None = field(default=None, metadata={"help": "JSON file for what is measured."})
    num_generations: int = field(default=4, metadata={"help": "Episodes that GRPO compares."})
    num_grpo_updates: int = field(default=4, metadata={"help": "Number of times that GRPO trains on an episode."})


def make_nlac_trainer(
    trainer_class: type[NLACTrainer], model: ModelConfig, args: NLACConfig, task: Task, is_trained: bool = False
) -> NLACTrainer:
    """Make NLAC's trainer, or one of its kind; of a model that has been trained, perhaps as an adapter."""
    if is_trained and Path(model.model_name_or_path, "adapter_config.json").exists():
        del args.model_init_kwargs["revision"]  # of the base model
    return trainer_class(
        model=model.model_name_or_path,
        args=args,
        train_dataset=task.train_dataset,
        eval_dataset=task.eval_dataset,
        environment_factory=task.environment_factory,
        prompts=task.prompts,
        peft_config=None if is_trained else get_peft_config(model),
    )


def evaluate(cell: CellArguments, model: ModelConfig, args: NLACConfig, task: Task) -> None:
    """Measure the success on every evaluation set of the task."""
    trainer = make_nlac_trainer(NLACTrainer, model, args, task, is_trained=True)
    metrics = trainer.evaluate()
    if trainer.is_world_process_zero():
        found: dict[str, Any] = {}
        for name in task.eval_dataset:
            prefix = f"eval_{name}_episode/success_rate"
            if prefix not in metrics:
                raise SystemExit(f"No episode of {name} could be played; the warnings above say why.")
            values = {"mean": metrics[prefix], "low": metrics[f"{prefix}_low"], "high": metrics[f"{prefix}_high"]}
            found[name] = {**values, "episodes": len(task.eval_dataset[name]) * args.num_eval_episodes}
        versions = reporting.setting("torch", "transformers", "trl", "vllm", processes=args.world_size)
        reporting.write({"model": model.model_name_or_path, "success": found, **versions}, Path(cell.results))


def preflight(cell: CellArguments, model: ModelConfig, args: NLACConfig, task: Task) -> None:
    """Try one iteration of NLAC, as `trl-nlac preflight` does. The model's success is measured by [`evaluate`]."""
    num_iterations = args.max_steps / args.updates_per_iteration
    args.max_steps = args.updates_per_iteration
    trainer = make_nlac_trainer(NLACTrainer, model, args, task)
    trial = Trial(trainer, num_episodes=0)
    trainer.add_callback(trial)
    trainer.train()
    if trainer.is_world_process_zero():
        Path(cell.results).parent.mkdir(parents=True, exist_ok=True)
        with suppress(CommandError):  # what follows from a no-go is decided by run.py
            conclude(trial, None, cell.results, num_iterations)


def train(cell: CellArguments, model: ModelConfig, args: NLACConfig, task: Task) -> None:
    """Train, from the last checkpoint if there is one, and save the model."""
    if cell.method == "grpo":
        numbers = (cell.num_generations, cell.num_grpo_updates)
        trainer = make_grpo_trainer(model.model_name_or_path, args, task, get_peft_config(model), *numbers)
    else:
        trainer = make_nlac_trainer(NLAC_TRAINERS[cell.method], model, args, task)
    trainer.train(resume_from_checkpoint=find_checkpoint(args))
    trainer.save_model()


def main(words: list[str]) -> None:
    parser = TrlParser((CellArguments, NLACConfig, ModelConfig))
    cell, args, model = parser.parse_args_and_config(words)
    task = TASKS[cell.task](cell)
    changes = {**task.options, "max_turns": min(args.max_turns, task.options["max_turns"])}
    changes |= ASIDE if cell.stage != "train" else {"resume_from_checkpoint": "last"}
    for name, value in changes.items():
        setattr(args, name, value)
    args.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(args.model_init_kwargs or {}),
    }
    {"evaluate": evaluate, "preflight": preflight, "train": train}[cell.stage](cell, model, args, task)


if __name__ == "__main__":
    main(sys.argv[1:])
