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

import json
import os
import subprocess
import sys

import pytest


SCRIPT = """
import json
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
InteractiveShell.instance(config=Config({"IPKernelApp": {}}))  # as in a notebook's kernel
from helpers.testing_utils import TASKS, make_trainer
from transformers import TrainerCallback
from trl_nlac.records.notebook import NotebookTableCallback


class ShowTable(TrainerCallback):
    def on_train_end(self, args, state, control, **kwargs):
        (callback,) = [c for c in trainer.callback_handler.callbacks if isinstance(c, NotebookTableCallback)]
        print("TABLE", json.dumps(callback.training_tracker.inner_table))


for i, (strategy, tasks) in enumerate([("no", None), ("steps", TASKS), ("steps", {"old": TASKS, "new": TASKS})]):
    config = {"max_steps": 2, "logging_steps": 1, "eval_strategy": strategy, "eval_steps": 1, "disable_tqdm": False}
    trainer = make_trainer(f"%s/{i}", config, eval_dataset=tasks, callbacks=[ShowTable()])
    trainer.train()
    print("PAGE", trainer.report()._repr_html_()[:50])
"""
COLUMNS = [
    ["Step", "Loss", "Success", "Reward", "Turns", "Critic loss"],
    ["Step", "Loss", "Success", "Reward", "Turns", "Brier"],
    ["Step", "Loss", "Success: old", "Success: new"],
]


@pytest.mark.slow
def test_a_notebook_shows_few_columns_and_the_report(tmp_path):
    """In a process of its own, as transformers looks for a notebook when it is imported."""
    script = SCRIPT % tmp_path
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, "tests"])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("TABLE ", "PAGE "))]
    assert [kind for kind, _ in lines] == ["TABLE", "PAGE"] * len(COLUMNS)
    for (_, table), (_, page), columns in zip(lines[::2], lines[1::2], COLUMNS, strict=True):
        head, *rows = json.loads(table)
        assert head == columns and [row[0] for row in rows] == [1, 2]
        assert all(isinstance(value, float) for row in rows for value in row[1:])
        assert page.startswith("<iframe srcdoc=")
