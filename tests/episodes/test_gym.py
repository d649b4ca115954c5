# SPDX-License-Identifier: Apache-2.0

import string
import sys

import pytest
from helpers.testing_utils import Answering, make_roles

from trl_nlac.environments import StepResult
from trl_nlac.episodes.gym import GymEnvironment
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rollout import play_episodes


gymnasium = pytest.importorskip("gymnasium")
TEXT = gymnasium.spaces.Text(max_length=200, min_length=0, charset=string.printable)


class Safe(gymnasium.Env):
    """A safe with a digit to guess, and an alarm."""

    observation_space = TEXT
    action_space = TEXT

    def __init__(self):
        self.closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options = options
        self.code = str((options or {}).get("code") or self.np_random.integers(10))
        return f"safe {(options or {}).get('name', '')}".strip(), {}

    def step(self, action):
        if action == self.code:
            return "open", 1, True, False, {"guess": action}
        if action == "alarm":
            return "police", -1.5, True, False, {}
        return ("wrong" if action.isdigit() else "digits only"), 0, False, False, {}

    def close(self):
        self.closed = True


def make(max_episode_steps: int = 2) -> gymnasium.Env:
    spec = gymnasium.envs.registration.EnvSpec("Safe-v0", entry_point=Safe, max_episode_steps=max_episode_steps)
    return gymnasium.make(spec)


class TestGymEnvironment:
    def test_plays(self):
        environment = GymEnvironment(make(9))
        assert environment.reset(seed=1, code="7", name="blue") == "safe blue"
        assert environment.step("open sesame") == StepResult("digits only")
        assert environment.step("7") == StepResult("open", 1.0, terminated=True, info={"guess": "7"})
        environment.reset()
        assert environment.step("alarm").reward == -1.5

    def test_seed_and_options(self):
        environment = GymEnvironment(Safe())
        codes = []
        for seed in [*range(8), *range(8)]:
            environment.reset(seed=seed)
            assert environment.env.options is None
            codes.append(environment.env.code)
        assert codes[:8] == codes[8:] and len(set(codes)) > 1
        environment.reset(seed=0, name="red")
        assert environment.env.options == {"name": "red"}

    def test_close_and_unwrapped(self):
        env = make()
        environment = GymEnvironment(env)
        assert environment.unwrapped is env
        environment.close()
        assert env.unwrapped.closed

    @pytest.mark.parametrize("name", ["observation_space", "action_space"])
    def test_refused_spaces(self, name):
        env = Safe()
        setattr(env, name, gymnasium.spaces.Discrete(4))
        with pytest.raises(TypeError, match=rf"`{name}` of .* is Discrete\(4\).*spaces.Text"):
            GymEnvironment(env)

    def test_undefined_spaces(self):
        class Plain(gymnasium.Env):
            def reset(self, *, seed=None, options=None):
                return "begin", {}

        for env in (Plain(), gymnasium.Wrapper(Plain())):
            assert GymEnvironment(env).reset() == "begin"


def test_nothing_is_one_where_nobody_has_imported_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "gymnasium")
    pool = EnvironmentPool(lambda: Answering(lambda action: action))
    assert type(pool.example).__name__ == "PlainEnvironment" and "gymnasium" not in sys.modules
    pool.close()


def test_rollout():
    pool = EnvironmentPool(make)
    assert isinstance(pool.example, GymEnvironment)
    (lost,) = play_episodes(pool, [{"seed": 0, "code": "7"}], make_roles(["1", "2"], max_turns=5))
    assert lost.truncated and not lost.terminated and len(lost.turns) == 2
    (won,) = play_episodes(pool, [{"seed": 1, "code": "8"}], make_roles(["1", "8"], max_turns=5))
    assert won.terminated and won.score == 1.0
    pool.close()
