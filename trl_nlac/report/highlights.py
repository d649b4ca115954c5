# SPDX-License-Identifier: Apache-2.0

"""What to look at first: a task before and after, a mistake of the critic, and a refinement."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from .calibration import probability


class Highlight(NamedTuple):
    """A turn that the report opens with."""

    title: str
    why: str  # why it was chosen, in a sentence
    episode: int  # index of the episode among those of the page
    turn: int  # index of the turn among those of the episode
    sample: int | None  # index of the audited sample among those of the turn
    about: str = "episode"  # what the card tells: "episode", "critic" or "refinement"


def find_highlights(episodes: list[dict[str, Any]], first_success: int | None) -> list[Highlight]:
    """Choose at most one highlight of each kind; `first_success` is the first episode of the run that succeeded."""
    found = [_refinement(episodes), _mistake(episodes)]
    opening = before_and_after(episodes) or [_success(episodes, first_success)]
    return [highlight for highlight in (*opening, *found) if highlight is not None]


def before_and_after(episodes: list[dict[str, Any]]) -> list[Highlight]:
    """Choose a task that failed in the first evaluation and succeeded in the last; empty if there is none."""
    played = [(i, e) for i, e in enumerate(episodes) if e["split"] == "eval" and e["turns"]]
    steps = sorted({episode["step"] for _, episode in played})
    if len(steps) < 2:
        return []
    won = {_task(e): i for i, e in played if e["step"] == steps[-1] and e["outcome"] == "success"}
    lost = [
        (i, won[_task(e)])
        for i, e in played
        if e["step"] == steps[0] and e["outcome"] == "failure" and _task(e) in won
    ]
    if not lost:
        return []
    titles = {"Before": "failed", "After": "succeeded"}
    return [
        Highlight(
            title, f"The same task at step {episodes[i]['step']:,}: it {how}.", i, len(episodes[i]["turns"]) - 1, None
        )
        for (title, how), i in zip(titles.items(), lost[0], strict=True)
    ]


def _success(episodes: list[dict[str, Any]], index: int | None) -> Highlight | None:
    if index is None or not episodes[index]["turns"]:
        return None
    episode = episodes[index]
    audited = [t for t, turn in enumerate(episode["turns"]) if turn["samples"]]
    turn = audited[-1] if audited else len(episode["turns"]) - 1
    where = "in training" if episode["split"] == "train" else "in evaluation"
    why = f"The first recorded episode that succeeded: {where}, at step {episode['step']:,}."
    return Highlight("The first success", why, index, turn, 0 if audited else None)


def _mistake(episodes: list[dict[str, Any]]) -> Highlight | None:
    """Choose the most confident of the critic's mistakes, of an audited sample if there is one."""
    audited = [place for place in _samples(episodes) if place[3]["wrong"]]
    if audited:
        told = [place for place in audited if {"critique", "target"} <= place[3].keys()]
        i, t, s, sample = max(told or audited, key=lambda place: abs(place[3].get("verdict_score", 0.0)))
        target = "Yes" if sample["target_verdict"] else "No"
        return Highlight(
            "The critic was wrong",
            f"{_said(sample)}. Its Bellman target, which is written after what happened, says “{target}”.",
            i,
            t,
            s,
            "critic",
        )
    wrong = [
        (i, t, turn)
        for i, episode in enumerate(episodes)
        for t, turn in enumerate(episode["turns"])
        if turn["wrong"] and "critique" in turn
    ]
    if not wrong:
        return None
    i, t, turn = max(wrong, key=lambda place: abs(place[2].get("verdict_score", 0.0)))
    outcome = "failed" if turn["verdict"] else "succeeded"
    return Highlight("The critic was wrong", f"{_said(turn)}, and the episode {outcome}.", i, t, None, "critic")


def _refinement(episodes: list[dict[str, Any]]) -> Highlight | None:
    """
    Choose a refined action that led to success where its attempt did not, or else the newest of which that is unknown.
    An attempt that led to success is left out: there the critic was wrong.
    """
    results, found = _results(episodes), []
    for i, t, s, sample in _samples(episodes):
        attempt, refined_action = sample.get("attempt"), sample.get("refined_action")
        if sample.get("attempt_verdict") is not False or "attempt_critique" not in sample:
            continue
        task, before = _task(episodes[i]), _observations(episodes[i])[t]
        tried, led = ([] if before is None else results[task, before, action] for action in (attempt, refined_action))
        if refined_action not in (None, attempt) and not any(tried) and not results[task, attempt]:
            share = sum(led) / len(led) if tried and led else 0.0
            found.append((share, sample["step"], i, t, s, len(tried), led))
    if not found:
        return None
    share, _, i, t, s, failures, led = max(found, key=lambda place: place[:2])
    if not share:
        why = "The critic called an action not the best. No recorded episode shows that the refined one is better."
        return Highlight("A refined action", why, i, t, s, "refinement")
    both = f"{sum(led):,} of {len(led):,} episodes with the refined action succeeded, and none of {failures:,}"
    why = f"After the same observation of the same task, {both} with the fresh one."
    return Highlight("A refinement that helped", why, i, t, s, "refinement")


def _results(episodes: list[dict[str, Any]]) -> dict[tuple, list[bool]]:
    """Tell successes by task, observation and action; without the observation, those that an action ended."""
    results = defaultdict(list)
    for episode in episodes:
        if episode["outcome"] in ("broken", "unknown"):
            continue
        task, succeeded = _task(episode), episode["outcome"] == "success"
        for before, turn in zip(_observations(episode), episode["turns"], strict=True):
            results[task, before, turn.get("action")].append(succeeded)
        for turn in episode["turns"][-1:] if succeeded else ():
            results[task, turn.get("action")].append(True)
    return results


def _samples(episodes: list[dict[str, Any]]) -> Iterator[tuple[int, int, int, dict[str, Any]]]:
    """Yield audited samples with the indices of episode, turn and sample."""
    for i, episode in enumerate(episodes):
        for t, turn in enumerate(episode["turns"]):
            for s, sample in enumerate(turn["samples"]):
                yield i, t, s, sample


def _observations(episode: dict[str, Any]) -> list[str | None]:
    """Return the observation before each turn; `None` where it was not recorded."""
    found = []
    last: dict[str, Any] = {"number": -1, "next_observation": episode.get("prompt")}
    for turn in episode["turns"]:
        follows = last["number"] == turn["number"] - 1
        found.append(turn.get("observation", last.get("next_observation") if follows else None))
        last = turn
    return found


def _task(episode: dict[str, Any]) -> tuple[str | None, str | None]:
    return episode.get("task"), episode.get("prompt")


def _said(judged: dict[str, Any]) -> str:
    word = "Yes" if judged["verdict"] else "No"
    if "verdict_score" not in judged:
        return f"It said “{word}”"
    yes = probability(judged["verdict_score"])
    return f"It said “{word}”, with a probability of {yes if judged['verdict'] else 1 - yes:.2f}"
