# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from helpers.method_utils import make_transitions
from helpers.testing_utils import make_roles
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.generation.transformers import TransformersGenerator
from trl_nlac.method.critic import critic_prompt, critiques, verdict_scores


class TestCriticPrompt:
    @pytest.mark.parametrize("kwargs", [{}, {"num_futures": 3}, {"single_step": True, "max_turns": 1}])
    def test_critic_is_not_shown_the_future(self, kwargs):
        roles = make_roles([], **kwargs)
        (score,) = roles.chat.tokenizer("Score", add_special_tokens=False)["input_ids"]
        for transition in make_transitions(roles):
            prompt = critic_prompt(roles, transition.state_action).ids
            observation_ids = roles.chat.completion(transition.turn.next_observation)[:-1]
            assert not any(prompt[i : i + len(observation_ids)] == observation_ids for i in range(len(prompt)))
            assert score not in prompt
            # The prompt extends the state and the action token by token.
            state_action = transition.state_action.ids
            assert prompt[: len(state_action)] == state_action


class TestVerdictScores:
    @pytest.mark.parametrize(
        ("before", "rest"),
        [
            ("Future: closed win\nOptimality:", "Yes"),
            ("Future: refused needs amber lose\nOptimality:", "No use amber"),
            ("Future: closed reports correctness: nothing passes.\nOptimality:", "Yes"),
            ("Future: reports optimality nothing\nOptimality:", "No use amber"),
            ("Sure. Future: refused yes no\nOptimality:", "No use amber"),
            ("Future: refused\nOptimality:", "Not optimal, use amber"),
            ("Future: refused\nOptimality:", "The action was not the best choice."),
        ],
    )
    def test_log_odds_of_the_verdict(self, before, rest):
        model, tokenizer = AutoModelForCausalLM.from_pretrained(TINY_MODEL), AutoTokenizer.from_pretrained(TINY_MODEL)
        critique, score = self.score(f"{before} {rest}", model)
        ids = critique.prompt.ids + make_roles([]).chat.completion(before)[:-1]
        assert (critique.prompt.ids + list(critique.token_ids))[: len(ids)] == ids
        logps = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        yes, no = (tokenizer(f" {word}", add_special_tokens=False)["input_ids"][-1] for word in ("Yes", "No"))
        assert score == pytest.approx((logps[yes] - logps[no]).item(), abs=1e-4)

    @pytest.mark.parametrize(
        "text", ["**Future:** a\n**Optimality:**\nyes.", "1. Future: a\n2. Optimality: **NO**, b"]
    )
    def test_marks_around_the_verdict(self, text):
        assert np.isfinite(self.score(text, AutoModelForCausalLM.from_pretrained(TINY_MODEL))[1])

    @pytest.mark.parametrize(("said", "other"), [("Yes", "No"), ("NO", "YES"), ("no", "yes")])
    def test_the_other_verdict_is_written_as_the_one_that_is_said(self, said, other):
        roles = make_roles([f"Future: a\nOptimality: {said}"])
        scored = []

        def score(prompts, completions):
            scored.extend(roles.chat.decode(token_ids) for token_ids in completions)
            return [0.0] * len(completions)

        roles.generator.score = score
        verdict_scores(roles, critiques(roles, [make_transitions(roles)[0].state_action]))
        assert sorted(scored) == sorted([said, other])

    @staticmethod
    def score(text, model):
        roles = make_roles([text])
        generator = TransformersGenerator(Accelerator(cpu=True), roles.chat.tokenizer, [1], batch_size=3)
        (critique,) = critiques(roles, [make_transitions(roles)[0].state_action])
        roles.generator = generator
        with generator.session(model):
            (score,) = verdict_scores(roles, [critique])
        return critique, score
