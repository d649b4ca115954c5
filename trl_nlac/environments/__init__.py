# SPDX-License-Identifier: Apache-2.0

"""The environment interface and the tasks that come with the package."""

from importlib import import_module
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from ..episodes.gym import GymEnvironment
    from ..episodes.text_environment import EnvironmentFailure, Opening, Oracle, StepResult, TextEnvironment
    from ..gateway.environment import AgentEnvironment
    from .embedded.rooms import RoomsEnvironment, RoomsWorld
    from .embedded.service_desk import ServiceDesk, ServiceDeskEnvironment

_MODULES = {
    "AgentEnvironment": "..gateway.environment",
    "EnvironmentFailure": "..episodes.text_environment",
    "GymEnvironment": "..episodes.gym",
    "Opening": "..episodes.text_environment",
    "Oracle": "..episodes.text_environment",
    "RoomsEnvironment": ".embedded.rooms",
    "RoomsWorld": ".embedded.rooms",
    "ServiceDesk": ".embedded.service_desk",
    "ServiceDeskEnvironment": ".embedded.service_desk",
    "StepResult": "..episodes.text_environment",
    "TextEnvironment": "..episodes.text_environment",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a module that defines an environment loads none of the others."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = vars(import_module(_MODULES[name], __name__))[name]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
