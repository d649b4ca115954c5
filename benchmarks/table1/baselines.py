# SPDX-License-Identifier: Apache-2.0
"""The baselines of table 1, on the same episodes, checkpoints and generation as NLAC."""

from typing import TYPE_CHECKING, Any

from trl import GRPOConfig

from benchmarks.learning.methods.grpo import EpisodeGRPOTrainer
from benchmarks.learning.tasks import LearningTask
from benchmarks.table1.tasks import Task
from trl_nlac import NLACConfig, NLACPrompts, NLACTrainer
from trl_nlac.evaluation.metrics import mean_over_processes
from trl_nlac.method.batches import make_batches, spread_by_length, spread_by_prefix
from trl_nlac.types import Episode, Sample, TrainingExample, all_conversations


if TYPE_CHECKING:
    from peft import PeftConfig


# Options of NLAC's configuration that GRPO has, too, with the same meaning.
SHARED = (
    *("output_dir", "seed", "use_cpu", "bf16", "max_steps", "learning_rate", "lr_scheduler_type", "weight_decay"),
    *("adam_beta2", "optim", "max_grad_norm", "per_device_train_batch_size", "gradient_accumulation_steps"),
    *("gradient_checkpointing", "logging_steps", "save_strategy", "save_steps", "save_total_limit", "report_to"),
    *("disable_tqdm", "model_init_kwargs", "temperature", "top_p", "max_completion_length", "ddp_timeout"),
)


class RFTTrainer(NLACTrainer):
    """Rejection fine-tuning (section 6.2): NLAC without a critic, trained on samples of its successful episodes."""

    _tag_names = ["trl", "rft"]
    _name = "RFT"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.roles.corrects_reasoning:
            raise ValueError("RFT is trained on stored actions, which have lost their chains of thought.")

    def _store(self, episodes: list[Episode]) -> list[int]:
        numbers = super()._store(episodes)
        for first, episode in zip(numbers, all_conversations(episodes), strict=True):
            if episode.turns and episode.score < self.args.success_threshold:
                self.replay.leave_out(range(first, first + len(episode.turns)))
        return numbers

    def _iteration(self, tasks: list[dict[str, Any]]) -> list[list[TrainingExample]]:
        with self._generating():
            self.player.play(tasks, self.state.global_step, has_data=len(self.replay) > 0, is_last=False)
        samples = self.replay.sample(self.args.samples_per_iteration // self.args.world_size)
        examples = [self._example(sample) for sample in samples]
        self.replay.leave_out([e.transition_id for e in examples if not e.weight])  # taken in by a resumed run
        metrics = {"policy/num_examples": float(sum(example.weight for example in examples))}
        metrics |= {**self.roles.take_metrics(), "replay/size": float(len(self.replay) - self.replay.num_left_out)}
        for name, value in mean_over_processes(metrics).items():
            self.records.metrics[name].append(value)
        self.records.add_tokens(self.roles.tally.tokens)
        accumulation = self.args.gradient_accumulation_steps
        spread = spread_by_prefix if self._collate.shares_prefixes else spread_by_length
        num_steps = len(samples) // (accumulation * self.args.per_device_train_batch_size)
        return make_batches(
            samples, [None] * len(samples), examples, num_steps, accumulation, self.roles.chat.end_of_turn_id, spread
        )

    def _example(self, sample: Sample) -> TrainingExample:
        """The stored action; without weight while there is no success, when only failures can be drawn."""
        transition = sample.transition
        weight = float(transition.episode.score >= self.args.success_threshold)
        prompt = self.roles.builder.opened(transition.state)
        return TrainingExample("policy", prompt, transition.action_ids, weight, sample.transition_id)


def make_grpo_trainer(
    model: str, args: NLACConfig, task: Task, peft_config: "PeftConfig | None", num_generations: int, num_updates: int
) -> EpisodeGRPOTrainer:
    """Make a trainer for GRPO on whole episodes, which are played with NLAC's code, on vLLM if NLAC would be."""
    played_by_step = args.episodes_per_iteration // (args.per_device_train_batch_size * args.world_size)
    config = GRPOConfig(
        **{name: vars(args)[name] for name in SHARED},
        steps_per_generation=played_by_step,
        num_iterations=num_updates,
        num_generations=num_generations,
        beta=0.0,
    )
    rows = task.train_dataset
    factory = task.environment_factory
    if isinstance(factory, dict):
        (name,) = set(rows["environment"])
        factory, rows = factory[name], rows.remove_columns("environment")
    played = LearningTask(
        name="table1",
        environment_factory=factory,
        rows=rows,
        instances={},
        model=model,
        prompts=task.prompts or NLACPrompts(),
        rehearsal=None,
        max_turns=args.max_turns,
        action_format=args.action_format,
        peft_config=peft_config,
    )
    return EpisodeGRPOTrainer(played, args, config, rehearsal_ratio=0.0, rehearsal_coef=0.0)
