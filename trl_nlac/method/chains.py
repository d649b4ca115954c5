# SPDX-License-Identifier: Apache-2.0

"""Chains of questions about transitions, none of which waits for the others."""

from collections.abc import Callable
from typing import TypeVar

from ..event_loop import DaemonThreads
from ..types import Transition
from .randomness import draw_seeds, seeded
from .roles import Roles


T = TypeVar("T")

NUM_CHAINS = 32  # more would cost more for each request than they save


def answer_each(
    roles: Roles, name: str, transitions: list[Transition], answer: Callable[[list[Transition]], list[T]]
) -> list[T]:
    """
    Ask the questions about each transition. Where the generator is concurrent, they are dealt to chains, each of which
    goes from question to question as soon as its own answers are there; otherwise all are asked each question in one
    batch. Draws of the same transition stay together, so that the same greedy prompt is asked once.

    `answer` asks about transitions and returns a result for each. Threads call it at the same time. A result does not
    depend on how long other chains take. A progress bar calls the transitions `name`.
    """
    if not roles.generator.is_concurrent:
        return answer(transitions)
    groups: dict[tuple[int, int], list[int]] = {}
    for place, transition in enumerate(transitions):
        groups.setdefault((id(transition.episode), transition.index), []).append(place)
    chains: list[list[int]] = [[] for _ in range(min(NUM_CHAINS, len(groups)))]
    for i, places in enumerate(groups.values()):
        chains[i % NUM_CHAINS] += places
    seeds = draw_seeds(len(chains))
    results: dict[int, T] = {}

    def work(places: list[int], seed: int) -> None:
        with seeded(seed):
            results.update(zip(places, answer([transitions[place] for place in places]), strict=True))
        bar.update(len(places))

    with roles.progress(name, len(transitions), "transition") as bar:
        threads = DaemonThreads()
        working = [threads.submit(work, *chain) for chain in zip(chains, seeds, strict=True)]
        for future in working:
            future.result()
    return [results[place] for place in range(len(transitions))]
