# SPDX-License-Identifier: Apache-2.0

"""The embedded tasks and the tiny chat models that were built for them."""

from .tasks import (
    COMPACT_PROMPTS,
    GUESS_THE_NUMBER_PROMPTS,
    SUPPORT_MODEL,
    SUPPORT_PROMPTS,
    TINY_MODEL,
    demo_environment,
    draw_dialogue,
    make_environment,
    make_role_samples,
    make_tasks,
)
