# SPDX-License-Identifier: Apache-2.0


"""
Real models in the learning benchmark: their tasks, the default prompts of the package, and the paper's settings where
it states them.

Service desks are presented as tools. `twenty_questions` and `tau_bench` are tasks of the paper's table 1 that a tiny
model cannot play.
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.learning.tasks import GUESS_THE_NUMBER, Instances, LearningTask, guess_the_number, service_desk
from trl_nlac import NLACPrompts
from trl_nlac.environments import tau_bench, twenty_questions
from trl_nlac.environments.twenty_questions import TwentyQuestionsEnvironment


if TYPE_CHECKING:
    from peft import PeftConfig

TASKS = ("twenty_questions", "tau_bench")

# Appendix A.4 states the learning rate, the lengths of prompts and completions, tau and alpha. The other settings are
# ours.
ACTING = dict(
    bf16=True,
    max_prompt_length=8192,
    max_completion_length=24576,
    max_generation_batch_size=128,
    temperature=1.0,
    min_p=None,
    target_max_age=0,
    use_vllm=False,
    vllm_gpu_memory_utilization=0.3,
    vllm_max_model_length=None,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
    use_cpu=False,
    gradient_checkpointing=True,
    model_init_kwargs=None,
)
NLAC = dict(
    learning_rate=5e-6,
    lr_scheduler_type="constant",
    target_update_rate=0.005,
    priority_exponent=0.1,
    bootstrap="implicit",
    role_sampling={"backup": {"temperature": 1.0}},
    per_device_train_batch_size=1,
    gradient_accumulation_steps=64,
    samples_per_iteration=1024,
    episodes_per_iteration=128,
)
BASELINES = {
    "grpo": dict(
        learning_rate=5e-6,
        num_generations=4,  # section 6.2
        episodes_per_iteration=128,
        updates_per_iteration=4,
        micro_batch_size=1,
        rehearsal_ratio=0.0,
    ),
    "rft": dict(
        learning_rate=5e-6,
        episodes_per_iteration=128,
        updates_per_iteration=16,
        batch_size=64,
        micro_batch_size=1,
        buffer_size=100_000,
        rehearsal_ratio=0.0,
        anchor_ratio=0.0,
    ),
    "scalar": dict(
        learning_rate=5e-6,
        target_update_rate=0.005,
        episodes_per_iteration=128,
        samples_per_iteration=1024,
        batch_size=64,
        micro_batch_size=1,
        rehearsal_ratio=0.0,
    ),
}
BUDGET = 30 * 1024  # environment steps


def make_task(
    name: str,
    seed: int,
    model: str,
    peft_config: "PeftConfig | None" = None,
    user_model: str = "gpt-4.1",
    user_base_url: str | None = None,
) -> LearningTask:
    """
    Make a task for a real model.

    Args:
        name (`str`):
            One of [`TASKS`], a service desk, or Guess The Number.
        seed (`int`):
            Selects the desk, or the games. The other tasks have one instance.
        model (`str`):
            The model.
        peft_config ([`~peft.PeftConfig`], *optional*):
            Adapter to train in place of the whole model.
        user_model (`str`, *optional*, defaults to `"gpt-4.1"`):
            Model that plays the customers of tau_bench.
        user_base_url (`str`, *optional*):
            OpenAI-compatible server that serves the user's model.

    Raises:
        ValueError: If the task is not available for real models.
    """
    common = {"model": model, "prompts": NLACPrompts(), "rehearsal": None, "peft_config": peft_config}
    if name.startswith("service_desk_"):
        desk = service_desk(name.removeprefix("service_desk_"), seed, shows_tools=True)
        return replace(desk, action_format="tool_call", **common)
    if name == GUESS_THE_NUMBER:
        return replace(guess_the_number(seed), **common)
    if name == "twenty_questions":
        rows = {split: twenty_questions.make_tasks(split) for split in ("train", "eval")}
        return LearningTask(
            name=name,
            environment_factory=TwentyQuestionsEnvironment,
            rows=rows["train"],
            instances={"held_out": Instances(TwentyQuestionsEnvironment, rows["eval"])},
            max_turns=25,  # 20 questions, and up to five unreadable answers
            group="object",
            action_format="react",
            **common,
        )
    if name == "tau_bench":
        company = partial(tau_bench.TauBenchEnvironment, user_model=user_model, user_base_url=user_base_url)

        def instances(company_name: str, split: str) -> Instances:
            rows = tau_bench.make_tasks(company_name, split).remove_columns("environment")
            return Instances(partial(company, company_name, split), rows)

        train = instances("retail", "train")
        return LearningTask(
            name=name,
            environment_factory=train.environment_factory,
            rows=train.rows,
            instances={"held_out": instances("retail", "test"), "unseen_domain": instances("airline", "test")},
            max_turns=30,
            group="task_index",
            action_format="react",
            **common,
        )
    known = ("service_desk_*", GUESS_THE_NUMBER, *TASKS)
    raise ValueError(f"`--tasks {name}` is only for the tiny model. With `--model`, choose from {known}.")
