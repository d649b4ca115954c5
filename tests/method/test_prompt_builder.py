# SPDX-License-Identifier: Apache-2.0

from dataclasses import replace

from helpers.method_utils import make_transitions
from helpers.testing_utils import make_roles

from trl_nlac.environments.embedded import COMPACT_PROMPTS
from trl_nlac.method.critic import critic_prompt


def test_turns_stay_as_long_as_they_fit():
    roles = make_roles([], replace(COMPACT_PROMPTS, history_cut="trap"))
    whole = critic_prompt(roles, make_transitions(roles)[1].state_action)

    def length(limit: int) -> int:
        roles.options.max_prompt_length = limit
        return roles.builder.fitted(whole).num_tokens

    cut = length(whole.num_tokens - 1)
    assert cut < whole.num_tokens and length(cut) == cut and length(cut - 1) == whole.num_tokens
