# SPDX-License-Identifier: Apache-2.0

"""Ways to get a policy from critiques that are no options of the trainer."""

import torch

from trl_nlac import NLACTrainer


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
