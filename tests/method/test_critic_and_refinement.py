# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

from dataclasses import replace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from helpers.testing_utils import make_roles, make_roles_of, make_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_nlac import NLACPrompts
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tool_calls import format_tool_call
from trl_nlac.environments import ServiceDesk
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL, make_environment
from trl_nlac.environments.embedded.service_desk import ARGUMENTS
from trl_nlac.episodes.recorder import replay_actions
from trl_nlac.generation.base import Completion, Sampling, TransformersGenerator
from trl_nlac.method.critic import bellman_targets, critic_prompt, critiques, verdict_scores
from trl_nlac.method.losses import sequence_kl, sequence_nll
from trl_nlac.method.refinement import refine_actions
from trl_nlac.prompts import Critique, parse_corrected_think, parse_critique
from trl_nlac.types import Answer, Episode, Transition


DESK = ServiceDesk({"baku": ("billing", "amber", "photo", "noon")})
WRONG = ["route billing ruby photo noon", "route billing amber badge noon"]
CRITIQUE = "Future: closed win\nOptimality: Yes"


def make_transitions(roles) -> list[Transition]:
    """A step that goes on and one that ends the task."""
    episode = replay_actions(make_environment(DESK), {"request": "baku"}, WRONG, roles)
    return [Transition(episode, 0), Transition(episode, 1)]


def asked(roles) -> list[str]:
    return [roles.chat.tokenizer.decode(prompt) for prompt in roles.generator.prompts]


