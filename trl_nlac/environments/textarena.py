# SPDX-License-Identifier: Apache-2.0

"""Single-player games of the textarena package."""

import importlib
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..episodes.text_environment import StepResult, TextEnvironment


class _Generator(random.Random):
    """The random generator of one environment, with the class that games also take from the module."""

    Random = random.Random


class _Dice(threading.local):
    """
    Replaces the module `random` in the games, which draw from its global generator. In a thread that plays a game, the
    draws come from the environment's own generator instead; outside a game they come from the module.
    """

    source: Any = random

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    @contextmanager
    def of(self, generator: _Generator) -> Iterator[None]:
        self.source, before = generator, self.source
        try:
            yield
        finally:
            self.source = before


_DICE = _Dice()


class TextArenaEnvironment(TextEnvironment):
    """
    Plays a single-player game of [textarena](https://github.com/LeonGuertler/TextArena): `pip install textarena`.

    The game pays its own reward at its end: 1 for a win, otherwise usually the share that was solved, from 0 to below
    1; a few games go below 0 or above 1. Its own turn limit is a rule of the game and terminates the episode. If it
    refuses a move, the observation is the reason; most games end at the second refusal in a row. The same seed gives
    the same game, whatever else draws from `random`.

    Args:
        env_id (`str`):
            Registered name of the game, such as `"Mastermind-v0"`.
        env_kwargs (`Any`, *optional*):
            Settings of the game that replace those it is registered with.

    Attributes:
        game (`textarena.Env`):
            The game.

    Raises:
        ImportError: If textarena is not installed.
        ValueError: If there is no such game, or it needs more than one player.

    Example:

    ```python
    trainer = NLACTrainer(
        model="Qwen/Qwen3-4B-Instruct-2507",
        args=NLACConfig(output_dir="my-agent"),
        train_dataset=Dataset.from_dict({"seed": range(100)}),
        environment_factory=partial(TextArenaEnvironment, "Mastermind-v0"),
    )
    ```
    """

    takes_seed = True

    def __init__(self, env_id: str, **env_kwargs):
        try:
            import textarena
        except ImportError as error:
            raise ImportError("TextArenaEnvironment needs textarena: `pip install textarena`.") from error
        self.env_id = env_id
        self._textarena = textarena
        self._generator = _Generator()
        self._import_game()
        with _DICE.of(self._generator):
            self.game = textarena.make(env_id, **env_kwargs)
        self._check_players()

    def reset(self, seed: int = 0, **task) -> str:
        """
        Start a game, and return its prompt and first board. Some are the same for every seed, such as the Tower of
        Hanoi. Other columns of the dataset are not used.
        """
        self._generator.seed(seed)
        with _DICE.of(self._generator):
            self.game.reset(num_players=1, seed=seed)
        return "\n\n".join(self._news())

    def step(self, action: str) -> StepResult:
        """Make a move. The observation is the game's messages since the last one."""
        with _DICE.of(self._generator):
            done, info = self.game.step(action)
        news = self._news()
        if not done:
            return StepResult("\n\n".join(news), info=info)
        rewards, players = self.game.close()
        reward, reason = rewards[0], players[0]["reason"]
        if isinstance(reward, str):  # some games of textarena 0.7.4 refuse moves with both in the wrong order
            reward, reason = reason.removeprefix("Invalid Move: "), reward
        return StepResult(
            "\n\n".join([*news, reason]), float(reward), terminated=True, info={**info, **players[0], "reason": reason}
        )

    def _news(self) -> list[str]:
        """Return the game's messages since the last call, without the agent's own moves."""
        own = self._textarena.ObservationType.PLAYER_ACTION
        messages = self.game.state.get_current_player_observation()
        return [text.strip("\n") for _, text, kind in messages if kind is not own and isinstance(text, str)]

    def _import_game(self) -> None:
        """Import the game's modules and replace their `random`, before a game can keep one of its functions."""
        registry = self._textarena.envs.registration.ENV_REGISTRY
        if self.env_id not in registry:
            raise ValueError(
                f"textarena {self._textarena.__version__} has no game `env_id={self.env_id!r}`. Use one of its "
                "registered names, such as 'Mastermind-v0'."
            )
        entry_point = registry[self.env_id].entry_point
        name = entry_point.split(":")[0] if isinstance(entry_point, str) else entry_point.__module__
        importlib.import_module(name)
        for other, module in list(sys.modules.items()):
            if (other == name or other.startswith("textarena.")) and vars(module).get("random") is random:
                module.random = _DICE

    def _check_players(self) -> None:
        refusal = None
        try:
            self.reset()
        except (AssertionError, ValueError) as error:  # raised by games for a wrong number of players
            refusal = error
        if refusal is not None or not isinstance(self.game.state, self._textarena.SinglePlayerState):
            raise ValueError(
                f"`env_id={self.env_id!r}` is not a game for a single player{f' ({refusal})' if refusal else ''}. "
                "Choose one that is, such as 'Mastermind-v0'."
            ) from refusal
