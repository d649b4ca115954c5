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
    make_rehearsal_dataset,
    make_tasks,
)