class TestBellmanTargets:
    def test_who_is_asked_what(self):
        roles = make_roles(["route legal olive serial dawn closed win", CRITIQUE, CRITIQUE])
        targets = bellman_targets(roles, make_transitions(roles))
        successor, backup, terminated = asked(roles)
        state = "<|user|> baku 2<|end|><|assistant|> route billing ruby photo noon<|end|>"
        question = "<|user|> refused needs amber 1 Scenario?<|end|><|assistant|>"
        assert successor == state + question
        bootstrapped = " route legal olive serial dawn closed win<|end|>"
        assert backup == state + question + bootstrapped + "<|user|> Summary?<|end|><|assistant|>"
        # The last step: the score is told, nothing is bootstrapped.
        last = "<|user|> refused needs amber 1<|end|><|assistant|> route billing amber badge noon<|end|>"
        score = "<|user|> refused needs photo lose Score 0 Summary?<|end|><|assistant|>"
        assert terminated == state + last + score
        assert [target.parsed.future for target in targets] == ["closed win"] * 2

    def test_truncated_step_bootstraps(self):
        roles = make_roles(["closed win", CRITIQUE])
        episode = make_transitions(roles)[1].episode
        cut = Episode(**{**vars(episode), "terminated": False, "truncated": True})
        bellman_targets(roles, [Transition(cut, 1)])
        assert asked(roles)[0].endswith("refused needs photo lose Scenario?<|end|><|assistant|>")

    def test_explicit_bootstrap(self):
        action, future = "route billing amber badge noon", "Future: refused needs photo lose\nOptimality: No use photo"
        roles = make_roles([action, future, CRITIQUE, CRITIQUE])
        bellman_targets(roles, make_transitions(roles), bootstrap="explicit")
        policy, critic, backup, _ = asked(roles)
        state_action = "<|user|> baku 2<|end|><|assistant|> route billing ruby photo noon<|end|>"
        assert policy == state_action + "<|user|> refused needs amber 1<|end|><|assistant|>"
        assert critic == policy + f" {action}<|end|><|user|> Critique?<|end|><|assistant|>"
        assert backup == (
            state_action
            + "<|user|> refused needs amber 1 Scenario?<|end|><|assistant|>"
            + f" {action} refused needs photo lose<|end|><|user|> Summary?<|end|><|assistant|>"
        )

    def test_explicit_bootstrap_samples_as_the_successor_within_the_limits_of_the_roles(self):
        future = "Future: refused needs photo lose\nOptimality: No use photo"
        roles = make_roles(["route billing amber badge noon", future, CRITIQUE])
        limits = {"policy": 11, "successor": 7, "critique": 13, "backup": 17}
        roles.samplings = {role: Sampling(number, temperature=number / 10) for role, number in limits.items()}
        bellman_targets(roles, make_transitions(roles)[:1], bootstrap="explicit")
        asked_with = [(sampling.max_tokens, sampling.temperature) for sampling in roles.generator.samplings]
        assert asked_with == [(11, 0.7), (13, 0.7), (17, 1.7)]

    def test_monte_carlo_tells_the_score(self):
        prompts = replace(COMPACT_PROMPTS, observed_end=NLACPrompts().observed_end)
        roles = make_roles([CRITIQUE], prompts)
        bellman_targets(roles, make_transitions(roles)[:1], bootstrap="monte_carlo")
        (backup,) = asked(roles)
        assert "needs photo lose With that the task ended, with a final score of 0.<|end|>" in backup

    def test_monte_carlo(self):
        roles = make_roles([CRITIQUE, CRITIQUE])
        first, last = make_transitions(roles)
        targets = bellman_targets(roles, [last, first], bootstrap="monte_carlo")
        assert all(target.parsed for target in targets)
        terminated, backup = asked(roles)
        assert terminated.endswith("refused needs photo lose Score 0 Summary?<|end|><|assistant|>")
        assert backup.endswith(
            "<|user|> refused needs amber 1 Scenario?<|end|><|assistant|> route billing amber badge noon refused needs photo "
            "lose<|end|><|user|> Summary?<|end|><|assistant|>"
        )

    def test_monte_carlo_bootstraps_where_the_episode_was_cut(self):
        roles = make_roles(["closed win", CRITIQUE])
        cut = Episode(**{**vars(make_transitions(roles)[1].episode), "terminated": False, "truncated": True})
        bellman_targets(roles, [Transition(cut, 0)], bootstrap="monte_carlo")
        successor, backup = asked(roles)
        assert successor.endswith("refused needs amber 1 Scenario?<|end|><|assistant|>")
        assert backup == successor + " closed win<|end|><|user|> Summary?<|end|><|assistant|>"

    @pytest.mark.parametrize("kwargs", [{}, {"num_futures": 3}, {"single_step": True}])
    def test_critic_is_not_told_the_future(self, kwargs):
        roles = make_roles([], **kwargs)
        for transition in make_transitions(roles):
            prompt = critic_prompt(roles, transition.state_action).ids
            told = roles.chat.completion(transition.turn.next_observation)[:-1]
            assert not any(prompt[i : i + len(told)] == told for i in range(len(prompt)))
            assert roles.chat._encode("Score")[0] not in prompt
            # It extends the state and the action token by token.
            state_action = transition.state_action.ids
            assert prompt[: len(state_action)] == state_action

    def test_several_futures(self):
        """k > 1: the critic learns futures, and a separate evaluation reads k of them (equation 3)."""
        roles = make_roles(["it ends", "it begins anew", "it all ends"], num_futures=2)
        targets = bellman_targets(roles, make_transitions(roles))
        assert [target.parsed for target in targets] == [
            Critique("it begins anew", None),
            Critique("it all ends", None),
        ]
        _, going_on, ended = asked(roles)
        assert "it ends<|end|><|user|> Summary? Future:" in going_on and "Score 0 Summary? Future:" in ended

        roles = make_roles(["it works", "", "it fails", "Future: mixed\nOptimality: No wait"], num_futures=3)
        roles.max_format_retries = 0
        (critique,) = critiques(roles, [make_transitions(roles)[0].state_action])
        *foreseen, evaluation = asked(roles)
        assert len(set(foreseen)) == 1 and foreseen[0].count("Future:") == 1
        assert "1. it works\n2. it fails" in evaluation and "3." not in evaluation
        assert critique.parsed == Critique("mixed", False, "wait")

    def test_single_step(self):
        roles = make_roles(["Correctness: No the sum", "Correctness: Yes"], single_step=True, max_format_retries=0)
        cut, ended = make_transitions(roles)
        targets = bellman_targets(roles, [cut, ended])
        assert targets[0].parsed is None  # what was cut has no score
        assert targets[1].parsed == Critique("", False, "the sum")
        (backup,) = asked(roles)
        assert "final score of your solution is 0" in backup and "Future" not in backup
        (critique,) = critiques(roles, [ended.state_action])
        assert critique.parsed.optimal and "score" not in asked(roles)[-1]

    def test_tool_calls(self):
        """The answer of a tool is a message of the tool, in a bootstrapped state too."""
        desk = make_environment(DESK, "tool_call")
        chat = ChatEncoder(make_tokenizer("qwen2_5"))
        wrong = [format_tool_call("route", dict(zip(ARGUMENTS, call.split()[1:], strict=True))) for call in WRONG]
        again = make_roles_of(chat, [], action_format="tool_call").written_action(wrong[1], "")
        answers = [again, "Future: lost\nOptimality: No wait", CRITIQUE]
        roles = make_roles_of(chat, answers, action_format="tool_call")
        episode = replay_actions(desk, {"request": "baku"}, wrong, roles)
        assert [turn.action for turn in episode.turns] == wrong and episode.terminated
        (target,) = bellman_targets(roles, [Transition(episode, 0)], bootstrap="explicit")
        policy, critic, backup = asked(roles)
        result = "<tool_response>\nrefused needs amber 1\n</tool_response><|im_end|>"
        assert result in policy and policy == roles.chat.tokenizer.decode(Transition(episode, 1).state.ids)
        assert critic.startswith(policy) and critic.endswith("Critique?<|im_end|>\n<|im_start|>assistant\n")
        assert f"{wrong[1]} lost" in backup and target.parsed.optimal

    def test_broken_formats_are_sampled_again_then_dropped(self):
        roles = make_roles(["closed win", "no critique", CRITIQUE, "nor this", "nor that"], max_format_retries=2)
        first, last = bellman_targets(roles, make_transitions(roles)[:1] + make_transitions(roles)[1:])
        assert (first.parsed is None) and last.parsed is not None
        assert roles.num_generated_tokens == sum(
            len(roles.chat.completion(text))
            for text in ["closed win", "no critique", CRITIQUE, "nor this", "nor that"]
        )
        metrics = roles.take_metrics()
        assert metrics["critic/format_rate"] == pytest.approx(1 / 4)
        assert roles.take_metrics() == {}

    def test_greedy_answers_are_not_sampled_again(self):
        roles = make_roles(["no critique"], max_format_retries=5)
        answer = critiques(roles, [make_transitions(roles)[0].state_action], sampling=Sampling(8, temperature=0.0))[0]
        assert answer.parsed is None

    def test_cut_off_answers_are_dropped(self):
        roles = make_roles([], max_format_retries=0)
        cut = roles.chat.completion(CRITIQUE)[:-1]
        roles.generator.generate = lambda prompts, *args: [Completion(cut, False) for _ in prompts]
        assert critiques(roles, [make_transitions(roles)[0].state_action])[0].parsed is None
        assert roles.take_metrics()["completions/clipped_ratio"] == 1


