# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""
Self-distillation with feedback (SDPO, https://huggingface.co/papers/2601.20802), on whole episodes.

TRL's `SDPOTrainer` samples one answer to a prompt, shows the model the feedback on it, and lets this better informed
model, with slowly moving weights, teach the model without feedback, token by token along the sampled answer. Its
feedback is a column of the dataset, known before the answer is sampled, so that it cannot play episodes. This is our
port: the teacher is the refinement policy that has read what followed the action in its episode, and the student is
the policy. It differs from SDPO in three points. The teacher does not read successful answers of the same group. The
divergence is exact over the vocabulary, from the teacher's distribution to the student's. Episodes have several
actions.

It differs from hindsight, which imitates sampled refined actions, in that the teacher's distribution is the target, on
the policy's own actions.
"""

from dataclasses import replace

from benchmarks.learning.playing import LearningCurve, Player, train_until_spent
from benchmarks.learning.tasks import LearningTask
from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.method.refinement import Attempt, refinement_prompts
from trl_nlac.types import Answer, Refinement, Sample, TrainingExample, Transition


class SelfDistillationTrainer(NLACTrainer):
    """
    The policy is taught by the refinement policy with hindsight. It is used with `bootstrap="monte_carlo"`, whose
    targets tell what followed, and `critic_loss_type="distill"`, so that the target weights teach.
    """

    def _refine(self, transitions: list[Transition], targets: dict[int, Answer]) -> list[Refinement | None]:
        """Return the stored actions as their own refinements, with the prompt in which they are taught."""
        attempts = {i: Attempt.of_transition(self.roles, transitions[i]) for i in targets}
        told = [i for i, target in targets.items() if target.parsed is not None and attempts[i].answer is not None]
        prompts = refinement_prompts(self.roles, [attempts[i].state_action for i in told], [targets[i] for i in told])
        refinements: list[Refinement | None] = [None] * len(transitions)
        for i, prompt in zip(told, prompts, strict=True):
            attempt = attempts[i]
            taught = replace(attempt.answer, prompt=prompt)
            refinements[i] = Refinement(attempt.action, attempt.action, targets[i].parsed, taught, is_kept=True)
        return refinements

    def _make_batches(
        self, samples: list[Sample], targets: list[Answer], refinements: list[Refinement | None]
    ) -> list[list[TrainingExample]]:
        taught = {
            sample.transition_id: self.roles.opened(refinement.refined_action.prompt)
            for sample, refinement in zip(samples, refinements, strict=True)
            if refinement is not None
        }
        return [
            [
                replace(example, teacher_prompt=taught[example.transition_id])
                if example.loss == "policy" and example.weight
                else example
                for example in batch
            ]
            for batch in super()._make_batches(samples, targets, refinements)
        ]


def train(task: LearningTask, acting: NLACConfig, budget: int, interval: int, **settings) -> LearningCurve:
    """Train with [`SelfDistillationTrainer`] until the budget of environment steps is spent."""
    args = replace(acting, max_steps=10**6, logging_steps=100, **settings)
    trainer = SelfDistillationTrainer(
        model=task.model, args=args, **task.trainer_arguments, peft_config=task.peft_config
    )
    player = Player.of_trainer(task, trainer)
    return train_until_spent(trainer, player, budget, interval, lambda: trainer.num_environment_steps)
