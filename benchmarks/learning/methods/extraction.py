# SPDX-License-Identifier: Apache-2.0

"""Ways to get a policy from critiques that are no options of the trainer."""

from benchmarks.learning.methods.roles import blind_critiques
from trl_nlac import NLACTrainer
from trl_nlac.method.iteration import attempt_each
from trl_nlac.method.losses import reverse_divergences
from trl_nlac.method.refinement import stored_attempts


class ReverseTrainer(NLACTrainer):
    """NLAC whose distilled policy learns by the reverse divergence, as TRL's self-distillation does by default."""

    @staticmethod
    def distilled(logits, labels, teacher_logits):
        return reverse_divergences(logits, teacher_logits)


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