class TestRefineActions:
    def test_one_round(self):
        roles = make_roles(["route legal amber photo noon", "Future: no\nOptimality: No use billing", "route again"])
        transition = make_transitions(roles)[0]
        refinement = refine_actions(roles, [transition])[0]
        _, critique, refine = asked(roles)
        action = "<|user|> baku 2<|end|><|assistant|> route legal amber photo noon<|end|>"
        assert critique == action + "<|user|> Critique?<|end|><|assistant|>"
        told = " Future: no\nOptimality: No use billing<|end|>"
        assert refine == critique + told + "<|user|> Revise?<|end|><|assistant|>"
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

    def test_broken_refinement_is_dropped(self):
        roles = make_roles(["a", CRITIQUE, ""], max_format_retries=0)
        assert refine_actions(roles, make_transitions(roles)[:1]) == [None]

    def test_stored_actions_are_refined_by_their_targets(self):
        """refinement_source="replay": no fresh action, no critique; the Bellman target takes its place."""
        roles = make_roles(["fresh", CRITIQUE, "route stored", "route fresh"])
        transitions = make_transitions(roles)
        told = roles.chat.completion("Future: refused\nOptimality: No use amber")
        target = Answer(transitions[0].state_action, tuple(told), "", Critique("refused", False, "use amber"))
        stored, fresh = refine_actions(roles, transitions, targets={0: target})
        assert (stored.action, stored.attempt) == (WRONG[0], WRONG[0])
        assert stored.critique is target.parsed
        assert {stored.refined_action.text, fresh.refined_action.text} == {"route stored", "route fresh"}
        policy, critique, *_ = asked(roles)
        assert policy == roles.chat.tokenizer.decode(transitions[1].state.ids)
        refine = asked(roles)[2]
        assert refine.startswith(roles.chat.tokenizer.decode(transitions[0].state_action.ids))
        assert "Optimality: No use amber<|end|><|user|> Revise?" in refine
        broken = Answer(transitions[0].state_action, tuple(told), "", None)
        assert refine_actions(make_roles([]), transitions[:1], targets={0: broken}) == [None]


