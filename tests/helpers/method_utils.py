# SPDX-License-Identifier: Apache-2.0

from helpers.testing_utils import make_roles

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


def replayed(environment, task: dict, actions: list[str]) -> list[Transition]:
    """Play actions, and return the steps."""
    roles = make_roles([])
    episode = replay_actions(environment, task, actions, roles.actions, roles.prompts)
    assert len(episode.turns) == len(actions)
    return list(episode.transitions)


def probe_qualities(environment, number: int) -> list[float]:
    """Return what the oracle says of the last actions of its probes."""
    oracle = environment.oracle
    probes = oracle.probes(number, seed=0)
    return [oracle.quality(replayed(environment, task, actions)[-1], actions[-1]) for task, actions in probes]
