# SPDX-License-Identifier: Apache-2.0

from dataclasses import replace

import pytest
from helpers.method_utils import CRITIQUE, DESK, WRONG, asked, make_transitions
from helpers.testing_utils import make_roles, make_roles_of, make_tokenizer

from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tool_calls import format_tool_call
from trl_nlac.environments.embedded import make_environment
from trl_nlac.episodes.recorder import replay_actions
from trl_nlac.method.critic import critiques
from trl_nlac.method.refinement import (
    Attempt,
    policy_examples,
    question_actions,
    refine_actions,
    refinement_rounds,
)
from trl_nlac.prompts import parse_critique
from trl_nlac.types import Answer, Critique, Refinement, Sample, Transition


class TestRefineActions:
    def test_one_round(self):
        roles = make_roles(["route legal amber photo noon", "Future: no\nOptimality: No use billing", "route again"])
        transition = make_transitions(roles)[0]
        refinement = refine_actions(roles, [transition])[0]
        _, critique, refine = asked(roles)
        action = "<|user|> baku 2<|end|><|assistant|> route legal amber photo noon<|end|>"
        assert critique == action + "<|user|> Critique?<|end|><|assistant|>"
        answer = " Future: no\nOptimality: No use billing<|end|>"
        assert refine == critique + answer + "<|user|> Revise?<|end|><|assistant|>"
        assert refinement.refined_action.parsed == "route again"
        assert refinement.critique == parse_critique("Future: no\nOptimality: No use billing")

    def test_rounds_see_all_attempts_and_stop_at_yes(self):
        no, yes = "Future: bad\nOptimality: No", "Future: good\nOptimality: Yes"
        first = ["a1", "b1", no, yes, "a2", "b2"]
        second = [no, "a3"]
        roles = make_roles([*first, *second])
        state = make_transitions(roles)[0]
        refined = refine_actions(roles, [state, state], num_refinements=2)
        assert [refinement.refined_action.text for refinement in refined] == ["a3", "b2"]
        critique, refine = asked(roles)[-2:]
        assert critique.count("Critique?") == 1  # Q(s, a) of the attempt alone
        assert refine.count("Critique?") == refine.count("Revise?") == 2
        assert refine.index("a1") < refine.index("a2")

    def test_a_refined_action_goes_with_the_attempt_and_the_critique_of_its_round(self):
        """The action stays the first one."""
        critiques = ["Future: bad\nOptimality: No", "Future: good\nOptimality: Yes"]
        roles = make_roles(["a1", critiques[0], "a2", critiques[1], "a3"])
        (refinement,) = refine_actions(roles, make_transitions(roles)[:1], num_refinements=2)
        assert (refinement.action, refinement.attempt, refinement.refined_action.parsed) == ("a1", "a2", "a3")
        assert refinement.critique == parse_critique(critiques[1])

    def test_broken_refinement_is_dropped(self):
        roles = make_roles(["a", CRITIQUE, ""], max_format_retries=0)
        assert refine_actions(roles, make_transitions(roles)[:1]) == [None]

    def test_the_best_actions_can_be_their_own_refinements(self):
        """Without a question: a fresh action as it was sampled, a stored one as it stands in the conversation."""
        no = "Future: bad\nOptimality: No"
        roles = make_roles(["b1", "c1", no, CRITIQUE, "b2", CRITIQUE], max_format_retries=0)
        transitions = make_transitions(roles)
        yes = critiques(make_roles(CRITIQUE), [transitions[0].state_action])[0]
        stored, fresh, kept = refine_actions(
            roles, [transitions[0], *transitions], num_refinements=2, targets={0: yes}, keeps_best=True
        )
        assert not roles.generator.answers
        assert (stored.is_kept, fresh.is_kept, kept.is_kept) == (True, False, True)
        assert stored.refined_action.token_ids == transitions[0].action_ids
        assert stored.refined_action.parsed == stored.refined_action.text == stored.action == WRONG[0]
        assert (fresh.attempt, fresh.refined_action.text) == ("b1", "b2")
        assert kept.refined_action.token_ids == tuple(roles.chat.completion("c1"))
        samples = [Sample(transition, 0, 1.0) for transition in transitions[:1]]
        (example,) = policy_examples(roles, samples, [stored])
        assert (example.prompt.ids, example.completion_ids) == (transitions[0].state.ids, transitions[0].action_ids)

    def test_stored_actions_that_cannot_be_trained_on_are_refined(self):
        """Those that could not be read, and those of which the conversation has lost the chain of thought."""
        roles = make_roles([CRITIQUE, "better"])
        transition = make_transitions(roles)[0]
        turn = replace(transition.turn, action="")
        unread = Transition(replace(transition.episode, turns=(turn,)), 0)
        yes = critiques(roles, [unread.state_action])[0]
        (refinement,) = refine_actions(roles, [unread], targets={0: yes}, keeps_best=True)
        assert refinement.refined_action.text == "better" and not refinement.is_kept
        thinking = make_roles_of(ChatEncoder(make_tokenizer("qwen3")), ["better"])
        transition = make_transitions(thinking)[0]
        (refinement,) = refine_actions(
            thinking, [transition], targets={0: replace(yes, prompt=transition.state_action)}, keeps_best=True
        )
        assert refinement.refined_action.text == "better"

    @pytest.mark.parametrize(("before", "after"), [("```json\n", "\n```"), ("", "."), ("Better: ", "")])
    def test_refined_calls_are_read_as_those_of_the_policy(self, before, after):
        call = format_tool_call("route", {"team": "billing"})
        answers = [["a", "Future: bad\nOptimality: No", before + written + after] for written in (call, call[:-1])]
        roles = make_roles([*answers[0], *answers[1]], max_format_retries=0)
        desk = make_environment(DESK, "tool_call")
        episode = replay_actions(desk, {"request": "baku"}, WRONG, roles.actions, roles.prompts)
        (read,), (unread,) = [refine_actions(roles, [Transition(episode, 0)]) for _ in answers]
        assert read.refined_action.parsed == call and unread is None

    def test_stored_actions_are_refined_by_their_targets(self):
        """No fresh action and no critique: the stored action and its Bellman target take their places."""
        roles = make_roles(["fresh", CRITIQUE, "route stored", "route fresh"])
        transitions = make_transitions(roles)
        target_ids = roles.chat.completion("Future: refused\nOptimality: No use amber")
        target = Answer(transitions[0].state_action, tuple(target_ids), "", Critique("refused", False, "use amber"))
        stored, fresh = refine_actions(roles, transitions, targets={0: target})
        assert (stored.action, stored.attempt) == (WRONG[0], WRONG[0])
        assert stored.critique is target.parsed
        assert {stored.refined_action.text, fresh.refined_action.text} == {"route stored", "route fresh"}
        policy, critique, *_ = asked(roles)
        assert policy == roles.chat.tokenizer.decode(transitions[1].state.ids)
        refine = asked(roles)[2]
        assert refine.startswith(roles.chat.tokenizer.decode(transitions[0].state_action.ids))
        assert "Optimality: No use amber<|end|><|user|> Revise?" in refine
        broken = Answer(transitions[0].state_action, tuple(target_ids), "", None)
        assert refine_actions(make_roles([]), transitions[:1], targets={0: broken}) == [None]