class TestReasoning:
    """Chains of thought of targets and refined actions are rewritten before they are trained on (appendix A)."""

    @staticmethod
    def think(chat, thought, content):
        return [*chat._encode_scaffold(f"<think>\n{thought}\n</think>\n\n{content}"), chat.stop_ids[0]]

    def make_roles(self, corrections, **kwargs):
        chat = ChatEncoder(make_tokenizer("qwen3"))
        answers = ["it ends", self.think(chat, "It answered refused.", CRITIQUE)]
        answers.append(self.think(chat, "The score is 0.", CRITIQUE))
        return make_roles_of(chat, answers + corrections, max_format_retries=0, **kwargs)

    def test_targets_are_trained_with_rewritten_thoughts(self):
        roles = self.make_roles(["<corrected_think>I expect a refusal.</corrected_think>", "<corrected_think>It"])
        first, second = bellman_targets(roles, make_transitions(roles))
        text = roles.chat.tokenizer.decode(first.token_ids)
        assert text == f"<think>\nI expect a refusal.\n</think>\n\n{CRITIQUE}<|im_end|>"
        assert first.parsed == parse_critique(CRITIQUE)
        assert second.parsed is None  # its thoughts know the score
        assert roles.take_metrics()["correction/format_rate"] == 0.5
        # Whoever corrects reads the thoughts, though the template drops them from past turns.
        assert "It answered refused." in asked(roles)[-2] and "The score is 0." in asked(roles)[-1]

    def test_it_can_be_switched_off(self):
        roles = self.make_roles([], reasoning=False)
        targets = bellman_targets(roles, make_transitions(roles))
        assert "It answered refused." in roles.chat.tokenizer.decode(targets[0].token_ids)

    def test_refined_actions_are_trained_with_rewritten_thoughts(self):
        chat = ChatEncoder(make_tokenizer("qwen3"))
        answers = ["a", "Future: bad\nOptimality: No b", self.think(chat, "The judgement says b.", "b")]
        answers.append(self.think(chat, "How to put it?", "<corrected_think>b may do.</corrected_think>"))
        roles = make_roles_of(chat, answers)
        (refinement,) = refine_actions(roles, make_transitions(roles)[:1])
        text = roles.chat.tokenizer.decode(refinement.refined_action.token_ids)
        assert text == "<think>\nb may do.\n</think>\n\nb<|im_end|>"

    def test_answers_without_thoughts_stay(self):
        roles = make_roles_of(ChatEncoder(make_tokenizer("qwen3")), ["it ends", CRITIQUE, CRITIQUE])
        assert all(target.parsed for target in bellman_targets(roles, make_transitions(roles)))

    @pytest.mark.parametrize(
        ("text", "thoughts"),
        [
            ("<corrected_think>\nso\n</corrected_think>", "so"),
            ("<corrected_think>a</corrected_think><corrected_think>b</corrected_think>", None),
            ("<corrected_think><think>a</think></corrected_think>", None),
            ("<corrected_think> </corrected_think>", None),
            ("Well: <corrected_think>a</corrected_think>", None),
            ("a", None),
        ],
    )
    def test_blocks_are_read_strictly(self, text, thoughts):
        assert parse_corrected_think(text) == thoughts

    def test_needs_a_template_with_thoughts(self):
        with pytest.raises(ValueError, match="`reasoning=True` needs a chat template"):
            make_roles([], reasoning=True)


