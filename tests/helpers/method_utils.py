# SPDX-License-Identifier: Apache-2.0

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
