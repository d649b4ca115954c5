# SPDX-License-Identifier: Apache-2.0

"""gymnasium environments whose observations and actions are text."""

from typing import TYPE_CHECKING

from .text_environment import StepResult, TextEnvironment


if TYPE_CHECKING:
    import gymnasium


class GymEnvironment(TextEnvironment):
    """
    Plays a `gymnasium.Env` whose observations and actions are text.

    Actions reach `env.step` as the agent wrote them, even if its `action_space` does not contain them: it should
    answer those with an observation. An exception in it counts as a failure of the environment.

    Args:
        env (`gymnasium.Env`):
            The environment. Its spaces are
            [`gymnasium.spaces.Text`](https://gymnasium.farama.org/api/spaces/fundamental/) or undefined.

    Raises:
        ImportError: If gymnasium is not installed.
        TypeError: If one of its spaces is not text.
    """

    takes_seed = True

    def __init__(self, env: "gymnasium.Env"):
        try:
            from gymnasium.spaces import Text
        except ImportError as error:
            raise ImportError("GymEnvironment needs gymnasium: `pip install gymnasium`.") from error
        self.env = env
        for name in ("observation_space", "action_space"):
            space = getattr(env, name, None)  # undefined until an environment sets it
            if space is not None and not isinstance(space, Text):
                raise TypeError(
                    f"`{name}` of {env} is {space}, but an agent reads and writes text. Wrap the environment in a "
                    f"`gymnasium.{'ObservationWrapper' if name == 'observation_space' else 'ActionWrapper'}` that "
                    "translates, with `gymnasium.spaces.Text` as its space."
                )

    @property
    def unwrapped(self) -> "gymnasium.Env":
        return self.env

    def reset(self, seed: int | None = None, **task) -> str:
        """
        Start an episode.

        Args:
            seed (`int`, *optional*):
                Seed of `env.reset`.
            task (`Any`, *optional*):
                Other columns of the dataset, passed to `env.reset` as `options`. If there are none, `options` is
                `None`.

        Returns:
            `str`: The first observation.
        """
        observation, _ = self.env.reset(seed=seed, options=task or None)
        return observation

    def step(self, action: str) -> StepResult:
        """Take one step. An episode that is both terminated and truncated counts as terminated."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return StepResult(observation, reward, terminated, truncated and not terminated, info)

    def close(self) -> None:
        self.env.close()
