# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""What a trainer tells of what it does."""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object

from ..environments.base import Oracle
from ..evaluation.evaluation import Evaluation
from ..evaluation.health import HealthMonitor, SuccessMonitor, health_metrics
from ..evaluation.metrics import episode_metrics, is_played, mean_over_processes
from ..evaluation.oracle import judge_refinements
from ..method.losses import LOSSES
from ..method.refinement import Refinement
from ..method.roles import Roles
from ..nlac_config import NLACConfig
from ..replay.buffer import PrioritizedReplay
from ..types import Answer, Episode, Sample
from .audit import AuditTrail
from .tables import EpisodeTables


class Records:
    """
    Collects what happens until the next log: metrics, seconds of the phases, episodes and the audit trail.

    Args:
        args ([`NLACConfig`]):
            What to record, and where.
        roles ([`Roles`]):
            Who speaks.
        replay ([`PrioritizedReplay`]):
            The replay buffer.
        oracle ([`~environments.base.Oracle`], *optional*):
            The truth, where the environment knows it.

    Attributes:
        metrics (`dict[str, list[float]]`):
            Values since the last log, of which it will have the means.
        num_environment_steps (`int`):
            Number of environment steps of training, over all processes.
        success ([`SuccessMonitor`]):
            Warns when success falls.
        health ([`HealthMonitor`]):
            Watches whether a role is forgotten.
    """

    def __init__(self, args: NLACConfig, roles: Roles, replay: PrioritizedReplay, oracle: Oracle | None = None):
        self.args = args
        self.roles = roles
        self.replay = replay
        self.oracle = oracle
        self.metrics: dict[str, list[float]] = defaultdict(list)
        self.seconds: Counter[str] = Counter()  # of the phases of the current iteration
        self.num_environment_steps = 0
        self.health = HealthMonitor(args.health_warning_ratio)
        self.success = SuccessMonitor(args.health_warning_ratio)
        self.tables = EpisodeTables(args, roles.chat.decode) if args.log_completions else None
        self._rows: list[dict[str, Any]] = []  # of the episodes since the last log
        self.audit = None
        if args.audit_samples:
            self.audit = AuditTrail(args.output_dir, args.process_index, args.audit_samples, args.audit_total_limit)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count the seconds of a phase of an iteration."""
        start = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - start

    def add_episodes(self, episodes: list[Episode], numbers: list[int], step: int) -> None:
        """
        Episodes that were played for training.

        Args:
            episodes (`list[Episode]`):
                Those of this process.
            numbers (`list[int]`):
                Their ids in the replay buffer.
            step (`int`):
                Number of optimizer steps before.
        """
        if self.tables is not None:
            self._rows += self.tables.rows(episodes, numbers, step, self.num_environment_steps)
        metrics = episode_metrics(episodes, self.args.success_threshold) if episodes else {}
        for name, value in mean_over_processes(metrics).items():
            self.metrics[name].append(value)
        outcomes = [episode.score >= self.args.success_threshold for episode in episodes if is_played(episode)]
        of_processes = gather_object([(outcomes, sum(len(episode.turns) for episode in episodes))])
        self.success.update([outcome for outcomes, _ in of_processes for outcome in outcomes])
        self.num_environment_steps += sum(num_steps for _, num_steps in of_processes)

    def judge_samples(self, samples: list[Sample]) -> None:
        """Let the critic judge the stored actions that the audit trail tells of."""
        if self.audit is not None:
            with self.timed("audit"):
                self.audit.judge(self.roles, samples)

    def add_samples(
        self,
        samples: list[Sample],
        targets: list[Answer],
        refinements: list[Refinement | None],
        step: int,
        target_distance: float,
    ) -> None:
        """
        What an iteration will train on.

        Args:
            samples (`list[Sample]`):
                Drawn from the replay buffer.
            targets (`list[Answer]`):
                Bellman targets of each.
            refinements (`list[Refinement | None]`):
                Refined actions of each.
            step (`int`):
                Number of optimizer steps before.
            target_distance (`float`):
                Distance of the target weights from the trained ones.
        """
        if self.audit is not None:
            self.audit.open(samples, targets, refinements, step, self.num_environment_steps)
        transitions = [sample.transition for sample in samples]
        metrics = {**self.roles.take_metrics(), **health_metrics(transitions, targets, refinements)}
        if self.oracle is not None:
            metrics.update(judge_refinements(self.oracle, transitions, refinements))
        metrics["replay/size"] = float(len(self.replay))
        metrics["replay/priority_mean"] = self.replay.priority_mean
        metrics["target/distance"] = target_distance
        means = mean_over_processes(metrics)
        self.health.update(means)
        means.update({f"time/{phase}": seconds for phase, seconds in self.seconds.items()})
        self.seconds.clear()
        for name, value in means.items():
            self.metrics[name].append(value)

    def add_losses(self, inputs: dict[str, torch.Tensor], losses: torch.Tensor, reduce) -> None:
        """
        Losses of a micro-batch.

        Args:
            inputs (`dict[str, torch.Tensor]`):
                The micro-batch.
            losses (`torch.Tensor` of shape `(B,)`):
                Loss of each example.
            reduce (`Callable`):
                Sums a tensor over all processes.
        """
        if self.audit is not None:
            self.audit.add_losses(inputs, losses)
        kinds = torch.arange(len(LOSSES), device=losses.device)[:, None]
        chosen = (inputs["loss_ids"] == kinds) & (inputs["weights"] > 0)  # (3, B)
        sums = reduce(torch.stack([(chosen * losses).sum(1), chosen.sum(1)], dim=1))
        for name, (total, number) in zip(LOSSES, sums.tolist(), strict=True):
            self.metrics[f"{name}/loss"] += round(number) * [total / max(1, number)]

    def end_iteration(self) -> None:
        """All gradient steps of an iteration were taken."""
        if self.audit is not None:
            self.audit.close()

    def take(self, step: int) -> dict[str, float]:
        """Means of the metrics since the last call. Episodes and audited samples until then are written down."""
        means = {}
        for name, values in self.metrics.items():
            valid = [value for value in values if not math.isnan(value)]
            if valid:
                means[name] = sum(valid) / len(valid)
        self.metrics.clear()
        self.write(step)
        return {**means, "environment/steps": self.num_environment_steps}

    def write(self, step: int) -> None:
        """Write down the episodes and audited samples until now."""
        if self.tables is not None:
            self.tables.write(self._rows, step)
            self._rows = []
        if self.audit is not None:
            self.audit.write(step)

    def add_evaluation(self, seen: Evaluation, step: int, kind: str) -> None:
        """Write down the episodes of an evaluation, of whose metrics `kind` is the prefix."""
        if self.tables is not None:
            steps = self.num_environment_steps
            rows = self.tables.rows(seen.episodes, seen.numbers, step, steps, seen.judgements)
            self.tables.write(rows, step, kind)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "environment_steps": self.num_environment_steps,
            "health": self.health.state_dict(),
            "success": self.success.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of [`Records.state_dict`]."""
        self.num_environment_steps = state["environment_steps"]
        self.health.load_state_dict(state["health"])
        self.success.load_state_dict(state["success"])
