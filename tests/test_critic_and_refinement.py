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

import numpy as np
import pytest
import torch
from testing_utils import make_roles

from trl_nlac.critic import bellman_targets, critic_prompt, critiques
from trl_nlac.environments import ServiceDesk
from trl_nlac.environments.embedded import make_environment
from trl_nlac.generation import Completion, Sampling
from trl_nlac.losses import sequence_nll
from trl_nlac.prompts import parse_critique
from trl_nlac.refinement import refine_actions
from trl_nlac.rollout import replay_actions
from trl_nlac.types import Episode, Transition


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

    def test_critic_is_not_told_the_future(self):
        roles = make_roles([])
        for transition in make_transitions(roles):
            prompt = critic_prompt(roles, transition.state_action).ids
            told = roles.chat.completion(transition.turn.next_observation)[:-1]
            assert not any(prompt[i : i + len(told)] == told for i in range(len(prompt)))
            assert roles.chat._encode("Score")[0] not in prompt
            # It extends the state and the action token by token.
            state_action = transition.state_action.ids
            assert prompt[: len(state_action)] == state_action

    def test_broken_formats_are_sampled_again_then_dropped(self):
        roles = make_roles(["closed win", "no critique", CRITIQUE, "nor this", "nor that"], max_format_retries=2)
        first, last = bellman_targets(roles, make_transitions(roles)[:1] + make_transitions(roles)[1:])
        assert (first.parsed is None) and last.parsed is not None
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
        roles.generator.generate = lambda prompts, sampling: [Completion(cut, False) for _ in prompts]
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
