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
from accelerate import Accelerator
from helpers.method_utils import CRITIQUE, make_transitions
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
