# SPDX-License-Identifier: Apache-2.0

"""Every command on a folder of which one file, or one value in it, is something else: it ends well, or in one line."""

import json
import os
import random
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from threading import Thread

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.cli_utils import ENVIRONMENT
from helpers.replay_utils import make_text_episode

from trl_nlac.cli.main import main
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.log_formats.log_files import read_logs
from trl_nlac.replay.prioritized_replay import PrioritizedReplay


FILES = [
    *(b"[]", b"null", b"3", b'"x"', b"{}", b"[" * 100_000, b'{"a": NaN}', b"", b"\xff\x00", b"9" * 5000),
    b'[1, "a", null]',
]
VALUES = [None, [], {}, -1, 0, 1.5, "x", True, 10**12, "/etc/passwd", [1], {"a": 1}, "../..", 2**31, 1e308]
OWN = "nlac_roles.json nlac_prompts.json nlac_guard.json nlac_pilot.json _nlac_run.json _settings.json".split()
OF_RUNS = ("training_log.jsonl", "_warnings.jsonl", "adapter_config.json", "special_tokens_map.json", "README.md")


TRAINED = ("train", "preflight", "improve")  # each for a step, if the model can be read


def words_of(command: str, folder: Path, port: int) -> list[str]:
    factory = ["--environment_factory", f"{folder.parent / 'env.py'}:Rooms"]
    logs, output = str(folder.parent / "logs.jsonl"), folder.parent / "output"
    of_training = ["--use_cpu", "--bf16", "False", "--max_completion_length", "8", "--report_to", "none"]
    of_training += ["--model_name_or_path", str(folder), "--output_dir", str(output), "--max_steps", "1"]
    of_training += ["--max_turns", "1", "--per_device_train_batch_size", "2"]
    shutil.rmtree(output, ignore_errors=True)
    return {
        "train": [*of_training, *factory],
        "preflight": [*of_training, *factory, "--num_episodes", "0"],
        "improve": [logs, *of_training, "--num_critiques", "2", "--held_out_share", "0.5"],
        "evaluate": [str(folder), *factory, "--num_episodes", "1", "--max_tasks", "1", "--num_critiques", "0"],
        "play": [str(folder), *factory, "--auto"],
        "serve": [str(folder), "--port", str(port)],  # which is in use, so that it ends
        "calibrate": [str(folder), logs],
        "pilot": [str(folder), "--pilot", "1", *factory, "--refine", "1"],
        "report": [str(folder)],
        "buffer": ["stats", str(folder)],
        "import": ["import", logs, "--check", "--model", str(folder)],
        "plan": ["--model_name_or_path", str(folder), "--gpus", "1x80GB"],
    }[command]


def change_value(path: Path, rng: random.Random) -> None:
    whole = part = json.loads(path.read_text())
    while True:
        key = rng.choice(list(part))
        if not (isinstance(part[key], dict) and part[key] and rng.random() < 0.7):
            break
        part = part[key]
    part[key] = rng.choice(VALUES)
    path.write_text(json.dumps(whole))


# Files that every command names in its last line, but for those that it does not read.
NAMED = [("config.json", b"[1]"), ("config.json", b"[" * 10**5), ("tokenizer.json", b"[1]")]
UNREAD = [("plan", "tokenizer.json"), ("import", "config.json")]
COMMANDS = ("evaluate", "play", "serve", "calibrate", "pilot", "report", "buffer", "import", "plan", *TRAINED)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_foreign_folder(tmp_path, capsys, command):
    rng = random.Random(command)
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    row = {"messages": [{"role": "user", "content": "situ"}, {"role": "assistant", "content": "route billing"}]}
    (tmp_path / "logs.jsonl").write_text("".join(json.dumps({**row, "reward": i % 2}) + "\n" for i in range(6)))
    names = sorted(path.name for path in Path(TINY_MODEL).iterdir())
    folder = tmp_path / "folder"
    with socket.create_server(("127.0.0.1", 0)) as busy:
        for i in range(-len(NAMED), 4 if command in TRAINED else 8):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(TINY_MODEL, folder)
            name = NAMED[i][0] if i < 0 else rng.choice([*names, *OWN, *OF_RUNS])
            if i > 0 and i % 2 and (folder / name).suffix == ".json" and (folder / name).exists():
                change_value(folder / name, rng)
            else:
                (folder / name).write_bytes(NAMED[i][1] if i < 0 else rng.choice(FILES))
            name_of = {"pilot": "calibrate", "import": "buffer"}.get(command, command)
            status = main([name_of, *words_of(command, folder, busy.getsockname()[1])])
            errors = capsys.readouterr().err
            assert status in (0, 2) and "Traceback" not in errors and len(errors) < 5000, (name, errors[-2000:])
            if i < 0 and (command, name) not in UNREAD and command not in ("report", "buffer"):
                assert status == 2 and str(folder) in errors.splitlines()[-1], (name, errors)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("eos_token_id", value) for value in ("x", [1, "x"], {"a": 1}, [None, [1]], 1.5)),
        *(("output_hidden_states", {"a": 1}), ("num_beams", "x"), ("suppress_tokens", ["x"]), ("top_k", "x")),
    ],
)
def test_odd_options_of_generation(tmp_path, capsys, name, value):
    folder = tmp_path / "folder"
    shutil.copytree(TINY_MODEL, folder)
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    assert main(["evaluate", *words_of("evaluate", folder, 0)]) == 2
    errors = capsys.readouterr().err
    assert str(folder) in errors and name in errors and "Traceback" not in errors


@pytest.mark.parametrize("value", [None, -1, 1.5, "x", "[3]", '{"a": NaN}', "[" * 2000])
def test_a_foreign_buffer(tmp_path, capsys, value):
    replay, path = PrioritizedReplay(9), tmp_path / "episodes.parquet"
    replay.add([make_text_episode(np.random.default_rng(0))])
    replay.save(tmp_path)
    table = pq.read_table(path)
    for i, name in enumerate(table.column_names):
        for other in (table.drop_columns([name]), table.set_column(i, name, pa.array([value]))):
            pq.write_table(other, path)
            assert main(["buffer", "stats", str(tmp_path)]) in (0, 2), name
            errors = capsys.readouterr().err
            assert "Traceback" not in errors and len(errors) < 5000, name


@pytest.mark.parametrize("name", [*OF_RUNS[:2], "_settings.json", "config.json", "README.md", "completions"])
def test_a_pipe_is_not_read(tmp_path, name):
    """It may never end, as a device may not."""
    pipe = tmp_path / (f"{name}/completions_00001.parquet" if name == "completions" else name)
    pipe.parent.mkdir(exist_ok=True)
    if name != "training_log.jsonl":
        (tmp_path / "training_log.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_bytes, args=(b"unread",), daemon=True)  # until somebody reads
    writer.start()
    assert main(["report", str(tmp_path)]) in (0, 2)
    with suppress(ValueError):
        read_logs([tmp_path], lambda path: None, None)
    writer.join(0.2)
    assert writer.is_alive() and pipe.read_bytes() == b"unread"
