# SPDX-License-Identifier: Apache-2.0

"""Bellman targets, written anew or used again."""

from collections.abc import Callable

from ..method.target_weights import TargetWeights
from ..replay.kept_targets import KeptTargets
from ..types import Answer, Sample, Transition


def current_targets(
    samples: list[Sample],
    kept: KeptTargets,
    version: int,
    lifetime: int,
    write: Callable[[list[Transition]], list[Answer]],
    is_repeatable: Callable[[Transition], bool] = lambda transition: False,
) -> tuple[list[Answer], list[int]]:
    """
    Return the Bellman target of each sample: the kept one if it still lives, otherwise a new one, which is kept from
    then on. A target that could not be read is not kept.

    Args:
        samples (`list[Sample]`):
            Samples of the replay buffer.
        kept ([`~replay.kept_targets.KeptTargets`]):
            The kept targets.
        version (`int`):
            Version of the target weights: the number of their updates.
        lifetime (`int`):
            Number of updates for which a target is used. With 0 a transition that is drawn twice gets two targets, and
            one is used again only by the version that wrote it, where it would write the same.
        write (`Callable[[list[Transition]], list[Answer]]`):
            Writes targets with the target weights.
        is_repeatable (`Callable[[Transition], bool]`, *optional*):
            Whether the same weights would write the same target again. By default they never would.

    Returns:
        `tuple[list[Answer], list[int]]`: the targets, as from [`~method.backup.bellman_targets`], and the version that
        wrote each.
    """
    kept.drop_before(version + 1 - max(lifetime, 1))
    versions = [kept.version(sample) for sample in samples]
    keys = [sample.transition_id if lifetime else i for i, sample in enumerate(samples)]
    due: dict[int, Sample] = {}
    for key, sample, written in zip(keys, samples, versions, strict=True):
        if written is None:
            due.setdefault(key, sample)
    answers = write([sample.transition for sample in due.values()])
    new = dict(zip(due, answers, strict=True))
    targets = [kept.target(sample) if key not in new else new[key] for key, sample in zip(keys, samples, strict=True)]
    for sample, target in zip(due.values(), answers, strict=True):
        if target.parsed is not None and (lifetime or is_repeatable(sample.transition)):
            kept.keep(sample, target, version)
    return targets, [version if written is None else written for written in versions]


def target_lags(
    target_weights: TargetWeights, versions: list[int], batch_size: int, per_iteration: int
) -> dict[str, list[float]]:
    """
    Return how old the weights are that wrote the targets of an iteration.

    Args:
        target_weights ([`TargetWeights`]):
            Theta_bar now.
        versions (`list[int]`):
            The versions that wrote the targets.
        batch_size (`int`):
            Number of samples of an update.
        per_iteration (`int`):
            Number of samples, each time they are trained on, of an iteration.

    Returns:
        `dict[str, list[float]]`: of each target, iterations since the weights in its theta_bar were the trained ones,
        in the mean (`target/lag_iterations`), the share of the initial weights in it (`target/initial_share`), and
        whether it was written in an earlier iteration (`target/reused_rate`).
    """
    now = target_weights.num_samples
    written = [now - (target_weights.num_updates - version) * batch_size for version in versions]
    return {
        "target/lag_iterations": [(now - n + target_weights.lag(n)) / per_iteration for n in written],
        "target/initial_share": [target_weights.initial_share(n) for n in written],
        "target/reused_rate": [float(version < target_weights.num_updates) for version in versions],
    }
