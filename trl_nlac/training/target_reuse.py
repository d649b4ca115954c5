# SPDX-License-Identifier: Apache-2.0

"""Bellman targets, written anew or used again."""

from ..method.backup import bellman_targets, is_repeatable
from ..method.chains import answer_each
from ..method.roles import Roles
from ..replay.kept_targets import KeptTargets
from ..types import Answer, Sample


def current_targets(
    roles: Roles, samples: list[Sample], kept: KeptTargets, version: int, max_age: int, bootstrap: str
) -> list[Answer]:
    """
    Return the Bellman target of each sample: the kept one if it is not too old, otherwise a new one, which is kept
    from then on. A target that could not be read is not kept.

    Call it with the target weights, on all processes.

    Args:
        roles ([`~method.roles.Roles`]):
            The roles. They note the share of targets that were used again, and the mean age of all.
        samples (`list[Sample]`):
            Samples of the replay buffer.
        kept ([`~replay.kept_targets.KeptTargets`]):
            The kept targets.
        version (`int`):
            Version of the target weights: the number of their updates.
        max_age (`int`):
            Largest number of updates since a target was written (`target_max_age`). With 0 a transition that is drawn
            twice gets two targets, and one of the same version is used again only where the same would be written.
        bootstrap (`str`):
            As in [`~method.backup.bellman_targets`].

    Returns:
        `list[Answer]`: as from [`~method.backup.bellman_targets`].
    """
    kept.drop_before(version - max_age)
    versions = [kept.version(sample) for sample in samples]
    keys = [sample.transition_id if max_age else i for i, sample in enumerate(samples)]
    due: dict[int, Sample] = {}
    for key, sample, written in zip(keys, samples, versions, strict=True):
        if written is None:
            due.setdefault(key, sample)
    transitions = [sample.transition for sample in due.values()]
    answers = answer_each(
        roles,
        "target",
        transitions,
        lambda places: bellman_targets(roles, [transitions[place] for place in places], bootstrap),
    )
    new = dict(zip(due, answers, strict=True))
    targets = [kept.target(sample) if key not in new else new[key] for key, sample in zip(keys, samples, strict=True)]
    for sample, target in zip(due.values(), answers, strict=True):
        if target.parsed is not None and (max_age or is_repeatable(roles, sample.transition, bootstrap)):
            kept.keep(sample, target, version)
    if samples:
        roles.tally.note("target/reused_rate", [1 - len(due) / len(samples)])
        roles.tally.note("target/age", [0.0 if written is None else float(version - written) for written in versions])
    return targets
