# SPDX-License-Identifier: Apache-2.0

from dataclasses import replace
from threading import Thread

import pytest
from helpers.method_utils import CRITIQUE, asked, make_transitions
from helpers.testing_utils import make_roles, make_roles_of, make_tokenizer

from trl_nlac import NLACPrompts
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments.embedded import COMPACT_PROMPTS
from trl_nlac.generation.generator import Completion, Sampling
from trl_nlac.method.backup import bellman_targets
from trl_nlac.method.critic import critiques
from trl_nlac.method.refinement import refine_attempts, sample_attempts
from trl_nlac.method.roles import Roles
from trl_nlac.method.tally import Tally
from trl_nlac.prompts import parse_critique
from trl_nlac.types import Transition


class TestCheckGeneration:
    def make(self, monkeypatch, error: Exception) -> Roles:
        def refuse(*args, **kwargs):
            raise error

        roles = make_roles([], generation_kwargs={"typical_p": 3})
        monkeypatch.setattr(roles.generator, "generate", refuse)
        return roles

    @pytest.mark.parametrize("error", [TypeError("no such setting"), ValueError("no such setting")])
    def test_what_the_generator_cannot_use_is_named(self, monkeypatch, error):
        with pytest.raises(ValueError, match=r"`generation_kwargs` must be .*no such setting\), got {'typical_p': 3}"):
            self.make(monkeypatch, error).check_generation(None)

    @pytest.mark.parametrize("error", [ConnectionError("the server is gone"), RuntimeError("out of memory")])
    def test_other_errors_are_not_about_options(self, monkeypatch, error):
        with pytest.raises(type(error), match=f"^{error}$"):
            self.make(monkeypatch, error).check_generation(None)


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("qwen2_5", '<tool_call>\n{"name": "<tool>", "arguments": {"<parameter>": "<value>"}}\n</tool_call>'),
        ("llama3_1", '{"name": "<tool>", "parameters": {"<parameter>": "<value>"}}'),
        ("gptoss", "<one call of a tool>"),  # as no text can write the template's own tokens
    ],
)
def test_questions_show_how_the_template_writes_a_call(template, form):
    roles = make_roles_of(ChatEncoder(make_tokenizer(template)), [], NLACPrompts(), action_format="tool_call")
    asked = [roles.prompts.system("tool_call", []), roles.prompts.unreadable("tool_call")]
    asked.append(roles.prompts.refinement("tool_call", parse_critique(CRITIQUE))[0]["content"])
    assert all(f"\n{form}\nor, without a call, in plain text" in text for text in asked)


