# SPDX-License-Identifier: Apache-2.0

import threading

import pytest
import torch
from helpers.method_utils import make_transitions
from helpers.testing_utils import ScriptedGenerator, make_roles

from trl_nlac.method.backup import bellman_targets
from trl_nlac.method.chains import answer_each
from trl_nlac.method.refinement import refine_attempts, sample_attempts


class Concurrent(ScriptedGenerator):
    """Answers threads at the same time, by role: the first one's first action only once the other chain has ended."""

    is_concurrent = True

    def __init__(self, chat, slow: str = "", last: str = ""):
        super().__init__(chat, "route again")
        self.slow, self.last, self.has_ended = slow, last, threading.Event()
        self.seeds: list[tuple[str, int]] = []

    def generate(self, prompts, sampling, seeds, bar=None):
        texts = [self.chat.tokenizer.decode(prompt).removesuffix("<|assistant|>") for prompt in prompts]
        self.seeds += list(zip(texts, seeds, strict=True))
        if self.slow and texts[0].endswith(self.slow):
            assert self.has_ended.wait(20), "the other chain was held up"
        answers = [self._answer(text) for text in texts]
        self.prompts += prompts
        self.batch_sizes.append(len(prompts))
        if self.last and texts[0].endswith(self.last):
            self.has_ended.set()
        return [self._completion(answer) for answer in answers]

    def _answer(self, text: str) -> str:
        is_judged = text.endswith(("Critique?<|end|>", "Summary?<|end|>"))
        return "Future: no\nOptimality: No" if is_judged else "route again"


@pytest.fixture
def roles():
    roles = make_roles([])
    roles.generator = Concurrent(roles.chat)
    return roles


def refine(roles, transitions):
    return answer_each(
        roles, "refine", transitions, lambda drawn: refine_attempts(roles, sample_attempts(roles, drawn))
    )


def test_a_slow_answer_holds_up_no_other_chain(roles):
    first, second = make_transitions(roles)
    states = [roles.chat.tokenizer.decode(t.state.ids) for t in (first, second)]
    roles.generator.slow, roles.generator.last = states[0], "Revise?<|end|>"
    refinements = refine(roles, [first, second])
    assert [refinement.refined_action.text for refinement in refinements] == ["route again"] * 2
    assert roles.generator.batch_sizes == [1] * 6
    assert roles.tally.metrics["refine/format_rate"] == [1.0] * 2


def test_answers_depend_on_the_seed_alone(roles):
    transitions, seeds = make_transitions(roles), []
    states = [roles.chat.tokenizer.decode(t.state.ids) for t in transitions]
    for slow in ("", states[0], states[1]):
        roles.generator = Concurrent(roles.chat, slow, "Revise?<|end|>" if slow else "")
        torch.manual_seed(3)
        refine(roles, transitions)
        seeds.append(sorted(roles.generator.seeds))
    assert seeds[0] == seeds[1] == seeds[2] and len({seed for _, seed in seeds[0]}) == 6


def test_draws_of_one_transition_ask_the_same_greedy_prompt_once(roles):
    _, last = transitions = make_transitions(roles)
    drawn = [last, *transitions, last]
    targets = answer_each(roles, "target", drawn, lambda some: bellman_targets(roles, some, "monte_carlo"))
    assert sorted(roles.generator.batch_sizes) == [1, 1]  # the backup is greedy
    assert targets[0].prompt.ids == targets[2].prompt.ids == targets[3].prompt.ids != targets[1].prompt.ids


def test_an_error_ends_all_chains(roles):
    def fail(transitions):
        raise ConnectionError("the server is gone")

    with pytest.raises(ConnectionError, match="the server is gone"):
        answer_each(roles, "target", make_transitions(roles), fail)


def test_generators_that_batch_get_one_batch():
    roles = make_roles(["a1", "b1", *["Future: no\nOptimality: No"] * 2, "a2", "b2"])
    refinements = refine(roles, make_transitions(roles))
    assert roles.generator.batch_sizes == [2, 2, 2]
    assert [refinement.refined_action.text for refinement in refinements] == ["a2", "b2"]
