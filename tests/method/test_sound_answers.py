# SPDX-License-Identifier: Apache-2.0

from helpers.method_utils import make_transitions
from helpers.testing_utils import make_roles

from trl_nlac.method.sound_answers import sound_answers


def test_refined_actions_that_ignore_their_critique_are_left_out():
    """Kept after "Yes" and changed after "No" is what a refinement policy should do; its lapses can be read, too."""
    no, yes = "Future: bad\nOptimality: No", "Future: good\nOptimality: Yes"
    targets, actions, critiques, refined = [yes] * 4, ["a", "b", "c", "d"], [yes, yes, no, no], ["a", "b2", "c", "d2"]
    sampled = {"backup": {"temperature": 1.0}}  # the same greedy question would be asked once
    roles = make_roles([*targets, *actions, *critiques, *refined], role_sampling=sampled)
    transitions = [t for t in make_transitions(roles) if t.terminated] * 4
    answers = sound_answers(roles, transitions)
    assert [answer.text for answer in answers["refine"]] == ["a", "d2"]
    assert [answer.text for answer in answers["policy"]] == actions
    assert len(answers["critique"]) == len(answers["backup"]) == 4


def test_roles_are_asked_as_in_training():
    """With the source of the future, and the rounds of refinement, of the run."""
    no = "Future: bad\nOptimality: No"
    roles = make_roles(["closed win", no, "a", no, "b", no, "c"])
    answers = sound_answers(roles, make_transitions(roles)[:1], "implicit", num_refinements=2)
    assert [answer.text for answer in answers["successor"]] == ["closed win"]
    assert [answer.text for answer in answers["refine"]] == ["c"]
