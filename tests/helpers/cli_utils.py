# SPDX-License-Identifier: Apache-2.0

from pathlib import Path

import yaml

from trl_nlac.environments.embedded import TINY_MODEL


# A file with an environment, whose first action wins.
ENVIRONMENT = """
from trl_nlac.environments import StepResult


class Rooms:
    def reset(self):
        return "situ"

    def step(self, action):
        return StepResult("win", terminated=True)
"""


def write_config(folder: Path, **options) -> None:
    """Write `run.yaml`: a run with every record, of two steps, with tasks in `tasks.jsonl`."""
    settings = {
        **dict(model_name_or_path=TINY_MODEL, dataset_name="tasks.jsonl", eval_strategy="steps", eval_steps=2),
        **dict(output_dir="run", use_cpu=True, bf16=False, max_steps=2, max_turns=2, logging_steps=2),
        **dict(action_format="text", max_completion_length=32, report_to="none", log_completions=True),
        **dict(audit_samples=4, save_strategy="steps", save_steps=2),
    }
    written = {name: value for name, value in {**settings, **options}.items() if value is not None}
    (folder / "run.yaml").write_text(yaml.safe_dump(written))