class TestAsk:
    def test_broken_formats_are_sampled_again_then_dropped(self):
        answers = ["closed win", "no critique", CRITIQUE, "nor this", "nor that"]
        roles = make_roles(answers, max_format_retries=2, role_sampling={"backup": {"temperature": 1.0}})
        first, last = bellman_targets(roles, make_transitions(roles), "implicit")
        assert (first.parsed is None) and last.parsed is not None
        assert roles.tally.num_generated_tokens == sum(len(roles.chat.completion(text)) for text in answers)
        metrics = roles.take_metrics()
        assert metrics["backup/format_rate"] == pytest.approx(1 / 4)
        assert roles.take_metrics() == {}

    def test_each_time_with_another_seed(self):
        roles = make_roles("no critique", max_format_retries=2)
        seeds, generate = [], roles.generator.generate

        def noting(prompts, sampling, given, bar):
            seeds.append(given)
            return generate(prompts, sampling, given, bar)

        roles.generator.generate = noting
        roles.ask("critic", [transition.state for transition in make_transitions(roles)], parse_critique)
        assert len(seeds) == 3 and len({(place, seed) for given in seeds for place, seed in enumerate(given)}) == 6

    @pytest.mark.parametrize(
        ("answers", "written"),
        [
            ([" it opens", " Yes"], "Future: it opens\nOptimality: Yes"),
            (
                [" it opens.\nOptimality: No.", " use the key"],
                "Future: it opens.\nOptimality: No. Instead, use the key",
            ),
            ([" it", " No", " use the key"], "Future: it\nOptimality: No. Instead, use the key"),
            ([" it\nOptimality: Yes"], "Future: it\nOptimality: Yes"),
        ],
    )
    def test_critiques_are_begun_for_the_model(self, monkeypatch, answers, written):
        roles, left = make_roles([], NLACPrompts()), list(answers)

        def generate(prompts, sampling, seeds, bar):
            (prompt,) = prompts
            assert prompt[: len(state.ids)] == list(state.ids) and len(prompt) > len(state.ids)
            return [Completion([*roles.chat.template.plain_text.encode(left.pop(0)), roles.chat.end_of_turn_id], True)]

        monkeypatch.setattr(roles.generator, "generate", generate)
        state = make_transitions(roles)[0].state
        (answer,) = roles.ask("critic", [state], parse_critique)
        assert (answer.text, left) == (written, []) and answer.parsed is not None
        assert answer.token_ids == tuple(roles.chat.completion(written))

    def test_critiques_of_other_forms_are_not_begun(self):
        quoting = NLACPrompts(critique="Quote the rule first:\nRule: <it>\nFuture: <...>\nOptimality: <...>")
        for prompts in (COMPACT_PROMPTS, quoting):
            roles = make_roles(["mumble"], prompts, max_format_retries=0)
            (answer,) = roles.ask("critic", [make_transitions(roles)[0].state], parse_critique)
            assert answer.text == "mumble"

    @pytest.mark.parametrize("retries", [0, 1, 5])
    def test_a_greedy_backup_that_breaks_its_format_is_retried_by_sampling(self, retries):
        """Otherwise the same answer would come again. What kept its format is not asked again."""
        roles = make_roles([CRITIQUE, "no critique", CRITIQUE], max_format_retries=retries)
        ended = make_transitions(roles)[1]
        seen = replace(ended.turn, next_observation="other")
        other = Transition(replace(ended.episode, turns=(ended.episode.turns[0], seen)), 1)
        kept, broken = bellman_targets(roles, [ended, other], "implicit")
        assert kept.parsed is not None and (broken.parsed is not None) == (retries > 0)
        greedy, temperatures = roles.samplings["backup"], [0.0, 0.0] + [1.0] * (retries > 0)
        assert [s.temperature for s in roles.generator.samplings] == temperatures
        assert roles.generator.samplings[-1] == replace(greedy, temperature=temperatures[-1])
        assert "other Score 0 Summary?" in asked(roles)[-1]

    def test_the_same_greedy_question_is_asked_once(self):
        roles = make_roles(["Future: a\nOptimality: No", "Future: b\nOptimality: No"])
        first, last = (transition.state_action for transition in make_transitions(roles))
        found = critiques(roles, [first, last, first], sampling=Sampling(8, temperature=0.0))
        assert [answer.parsed.future for answer in found] == ["a", "b", "a"] and len(asked(roles)) == 2
        sampled = make_roles(CRITIQUE)
        critiques(sampled, [first, last, first], sampling=Sampling(8, temperature=1.0))
        assert len(asked(sampled)) == 3

    def test_tokens_are_counted_by_role(self):
        roles = make_roles(["act", Completion([4, 5], True, num_cached_tokens=3), CRITIQUE], max_format_retries=0)
        state = make_transitions(roles)[0].state
        roles.act([state])
        roles.ask("policy", [state])
        with roles.tally.uncounted():
            critiques(roles, [state])
        number = state.num_tokens
        assert roles.tally.tokens == {
            "generated/act": len(roles.chat.completion("act")),
            "prefilled/act": number,
            "generated/policy": 2,
            "prefilled/policy": number,
            "cached/policy": 3,
        }
        roles.score([[1, 2], [1, 2]], [[3], [4, 5]])
        assert roles.tally.num_generated_tokens == len(roles.chat.completion("act")) + 2
        assert roles.tally.tokens["prefilled/score"] == 7

    def test_what_another_thread_counted_is_taken_over(self):
        roles, players = make_roles("act"), make_roles("act")
        state = make_transitions(roles)[0].state
        for asking in (roles, players):
            asking.act([state])
        roles.tally.absorb(players.tally)
        assert roles.tally.tokens["generated/act"] == 2 * len(roles.chat.completion("act"))
        assert roles.tally.metrics["policy/format_rate"] == [1.0, 1.0]
        assert not players.tally.tokens and not players.tally.metrics

    def test_nothing_to_ask(self):
        roles = make_roles([])
        assert roles.ask("backup", [], parse_critique) == [] and roles.take_metrics() == {}

    def test_cut_off_answers_are_dropped(self):
        roles = make_roles([], max_format_retries=0)
        cut = roles.chat.completion(CRITIQUE)[:-1]
        roles.generator.answers.append(Completion(cut, False))
        assert critiques(roles, [make_transitions(roles)[0].state_action])[0].parsed is None
        assert roles.take_metrics()["completions/clipped_ratio"] == 1


