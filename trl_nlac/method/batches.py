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

"""From targets and refined actions to micro-batches."""

from ..nlac_config import NLACConfig
from ..training.rehearsal import Rehearsal
from ..types import Answer, Sample, TrainingExample
from .critic import critic_prompt
from .refinement import Refinement
from .roles import Roles


def make_batches(
    roles: Roles,
    samples: list[Sample],
    targets: list[Answer],
    refinements: list[Refinement | None],
    args: NLACConfig,
    rehearsal: Rehearsal,
) -> list[list[TrainingExample]]:
    """
    Examples of both losses, and of rehearsal, in micro-batches. A target or action that broke its format is not trained on.

    The examples of a gradient step, `gradient_accumulation_steps` micro-batches of `per_device_train_batch_size` transitions,
    are spread over its micro-batches by length, as many in each: a policy's example is much shorter than a critic's, and would
    be padded to it. The gradient is that of the whole step, however they are spread.
    """
    num_micro_batches = args.gradient_accumulation_steps
    step_size = num_micro_batches * args.per_device_train_batch_size
    steps: list[list[TrainingExample]] = []
    for i, (sample, target, refinement) in enumerate(zip(samples, targets, refinements, strict=True)):
        if i % step_size == 0:
            steps.append(rehearsal.draw(step_size))
        transition = sample.transition
        if target.parsed is not None and args.critic_loss_coef:
            prompt = roles.opened(critic_prompt(roles, transition.state_action))
            teacher_prompt = roles.opened(target.prompt) if args.critic_loss_type == "distill" else None
            steps[-1].append(
                TrainingExample(
                    "critic", prompt, target.token_ids, sample.weight, sample.transition_id, teacher_prompt
                )
            )
        if refinement is not None:
            prompt, token_ids = roles.opened(transition.state), refinement.refined_action.token_ids
            steps[-1].append(TrainingExample("policy", prompt, token_ids, sample.weight, sample.transition_id))
    for step, sample in zip(steps, samples[::step_size], strict=True):
        while len(step) < num_micro_batches:  # every process must run the model, even with nothing to learn
            token_ids = sample.transition.action_ids or (roles.chat.end_of_turn_id,)  # none of a thought that was cut
            step.append(TrainingExample("policy", sample.transition.state, token_ids, weight=0.0))
    return [batch for step in steps for batch in spread_by_length(step, num_micro_batches)]


def spread_by_length(examples: list[TrainingExample], number: int) -> list[list[TrainingExample]]:
    """The examples in `number` batches, as many in each, the shortest in the first."""
    return split(sorted(examples, key=lambda example: example.num_tokens), number)


def split(examples: list[TrainingExample], number: int) -> list[list[TrainingExample]]:
    """The examples in their order in `number` batches, as many in each."""
    return [examples[i * len(examples) // number : (i + 1) * len(examples) // number] for i in range(number)]
