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


"""The methods of the learning benchmark: NLAC with its ablations and its control, and what trains nothing."""

import inspect
from dataclasses import replace

import learning_grpo
import learning_real_models
import learning_rft
import learning_scalar
from accelerate import Accelerator
from learning_playing import LearningCurve, Player, train_until_spent
from learning_roles import BlindRoles, SelfRefiningRoles
from learning_tasks import LearningTask

from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.method.roles import Roles
from trl_nlac.training.loading import load_model


# How every method acts, on every task of a tiny model.
ACTING = dict(
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
    max_completion_length=64,
    max_generation_batch_size=512,
    num_eval_critiques=0,
)
# NLAC for a tiny model; every departure from the paper is one that such a model needs, see docs/source/nlac_trainer.md.
NLAC = dict(
    learning_rate=1e-3,
    lr_scheduler_type="constant",
    weight_decay=0.0,
    adam_beta2=0.95,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=8,
    samples_per_iteration=128,
    episodes_per_iteration=4,
    successor_temperature=0.5,
    backup_temperature=0.0,
    target_update_rate=0.05,
    rehearsal_ratio=0.5,
)
# Where evidence is thin or luck decides, a critic must not change faster than it hears of many episodes.
SLOW_CRITIC = dict(learning_rate=5e-4, target_update_rate=0.02, critique_temperature=0.5, rehearsal_ratio=1.0)
# What is sampled by accident is trained on, so it helps where it is left out.
MIN_P = dict(min_p=0.05)
# The policy leaves it out. The other roles do not: what it has lost is found again by refinement.
POLICY_MIN_P = dict(**MIN_P, successor_min_p=0.0, critique_min_p=0.0, refine_min_p=0.0)
# Every episode tells little: more of the buffer for each, and faster.
MORE_REPLAY = {
    **SLOW_CRITIC,
    "learning_rate": 1e-3,
    "bootstrap": "explicit",
    "samples_per_iteration": 256,
    **POLICY_MIN_P,
}
NLAC_BY_TASK = {
    "service_desk_told": {},
    "service_desk_hinted": MORE_REPLAY,
    "service_desk_noisy": MORE_REPLAY,
    "service_desk_delayed": {**SLOW_CRITIC, "bootstrap": "explicit", "successor_temperature": 0.0},
    "rooms": {"bootstrap": "explicit", "num_refinements": 3, "rehearsal_ratio": 1.0},
}
# The episode's own observations as critique: no learned critic, no bootstrap, no target weights that matter. There is one round
# of refinement, because a critic that learns nothing would be asked in others.
HINDSIGHT = {"bootstrap": "monte_carlo", "refinement_source": "replay", "critic_loss_coef": 0.0, "num_refinements": 1}
# It is led astray less by few and fresh episodes than by all.
FRESH = {"replay_buffer_size": 400}
HINDSIGHT_BY_TASK = {
    "service_desk_told": MIN_P,
    "service_desk_hinted": FRESH,
    "service_desk_noisy": FRESH,
    "service_desk_delayed": FRESH,
}
# With a smaller budget than the table's, ablations are compared to NLAC with the same one: its learning rate falls as early.
PLAIN = "nlac_plain"
ABLATIONS = {
    PLAIN: {},
    "nlac_blind": {"blind": True},
    "nlac_monte_carlo": {"bootstrap": "monte_carlo"},
    "nlac_no_target": {"target_update_rate": 1.0},
    "nlac_slow_target": {"target_update_rate": 0.005},
    "nlac_replay": {"refinement_source": "replay"},
    "nlac_uniform": {"priority_exponent": 0.0},
    "nlac_greedy_priority": {"priority_exponent": 0.6},
    "nlac_on_policy": {"replay_buffer_size": 8},
    "nlac_distill": {"critic_loss_type": "distill"},
    "nlac_refinements_0": {"policy_loss_coef": 0.0},
    "nlac_refinements_2": {"num_refinements": 2},
    "nlac_futures_4": {"num_futures": 4},
}
# Where they are compared. Several futures are weighed where answers mislead; the base model of no other desk knows how. On the
# delayed desk NLAC itself has learned nothing after half of its steps.
ABLATIONS_BY_TASK = {
    "service_desk_told": tuple(name for name in ABLATIONS if name != "nlac_futures_4"),
    "service_desk_noisy": (PLAIN, "nlac_futures_4"),
    "service_desk_delayed": ("nlac_blind", "nlac_monte_carlo", "nlac_no_target"),
}


