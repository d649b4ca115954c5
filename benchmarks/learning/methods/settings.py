# SPDX-License-Identifier: Apache-2.0

"""Settings of the learning benchmark's methods: NLAC, its ablations, and the baselines on each task."""

import inspect
from typing import Any

from benchmarks.learning.methods import grpo, memory, rft, scalar
from benchmarks.learning.tasks import GUESS_THE_NUMBER, HANDBOOK, LearningTask
from trl_nlac import NLACConfig


def merge_settings(*settings: dict[str, Any]) -> dict[str, Any]:
    """Merge settings; later ones take precedence. `role_sampling` is merged role by role and setting by setting."""
    merged: dict[str, Any] = {}
    for changes in settings:
        for name, value in changes.items():
            if name == "role_sampling":
                before = merged.get(name, {})
                value = {role: {**before.get(role, {}), **value.get(role, {})} for role in {**before, **value}}
            merged[name] = value
    return merged


# How every method acts, on every task of a tiny model: device, lengths, and what keeps a cell small.
ACTING = {
    **dict(use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none", save_strategy="no"),
    **dict(disable_tqdm=True, max_completion_length=64, max_generation_batch_size=512),
}
# Settings of the command line that change how a method acts, and not how it is trained.
OF_ACTING = {*ACTING, "min_p", "temperature", "max_prompt_length"}
# NLAC is the default configuration: a tiny model has a learning rate of its own, and nothing else.
NLAC = {"learning_rate": 1e-3}
# Methods are trained on their own samples, so unlikely tokens that were sampled by accident are learned.
MIN_P, NO_MIN_P = dict(min_p=0.05), dict(min_p=None)
# The observations of the episode replace the critique: no learned critic and no bootstrap.
HINDSIGHT = {"bootstrap": "monte_carlo", "trainer": "stored_actions", "critic_loss_coef": 0.0}
DISTILLED = {"policy_loss_type": "distill"}
# Each changes one thing of NLAC.
ABLATIONS = {
    "nlac_blind": {"trainer": "blind"},
    "nlac_monte_carlo": {"bootstrap": "monte_carlo"},
    "nlac_no_target": {"target_update_rate": 1.0},
    "nlac_replay": {"trainer": "stored_actions"},
    "nlac_uniform": {"priority_exponent": 0.0},
    "nlac_on_policy": {"replay_buffer_size": 20},
    "nlac_futures_4": {"num_futures": 4},
    "nlac_policy_distill": DISTILLED,
    "nlac_policy_distill_reverse": {**DISTILLED, "trainer": "reverse"},
}
# Tasks on which they are compared. Several futures are only weighed on the noisy desk, whose base model was trained to
# do so.
ABLATIONS_BY_TASK = {
    "service_desk_told": tuple(name for name in ABLATIONS if name != "nlac_futures_4"),
    "service_desk_noisy": ("nlac_futures_4",),
    "service_desk_delayed": ("nlac_blind", "nlac_monte_carlo", "nlac_no_target"),
}
BASELINES = {"grpo": grpo.train, "rft": rft.train, "scalar": scalar.train, "base_remembering": memory.train}
# Those that learn more slowly and cost less per step, until their curves are flat.
LONG = {"grpo_long": "grpo", "rft_long": "rft", "rft_unanchored_long": "rft"}
# Without actions of the base model among its samples. They keep a policy that has few successes from collapsing onto
# them, and one that has many from being sure.
UNANCHORED = {"rft_unanchored": "rft"}
NO_ANCHORS = {"anchor_ratio": 0.0}
CHANGES = {"rft_unanchored": NO_ANCHORS, "rft_unanchored_long": NO_ANCHORS}
SLOW = {"scalar_five": "scalar"}  # with five times NLAC's steps, as GRPO and RFT have
OF_BASELINES = {**LONG, **UNANCHORED, **SLOW}
TRAINERS = {**BASELINES, **{name: BASELINES[method] for name, method in OF_BASELINES.items()}}
# Self-distillation with feedback (SDPO, https://huggingface.co/papers/2601.20802), with NLAC's replay: the model that
# has read what followed an action teaches the model that has not, token by token along the action. There is no learned
# critic.
SELF_DISTILLATION = "self_distillation"
REVERSE = {"trainer": "reverse_stored_actions"}  # the divergence that TRL's trainers have by default
SELF_DISTILLATIONS = {SELF_DISTILLATION: {}, "self_distillation_reverse": REVERSE}
# In the rooms most starts have successes early, so that an anchor would only slow rejection fine-tuning down.
BASELINES_BY_TASK = {
    "service_desk_told": {"grpo": MIN_P, "rft": MIN_P},
    HANDBOOK: {"grpo": MIN_P, "rft": MIN_P},
    "service_desk_hinted": {
        "grpo": {"learning_rate": 3e-4, **MIN_P},
        "rft": {"learning_rate": 3e-4, **MIN_P},
        "scalar": MIN_P,
    },
    "service_desk_noisy": {"rft": MIN_P},
    "service_desk_delayed": {"rft": MIN_P},
    GUESS_THE_NUMBER: {"rft": MIN_P},
    "rooms": {"rft": {"anchor_ratio": 0.0}, "scalar": {"rehearsal_ratio": 1.0}},
}


def default_settings(task: LearningTask, method: str) -> dict:
    """Return the tuned settings of a method on a task."""
    own = CHANGES.get(method, {})
    method = OF_BASELINES.get(method, method)
    if method in BASELINES:
        parameters = inspect.signature(BASELINES[method]).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
        return merge_settings(NO_MIN_P, defaults, BASELINES_BY_TASK.get(task.name, {}).get(method, {}), own)
    changes = ABLATIONS.get(method, {})
    if method in SELF_DISTILLATIONS:
        changes = merge_settings(HINDSIGHT, DISTILLED, SELF_DISTILLATIONS[method])
    elif method == "hindsight":
        changes = HINDSIGHT
    return merge_settings(NLAC, changes)


def acting_config(task: LearningTask, output_dir: str, seed: int, **changes) -> NLACConfig:
    """Return the options with which every method acts."""
    acting = {
        **ACTING,
        "action_format": task.action_format,
        "keep_history": task.keep_history,
        "overwrite_output_dir": True,  # a cell that is run again begins anew
        **changes,
    }
    return NLACConfig(output_dir=output_dir, seed=seed, max_turns=task.max_turns, **acting)
