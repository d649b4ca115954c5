# SPDX-License-Identifier: Apache-2.0

"""A run to which secrets are given in every way, and everything that it writes, prints and shows."""

import copy
import json
import pickle
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from helpers.cli_utils import write_config
from helpers.testing_utils import make_config

from trl_nlac import NLACAgent, NLACConfig
from trl_nlac.cli.main import main
from trl_nlac.secrets import HIDDEN, hide_in_text, remember_secrets


PLACES = "hub model server template environment nested database task evaluation reward rewarding source".split()
SECRETS = {place: f"velvet-otter-of-the-{place}-17" for place in PLACES}
ENVIRONMENT = f"""
from trl_nlac.environments import StepResult


class Leaky:
    def __init__(self, api_key, services, database, limit):
        self.said = api_key, services[0]["password"], database

    def reset(self, number, password, **others):
        self.number, self.password = number, password
        if number == 7:
            raise ConnectionError(f"wrong key {{self.said[0]}} for {{self.said[2]}}, or password={{password}}")
        return f"Log in with {{self.said[0]}} or {{self.said[1]}}, at {{self.said[2]}}, password={{password!r}}."

    def step(self, action):
        connect(token="{SECRETS["source"]}", fails=self.number == 5)
        return StepResult(f"You are {{self.said}}.", reward=1.0, terminated=self.number == 3)

    def close(self):
        raise OSError(f"cannot log out with {{self.said}}")


def connect(token, fails):
    if fails:
        raise RuntimeError("no line")


def pay(completions, log_extra, **kwargs):
    log_extra("api_key", ["{SECRETS["reward"]}"] * len(completions))
    log_extra("note", ["access_token={SECRETS["rewarding"]}"] * len(completions))
    return [0.5] * len(completions)
"""
KEYWORDS = {
    "api_key": SECRETS["environment"],
    "services": [{"name": "mail", "password": SECRETS["nested"]}],
    "database": f"postgres://me:{SECRETS['database']}@host/db",
    "limit": 3,
}
OPTIONS = {
    **dict(environment_factory="leaky.py:Leaky", environment_kwargs=json.dumps(KEYWORDS)),
    **dict(reward_funcs="leaky.py:pay", eval_dataset_name="held_out.jsonl"),
    **dict(logging_steps=1, max_completion_length=16, audit_samples=8),
    **dict(per_device_train_batch_size=2, episodes_per_iteration=5, samples_per_iteration=4),
    **dict(hub_token=SECRETS["hub"], model_init_kwargs={"token": SECRETS["model"]}),
    **dict(vllm_server_base_url=f"http://me:{SECRETS['server']}@host:8000"),
    **dict(chat_template_kwargs={"api_key": SECRETS["template"]}),
}
# What an environment shows to the model, and its tasks, are training data: the buffer holds them as they are.
DATA = ("nlac/rank_00000/episodes.parquet", "_nlac_tasks.jsonl")


def shown(path: Path) -> str:
    text = path.read_bytes().decode(errors="replace")
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        text += f"{table.to_pylist()} {table.schema}"
    if path.name == "training_args.bin":
        text += str(vars(torch.load(path, weights_only=False)))
    return text


def leaks(text: str) -> list[str]:
    return [name for name, secret in SECRETS.items() if secret in text]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaky.py").write_text(ENVIRONMENT)
    write_config(tmp_path, **OPTIONS)
    for name, secret, numbers in (("tasks", "task", (3, 7, 5, 3, 3)), ("held_out", "evaluation", (3, 7))):
        rows = [json.dumps({"number": number, "password": SECRETS[secret]}) for number in numbers]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    return tmp_path


