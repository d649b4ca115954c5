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
import sys
from helpers.testing_utils import make_trainer
options = dict(max_steps=4, max_turns=2, save_strategy="steps", save_steps=2, hub_model_id="me/agent")
options |= dict(push_to_hub=True, hub_strategy="checkpoint", hub_always_push=True)
trainer = make_trainer(sys.argv[1], options)
trainer.train(resume_from_checkpoint=len(sys.argv) > 2)
"""


def test_a_kill_while_a_checkpoint_is_uploaded(tmp_path):
    path = os.pathsep.join(map(str, Path(__file__).parents[1:3]))
    run, copy = tmp_path / "run", tmp_path / "copy"
    with HubServer() as hub:
        environment = {**os.environ, **hub.variables(tmp_path / "home"), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

        def start(*words: str) -> subprocess.Popen:
            return subprocess.Popen([sys.executable, "-c", SCRIPT, str(run), *words], env=environment)

        process = start()
        hub.on_upload = process.kill
        assert process.wait(120) == -signal.SIGKILL
        files = hub.files["models/me/agent"]
        assert not [name for name in files if name.endswith((".safetensors", ".parquet"))]  # all of a commit, or none
        for checkpoint in run.glob("checkpoint-*"):
            check_manifest(checkpoint)
        hub.on_upload = lambda: None
        assert start("resume").wait(120) == 0
        for name in [name for name in files if name.startswith("last-checkpoint/")]:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(files[name])
    check_manifest(copy / "last-checkpoint")
    (copy / "last-checkpoint" / "model.safetensors").unlink()  # as of a download that was cut
    with pytest.raises(RunRefused, match="model.safetensors"):
        check_manifest(copy / "last-checkpoint")
