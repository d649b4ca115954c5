# SPDX-License-Identifier: Apache-2.0

"""Natural Language Actor-Critic: train LLM agents in language space, as a TRL trainer."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from .agent.agent import NLACAgent
    from .agent.async_agent import AsyncNLACAgent
    from .agent.critic_reward import CriticReward
    from .agent.judge import JudgeReward
    from .method.target_weights import TargetWeights
    from .nlac_config import NLACConfig
    from .nlac_trainer import NLACTrainer
    from .prompts import NLACPrompts
    from .replay.prioritized_replay import PrioritizedReplay

_MODULES = {
    "AsyncNLACAgent": "agent.async_agent",
    "CriticReward": "agent.critic_reward",
    "JudgeReward": "agent.judge",
    "NLACAgent": "agent.agent",
    "NLACConfig": "nlac_config",
    "NLACPrompts": "prompts",
    "NLACTrainer": "nlac_trainer",
    "PrioritizedReplay": "replay.prioritized_replay",
    "TargetWeights": "method.target_weights",
}
__all__ = list(_MODULES)
__version__ = version("trl-nlac")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import trl_nlac` alone loads neither torch nor transformers."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = vars(import_module(f".{_MODULES[name]}", __name__))[name]
    globals()[name] = value  # from now on without this function
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
