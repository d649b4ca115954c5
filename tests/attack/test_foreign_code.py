# SPDX-License-Identifier: Apache-2.0

"""Folders that somebody else made: nothing in them runs because the folder says so."""

import io
import json
import pickle
import shlex
import shutil
import sys
import tarfile
from pathlib import Path

import pytest
from helpers.testing_utils import make_trained, make_trainer

from trl_nlac import NLACAgent
from trl_nlac.cli.main import main
from trl_nlac.cli.options import load_object
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.training.manifest import write_manifest
from trl_nlac.types import RunRefused


CODE = """
from pathlib import Path

from trl_nlac.environments import StepResult

Path("{marker}").touch()


class Env:
    def __init__(self, **kwargs):
        pass

    def reset(self, **task):
        return "situ 2"

    def step(self, action):
        return StepResult("refused", terminated=True)


def pay(**kwargs):
    return [1.0]
"""


ROOMS = ["--environment_factory", "trl_nlac.environments.embedded:demo_environment"]
ROOMS += ["--environment_kwargs", '{"world": "rooms", "seed": 0}']


class Bomb:
    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.fixture
def marker(tmp_path) -> Path:
    return tmp_path / "it_ran"


@pytest.fixture
def downloaded(tmp_path, monkeypatch, marker) -> Path:
    """A model whose folder brings code, and says that it was trained with it."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "downloaded"
    shutil.copytree(TINY_MODEL, folder)
    for name in ("genv.py", "sentencepiece.py"):
        (folder / name).write_text(CODE.format(marker=marker))
    return folder


def claim(folder: Path, **origin) -> None:
    (folder / "_nlac_run.json").write_text(json.dumps(origin))


@pytest.mark.parametrize("command", ["play", "evaluate"])
@pytest.mark.parametrize(
    ("origin", "shown"),
    [
        ({"environment_factory": ["genv.py:Env"]}, "downloaded/genv.py:Env"),
        ({"tools": ["genv.py:pay"]}, "downloaded/genv.py:pay"),
        (
            {"environment_factory": ["subprocess:Popen"], "environment_kwargs": {"args": ["touch", "it_ran"]}},
            'subprocess:Popen --environment_kwargs \'{"args": ["touch", "it_ran"]}\'',
        ),
        (
            {
                "environment_factory": ["a=os:system", "b=os:abort"],
                "reward_funcs": ["x y:z;id"],
                "reward_weights": [1],
            },
            "a=os:system b=os:abort --reward_funcs 'x y:z;id' --reward_weights 1",
        ),
    ],
)
def test_what_a_folder_names_is_shown_and_not_imported(downloaded, marker, capsys, command, origin, shown):
    claim(downloaded, **origin)
    assert main([command, "downloaded"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert shown in error and "--trust_remote_code" in error and not marker.exists()


def test_what_is_shown_can_be_copied(downloaded, marker, capsys):
    claim(downloaded, environment_factory=["genv.py:Env"], environment_kwargs={"a b": ["'", 2]})
    assert main(["evaluate", "downloaded"]) == 2
    error = capsys.readouterr().err
    flags = shlex.split(error[error.index("--environment_factory") : error.index(" (or")])
    small = ["--option", "max_completion_length=8", "action_format=text", "--num_critiques", "0"]
    assert not marker.exists() and main(["evaluate", "downloaded", *flags, *small]) == 0 and marker.exists()


def test_trust_is_asked_for_and_says_what_it_imports(downloaded, marker, capsys):
    claim(downloaded, environment_factory=["genv.py:Env"], reward_funcs=["genv.py:pay"])
    small = ["--option", "max_completion_length=8", "action_format=text", "--auto"]
    assert main(["play", "downloaded", "--trust_remote_code", *small]) == 0 and marker.exists()
    printed = capsys.readouterr().out
    assert printed.startswith("Importing downloaded/genv.py:Env, downloaded/genv.py:pay, as downloaded/_nlac_run.json")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"environment_factory": ["genv:\\u001b]52;c;aWQ=\\u0007"]}', "cannot be printed"),
        ('{"environment_factory": 3}', "damaged"),
        ('{"environment_factory": "subprocess:Popen"}', "damaged"),
        pytest.param("[" * 10**5, "damaged", id="deep"),
        ('{"environment_factory": ["a:b"], "environment_kwargs": 7}', "damaged"),
        ('{"environment_factory": ["a:b"], "reward_weights": ["x"]}', "damaged"),
        ('{"environment_factory": [["a:b"]]}', "damaged"),
        ('{"environment_factory": ["a:b"], "environment_options": {"environment_workers": "x"}}', "damaged"),
        ('{"environment_factory": ["a:b"], "environment_options": {"fork": 1}}', "damaged"),
        ("[1]", "damaged"),
        ("{", "damaged"),
    ],
)
def test_a_damaged_origin_gives_one_line(downloaded, capsys, text, problem):
    (downloaded / "_nlac_run.json").write_text(text)
    assert main(["play", "downloaded"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert problem in error and error.isprintable()


def test_code_of_a_model_needs_trust(downloaded, marker, capsys):
    config = json.loads((downloaded / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "genv.Env", "AutoModelForCausalLM": "genv.Env"}}
    (downloaded / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="trust_remote_code"):
        NLACAgent.from_pretrained(str(downloaded))
    assert main(["buffer", "import", "logs.jsonl", "--model", "downloaded", "--check"]) == 2
    assert main(["play", "downloaded", *ROOMS]) == 2
    assert "trust_remote_code" in capsys.readouterr().err and not marker.exists()


def test_weights_in_pickles_do_not_run(downloaded, marker, capsys):
    """In place of those in safetensors: of a model, and of an adapter whose file names a library to import."""
    words = ["play", "downloaded", *ROOMS]
    weights = (downloaded / "model.safetensors").rename(downloaded / "away")
    (downloaded / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(marker)))
    assert main(words) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("trl-nlac play: error: downloaded: UnpicklingError: ") and not marker.exists()
    (downloaded / "pytorch_model.bin").unlink()
    config = {"peft_type": "LORA", "base_model_name_or_path": TINY_MODEL, "r": 2, "target_modules": ["q_proj"]}
    config["auto_mapping"] = {"base_model_class": "Env", "parent_library": "genv"}
    (downloaded / "adapter_config.json").write_text(json.dumps(config))
    (downloaded / "adapter_model.bin").write_bytes(pickle.dumps(Bomb(marker)))
    assert main(words) == 2 and not marker.exists()
    weights.rename(downloaded / "model.safetensors")
    main(words)
    assert not marker.exists()


def test_datasets_with_code(downloaded, marker, capsys):
    tasks = downloaded / "tasks"
    tasks.mkdir()
    (tasks / "tasks.py").write_text(CODE.format(marker=marker))
    claim(downloaded, dataset_name="downloaded/tasks")
    words = ["evaluate", "downloaded", *ROOMS]
    assert main(words) == 2
    (tasks / "tasks.py").unlink()
    with tarfile.open(tasks / "data.tar", "w") as archive:
        for name in ("row.pth", "row.pickle"):
            pickled = pickle.dumps(Bomb(marker))
            entry = tarfile.TarInfo(name)
            entry.size = len(pickled)
            archive.addfile(entry, io.BytesIO(pickled))
    assert main(words) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2 and all(e.startswith("trl-nlac evaluate: error: downloaded/tasks: ") for e in errors)
    assert not marker.exists()


def test_a_module_that_is_installed_opens_no_folder(downloaded, monkeypatch):
    """In a downloaded folder, files there are not found in place of packages that are imported later."""
    monkeypatch.chdir(downloaded)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", ".", str(downloaded))])
    load_object("trl_nlac.environments.embedded:demo_environment")
    assert not {"", ".", str(downloaded)} & set(sys.path)


def test_how_a_model_generates_is_no_code(downloaded, marker):
    """transformers can take the loop of generation from a folder; the file of the roles cannot ask for that."""
    (downloaded / "custom_generate").mkdir()
    (downloaded / "custom_generate" / "generate.py").write_text(CODE.format(marker=marker))
    code = {"custom_generate": str(downloaded), "trust_remote_code": True}
    (downloaded / "nlac_roles.json").write_text(json.dumps({"generation_kwargs": code, "max_completion_length": 8}))
    agent = NLACAgent.from_pretrained(str(downloaded), device="cpu")
    with pytest.raises(ValueError, match="no option 'custom_generate' of generation"):
        agent.act([{"role": "user", "content": "situ 2"}])
    assert not marker.exists()


def with_file(run: Path, folder: Path, name: str, content: bytes) -> Path:
    """Copy the checkpoint of a run with another file, and a manifest of it: its checksum would be refused first."""
    copy = shutil.copytree(run / "checkpoint-1", folder / "checkpoint-1")
    assert (copy / name).exists(), name
    (copy / name).write_bytes(content)
    write_manifest(copy)
    return copy


def test_pickles_of_a_checkpoint_do_not_run(tmp_path, marker):
    make_trained(tmp_path / "run", {"save_strategy": "steps", "save_steps": 1, "max_steps": 1})
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        copy = with_file(tmp_path / "run", tmp_path / name, name, pickle.dumps(Bomb(marker)))
        try:
            make_trainer(tmp_path / name, {"max_steps": 2}).train(resume_from_checkpoint=str(copy))
        except Exception as error:
            assert "weights_only" in str(error), name
        NLACAgent.from_pretrained(str(copy), device="cpu")
        assert not marker.exists(), name
    pickle.loads(pickle.dumps(Bomb(marker)))
    assert marker.exists()  # it would have been seen


def test_odd_files_of_a_checkpoint_are_named(tmp_path):
    """Whose manifest is right: nobody has damaged them."""
    make_trained(tmp_path / "run", {"save_strategy": "steps", "save_steps": 1, "max_steps": 1})
    of_process = "nlac/rank_00000"
    for i, (name, content) in enumerate(
        [
            (f"{of_process}/state.json", b"null"),
            (f"{of_process}/state.json", b"[" * 10**5),
            (f"{of_process}/replay.json", b'{"next_id": "x"}'),
            (f"{of_process}/batches.parquet", b"x"),
            ("target_weights.safetensors", b"{}"),
            ("trainer_state.json", b"[1]"),
            ("scheduler.pt", b"\xff\x00"),
        ]
    ):
        copy = with_file(tmp_path / "run", tmp_path / str(i), name, content)
        with pytest.raises(RunRefused, match="checkpoint-1 cannot be read"):
            make_trainer(tmp_path / str(i), {"max_steps": 2}).train(resume_from_checkpoint=str(copy))
