# SPDX-License-Identifier: Apache-2.0

"""Ways to act and to criticise that the learning benchmark compares with NLAC."""

from dataclasses import replace

from trl_nlac.agent.better_actions import refinement_rounds
from trl_nlac.method.critic import critiques
from trl_nlac.method.refinement import Attempt
from trl_nlac.method.roles import Roles
from trl_nlac.types import Answer, Prompt


def refine_once(roles: Roles, prompts: list[Prompt], seeds: list[int]) -> list[Answer]:
    """
    Act with one round of critique and refinement at test time (Madaan et al., 2023), which needs no training. Actions
    that the critic calls the best are refined, too. An action stays as it is where its critique or refinement is
    unreadable.
    """
    answers = roles.act(prompts, seeds)
    attempts = {i: Attempt.of(roles, prompts[i], a) for i, a in enumerate(answers) if a.parsed is not None}
    for i, [only] in refinement_rounds(roles, attempts, num_rounds=1).items():
        if only.refined is not None:
            answers[i] = replace(only.refined, prompt=prompts[i])
    return answers


def blind_critiques(roles: Roles, state_actions: list[Prompt]) -> list[Answer]:
    """
    Give every action the critique of another action, about another request: refinement without the content of
    critiques. It is the next critique in the order of the batch that is about another request; the action's own if
    there is none.
    """
    answers = critiques(roles, state_actions)
    texts = [roles.chat.tokenizer.decode(answer.prompt.ids, skip_special_tokens=True) for answer in answers]
    topics = [text.split()[0] for text in texts]
    others = []
    for i, answer in enumerate(answers):
        order = [*range(i + 1, len(answers)), *range(i)]
        other = next((j for j in order if topics[j] != topics[i]), i)
        others.append(replace(answers[other], prompt=answer.prompt))
    return others
