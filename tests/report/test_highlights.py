# SPDX-License-Identifier: Apache-2.0

import json

from helpers.report_utils import make_row, make_sample, make_turn, write_audit, write_episodes

from trl_nlac.report.highlights import find_highlights
from trl_nlac.report.run_files import read_episodes


def highlights(run) -> dict:
    episodes = read_episodes(run)
    found = find_highlights(episodes.shown, episodes.first_success)
    return {highlight.title: (highlight, episodes.shown[highlight.episode]) for highlight in found}


def test_the_first_success_of_all_is_on_the_page(tmp_path):
    for step in range(100):
        rows = [make_row(10 * step + i, step, success=step >= 37, **{"return": 0.0}) for i in range(10)]
        rows[0].update(success=True, failure="step: it broke")  # proves nothing
        write_episodes(tmp_path, rows, step)
    episodes = read_episodes(tmp_path, limit=20)
    write_episodes(tmp_path, [make_row(step=0)], 0, kind="eval")  # before training
    assert len(episodes.shown) == 20 and episodes.shown[episodes.first_success]["step"] == 37
    (highlight,) = find_highlights(episodes.shown, episodes.first_success)
    assert highlight.title == "The first success" and "in training, at step 37" in highlight.why
    assert highlight.turn == 1 and highlight.sample is None  # the last one


def test_the_most_confident_mistake_of_the_critic(tmp_path):
    write_episodes(tmp_path, [make_row(i, success=False) for i in range(3)])
    scores = {0: (0.2, "Yes"), 1: (2.2, "Yes"), 2: (9.0, "No")}  # the last one is right
    samples = [
        make_sample(number, verdict=word == "Yes", verdict_score=score, target_verdict=False)
        for number, (score, word) in scores.items()
    ]
    write_audit(tmp_path, samples)
    highlight, episode = highlights(tmp_path)["The critic was wrong"]
    assert episode["number"] == 1 and highlight.sample == 0
    assert "“Yes”, with a probability of 0.90" in highlight.why and "says “No”" in highlight.why


def test_a_mistake_in_an_evaluation(tmp_path):
    judged = [make_turn(0, critique="Optimality: Yes", verdict=True, verdict_score=score) for score in (0.5, 1.5)]
    write_episodes(tmp_path, [make_row(0, turns=judged, success=False)], kind="eval")
    highlight, _ = highlights(tmp_path)["The critic was wrong"]
    assert highlight.turn == 1 and highlight.why.endswith("and the episode failed.")


def test_a_refinement_helped_if_an_episode_shows_it(tmp_path):
    task = {"task": json.dumps({"customer": 3}), "prompt": "hello"}
    first = make_turn(0, action="wrong", next_observation="no")
    played = [make_row(0, step=1, turns=[first], success=False, **task), make_row(1, step=1, success=False, **task)]
    write_episodes(tmp_path, played, 5)
    sample = make_sample(0, step=5, observation="hello", attempt="wrong", refined_action="right", task=task["task"])
    unproven = make_sample(1, step=6, observation="hello", refined_action="other", task=task["task"])
    write_audit(tmp_path, [sample, unproven])
    highlight, episode = highlights(tmp_path)["A refined action"]
    assert episode["number"] == 1 and "No recorded episode shows" in highlight.why  # the newest
    later = make_turn(0, action="right", next_observation="yes")
    others = {"number": 9, "step": 9, "turns": [later]}
    write_episodes(tmp_path, [make_row(**others, **{**task, "prompt": "good evening"})], 9)
    assert "A refinement that helped" not in highlights(tmp_path)  # another state
    write_episodes(tmp_path, [make_row(**others, **task)], 10)
    highlight, episode = highlights(tmp_path)["A refinement that helped"]
    assert (
        episode["number"] == 0 and "1 of 1 episodes with the refined action succeeded, and none of 1" in highlight.why
    )


def test_an_attempt_that_succeeded_is_no_example(tmp_path):
    """The critic objected to the right action: after the same observation, or after another where it ended a task."""
    task = {"task": json.dumps({"customer": 3}), "prompt": "hello"}
    for number, actions in enumerate((["right"], ["other", "right"], ["wrong"])):
        turns = [make_turn(i, action=action, next_observation="no") for i, action in enumerate(actions)]
        row = make_row(number, step=number, turns=turns, success=actions[-1] == "right", **task)
        write_episodes(tmp_path, [row], step=number)
    about = {"refined_action": "other", "task": task["task"]}
    tried = [make_sample(2, attempt=attempt, observation="hello", **about) for attempt in ("right", "new", "wrong")]
    write_audit(tmp_path, [tried[0], make_sample(1, 1, attempt="right", observation="no", **about)])
    assert not {"A refinement that helped", "A refined action"} & highlights(tmp_path).keys()
    for number, title in ((2, "A refined action"), (3, "A refinement that helped")):  # nothing is known of "new"
        write_audit(tmp_path, tried[:number])
        assert highlights(tmp_path)[title][0].sample == number - 1


def test_the_same_task_before_and_after(tmp_path):
    for step in (0, 10, 20):
        rows = [make_row(i, step=step, success=step > 10 * i, prompt=f"task {i}", task=str(i)) for i in range(3)]
        write_episodes(tmp_path, rows, step, kind="eval")
    found = highlights(tmp_path)
    assert list(found)[:2] == ["Before", "After"] and "The first success" not in found
    (_, before), (_, after) = found["Before"], found["After"]
    assert before["task"] == after["task"] == "0"
    assert [(e["step"], e["outcome"]) for e in (before, after)] == [(0, "failure"), (20, "success")]
