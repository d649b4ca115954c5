# SPDX-License-Identifier: Apache-2.0

"""Choice among refined actions."""

from helpers.method_utils import CRITIQUE, asked, make_transitions
from helpers.testing_utils import make_roles, noted_metrics

from trl_nlac.method.candidates import choose_refined
from trl_nlac.method.refinement import refine_actions


NO = "Future: bad\nOptimality: No"


class TestChooseRefined:
    @staticmethod
    def choose(answers: list[str], favourite: str, num_candidates: int = 3):
        """Refine the first of two states, and choose; the critic favours an action that contains a word."""
        roles = make_roles(answers, max_format_retries=0, role_sampling={"refine": {"temperature": 0.0}})
        score = roles.generator.score

        def prefer(prompts, completions):
            favours = [favourite in roles.chat.decode(prompt) for prompt in prompts]
            return [value * (1 + is_one) for value, is_one in zip(score(prompts, completions), favours, strict=True)]

        roles.generator.score = prefer
        transitions = make_transitions(roles)
        refinements = refine_actions(roles, transitions)
        return roles, refinements, choose_refined(roles, transitions, refinements, num_candidates)

    FIRST = ["a", "b", NO, CRITIQUE, "a1", "b"]  # actions, critiques, refined actions

    def test_the_critic_chooses(self):
        """Each action is judged alone, as any other; what the critic called the best is left alone."""
        roles, before, after = self.choose([*self.FIRST, "a2", "a3", NO, NO, NO], "a3")
        assert after[0].refined_action.parsed == "a3" and after[1] is before[1]
        assert (after[0].attempt, after[0].critique) == (before[0].attempt, before[0].critique)
        *_, judged = asked(roles)
        assert judged == "<|user|> baku 2<|end|><|assistant|> a3<|end|><|user|> Critique?<|end|><|assistant|>"
        assert roles.tally.metrics["refine/other_chosen_rate"] == [1.0]

    def test_what_is_noted_can_be_so_beside_other_threads(self, monkeypatch):
        noted = noted_metrics(monkeypatch)
        self.choose([*self.FIRST, "a2", "a3", NO, NO, NO], "a3")
        assert noted == {"refine/other_chosen_rate": [1.0]}

    def test_others_are_sampled(self):
        """A greedy refinement policy would write the same again."""
        roles, _, _ = self.choose([*self.FIRST, "a2", "a3", NO, NO, NO], "a3")
        drawn = zip(asked(roles), roles.generator.samplings, strict=True)
        assert [sampling.temperature for prompt, sampling in drawn if "Revise?" in prompt] == [0.0, 0.0, 1.0, 1.0]

    def test_the_first_of_equals_stays(self):
        roles, before, after = self.choose([*self.FIRST, "a2", "a3", NO, NO, NO], "none")
        assert after[0].refined_action is before[0].refined_action
        assert roles.tally.metrics["refine/other_chosen_rate"] == [0.0]

    def test_nothing_is_asked_where_there_is_no_choice(self):
        """Others that are the same, or cannot be read."""
        roles, before, after = self.choose([*self.FIRST, "a1", ""], "a")
        assert after == before and not roles.generator.answers
        assert roles.tally.metrics["refine/other_chosen_rate"] == []

    def test_the_first_stays_without_a_readable_critique(self):
        _, before, after = self.choose([*self.FIRST, "a2", "a3", "?", "?", "?"], "a3")
        assert after[0].refined_action is before[0].refined_action
