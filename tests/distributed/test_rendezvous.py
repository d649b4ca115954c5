# SPDX-License-Identifier: Apache-2.0

"""Processes wait for those that are slow, longer than any collective may take; not for lost ones."""

from helpers.launch import launch_script


SCRIPT = """
import os
import sys
import time
from datetime import timedelta

import torch.distributed as dist
from helpers.testing_utils import DESK, TASKS, make_trainer
from trl_nlac.environments.embedded import make_environment
from trl_nlac.training import manifest

checksum, slow, summed = manifest.checksum, [], []


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


def gathers_and_scores(prompts, completions):
    dist.barrier()  # as where vLLM generates, and the weights that score are sharded
    return [0.0] * len(prompts)


def slow_checksum(path):
    if path.name == "model.safetensors" and len(summed) < limit[0]:
        summed.append(path)
        time.sleep(7)
    return checksum(path)


def make(max_steps):
    config = dict(max_turns=1, ddp_timeout=3, per_device_train_batch_size=1, num_eval_critiques=1)
    config |= dict(max_steps=max_steps, save_strategy="steps", save_steps=1)
    return make_trainer(sys.argv[1], config, environment_factory=Slow, eval_dataset=TASKS)


manifest.checksum, limit = slow_checksum, [1]
trainer = make(1)
# `use_cpu` does not pass `ddp_timeout` on.
dist.distributed_c10d._set_pg_timeout(timedelta(seconds=3), dist.group.WORLD)
trainer.train()
assert len(slow) == int(os.environ["RANK"])
limit[0] = 2
trainer.roles.generator.score = gathers_and_scores
trainer.evaluate()
make(2).train(resume_from_checkpoint=True)
print(f"done {os.environ['RANK']} {len(slow)} {len(summed)}\\n", end="", flush=True)
"""


def test_slow_environments_and_checksums_of_one_process(tmp_path):
    printed = launch_script(tmp_path, SCRIPT, str(tmp_path / "run"))
    assert "done 0 0 2" in printed and "done 1 2 0" in printed


LOST = """
import faulthandler
import os
import sys
import threading

from benchmarks.tiny_engine import BESIDE, load_tiny_engine
from helpers.testing_utils import RecordingTrainer, make_trainer
from trl_nlac.training import build
from trl_nlac.environments import StepResult, TextEnvironment

faulthandler.dump_traceback_later(60, exit=True)
is_first = os.environ["RANK"] == "0"
begun, training = [], threading.Event()


class Talks(TextEnvironment):
    def reset(self):
        begun.append(self)
        if is_first and len(begun) == 2:
            training.wait(30)
        if is_first and len(begun) == 3:
            trainer.roles.generator.engine.error = ConnectionError("the server is gone")
        return "baku 2"

    def step(self, action):
        return StepResult("won", 1.0, terminated=True)


class Training(RecordingTrainer):
    def compute_loss(self, *args, **kwargs):
        if len(self.micro_batches) == 2:  # of the third iteration
            training.set()
        return super().compute_loss(*args, **kwargs)


build.load_generator = load_tiny_engine
config = dict(BESIDE, max_steps=6, max_turns=1, per_device_train_batch_size=1, save_strategy="steps", save_steps=3)
trainer = make_trainer(sys.argv[1], config, Training, environment_factory=Talks, train_dataset=None)
try:
    trainer.train()
except (ConnectionError, RuntimeError) as error:
    print(f"{error}: saved {trainer.saved_step}, stored {len(trainer.replay.episodes)}\\n", end="", flush=True)
"""


def test_a_server_that_one_process_has_lost(tmp_path):
    printed = launch_script(tmp_path, LOST, str(tmp_path / "run"))
    assert "the server is gone: saved 3, stored 2" in printed
    assert (
        "Process 0 cannot go on, and the others stop with it: ConnectionError: the server is gone: saved 3" in printed
    )
    assert (tmp_path / "run" / "checkpoint-3").is_dir()
