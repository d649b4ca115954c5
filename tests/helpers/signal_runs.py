# SPDX-License-Identifier: Apache-2.0

"""Run in a process of its own what each line of the standard input says, for tests that send signals."""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from helpers.testing_utils import DESK, TASKS, make_trainer

from trl_nlac.cli.main import main
from trl_nlac.environments import TextEnvironment
from trl_nlac.environments.embedded import make_environment


class GatedDesk(TextEnvironment):
    """A service desk with a process of its own."""

    takes_seed = True

    def __init__(self, folder):
        self.desk, self.folder, self.num_episodes = make_environment(DESK), Path(folder), 0
        self.process = subprocess.Popen(["sleep", "600"])
        with open(self.folder / "processes", "a") as file:
            file.write(f"{self.process.pid}\n")

    def reset(self, seed, **task):
        self.num_episodes += 1
        if self.num_episodes == 2:
            (self.folder / "reached").touch()
            while (self.folder / "gate").exists():
                time.sleep(0.01)
        return self.desk.reset(request=TASKS[seed % len(TASKS)]["request"])

    def step(self, action):
        return self.desk.step(action)

    def close(self):
        self.process.kill()
        self.process.wait()


def train(folder: Path, **options) -> None:
    make_trainer(folder / "run", options, environment_factory=lambda: GatedDesk(folder)).train()


def serve() -> dict | None:
    """Fork the processes of each line. Returns what to do in the forked ones, `None` at the end of the input."""
    for line in sys.stdin:
        job = json.loads(line)
        numbers = []
        for rank in range(job.get("world_size", 1)):
            numbers.append(os.fork())
            if not numbers[-1]:
                return {**job, "rank": rank}
        print(json.dumps(numbers), flush=True)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in numbers]), flush=True)
    return None


if __name__ == "__main__":
    job = serve()
    if job is not None:
        folder = Path(job["folder"])
        signal.alarm(120)
        gc.freeze()  # training begins with a collection
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(folder)
        if "world_size" in job:
            place = {"RANK": job["rank"], "LOCAL_RANK": job["rank"], "WORLD_SIZE": job["world_size"]}
            os.environ.update({name: str(value) for name, value in place.items()})
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(job["port"]))
        sys.exit(main(job["words"]) if "words" in job else train(folder, **job["options"]))
