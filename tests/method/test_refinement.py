# SPDX-License-Identifier: Apache-2.0

from dataclasses import replace

import pytest
from helpers.method_utils import CRITIQUE, DESK, WRONG, asked, make_transitions
from helpers.testing_utils import make_roles, make_roles_of, make_tokenizer

from trl_nlac.agent.better_actions import refinement_rounds
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tool_calls import format_tool_call
from trl_nlac.environments.embedded import make_environment
from trl_nlac.episodes.recorder import replay_actions
from trl_nlac.method.critic import critiques
from trl_nlac.method.refinement import Attempt, policy_examples, question_attempts, refine_attempts, sample_attempts
from trl_nlac.method.roles import Roles
from trl_nlac.prompts import parse_critique
from trl_nlac.types import Answer, Critique, Refinement, Sample, Transition


NO, YES = "Future: bad\nOptimality: No", "Future: good\nOptimality: Yes"


def refine_fresh(roles: Roles, transitions: list[Transition]) -> list[Refinement | None]:
    return refine_attempts(roles, sample_attempts(roles, transitions))


class TestRefineAttempts:
    def test_attempt_critique_and_refined_action(self):
        roles = make_roles(["route legal amber photo noon", "Future: no\nOptimality: No use billing", "route again"])
        transition = make_transitions(roles)[0]
        refinement = refine_fresh(roles, [transition])[0]
        _, critique, refine = asked(roles)
        action = "<|user|> baku 2<|end|><|assistant|> route legal amber photo noon<|end|>"
        assert critique == action + "<|user|> Critique?<|end|><|assistant|>"
        answer = " Future: no\nOptimality: No use billing<|end|>"
        assert refine == critique + answer + "<|user|> Revise?<|end|><|assistant|>"
        assert (refinement.action, refinement.refined_action.parsed) == ("route legal amber photo noon", "route again")
        assert refinement.critique == parse_critique("Future: no\nOptimality: No use billing")

    def test_attempts_are_sampled_and_refined_apart(self):
        roles = make_roles(["", "a", "b", "no critique", NO], max_format_retries=0)
        transition = make_transitions(roles)[0]
        attempts = sample_attempts(roles, [transition] * 3)
        assert not roles.generator.answers and not any("Revise?" in prompt for prompt in asked(roles))
        assert [attempt and (attempt.action, attempt.critique.text) for attempt in attempts] == [
            None,
            ("a", "no critique"),
            ("b", NO),
        ]
        roles.generator.answers = ["c"]
        *unread, refinement = refine_attempts(roles, attempts)
        assert unread == [None, None] and refinement.refined_action.text == "c"
        assert asked(roles)[-1].count("Revise?") == 1 and " b<|end|>" in asked(roles)[-1]

    def test_the_best_actions_are_their_own_refinements(self):
        roles = make_roles(["b1", "c1", NO, YES, "b2"], max_format_retries=0)
        transitions = make_transitions(roles)
        yes = critiques(make_roles(CRITIQUE), [transitions[0].state_action])[0]
        attempts = sample_attempts(roles, transitions)
        stored, fresh, kept = refine_attempts(roles, [Attempt.of_transition(roles, transitions[0], yes), *attempts])
        assert not roles.generator.answers
        assert [prompt.endswith("Revise?<|end|><|assistant|>") for prompt in asked(roles)] == [False] * 4 + [True]
        assert (stored.is_kept, fresh.is_kept, kept.is_kept) == (True, False, True)
        assert stored.refined_action.token_ids == transitions[0].action_ids
        assert stored.refined_action.parsed == stored.refined_action.text == stored.action == WRONG[0]
        assert (fresh.action, fresh.refined_action.text) == ("b1", "b2")
        assert kept.refined_action.token_ids == tuple(roles.chat.completion("c1"))
        samples = [Sample(transition, 0, 1.0) for transition in transitions[:1]]
        (example,) = policy_examples(roles, samples, [stored])
        assert (example.prompt.ids, example.completion_ids) == (transitions[0].state.ids, transitions[0].action_ids)

    def test_stored_actions_that_cannot_be_trained_on_are_refined(self):
        roles = make_roles([CRITIQUE, "better"])
        transition = make_transitions(roles)[0]
        turn = replace(transition.turn, action="")
        unread = Transition(replace(transition.episode, turns=(turn,)), 0)
        yes = critiques(roles, [unread.state_action])[0]
        (refinement,) = refine_attempts(roles, [Attempt.of_transition(roles, unread, yes)])
        assert refinement.refined_action.text == "better" and not refinement.is_kept
        thinking = make_roles_of(ChatEncoder(make_tokenizer("qwen3")), ["better"])
        transition = make_transitions(thinking)[0]
        attempt = Attempt.of_transition(thinking, transition, replace(yes, prompt=transition.state_action))
        (refinement,) = refine_attempts(thinking, [attempt])
        assert refinement.refined_action.text == "better" and not refinement.is_kept

    @pytest.mark.parametrize(("before", "after"), [("```json\n", "\n```"), ("", "."), ("Better: ", "")])
    def test_refined_calls_are_read_as_those_of_the_policy(self, before, after):
        call = format_tool_call("route", {"team": "billing"})
        answers = [["a", NO, before + written + after] for written in (call, call[:-1])]
        roles = make_roles([*answers[0], *answers[1]], max_format_retries=0)
        desk = make_environment(DESK, "tool_call")
        episode = replay_actions(desk, {"request": "baku"}, WRONG, roles.actions, roles.prompts)
        (read,), (unread,) = [refine_fresh(roles, [Transition(episode, 0)]) for _ in answers]
        assert read.refined_action.parsed == call and unread is None

    def test_stored_actions_are_refined_by_their_targets(self):
        roles = make_roles(["route stored"])
        transition = make_transitions(roles)[0]
        target_ids = roles.chat.completion("Future: refused\nOptimality: No use amber")
        target = Answer(transition.state_action, tuple(target_ids), "", Critique("refused", False, "use amber"))
        (stored,) = refine_attempts(roles, [Attempt.of_transition(roles, transition, target)])
        assert stored.action == WRONG[0] and stored.critique is target.parsed
        assert stored.refined_action.text == "route stored"
        (refine,) = asked(roles)
        assert refine.startswith(roles.chat.tokenizer.decode(transition.state_action.ids))
        assert "Optimality: No use amber<|end|><|user|> Revise?" in refine
        broken = Attempt.of_transition(roles, transition, replace(target, parsed=None))
        assert refine_attempts(make_roles([]), [broken]) == [None]


