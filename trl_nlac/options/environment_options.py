# SPDX-License-Identifier: Apache-2.0

"""How many environments play at the same time, where, and how long a call of one can take."""

from dataclasses import dataclass, field

from .checks import MAX_SECONDS, check_at_least, check_between, check_choices, check_types
from .documented import documented


@documented
@dataclass
class EnvironmentOptions:
    r"""
    Options of [`NLACConfig`], and of the commands that play, for the instances of environments.

    Parameters:
        > Parameters that control environments

        max_concurrent_environments (`int`, *optional*):
            Number of environment instances that exist at the same time on each process. If `None`, one for each
            episode.
        environment_workers (`str`, *optional*, defaults to `"thread"`):
            Where environments play: `"thread"`, each in a thread, for environments that wait for servers or other
            processes; `"process"`, each in a process of its own, for environments that compute in Python and would
            hold up one another and training; `"ray"`, each in a process of a Ray cluster, on all its machines.
        environment_timeout (`float`, *optional*, defaults to `300.0`):
            Seconds after which making an environment, its `reset`, `step` or final reward, or the reward functions
            count as hanging: the episode is truncated and the instance is discarded. At least 0.01. If `None`, never:
            then one that hangs, or a server that sends nothing or without end, holds the run up for ever.

    Raises:
        ValueError: If a value is out of range; the message names the option.
    """

    max_concurrent_environments: int | None = None
    environment_workers: str = field(default="thread", metadata={"choices": ["thread", "process", "ray"]})
    environment_timeout: float | None = 300.0

    def __post_init__(self):
        check_types(self)
        check_choices(self, "environment_workers")
        check_at_least(self, 1, "max_concurrent_environments")
        check_between(self, 0.01, MAX_SECONDS, "environment_timeout")  # less is over before anything is done
