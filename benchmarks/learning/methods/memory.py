# SPDX-License-Identifier: Apache-2.0

"""The base model with a memory: its last turns about the same kind of task are earlier turns of its conversation."""

import random
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace

from accelerate import Accelerator
from transformers import TrainerControl, TrainerState

from benchmarks.learning.playing import LearningCurve, Player
from benchmarks.learning.tasks import LearningTask
from trl_nlac import NLACConfig
from trl_nlac.environments import StepResult, TextEnvironment
from trl_nlac.training.model import load_model
from trl_nlac.types import Message


Memory = dict[str, deque[list[Message]]]  # the last turns about each kind of task


class RememberingEnvironment(TextEnvironment):
    """
    An environment whose episodes begin with turns about the same kind of task that were readable, from one memory.
    """

    def __init__(self, environment: TextEnvironment, memory: Memory, kind: str, writes: bool):
        self.environment = environment
        self.takes_seed = environment.takes_seed
        self.memory, self.kind, self.writes = memory, kind, writes
        self._seen, self._turns = "", memory[""]

    def reset(self, **task) -> list[Message]:
        self._seen = self.environment.reset(**task)
        self._turns = self.memory[task[self.kind]]
        earlier = [message for turn in self._turns for message in turn]
        return [*earlier, {"role": "user", "content": self._seen}]

    def step(self, action: str) -> StepResult:
        result = self.environment.step(action)
        if self.writes and "unreadable" not in result.observation:  # they would teach no format
            seen, told = ({"role": "user", "content": text} for text in (self._seen, result.observation))
            end = [told] if result.terminated else []
            self._turns.append([seen, {"role": "assistant", "content": action}, *end])
        self._seen = result.observation
        return result


def remembering(task: LearningTask, num_turns: int) -> LearningTask:
    """Return the task with a memory of turns. Episodes of evaluation read it, and leave it as it is."""
    memory: Memory = defaultdict(lambda: deque(maxlen=num_turns))

    def wrapped(factory: Callable[[], TextEnvironment], writes: bool) -> Callable[[], TextEnvironment]:
        return lambda: RememberingEnvironment(factory(), memory, task.group, writes)

    instances = {
        name: replace(chosen, environment_factory=wrapped(chosen.environment_factory, writes=False))
        for name, chosen in task.instances.items()
    }
    return replace(task, environment_factory=wrapped(task.environment_factory, writes=True), instances=instances)


def train(task: LearningTask, acting: NLACConfig, budget: int, interval: int, num_turns: int = 4) -> LearningCurve:
    """Play until the budget is spent, and remember the last turns of each kind of task. No weights change."""
    acting = replace(acting, num_eval_critiques=0)
    accelerator = Accelerator(cpu=acting.use_cpu)
    model = load_model(task.model, acting).to(accelerator.device)
    player = Player.of_model(remembering(task, num_turns), acting, model, accelerator)
    curve = LearningCurve(player, lambda: player.num_environment_steps, budget, interval)
    rng, rows = random.Random(acting.seed), list(task.rows)
    state, control = TrainerState(), TrainerControl()
    curve.on_train_begin(acting, state, control, model=model)
    while not control.should_training_stop:
        player.play([rng.choice(rows)])
        curve.on_step_end(acting, state, control)
    player.environments.close()
    return curve
