# SPDX-License-Identifier: Apache-2.0

"""Ways to get a policy from critiques that are no options of the trainer."""

from dataclasses import replace

from trl_nlac import NLACTrainer
from trl_nlac.method.critic import critiques
from trl_nlac.method.iteration import attempt_each
from trl_nlac.method.losses import reverse_divergences
from trl_nlac.method.refinement import stored_attempts
from trl_nlac.method.roles import Roles
from trl_nlac.types import Answer, Prompt


class ReverseTrainer(NLACTrainer):
    """NLAC whose distilled policy learns by the reverse divergence, as TRL's self-distillation does by default."""

    @staticmethod
    def distilled(logits, labels, teacher_logits):
        return reverse_divergences(logits, teacher_logits)


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


class BlindTrainer(NLACTrainer):
    """NLAC whose refinement reads critiques of other requests. The critic is trained as usual."""

    def _attempt(self, transitions):
        return attempt_each(self.roles, transitions, blind_critiques)


class StoredActionsTrainer(NLACTrainer):
    """NLAC that refines stored actions with their Bellman targets as critiques: two generations less."""

    def _attempt(self, transitions):
        return []

    def _refine(self, transitions, attempts, targets):
        return super()._refine(transitions, stored_attempts(self.roles, transitions, targets), targets)


class ReverseStoredActionsTrainer(ReverseTrainer, StoredActionsTrainer):
    """Self-distillation by the reverse divergence, where the policy is distilled."""
