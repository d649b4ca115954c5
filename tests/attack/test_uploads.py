# SPDX-License-Identifier: Apache-2.0

"""A run that is killed while it uploads: nothing that is half there is taken for whole, here or on the Hub."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.hub_server import HubServer

from trl_nlac.training.manifest import check_manifest
from trl_nlac.types import RunRefused


SCRIPT = """
import gc, os, signal, sys
from helpers.testing_utils import make_trainer
options = dict(max_steps=4, max_turns=2, save_strategy="steps", save_steps=2, hub_model_id="me/agent")
options |= dict(push_to_hub=True, hub_strategy="checkpoint", hub_always_push=True)
for resume in (False, True):
    child = os.fork()  # so that the packages are imported once
    if not child:
        input(), signal.alarm(120), os.dup2(2, 1), gc.freeze()
        make_trainer(sys.argv[1], options).train(resume_from_checkpoint=resume)
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_kill_while_a_checkpoint_is_uploaded(tmp_path):
    path = os.pathsep.join(map(str, Path(__file__).parents[1:3]))
    run, copy = tmp_path / "run", tmp_path / "copy"
    with HubServer() as hub:
        environment = {**os.environ, **hub.variables(tmp_path / "home"), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        words, pipe = [sys.executable, "-c", SCRIPT, str(run)], subprocess.PIPE
        with subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
            first = int(process.stdout.readline())
            hub.on_upload = lambda: os.kill(first, signal.SIGKILL)
            process.stdin.write("go\n")
            assert int(process.stdout.readline()) == -signal.SIGKILL
            files = hub.files["models/me/agent"]
            assert not [name for name in files if name.endswith((".safetensors", ".parquet"))]  # all or nothing
            for checkpoint in run.glob("checkpoint-*"):
                check_manifest(checkpoint)
            hub.on_upload = lambda: None
            process.stdout.readline()
            process.stdin.write("go\n")
            assert int(process.stdout.readlines()[-1]) == 0
        for name in [name for name in files if name.startswith("last-checkpoint/")]:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(files[name])
    check_manifest(copy / "last-checkpoint")
    (copy / "last-checkpoint" / "model.safetensors").unlink()  # as of a download that was cut
    with pytest.raises(RunRefused, match="model.safetensors"):
        check_manifest(copy / "last-checkpoint")
