# SPDX-License-Identifier: Apache-2.0

"""The embedded tasks and the tiny chat models that were built for them."""

from .tasks import (
    COMPACT_PROMPTS,
    SUPPORT_MODEL,
    SUPPORT_PROMPTS,
    TINY_MODEL,
    demo_environment,
    make_environment,
    make_tasks,
)