class TestQuestionAttempts:
    def test_a_question_that_is_too_long_teaches_nothing(self):
        """It repeats the critique, for which there was room."""
        critique = f"Future: {'closed ' * 20}\nOptimality: No"
        for limit, number in ((None, 1), (30, 0)):
            roles = make_roles(["a", critique], max_prompt_length=limit)
            refinements = question_attempts(roles, sample_attempts(roles, make_transitions(roles)[:1]))
            assert len(list(filter(None, refinements))) == number and not roles.generator.answers

    def test_a_stored_action_that_could_not_be_read_teaches_nothing(self):
        roles = make_roles([CRITIQUE])
        transition = make_transitions(roles)[0]
        turns = (replace(transition.turn, action=""), *transition.episode.turns[1:])
        unread = Transition(replace(transition.episode, turns=turns), 0)
        (target,) = critiques(roles, [unread.state_action])
        assert question_attempts(roles, [Attempt.of_transition(roles, unread, target)]) == [None]


class TestPolicyExamples:
    @pytest.mark.parametrize("distills", [False, True])
    def test_they_answer_in_the_state(self, distills):
        chat = ChatEncoder(make_tokenizer("qwen3"), {"enable_thinking": False})
        roles = make_roles_of(chat, [])
        transitions = make_transitions(roles)
        samples = [Sample(t, i, 1.0) for t, i in zip(transitions, (3, 7), strict=True)]
        answers = [Answer(t.state_action, (5, i), "b", "b") for i, t in enumerate(transitions)]
        refinements = [Refinement("a", Critique("", False), answer) for answer in answers]
        examples = policy_examples(roles, samples, refinements, distills)
        assert chat.prefill
        for example, transition in zip(examples, transitions, strict=True):
            assert example.prompt.ids == [*transition.state.ids, *chat.prefill]
            taught = [*transition.state_action.ids, *chat.prefill] if distills else None
            assert (example.teacher_prompt and example.teacher_prompt.ids) == taught
        values = [(example.completion_ids, example.transition_id, example.weight) for example in examples]
        assert values == [((5, 0), 3, 1.0), ((5, 1), 7, 1.0)]

    @pytest.mark.parametrize("distills", [False, True])
    def test_an_action_that_was_to_be_changed_and_was_not_is_left_out(self, distills):
        """And one that was to be kept and was not. A distilled policy learns along its own action."""
        roles = make_roles([])
        transition = make_transitions(roles)[0]
        judged = [(verdict, action) for verdict in (False, True) for action in "ab"]
        refinements = [
            Refinement("a", Critique("", verdict), Answer(transition.state_action, (5,), action, action))
            for verdict, action in judged
        ]
        examples = policy_examples(roles, [Sample(transition, 0, 1.0)] * 4, refinements, distills)
        kept = [of for of, example in zip(judged, examples, strict=True) if example is not None]
        assert kept == (judged if distills else [(False, "b"), (True, "a")])


