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


"""The base model in the learning benchmark, without training."""

from accelerate import Accelerator

from benchmarks.learning.methods.roles import refine_once
from benchmarks.learning.playing import Player
from benchmarks.learning.tasks import LearningTask
from trl_nlac import NLACConfig
from trl_nlac.training.model import load_model


def play_base(task: LearningTask, acting: NLACConfig, refines: bool = False) -> Player:
    """Make a player of the base model, with or without one round of refinement of each action at test time."""
    accelerator = Accelerator(cpu=acting.use_cpu)
    model = load_model(task.model, acting).to(accelerator.device)
    return Player.of_model(task, acting, model, accelerator, refine_once if refines else None)


def at_the_start(metrics: dict[str, float]) -> dict[str, float]:
    """Return the point of a learning curve that has cost nothing."""
    names = ("environment_steps", "generated_tokens", "prefilled_tokens", "trained_tokens", "gradient_steps")
    return {**dict.fromkeys(names, 0), "seconds": 0.0, **metrics}
