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

"""The options of a run that takes seconds: the embedded model, on a CPU, in small batches."""

from pathlib import Path
from typing import Any


def tiny_options(output_dir: str | Path, **changes) -> dict[str, Any]:
    """
    Return options of [`NLACConfig`] with which the embedded model trains quickly on a CPU.

    Args:
        output_dir (`str` or `Path`):
            Folder of the run.
        **changes:
            Further options, and others in place of these.
    """
    options = dict(
        output_dir=str(output_dir),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
        learning_rate=1e-3,
        bootstrap="implicit",
        action_format="text",
        max_completion_length=32,
    )
    return {**options, **changes}
