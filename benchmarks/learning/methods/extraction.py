# SPDX-License-Identifier: Apache-2.0

"""Ways to get a policy from critiques that are no options of the trainer."""

from itertools import count
from unittest.mock import patch

import torch

from trl_nlac import NLACTrainer
from trl_nlac.method.critic import critiques
from trl_nlac.types import TrainingExample


def reverse_divergences(logits: torch.Tensor, teacher_logits: torch.Tensor) -> torch.Tensor:
    """
    Compute the divergence from the model to the teacher at every token, KL(model || teacher), in nats. The arguments
    are those of [`~method.losses.token_divergences`], which computes KL(teacher || model). Over several teachers that
    one is least at their mean, and this one where all of them agree.
    """
    logps, teacher_logps = logits.float().log_softmax(-1), teacher_logits.float().log_softmax(-1)
    return (logps.exp() * (logps - teacher_logps)).sum(-1)


class ReverseTrainer(NLACTrainer):
    """NLAC whose distilled policy learns by the reverse divergence, as TRL's self-distillation does by default."""

    divergence = staticmethod(reverse_divergences)


class StoredActionsTrainer(NLACTrainer):
    """
    NLAC that refines the stored action of each transition in place of a fresh one, with its Bellman target, which has
    seen the next observation, as the critique: two generations less.
    """

    def _refine(self, transitions, targets=None, criticise=critiques):
        if targets is None:
            return None
        for _ in targets:
            torch.rand(())  # as all figures were measured
        return super()._refine(transitions, targets, criticise)


class RehearsedRefinementsTrainer(NLACTrainer):
    """
    NLAC that also trains the refinement policy, on those of its own refined actions that do as their critiques say. No
    other loss trains it, and the policy's habits, which the same weights learn, can make it repeat what it should
    change. But an action that is only changed, and no better, does as told, too.
    """

    def _make_batches(self, samples, targets, refinements):
        answers = [r.refined_action if r and r.complies and not r.is_kept else None for r in refinements]
        opened = self.roles.builder.opened
        own = [a and TrainingExample("rehearsal", opened(a.prompt), a.token_ids) for a in answers]
        draw, starts = self.rehearsal.draw, count()

        def draw_with_own(number: int) -> list[TrainingExample]:  # of each gradient step, in order
            start = next(starts) * number % len(own)
            return [*draw(number), *filter(None, own[start : start + number])]

        with patch.object(self.rehearsal, "draw", draw_with_own):
            return super()._make_batches(samples, targets, refinements)


class RehearsedStoredActionsTrainer(RehearsedRefinementsTrainer, StoredActionsTrainer):
    """NLAC that rehearses refinements of stored actions."""


class ReverseStoredActionsTrainer(ReverseTrainer, StoredActionsTrainer):
    """Self-distillation by the reverse divergence, where the policy is distilled."""
