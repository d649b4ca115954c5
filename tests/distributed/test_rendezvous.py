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

"""Processes wait for those whose environments are slow, longer than any collective may take."""

from helpers.launch import launch


SCRIPT = """
import os
import sys
import time
from datetime import timedelta

import torch.distributed as dist
from helpers.testing_utils import DESK, TASKS, make_trainer
from trl_nlac.environments.embedded import make_environment

slow = []


class Slow:
    def __init__(self):
        self.inner = make_environment(DESK)

    def reset(self, **task):
        return self.inner.reset(**task)

    def step(self, action):
        if os.environ["RANK"] == "1" and len(slow) < limit[0]:
            slow.append(action)
            time.sleep(7)
        return self.inner.step(action)


limit = [1]
trainer = make_trainer(
    sys.argv[1],
    dict(max_steps=1, max_turns=1, ddp_timeout=3, per_device_train_batch_size=1, num_eval_critiques=1),
    environment_factory=Slow,
    eval_dataset=TASKS,
)
# `use_cpu` does not pass `ddp_timeout` on.
dist.distributed_c10d._set_pg_timeout(timedelta(seconds=3), dist.group.WORLD)
trainer.train()
assert len(slow) == int(os.environ["RANK"])
limit[0] = 2
trainer.evaluate()
print(f"done {os.environ['RANK']} {len(slow)}\\n", end="", flush=True)
"""


def test_slow_environments_of_one_process(tmp_path):
    """While playing and while evaluating; those that wait say so."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    printed = launch(str(script), str(tmp_path / "run"))
    assert "done 0 0" in printed and "done 1 2" in printed