class TestVerdictScores:
    @pytest.mark.parametrize(
        "text",
        [
            CRITIQUE,
            "Future: refused needs amber lose\nOptimality: No use amber",
            "**Future:** a\n**Optimality:**\nyes.",
        ],
    )
    def test_log_odds_of_the_verdict(self, text):
        model, tokenizer = AutoModelForCausalLM.from_pretrained(TINY_MODEL), AutoTokenizer.from_pretrained(TINY_MODEL)
        roles = make_roles([text])
        generator = TransformersGenerator(Accelerator(cpu=True), tokenizer, [1], batch_size=3)
        critique = critiques(roles, [make_transitions(roles)[0].state_action])[0]
        roles.generator = generator
        with generator.session(model):
            (score,) = verdict_scores(roles, [critique])
        ids = critique.prompt.ids + list(critique.token_ids)
        said = "Yes" if critique.parsed.optimal else "No"
        position = next(
            i for i in reversed(range(len(ids))) if tokenizer.decode(ids[: i + 1]).lower().endswith(said.lower())
        )
        if "**" not in text:  # one token each
            logps = model(torch.tensor([ids[:position]])).logits[0, -1].log_softmax(-1)
            yes, no = (tokenizer(f" {word}", add_special_tokens=False)["input_ids"][-1] for word in ("Yes", "No"))
            assert score == pytest.approx((logps[yes] - logps[no]).item(), abs=1e-4)
        assert np.isfinite(score)


class TestLosses:
    def test_sequence_nll(self):
        torch.manual_seed(0)
        logits, input_ids = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
        mask = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 1, 0]])
        nll = sequence_nll(logits, input_ids, mask)
        logps = logits.log_softmax(-1)
        first = -np.mean([logps[0, t - 1, input_ids[0, t]].item() for t in (2, 3, 4)])
        assert nll[0].item() == pytest.approx(first, rel=1e-5)
        assert nll[1].item() == pytest.approx(-logps[1, 2, input_ids[1, 3]].item(), rel=1e-5)

    def test_only_completions_are_trained(self):
        logits = torch.randn(1, 6, 7, requires_grad=True)
        sequence_nll(logits, torch.randint(7, (1, 6)), torch.tensor([[0, 0, 0, 1, 1, 0]])).sum().backward()
        assert logits.grad.abs().sum(-1)[0].gt(0).tolist() == [False, False, True, True, False, False]

    def test_sequence_kl(self):
        torch.manual_seed(0)
        logits, teacher = torch.randn(2, 6, 7, requires_grad=True), torch.randn(2, 8, 7)
        mask = torch.tensor([[0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 0, 0]])
        teacher_mask = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 0], [0, 1, 0, 0, 0, 0, 0, 0]])
        divergence = sequence_kl(logits, mask, teacher, teacher_mask)
        p, q = teacher.log_softmax(-1), logits.log_softmax(-1)
        kl = [(p[0, s - 1].exp() * (p[0, s - 1] - q[0, t - 1])).sum().item() for t, s in ((2, 4), (3, 5), (4, 6))]
        assert divergence[0].item() == pytest.approx(np.mean(kl), rel=1e-5)
        assert divergence[1].item() == pytest.approx((p[1, 0].exp() * (p[1, 0] - q[1, 2])).sum().item(), rel=1e-5)
        # Of the same contexts it is zero, and so is its gradient; on average its gradient is that of the likelihood.
        same = sequence_kl(logits, mask, logits.detach(), mask)
        assert same.abs().max() < 1e-6
        tokens = torch.multinomial(teacher[0, 4].softmax(-1), 200_000, replacement=True)
        likelihood = -(logits[0, 2].log_softmax(-1)[tokens]).mean()
        exact = (p[0, 4].exp() * (p[0, 4] - logits[0, 2].log_softmax(-1))).sum()
        gradients = [torch.autograd.grad(loss, logits)[0][0, 2] for loss in (likelihood, exact)]
        torch.testing.assert_close(*gradients, atol=5e-3, rtol=0)