def test_everything_that_a_run_writes_prints_and_shows(folder, capfd, caplog):
    run = folder / "run"
    assert main(["train", "--config", "run.yaml"]) == 0
    assert main(["report", "run"]) == 0
    assert main(["evaluate", "run", "--trust_remote_code"]) == 2  # the secrets of the environment must be given again
    kwargs = ["--environment_factory", "leaky.py:Leaky", "--environment_kwargs", json.dumps(KEYWORDS)]
    assert main(["evaluate", "run", *kwargs, "--num_critiques", "0", "--json", "run/metrics.json"]) == 0
    assert main(["buffer", "stats", "run/checkpoint-2"]) == 0
    (folder / "tasks.jsonl").write_text(json.dumps({"number": 7, "password": SECRETS["task"]}))
    words = ["train", "--config", "run.yaml", "--output_dir", "other", "--hub_token", SECRETS["hub"]]
    assert main([*words, "--debug"]) == 2  # `reset` fails
    NLACAgent.from_pretrained("run")

    files = {path.relative_to(run).as_posix(): shown(path) for path in run.rglob("*") if path.is_file()}
    assert {"README.md", "_nlac_run.json", "nlac_roles.json", "training_args.bin", "report.html"} <= files.keys()
    assert {"completions/completions_00001.parquet", "training_log.jsonl"} <= files.keys()
    assert any(name.startswith("_audit/") for name in files) and "checkpoint-2/training_args.bin" in files
    found = {name: leaks(text) for name, text in files.items() if not name.endswith(DATA)}
    assert {name: names for name, names in found.items() if names} == {}
    assert "task" in leaks(files["checkpoint-2/nlac/rank_00000/episodes.parquet"])  # what is searched can be found
    printed = capfd.readouterr()
    texts = {"stdout": printed.out, "stderr": printed.err, "log": caplog.text}
    assert {name: leaks(text) for name, text in texts.items()} == {name: [] for name in texts}

    # It was there to be shown, in each place.
    for name in ("README.md", "_nlac_run.json", "nlac_roles.json", "report.html", "checkpoint-2/training_args.bin"):
        assert HIDDEN in files[name] or "\\u003chidden\\u003e" in files[name], name
    assert any(HIDDEN in text for name, text in files.items() if name.startswith("_audit/"))
    tables = "".join(text for name, text in files.items() if name.startswith("completions/"))
    assert f"wrong key {HIDDEN} for postgres://{HIDDEN}@host/db, or password={HIDDEN}" in tables
    assert f"access_token={HIDDEN}" in tables and "Log in with <hidden> or <hidden>" in tables
    assert "cannot log out with" in caplog.text and "no line" in caplog.text
    assert f"wrong key {HIDDEN}" in printed.err and "Traceback" in printed.err
    assert json.loads(files["_nlac_run.json"])["environment_kwargs"]["limit"] == 3


def test_options_in_text_and_in_pickles(tmp_path):
    names = ("hub_token", "vllm_server_base_url", "chat_template_kwargs")
    given = {name: OPTIONS[name] for name in names}
    given["model_init_kwargs"] = {"token": SECRETS["model"], "dtype": "float32"}
    args = make_config(tmp_path, **given)
    pickled = pickle.loads(pickle.dumps(args))
    texts = [str(args), repr(args), args.to_json_string(), str(args.to_sanitized_dict()), str(vars(pickled))]
    for text in texts:
        assert leaks(text) == [] and "http://<hidden>@host:8000" in text and "float32" in text
    assert pickled.hub_token == HIDDEN and pickled.max_steps == args.max_steps
    for copied in (copy.copy(args), copy.deepcopy(args)):
        assert {name: vars(copied)[name] for name in given} == given and isinstance(copied, NLACConfig)
    assert copy.deepcopy(args).model_init_kwargs is not args.model_init_kwargs
    assert args.hub_token == SECRETS["hub"]


def test_a_secret_that_was_given_is_hidden_wherever_it_stands():
    remember_secrets({"auth": ["quiet harbour 17"], "url": "ftp://me:north-window@host"})
    remember_secrets({"limit": "plain text", "key": "a"})
    text = "code quiet harbour 17, north-window, me:north-window; plain text, a"
    assert hide_in_text(text) == f"code {HIDDEN}, {HIDDEN}, {HIDDEN}; plain text, a"
    remember_secrets({"api_key": "EMPTY", "token": HIDDEN, "password": "<|im_end|>"})
    assert hide_in_text(f"EMPTY <|im_end|> {HIDDEN}") == f"EMPTY <|im_end|> {HIDDEN}"
