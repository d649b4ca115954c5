# SPDX-License-Identifier: Apache-2.0

"""Collect the metrics of a run, and write down its episodes and audited samples."""

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object

from ..evaluation.evaluation import Evaluation
from ..evaluation.health import FormatMonitor, HealthMonitor, SuccessMonitor
from ..evaluation.metrics import episode_metrics, is_played, reward_metrics, tool_metrics, without_zero_kinds
from ..nlac_config import NLACConfig
from ..types import LOSSES, Answer, Episode, Judgement, Refinement, Sample, TrainingExample, all_conversations
from .audit import AuditTrail
from .episode_tables import EpisodeTables, log_sample


FEW = 4  # episodes that are written down without `log_completions`
# Names in the log that are its own: whole ones, and groups of them.
_OWN_NAMES = {"step", "epoch", "loss", "grad_norm", "learning_rate", "total_flos", "reward", "reward_std"}
_OWN_NAMES |= {"num_tokens", "num_input_tokens_seen", "aux_loss", "nonfinite_losses", "nonfinite_gradients"}
_OWN_GROUPS = tuple(f"{role}/" for role in ("critic", "policy", "backup", "refine", "successor", "correction"))
_OWN_GROUPS += ("episode/", "environment/", "rewards/", "tools/", "completions/", "prompts/", "tokens/", "health/")
_OWN_GROUPS += ("generation/", "replay/", "target/", "rollout/", "oracle/", "checkpoint/", "time/")
_OWN_GROUPS += ("train_", "eval_")