BASELINES = {"grpo": learning_grpo.train, "rft": learning_rft.train, "scalar": learning_scalar.train}
# In the rooms most starts have successes early, and an anchor only slows rejection fine-tuning down.
BASELINES_BY_TASK = {
    "service_desk_told": {"grpo": MIN_P, "rft": MIN_P},
    "service_desk_hinted": {
        "grpo": {"learning_rate": 3e-4, **MIN_P},
        "rft": {"learning_rate": 3e-4, **MIN_P},
        "scalar": MIN_P,
    },
    "service_desk_noisy": {"rft": MIN_P},
    "service_desk_delayed": {"rft": MIN_P},
    "rooms": {"rft": {"anchor_ratio": 0.0}, "scalar": {"rehearsal_ratio": 1.0}},
}


def default_settings(task: LearningTask, method: str) -> dict:
    """Tuned settings of a method on a task, or those for any real model."""
    if method in BASELINES:
        parameters = inspect.signature(BASELINES[method]).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
        changes = BASELINES_BY_TASK.get(task.name, {}) if task.is_tiny else learning_real_models.BASELINES
        return {**defaults, **changes.get(method, {})}
    changes = ABLATIONS.get(method, {})
    if method == "hindsight":
        changes = {**HINDSIGHT, **HINDSIGHT_BY_TASK.get(task.name, {})}
    return {**({**NLAC, **NLAC_BY_TASK[task.name]} if task.is_tiny else learning_real_models.NLAC), **changes}


class BlindTrainer(NLACTrainer):
    """NLAC whose refinement reads critiques of other requests. What the critic learns from stays as it is."""

    def _refine(self, transitions, targets):
        roles = self.roles
        blind = BlindRoles(roles.generator, roles.chat, roles.prompts, roles.samplings, self.args.action_format)
        self.roles = blind
        try:
            return super()._refine(transitions, targets)
        finally:
            self.roles = roles
            roles.num_generated_tokens += blind.num_generated_tokens


def train_nlac(
    task: LearningTask, acting: NLACConfig, budget: int, interval: int, blind: bool = False, **settings
) -> LearningCurve:
    """Train with [`NLACTrainer`], or blindly, until the budget of environment steps is spent."""
    args = replace(acting, max_steps=10**6, logging_steps=100, **settings)
    trainer = (BlindTrainer if blind else NLACTrainer)(
        model=task.model,
        args=args,
        **task.trainer_arguments,
        peft_config=task.peft_config,
    )
    player = Player.of_trainer(task, trainer)
    return train_until_spent(trainer, player, budget, interval, lambda: trainer.num_environment_steps)


def acting_config(task: LearningTask, output_dir: str, seed: int, **changes) -> NLACConfig:
    """How every method acts."""
    acting = {
        **(ACTING if task.is_tiny else learning_real_models.ACTING),
        "action_format": task.action_format,
        **changes,
    }
    return NLACConfig(output_dir=output_dir, seed=seed, max_turns=task.max_turns, **acting)


def play_base(task: LearningTask, acting: NLACConfig, refines: bool = False) -> Player:
    """The base model as it is, or with one round of refinement of each action at test time."""
    accelerator = Accelerator(cpu=acting.use_cpu)
    model = load_model(task.model, acting).to(accelerator.device)
    return Player.of_model(task, acting, model, accelerator, SelfRefiningRoles if refines else Roles)
