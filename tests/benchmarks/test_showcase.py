# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path

import pytest

from benchmarks.showcase import as_markdown, choose


ROOT = Path(__file__).parents[2]


def sample(step: int, observation: str, **values) -> dict:
    usual = {"verdict": False, "verdict_score": -1.0, "target_verdict": False, "next_observation": "refused"}
    usual |= {"target": "Future: refused", "attempt": "a", "attempt_verdict": False, "refined_action": "a"}
    return {"step": step, "observation": observation, **usual, **values}


def test_the_surest_mistake_and_the_next_refined_action_in_its_state():
    mistakes = [
        sample(10, "one", verdict=True, verdict_score=2.0),
        sample(20, "two", verdict=True, verdict_score=5.0),
        sample(20, "one", verdict=True, verdict_score=9.0),  # nothing was refined after it
        sample(5, "two", verdict=True, verdict_score=9.0, target="Future: accepted"),  # the target is wrong, too
        sample(5, "two", verdict=True, verdict_score=9.0, target_verdict=True),
    ]
    refined = [sample(step, "two", refined_action=f"action of {step}") for step in (10, 40, 30)]
    refined.append(sample(15, "one", refined_action="action of 15"))
    won = [{"step": 30, "observation": "two", "action": f"action of {step}"} for step in (10, 30)]
    won += [{**won[1], "step": 28}, {**won[1], "step": 33}]  # before the refined action, and later
    assert choose(mistakes + refined, won) == (mistakes[1], refined[2], won[1])
    for samples, successes in ((refined, won), (mistakes + refined, won[:1])):
        with pytest.raises(ValueError, match="no audited mistake"):
            choose(samples, successes)


def test_the_readme_shows_the_committed_one():
    shown = json.loads((ROOT / "benchmarks" / "results" / "showcase.json").read_text())
    assert as_markdown(shown) in (ROOT / "README.md").read_text()
