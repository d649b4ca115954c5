# SPDX-License-Identifier: Apache-2.0

"""Environments in the processes of a Ray cluster."""

import os
from collections.abc import Callable

import cloudpickle
import ray
from ray.exceptions import GetTimeoutError, RayActorError

from .process import CLOSING_SECONDS, Host, RemoteEnvironment
from .text_environment import EnvironmentFailure, TextEnvironment


def connect() -> None:
    """
    Connect to the cluster that `RAY_ADDRESS` names, or start one here. Ray itself would join any that runs on this
    machine, also another user's, whose answers are unpickled.
    """
    if not ray.is_initialized():
        ray.init(os.environ.get("RAY_ADDRESS", "local"), include_dashboard=False)


@ray.remote(concurrency_groups={"closing": 1})
class _Host(Host):
    """A host that can be closed in a call, from another thread."""

    @ray.method(concurrency_group="closing")
    def close_in_call(self) -> None:
        self.close()


class RayEnvironment(RemoteEnvironment):
    """Plays an environment in a Ray actor. The machines of the cluster are taken in turn."""

    def __init__(self, make: Callable[[], TextEnvironment]):
        super().__init__()
        # It reserves hardly any processor: actors that found none free would wait, and count as hanging. With none
        # they would not be spread.
        actor = _Host.options(num_cpus=0.001, scheduling_strategy="SPREAD")
        self._actor = actor.remote(cloudpickle.dumps(make))

    def _ask_host(self, request: bytes) -> bytes:
        try:
            return ray.get(self._actor.answer.remote(request))
        except RayActorError as lost:
            raise EnvironmentFailure("the Ray actor of the environment has died") from lost

    def _close_host(self, in_call: bool) -> None:
        close = self._actor.close_in_call if in_call else self._actor.close
        try:
            ray.get(close.remote(), timeout=CLOSING_SECONDS)
        except (GetTimeoutError, RayActorError):
            pass

    def _kill_host(self) -> None:
        ray.kill(self._actor)
