# SPDX-License-Identifier: Apache-2.0

"""Watch the roles and success: one set of weights plays all roles, and can forget some."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from accelerate.logging import get_logger

from ..episodes.text_environment import Oracle
from ..method.roles import TOO_LONG, Roles
from ..types import Answer, Critique, Refinement, Sample, Transition
from .metrics import wilson_interval
from .oracle import judge_refinements


logger = get_logger(__name__)

_WEIGHT_OF_NEWEST = 0.2  # in smoothed metrics
WARNING_RATIO = 0.7
_WARM_UP = 5  # values before the first warning of a role
_OF_REFINED_ACTIONS = ("refine/changed_rate", "health/advice_repeats_action", "oracle/refined_better_rate")
_NUM_EPISODES = 40  # the last ones, whose success is watched


def backup_fidelity(transition: Transition, target: Critique) -> float:
    """Compute the share of the words of the next observation, at least one, that the target's future repeats."""
    observed = Counter(transition.turn.next_observation.lower().split())
    repeated = Counter(target.future.lower().split())
    return sum((observed & repeated).values()) / sum(observed.values())


def health_metrics(
    roles: Roles, transitions: list[Transition], targets: list[Answer], refinements: list[Refinement | None]
) -> dict[str, float]:
    """Compute health metrics of the roles from the samples of an iteration, as means."""
    written = [(t, target) for t, target in zip(transitions, targets, strict=True) if target.parsed is not None]
    asked = [r for r in refinements if r is not None]
    texts = [target.text for _, target in written] + [r.refined_action.text for r in asked if not r.is_kept]
    values: dict[str, list[float]] = {
        "health/backup_fidelity": [
            backup_fidelity(transition, target.parsed)
            for transition, target in written
            # An environment that ends without a word gives nothing to repeat.
            if target.parsed.future and transition.turn.next_observation.split()
        ],
        "health/verdict_agrees": [
            float(target.parsed.optimal == (transition.episode.score >= roles.options.success_threshold))
            for transition, target in written
            if transition.terminated and target.parsed.optimal is not None
        ],
        "health/prompt_echoed": [float(is_one) for is_one in roles.prompts.repeated_in(texts)],
        "backup/optimal_rate": [float(t.parsed.optimal) for _, t in written if t.parsed.optimal is not None],
        "health/refine_compliance": [float(r.complies) for r in asked if not r.is_kept],
        "health/advice_repeats_action": [
            float(r.refined_action.parsed == r.action) for r in asked if not r.critique.optimal and r.critique.advice
        ],
        "refine/changed_rate": [float(r.refined_action.parsed != r.action) for r in asked],
        "critic/optimal_rate": [float(r.critique.optimal) for r in asked],
    }
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items() if numbers}


# What is lost where a metric falls, or, for the last one, rises.
_WATCHED = {
    "backup/format_rate": "The form of Bellman targets is being lost",
    "critic/format_rate": "The form of critiques is being lost",
    "refine/format_rate": "The form of refined actions is being lost",
    "correction/format_rate": "The form of corrected thoughts is being lost",
    "policy/format_rate": "The form of actions is being lost",
    "health/backup_fidelity": "Bellman targets no longer repeat what was observed",
    "health/refine_compliance": "Refined actions no longer do what critiques say",
    "health/advice_repeats_action": "The critic's advice, followed, gives the actions that it criticises",
}
_RISING = {"health/advice_repeats_action"}


def iteration_metrics(
    roles: Roles,
    samples: list[Sample],
    targets: list[Answer],
    refinements: list[Refinement | None],
    oracle: Oracle | None,
    distills: bool,
) -> dict[str, float]:
    """Compute [`health_metrics`] and those of an oracle; of refined actions none if the policy `distills`."""
    transitions = [sample.transition for sample in samples]
    metrics = health_metrics(roles, transitions, targets, refinements)
    if oracle is not None:
        metrics |= judge_refinements(oracle, transitions, refinements)
    if distills:
        return {name: value for name, value in metrics.items() if name not in _OF_REFINED_ACTIONS}
    return metrics


def _smooth(levels: dict[str, float], name: str, value: float) -> float:
    """Move the level of a metric towards its newest value, and return it. It starts at the first value."""
    level = levels.get(name, value)
    levels[name] = level + _WEIGHT_OF_NEWEST * (value - level)
    return levels[name]