class Records:
    """Collect metrics, seconds, episodes and the audit trail until the next log. `decode` decodes tokens."""

    def __init__(self, args: NLACConfig, decode: Callable[[list[int]], str]):
        self.args = args
        self.metrics: dict[str, list[float]] = defaultdict(list)  # since the last log, which logs their means
        self._of_functions: dict[str, list[float]] = defaultdict(list)  # logged by reward functions of this process
        self._adding = threading.Lock()  # they can run beside training
        self.seconds: Counter[str] = Counter()  # of the phases of the current iteration
        self.num_environment_steps = 0  # of training, over all processes, as the two numbers below
        self.tokens: Counter[str] = Counter()  # by kind and role, see `Roles`; and those that were trained on
        self._counted: Counter[str] = Counter()  # of this process's roles
        self.num_samples = 0  # transitions trained on
        self.health = HealthMonitor()
        self.success = SuccessMonitor(keeps_best=bool(args.load_best_model_at_end))
        self.formats = FormatMonitor(args.max_completion_length, args.examples == "auto" and args.num_futures == 1)
        self.tables = EpisodeTables(args, decode)
        self._rows: list[dict[str, Any]] = []  # of the episodes since the last log
        self.recorded = 0  # step at which episodes and audited samples were written down last
        self._row: dict[str, Any] | None = None  # the newest audited sample with all texts, until it is shown
        self.audit = AuditTrail(args.output_dir, args.process_index) if args.audit_samples else None

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Measure the seconds of a phase of an iteration."""
        start = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - start

    def add_function_metric(self, name: str, value: float) -> None:
        """Add a value that a function logs, in any thread; a `TypeError` or `ValueError` if it cannot be."""
        name = str(name)
        if name in _OWN_NAMES or name.startswith(_OWN_GROUPS):
            raise ValueError(
                f"`log_metric({name!r}, ...)` takes a name that is the trainer's own. Choose another, such as "
                f"'my_{name}'."
            )
        with self._adding:
            self._of_functions[name].append(float(value))

    def take_function_metrics(self) -> dict[str, float]:
        """Return the means of what functions of all processes have logged since the last call."""
        with self._adding:
            own, self._of_functions = dict(self._of_functions), defaultdict(list)
        values = defaultdict(list)
        for of_process in gather_object([own]):
            for name, logged in of_process.items():
                values[name] += logged
        return _means(values)

    def add_episodes(self, episodes: list[Episode], numbers: list[int], step: int) -> None:
        """Add the episodes that this process played; `numbers` are ids in the buffer, `step` the steps before."""
        few = 0 if self.args.process_index else FEW
        recorded = all_conversations(episodes if self.args.log_completions else episodes[:few])
        self._rows += self.tables.rows(recorded, numbers[: len(recorded)], step, self.num_environment_steps)
        metrics = episode_metrics(episodes, self.args.success_threshold)
        metrics |= {**reward_metrics(episodes), **tool_metrics(episodes), **self.take_function_metrics()}
        for name, value in metrics.items():
            self.metrics[name].append(value)
        outcomes = [episode.score >= self.args.success_threshold for episode in episodes if is_played(episode)]
        of_processes = gather_object([(outcomes, sum(episode.num_turns for episode in episodes))])
        self.success.update([outcome for outcomes, _ in of_processes for outcome in outcomes])
        self.num_environment_steps += sum(num_steps for _, num_steps in of_processes)

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the model has read and written for training, as TRL counts them."""
        totals = _totals(self.tokens)
        return totals["generated"] + totals["prefilled"]

    def add_tokens(self, tokens: Counter[str]) -> None:
        """Add the tokens that the roles of all processes have counted since the last call, given those so far."""
        new, self._counted = tokens - self._counted, Counter(tokens)
        for of_process in gather_object([dict(new)]):
            self.tokens.update(of_process)

    def add_samples(
        self,
        samples: list[Sample],
        judgements: list[Judgement | None],
        targets: list[Answer],
        refinements: list[Refinement | None],
        metrics: dict[str, float],
        step: int,
    ) -> None:
        """Add the samples of an iteration, and metrics of all processes. The audit trail gets the judged ones."""
        if self.audit is not None:
            self.audit.open(samples, judgements, targets, refinements, step, self.num_environment_steps)
        self.health.update(metrics)
        self.formats.update(metrics)
        seconds = {f"time/{phase}": seconds for phase, seconds in self.seconds.items()}
        self.seconds.clear()
        for name, value in {**metrics, **seconds}.items():
            self.metrics[name].append(value)

    def add_losses(
        self,
        examples: list[TrainingExample],
        losses: torch.Tensor,
        num_tokens: int,
        reduce: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """Add the losses of a pass, (B,), and the tokens that were computed. `reduce` sums over all processes."""
        if self.audit is not None:
            self.audit.add_losses(examples, losses)
        kinds = [[example.loss == name and example.weight > 0 for example in examples] for name in LOSSES]
        chosen = torch.tensor(kinds, device=losses.device)  # (3, B)
        sums = torch.stack([(chosen * values).sum(1) for values in (losses, 1)], dim=1)  # (3, 2)
        *sums, num_tokens = reduce(torch.cat([sums.flatten(), sums.new_tensor([num_tokens])])).tolist()
        self.tokens["trained"] += round(num_tokens)
        for i, name in enumerate(LOSSES):
            loss, number = sums[2 * i : 2 * i + 2]
            self.metrics[f"{name}/loss"] += round(number) * [loss / max(1, number)]

    def end_iteration(self) -> None:
        """Complete the audited samples of an iteration after its last gradient step, or where it is given up."""
        if self.audit is not None:
            self.audit.close()

    def take(self, step: int) -> dict[str, float]:
        """Return the means of the metrics since the last call, and write down episodes and audited samples."""
        means = _means(self.metrics)
        self.metrics.clear()
        self.write(step)
        if self.num_environment_steps:
            means["replay/draws_per_step"] = self.num_samples / self.num_environment_steps
        counts = {f"tokens/{name}": number for name, number in {**_totals(self.tokens), **self.tokens}.items()}
        means = without_zero_kinds(means)
        return {**means, "environment/steps": self.num_environment_steps, "num_tokens": self.num_tokens, **counts}

    def write(self, step: int) -> None:
        """Write down the episodes and audited samples so far."""
        self.recorded = step
        self.tables.write(self._rows, step)
        self._rows = []
        if self.audit is not None:
            self.audit.write(step)
            newest, self.audit.newest = self.audit.newest, None
            if newest is not None and not self.args.process_index:
                log_sample(newest, self.args.report_to)
            self._row = newest or self._row

    def take_row(self) -> dict[str, Any] | None:
        """Return the newest audited sample that has all texts, if there is one since the last call."""
        row, self._row = self._row, None
        return row

    def add_evaluation(self, evaluation: Evaluation, step: int, kind: str) -> None:
        """Write down the episodes of an evaluation; `kind` is the prefix of its metrics."""
        steps, judged = self.num_environment_steps, {i for i, _ in evaluation.judgements}
        rows = self.tables.rows(evaluation.episodes, evaluation.numbers, step, steps, evaluation.judgements)
        if not self.args.log_completions:
            rows = [row for i, row in enumerate(rows) if i < FEW or i in judged]
        self.tables.write(rows, step, kind)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "environment_steps": self.num_environment_steps,
            "samples": self.num_samples,
            "tokens": dict(self.tokens),
            "counted": dict(self._counted),
            "metrics": {name: [float(value) for value in values] for name, values in self.metrics.items()},
            "recorded": self.recorded,
            "health": self.health.state_dict(),
            "success": self.success.state_dict(),
            "formats": self.formats.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from [`Records.state_dict`]."""
        self.num_environment_steps = state["environment_steps"]
        self.num_samples = state["samples"]
        self.tokens = Counter(state["tokens"])
        self._counted = Counter(state["counted"])
        self.metrics.update(state["metrics"])
        self.recorded = state["recorded"]
        self.health.load_state_dict(state["health"])
        self.success.load_state_dict(state["success"])
        self.formats.load_state_dict(state["formats"])

    def rows(self) -> dict[str, list[Any]]:
        """Return the rows of this process that are not written down yet, by kind, for a checkpoint."""
        return {"episodes": self._rows, **(self.audit.state_dict() if self.audit is not None else {})}

    def load_rows(self, rows: dict[str, list[Any]]) -> None:
        """Load rows from [`Records.rows`]; those of a kind that is no longer recorded are left out."""
        self._rows = rows.get("episodes", [])
        if self.audit is not None:
            self.audit.load_state_dict(rows)


def _means(values: dict[str, list[float]]) -> dict[str, float]:
    """Return the means of the values that are not NaN, by name, where there are any."""
    valid = {name: [value for value in of_name if not math.isnan(value)] for name, of_name in values.items()}
    return {name: sum(numbers) / len(numbers) for name, numbers in valid.items() if numbers}


def _totals(tokens: Counter[str]) -> Counter[str]:
    """Return the sums over roles of tokens by kind and role."""
    totals: Counter[str] = Counter()
    for name, number in tokens.items():
        totals[name.partition("/")[0]] += number
    return totals