class TestReasoning:
    """Chains of thought of targets and refined actions are rewritten before they are trained on (appendix A)."""

    @staticmethod
    def think(chat, thought, content):
        return [*chat.template.encode(f"<think>\n{thought}\n</think>\n\n{content}"), chat.stop_ids[0]]

    def make_roles(self, corrections, **kwargs):
        chat = ChatEncoder(make_tokenizer("qwen3"))
        answers = ["it ends", self.think(chat, "It answered refused.", CRITIQUE)]
        answers.append(self.think(chat, "The score is 0.", CRITIQUE))
        return make_roles_of(chat, answers + corrections, max_format_retries=0, **kwargs)

    def test_targets_are_trained_with_rewritten_thoughts(self):
        roles = self.make_roles(["<corrected_think>I expect a refusal.</corrected_think>", "<corrected_think>It"])
        first, second = bellman_targets(roles, make_transitions(roles), "implicit")
        text = roles.chat.tokenizer.decode(first.token_ids)
        assert text == f"<think>\nI expect a refusal.\n</think>\n\n{CRITIQUE}<|im_end|>"
        assert first.parsed == parse_critique(CRITIQUE)
        assert second.parsed is None  # its thoughts used the score
        assert roles.take_metrics()["correction/format_rate"] == 0.5
        # The correction is shown the thoughts, although the template drops them from past turns.
        assert "It answered refused." in asked(roles)[-2] and "The score is 0." in asked(roles)[-1]
        assert all(prompt.count(NLACPrompts().correct_backup) == 1 for prompt in asked(roles)[-2:])

    @pytest.mark.parametrize(("lacking", "is_trained"), [(0, True), (1, False)])
    def test_a_rewritten_answer_may_be_as_long_as_the_longest_of_any_role(self, lacking, is_trained):
        """Of the policy, for example, though those of the backup are shorter."""
        chat, thought = self.make_roles([]).chat, "I expect a refusal."
        length = len(chat.with_reasoning(self.think(chat, "So.", CRITIQUE), thought))
        limits = {"max_completion_length": 8, "role_sampling": {"policy": {"max_tokens": length - lacking}}}
        roles = self.make_roles([f"<corrected_think>{thought}</corrected_think>"] * 2, **limits)
        targets = bellman_targets(roles, make_transitions(roles), "implicit")
        assert [target.parsed is not None for target in targets] == [is_trained] * 2
        assert roles.take_metrics()["correction/too_long_ratio"] == lacking

    def test_it_can_be_switched_off(self):
        roles = self.make_roles([], reasoning=False)
        targets = bellman_targets(roles, make_transitions(roles), "implicit")
        assert "It answered refused." in roles.chat.tokenizer.decode(targets[0].token_ids)

    def test_refined_actions_are_trained_with_rewritten_thoughts(self):
        chat = ChatEncoder(make_tokenizer("qwen3"))
        answers = ["a", "Future: bad\nOptimality: No b", self.think(chat, "The judgement says b.", "b")]
        answers.append(self.think(chat, "How to put it?", "<corrected_think>b may do.</corrected_think>"))
        roles = make_roles_of(chat, answers)
        (refinement,) = refine_attempts(roles, sample_attempts(roles, make_transitions(roles)[:1]))
        text = roles.chat.tokenizer.decode(refinement.refined_action.token_ids)
        assert text == "<think>\nb may do.\n</think>\n\nb<|im_end|>"
        assert NLACPrompts().correct_refine in asked(roles)[-1]

    def test_answers_without_thoughts_stay(self):
        roles = make_roles_of(ChatEncoder(make_tokenizer("qwen3")), ["it ends", CRITIQUE, CRITIQUE])
        assert all(target.parsed for target in bellman_targets(roles, make_transitions(roles), "implicit"))

    def test_needs_a_template_with_thoughts(self):
        with pytest.raises(ValueError, match="`reasoning=True` needs a chat template"):
            make_roles([], reasoning=True)


def test_threads_that_answer_can_count_while_another_begins():
    class Values(list):
        def __iter__(self):
            other.start()
            other.join(0.2)
            return super().__iter__()

    tally = Tally()
    other = Thread(target=tally.note, args=("of another thread", [1.0]))
    tally.metrics["of this one"] = Values([1.0])
    with tally.unrecorded():
        other.join(20)