class TestQuestionActions:
    def test_a_question_that_is_too_long_teaches_nothing(self):
        """It repeats the critique, for which there was room."""
        critique = f"Future: {'closed ' * 20}\nOptimality: No"
        for limit, number in ((None, 1), (30, 0)):
            roles = make_roles(["a", critique], max_prompt_length=limit)
            refinements = question_actions(roles, make_transitions(roles)[:1])
            assert len(list(filter(None, refinements))) == number and not roles.generator.answers

    def test_a_stored_action_that_could_not_be_read_teaches_nothing(self):
        roles = make_roles([CRITIQUE])
        transition = make_transitions(roles)[0]
        turns = (replace(transition.turn, action=""), *transition.episode.turns[1:])
        unread = Transition(replace(transition.episode, turns=turns), 0)
        (target,) = critiques(roles, [unread.state_action])
        assert question_actions(roles, [unread], {0: target}) == [None]


class TestPolicyExamples:
    @pytest.mark.parametrize("distills", [False, True])
    def test_they_answer_in_the_state(self, distills):
        """After what the template begins an answer with."""
        chat = ChatEncoder(make_tokenizer("qwen3"), {"enable_thinking": False})
        roles = make_roles_of(chat, [])
        transitions = make_transitions(roles)
        samples = [Sample(t, i, 1.0) for t, i in zip(transitions, (3, 7), strict=True)]
        answers = [Answer(t.state_action, (5, i), "b", "b") for i, t in enumerate(transitions)]
        refinements = [Refinement("a", "a", Critique("", False), answer) for answer in answers]
        examples = policy_examples(roles, samples, refinements, distills)
        assert chat.prefill
        for example, transition in zip(examples, transitions, strict=True):
            assert example.prompt.ids == [*transition.state.ids, *chat.prefill]
            taught = [*transition.state_action.ids, *chat.prefill] if distills else None
            assert (example.teacher_prompt and example.teacher_prompt.ids) == taught
        values = [(example.completion_ids, example.transition_id, example.weight) for example in examples]
        assert values == [((5, 0), 3, 1.0), ((5, 1), 7, 1.0)]

    def test_those_that_do_other_than_their_critiques_say_can_be_left_out(self):
        roles = make_roles([])
        transition = make_transitions(roles)[0]
        judged = [(verdict, action) for verdict in (False, True) for action in "ab"]
        refinements = [
            Refinement("a", "a", Critique("", verdict), Answer(transition.state_action, (5,), action, action))
            for verdict, action in judged
        ]
        samples = [Sample(transition, 0, 1.0)] * 4
        examples = policy_examples(roles, samples, refinements, masks_noncompliant=True)
        kept = [of for of, example in zip(judged, examples, strict=True) if example is not None]
        assert kept == [(False, "b"), (True, "a")]
        assert None not in policy_examples(roles, samples, refinements)


