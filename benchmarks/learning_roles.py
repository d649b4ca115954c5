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


"""Ways to speak that the learning benchmark compares with NLAC's own."""

from dataclasses import replace

from trl_nlac.method.critic import critiques
from trl_nlac.method.refinement import ask_refined
from trl_nlac.method.roles import Roles
from trl_nlac.types import Answer


class SelfRefiningRoles(Roles):
    """Acts with one round of critique and refinement at test time (Madaan et al., 2023); nothing is trained for it."""

    def ask(self, role, prompts, parse, *args, **kwargs) -> list[Answer]:
        actions = super().ask(role, prompts, parse, *args, **kwargs)
        if role != "policy":
            return actions
        acted = [i for i, action in enumerate(actions) if action.parsed is not None]
        state_actions = [self.continued(actions[i].prompt, actions[i]) for i in acted]
        judged = dict(zip(acted, zip(state_actions, critiques(self, state_actions), strict=True), strict=True))
        judged = {i: pair for i, pair in judged.items() if pair[1].parsed is not None}
        pairs = judged.values()
        answers = ask_refined(self, [state_action for state_action, _ in pairs], [critique for _, critique in pairs])
        for i, refined in zip(judged, answers, strict=True):
            if refined.parsed is not None:
                actions[i] = replace(refined, prompt=actions[i].prompt)
        return actions


class BlindRoles(Roles):
    """Gives every action the critique of another one, about another request: refinement without its content."""

    def ask(self, role, prompts, parse, *args, **kwargs) -> list[Answer]:
        answers = super().ask(role, prompts, parse, *args, **kwargs)
        if role != "critique":
            return answers
        texts = [self.chat.tokenizer.decode(prompt.ids, skip_special_tokens=True) for prompt in prompts]
        topics = [text.split()[0] for text in texts]
        return [replace(self._other(answers, topics, i), prompt=answer.prompt) for i, answer in enumerate(answers)]

    @staticmethod
    def _other(answers: list[Answer], topics: list[str], index: int) -> Answer:
        """The next answer, in the order of the batch, about another topic; its own if there is none."""
        order = [*range(index + 1, len(answers)), *range(index)]
        return answers[next((i for i in order if topics[i] != topics[index]), index)]
