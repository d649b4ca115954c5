# SPDX-License-Identifier: Apache-2.0

import pytest
import torch
from helpers.testing_utils import make_roles

from trl_nlac.agent.better_actions import act_better, choose_actions
from trl_nlac.types import Prompt


MESSAGES = [{"role": "user", "content": "situ 2"}]


def test_every_candidate_has_a_seed_of_its_own():
    roles, seeds = make_roles("route"), []
    act = roles.act
    roles.act = lambda prompts, given, sampling: seeds.extend(given) or act(prompts, given, sampling)
    choose_actions(roles, [Prompt.of(roles.chat.start(MESSAGES))] * 2, num_candidates=3, seeds=[10, 20])
    assert len(seeds) == 6 == len(set(seeds))


def test_actions_to_play_are_those_that_are_chosen_and_only_candidates_are_scored():
    """An engine that episodes ask in threads cannot score in them."""
    bad, good = "Future: open unknown\nOptimality: No", "Future: closed win\nOptimality: Yes"
    # two states, of which the second's action is kept; then the first's refinement is not called the best either
    script = ["first", "second", bad, good, "third", bad, "fourth"]
    roles, scored = make_roles(script, max_format_retries=0), []
    score, prompts = roles.generator.score, [Prompt.of(roles.chat.start(MESSAGES))] * 2
    roles.generator.score = lambda *asked: scored.append(asked) or score(*asked)
    played = act_better(roles, prompts, [0, 1], refine=2)
    assert [answer.parsed for answer in played] == ["fourth", "second"] and not scored
    assert [answer.prompt for answer in played] == prompts
    roles.generator.answers = list(script)
    assert [choice.answer.parsed for choice in choose_actions(roles, prompts, 2, seeds=[0, 1])] == ["fourth", "second"]
    assert scored
    with pytest.raises(ValueError, match="`refine` must be at least 0, got -1"):
        act_better(roles, prompts, [0, 1], refine=-1)


def test_a_refined_action_has_no_judgement_of_the_one_before():
    bad = "Future: open unknown\nOptimality: No"
    roles = make_roles(["first", bad, "second"], max_format_retries=0)
    (choice,) = choose_actions(roles, [Prompt.of(roles.chat.start(MESSAGES))], refine=1, seeds=[0])
    assert choice.answer.parsed == "second" and choice.judgement is None
    assert [(action, judgement.critique) for action, judgement in choice.attempts] == [("first", bad)]


def test_alpha_weighs_the_verdict_scores():
    torch.manual_seed(0)
    chosen: dict[float, set[str]] = {0.001: set(), 1.0: set()}
    for alpha, actions in chosen.items():
        for _ in range(20):
            roles = make_roles(["first", "second", *["Future: closed win\nOptimality: Yes"] * 2])
            decode = roles.chat.tokenizer.decode
            roles.generator.score = lambda prompts, completions, decode=decode: [
                100.0 * ("first" in decode(prompt) and "yes" in decode(completion).lower())
                for prompt, completion in zip(prompts, completions, strict=True)
            ]
            (choice,) = choose_actions(roles, [Prompt.of(roles.chat.start(MESSAGES))], 0, 2, alpha, seeds=[0])
            actions.add(choice.answer.parsed)
    assert chosen == {0.001: {"first", "second"}, 1.0: {"first"}}


@pytest.mark.parametrize("alpha, unreadable", [(0.0, True), (1.0, False)])
def test_a_candidate_whose_critique_cannot_be_read(alpha, unreadable):
    torch.manual_seed(0)
    chosen = set()
    for _ in range(20):
        roles = make_roles(["first", "second", "Future: closed win\nOptimality: Yes", "fine"], max_format_retries=0)
        (choice,) = choose_actions(roles, [Prompt.of(roles.chat.start(MESSAGES))], 0, 2, alpha, seeds=[0])
        assert [judgement and judgement.verdict_score for _, judgement in choice.candidates] == [1.0, None]
        chosen.add(choice.answer.parsed)
    assert chosen == ({"first", "second"} if unreadable else {"first"})
