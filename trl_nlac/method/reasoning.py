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

"""Reasoning models: chains of thought that may be trained on (appendix A.2 and A.3)."""

from dataclasses import replace

from ..prompts import parse_corrected_think
from ..types import Answer
from .roles import Roles


def correct_reasoning(roles: Roles, answers: list[Answer], question: str) -> list[Answer]:
    """
    Let the model rewrite the chains of thought of answers that become training targets. Whoever is trained on them does
    not see what they were thought with: the next observation and the score, or the critique.

    Args:
        roles ([`~method.roles.Roles`]):
            The speakers.
        answers (`list[Answer]`):
            Targets or refined actions.
        question (`str`):
            How to ask for the rewriting.

    Returns:
        `list[Answer]`: with the rewritten chain of thought, and the answer itself as it was sampled. Where none could be
        read, [`Answer.parsed`] is `None`. Answers without a chain of thought stay as they are.
    """
    if not roles.corrects_reasoning:
        return answers
    thoughtful = [i for i, a in enumerate(answers) if a.parsed is not None and roles.chat.reasoning(a.token_ids)]
    prompts = [
        roles.follow_up(roles.continued(answers[i].prompt, answers[i], keeps_reasoning=True), question)
        for i in thoughtful
    ]
    corrected = list(answers)
    for i, correction in zip(thoughtful, roles.ask("correction", prompts, parse_corrected_think), strict=True):
        if correction.parsed is None:
            corrected[i] = replace(answers[i], parsed=None)
        else:
            token_ids = roles.chat.with_reasoning(list(answers[i].token_ids), correction.parsed)
            corrected[i] = replace(answers[i], token_ids=tuple(token_ids))
    return corrected