class TestRefinementRounds:
    NO, YES = "Future: bad\nOptimality: No", "Future: good\nOptimality: Yes"

    def refine(self, answers: list[str], **kwargs):
        """Refine the stored actions of two transitions, with scripted answers."""
        roles = make_roles(answers)
        transitions = make_transitions(roles)
        attempts = {i: Attempt.of_transition(roles, t) for i, t in enumerate(transitions)}
        return roles, refinement_rounds(roles, attempts, **kwargs)

    def test_the_best_action_can_be_kept(self):
        roles, rounds = self.refine([self.YES, self.NO, "b2", self.YES], num_rounds=3, keeps_best=True)
        (kept,), (first, second) = rounds[0], rounds[1]
        assert kept.critique.parsed.optimal and kept.refined is None and kept.is_kept
        assert (first.attempt, first.refined.parsed) == (WRONG[1], "b2")
        assert (second.attempt, second.refined) == ("b2", None) and second.critique.parsed.optimal
        questions = [prompt.removesuffix("?<|end|><|assistant|>").split()[-1] for prompt in asked(roles)]
        assert questions == ["Critique", "Critique", "Revise", "Critique"]

    def test_without_it_the_best_action_is_refined_once(self):
        roles, rounds = self.refine([self.YES, self.NO, "a2", "b2", self.YES, "b3"], num_rounds=3)
        assert [[one.refined.parsed for one in of_action] for of_action in rounds.values()] == [["a2"], ["b2", "b3"]]
        assert not roles.generator.answers
