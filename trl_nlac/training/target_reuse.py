# SPDX-License-Identifier: Apache-2.0

"""Bellman targets, written anew or used again."""

from dataclasses import dataclass

from ..method.target_weights import TargetWeights
from ..replay.kept_targets import KeptTargets
from ..types import Answer, Sample, Transition


@dataclass(eq=False)
class TargetReuse:
    """
    Choose for which samples of an iteration a Bellman target is written (`due`), and give all of them theirs: the kept
    one if it still lives, otherwise the new one, which is kept from then on. It lives for `lifetime` updates of the
    target weights, which `version` counts; with 0 every draw gets a target of its own. One that could not be read is
    kept, too: it is written again when its time is over.
    """

    samples: list[Sample]
    kept: KeptTargets
    version: int
    lifetime: int

    def __post_init__(self):
        self.kept.drop_before(self.version + 1 - self.lifetime)
        self.versions = [self.kept.version(sample) for sample in self.samples]
        self._keys = [sample.transition_id if self.lifetime else i for i, sample in enumerate(self.samples)]
        self._due: dict[int, Sample] = {}
        for key, sample, written in zip(self._keys, self.samples, self.versions, strict=True):
            if written is None:
                self._due.setdefault(key, sample)

    @property
    def due(self) -> list[Transition]:
        return [sample.transition for sample in self._due.values()]

    def complete(self, answers: list[Answer]) -> tuple[list[Answer], list[int]]:
        """Keep the new targets, of [`due`]; return the target of each sample, and the version that wrote it."""
        new = dict(zip(self._due, answers, strict=True))
        pairs = zip(self._keys, self.samples, strict=True)
        targets = [new[key] if key in new else self.kept.target(sample) for key, sample in pairs]
        if self.lifetime:
            for sample, target in zip(self._due.values(), answers, strict=True):
                self.kept.keep(sample, target, self.version)
        return targets, [self.version if written is None else written for written in self.versions]


def target_lags(
    target_weights: TargetWeights, versions: list[int], batch_size: int, per_iteration: int
) -> dict[str, list[float]]:
    """
    Return how old the weights are that wrote the targets of an iteration, by the `versions` that did: of each target,
    iterations since the weights in its theta_bar were the trained ones, in the mean (`target/lag_iterations`), the
    share of the initial weights in it (`target/initial_share`), and whether it was written in an earlier iteration
    (`target/reused_rate`). An update has `batch_size` samples, and an iteration `per_iteration`, each time they are
    trained on.
    """
    now = target_weights.num_samples
    written = [now - (target_weights.num_updates - version) * batch_size for version in versions]
    return {
        "target/lag_iterations": [(now - n + target_weights.lag(n)) / per_iteration for n in written],
        "target/initial_share": [target_weights.initial_share(n) for n in written],
        "target/reused_rate": [float(version < target_weights.num_updates) for version in versions],
    }