@dataclass
class HealthMonitor:
    """Warn by name when what a role does decays: its smoothed metric falls below `WARNING_RATIO` of its best value."""

    _count: Counter = field(default_factory=Counter)
    _level: dict[str, float] = field(default_factory=dict)
    _best: dict[str, float] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)

    def update(self, metrics: dict[str, float]) -> list[str]:
        """Add the newest metrics. Return those that were reported now; each is again only after it recovered."""
        reported = []
        for name in _WATCHED:
            if name not in metrics:
                continue
            level = _smooth(self._level, name, 1 - metrics[name] if name in _RISING else metrics[name])
            self._count[name] += 1
            if self._count[name] < _WARM_UP:
                continue
            self._best[name] = max(self._best.get(name, level), level)
            if level >= WARNING_RATIO * self._best[name]:
                self._warned.discard(name)
            elif name not in self._warned:
                self._warned.add(name)
                reported.append(name)
                logger.warning(self.describe(name))
        return reported

    def describe(self, name: str) -> str:
        """Explain how far a metric has moved, and what to do."""
        best, level, moved = self._best[name], self._level[name], "fell"
        if name in _RISING:
            best, level, moved = 1 - best, 1 - level, "rose"
        return (
            f"{_WATCHED[name]}: `{name}` {moved} from {best:.2f} to {level:.2f}. One set of weights plays all roles "
            "that are trained. Lower `learning_rate`, or go back to an earlier checkpoint."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as JSON can hold it."""
        return {
            "count": dict(self._count),
            "level": dict(self._level),
            "best": dict(self._best),
            "warned": sorted(self._warned),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._count, self._level, self._best = Counter(state["count"]), dict(state["level"]), dict(state["best"])
        self._warned = set(state["warned"])


_FORMATS = {
    "policy/format_rate": "policy",
    "critic/format_rate": "critic",
    "backup/format_rate": "backup",
    "refine/format_rate": "refinement policy",
    "successor/format_rate": "successor model",
    "correction/format_rate": "correction of chains of thought",
}
_MIN_FORMAT_RATE = 0.2
_MAX_CLIPPED_RATIO = 0.5
_MAX_TOO_LONG_RATIO = 0.2


@dataclass
class FormatMonitor:
    """
    Warn when most answers of a role cannot be read, or most are cut off at `max_completion_length`, or many prompts
    are too long to be answered. None of it is ever trained on. [`HealthMonitor`] is silent about a model that could
    never play a role, as it forgets nothing. The advice is another one if worked examples were tried.
    """

    max_completion_length: int
    has_tried_examples: bool = False
    _level: dict[str, float] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)

    def update(self, metrics: dict[str, float]) -> list[str]:
        """Add the newest metrics. Return those that were reported now; each is again only after it recovered."""
        for name in ("completions/clipped_ratio", TOO_LONG, *_FORMATS):
            if name in metrics:
                _smooth(self._level, name, metrics[name])
        causes = self.causes()
        reported = [name for name in causes if name not in self._warned]
        self._warned = set(causes)
        for name in reported:
            logger.warning(causes[name])
        return reported

    def causes(self) -> dict[str, str]:
        """Explain why answers are not trained on, and what to do, by metric. Empty while most of them are."""
        too_long = self._level.get(TOO_LONG, 0.0)
        if too_long > _MAX_TOO_LONG_RATIO:
            cause = (
                f"{too_long:.0%} of the prompts of all roles are longer than `max_prompt_length`, and such prompts "
                "are not answered. Raise it: the prompts of critic, backup and refinement add an action, an "
                "observation and earlier answers to a state. Or lower `max_completion_length`, and shorten the task."
            )
            return {TOO_LONG: cause}
        clipped = self._level.get("completions/clipped_ratio", 0.0)
        if clipped > _MAX_CLIPPED_RATIO:  # the formats break because of it
            cause = (
                f"{clipped:.0%} of the answers are cut off at their maximum length, and such answers are never "
                f"trained on. Raise `max_completion_length` ({self.max_completion_length}), or `max_tokens` of a role "
                "in `role_sampling`. If the model thinks before it answers, it needs thousands of tokens, or its "
                "template's option to turn thinking off in `chat_template_kwargs`."
            )
            return {"completions/clipped_ratio": cause}
        remedy = "Use a model that follows instructions better"
        if not self.has_tried_examples:
            remedy = "Show worked examples (`NLACPrompts.examples`), or use a model that follows instructions better"
        return {
            name: f"Only {self._level[name]:.0%} of the answers of the {role} keep to their format (`{name}`), and "
            f"the others are never trained on. {remedy}."
            for name, role in _FORMATS.items()
            if self._level.get(name, 1.0) < _MIN_FORMAT_RATE
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as JSON can hold it."""
        return {"level": dict(self._level), "warned": sorted(self._warned)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._level, self._warned = dict(state["level"]), set(state["warned"])


@dataclass
class SuccessMonitor:
    """
    Warn when success falls for good: once that of the last episodes is below `WARNING_RATIO` of the best, by more than
    chance explains over a long run: their 99.9 % intervals do not touch. Roles can stay healthy then: for the trainer,
    an action that no environment can read is text like any other. The advice is another one if the run `keeps_best`.
    """

    keeps_best: bool = False
    _outcomes: list[bool] = field(default_factory=list)
    _best: int = 0
    _warned: bool = False

    def update(self, outcomes: list[bool]) -> bool:
        """Add outcomes of all processes. Return whether a fall was reported now: again only after a recovery."""
        self._outcomes = (self._outcomes + outcomes)[-_NUM_EPISODES:]
        if len(self._outcomes) < _NUM_EPISODES:
            return False
        now = sum(self._outcomes)
        self._best = max(self._best, now)
        _, high = wilson_interval(now, _NUM_EPISODES, confidence=0.999)
        low, _ = wilson_interval(self._best, _NUM_EPISODES, confidence=0.999)
        has_fallen = now < WARNING_RATIO * self._best and high < low
        is_news = has_fallen and not self._warned
        self._warned = has_fallen
        if is_news:
            keep = "" if self.keeps_best else "keep the best checkpoint with `load_best_model_at_end`, "
            logger.warning(
                "Success fell from %.2f to %.2f of %d training episodes. If tasks did not become harder, the policy "
                f"is being trained on badly sampled actions: {keep}raise `min_p`, or lower `learning_rate`.",
                self._best / _NUM_EPISODES,
                now / _NUM_EPISODES,
                _NUM_EPISODES,
            )
        return is_news

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as JSON can hold it."""
        return {"outcomes": self._outcomes, "best": self._best, "warned": self._warned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._outcomes, self._best, self._warned = list(state["outcomes"]), state["best"], state["warned"]
