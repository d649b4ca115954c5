# SPDX-License-Identifier: Apache-2.0

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
