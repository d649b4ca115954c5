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

from dataclasses import replace

from helpers.method_utils import make_transitions
from helpers.testing_utils import make_roles

from trl_nlac.environments.embedded import COMPACT_PROMPTS
from trl_nlac.method.critic import critic_prompt


def test_turns_stay_as_long_as_they_fit():
    """Up to exactly `max_prompt_length`; where not even the newest turn fits, the prompt stays as it is."""
    roles = make_roles([], replace(COMPACT_PROMPTS, history_cut="trap"))
    whole = critic_prompt(roles, make_transitions(roles)[1].state_action)

    def length(limit: int) -> int:
        roles.options.max_prompt_length = limit
        return roles.builder.fitted(whole).num_tokens

    cut = length(whole.num_tokens - 1)
    assert cut < whole.num_tokens and length(cut) == cut and length(cut - 1) == whole.num_tokens
