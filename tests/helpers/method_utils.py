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

"""Helpers for tests of the method: transitions of a small service desk, and prompts of scripted roles."""

from trl_nlac.environments import ServiceDesk
from trl_nlac.environments.embedded import make_environment
from trl_nlac.episodes.recorder import replay_actions
from trl_nlac.types import Transition


DESK = ServiceDesk({"baku": ("billing", "amber", "photo", "noon")})
WRONG = ["route billing ruby photo noon", "route billing amber badge noon"]
CRITIQUE = "Future: closed win\nOptimality: Yes"


def make_transitions(roles) -> list[Transition]:
    """Make two steps: one that continues the task and one that ends it."""
    episode = replay_actions(make_environment(DESK), {"request": "baku"}, WRONG, roles.actions, roles.prompts)
    return [Transition(episode, 0), Transition(episode, 1)]


def asked(roles) -> list[str]:
    """Return the prompts that scripted roles were given, as text."""
    return [roles.chat.tokenizer.decode(prompt) for prompt in roles.generator.prompts]