class TestRefinementRounds:
    def refine(self, answers: list[str], **kwargs):
        roles = make_roles(answers)
        transitions = make_transitions(roles)
        attempts = {i: Attempt.of_transition(roles, t) for i, t in enumerate(transitions)}
        return roles, refinement_rounds(roles, attempts, **kwargs)

    def test_the_best_action_is_kept(self):
        roles, rounds = self.refine([YES, NO, "b2", YES], num_rounds=3)
        (kept,), (first, second) = rounds[0], rounds[1]
        assert kept.attempt == WRONG[0] and kept.critique.parsed.optimal and kept.refined is None
        assert (first.attempt, first.refined.parsed) == (WRONG[1], "b2")
        assert (second.attempt, second.refined) == ("b2", None) and second.critique.parsed.optimal
        questions = [prompt.removesuffix("?<|end|><|assistant|>").split()[-1] for prompt in asked(roles)]
        assert questions == ["Critique", "Critique", "Revise", "Critique"]

    def test_rounds_see_all_attempts(self):
        roles, rounds = self.refine([NO, YES, "a2", NO.replace("bad", "worse"), "a3"], num_rounds=2)
        told = [(one.attempt, one.critique.parsed.future, one.refined.parsed) for one in rounds[0]]
        assert told == [(WRONG[0], "bad", "a2"), ("a2", "worse", "a3")]
        critique, refine = asked(roles)[-2:]
        assert critique.count("Critique?") == 1  # Q(s, a) of the attempt alone
        assert refine.count("Critique?") == refine.count("Revise?") == 2
        assert refine.index(WRONG[0]) < refine.index("a2")

    def test_a_best_action_that_cannot_be_kept_is_refined_once(self):
        roles = make_roles([YES, "a2"])
        transition = make_transitions(roles)[0]
        turns = (replace(transition.turn, action=""), *transition.episode.turns[1:])
        unread = Transition(replace(transition.episode, turns=turns), 0)
        rounds = refinement_rounds(roles, {0: Attempt.of_transition(roles, unread)}, num_rounds=3)
        assert [one.refined.parsed for one in rounds[0]] == ["a2"] and not roles.generator.answers
