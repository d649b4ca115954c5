# SPDX-License-Identifier: Apache-2.0

import json
import random
import sys
from pathlib import Path

import pytest
import torch
import trl.trainer.utils
from helpers.hub_server import HubServer
from helpers.launch import run_program
from helpers.testing_utils import DESK
from safetensors.torch import load_file

from trl_nlac import NLACAgent
from trl_nlac.agent.guard import GUARD_FILE
from trl_nlac.agent.log_review import LogReview
from trl_nlac.cli.errors import CommandError
from trl_nlac.cli.main import main
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.environments.embedded.service_desk import VALUES, format_call
from trl_nlac.report.rendering import write_page


SHORT = ["--max_completion_length", "32", "--num_critiques", "12", "--num_findings", "2", "--action_format", "text"]
MODEL = ["--model_name_or_path", TINY_MODEL]


def conversation(request: str, call: tuple[str, ...], secret: str = "") -> dict:
    closed = DESK.rules[request] == call
    messages = [
        {"role": "user", "content": f"Request: {request}."},
        {"role": "assistant", "content": f"{format_call(call)}{secret}"},
        {"role": "user", "content": "Closed." if closed else "Refused: the time is wrong. The request is lost."},
    ]
    return {"messages": messages, "reward": float(closed)}


@pytest.fixture
def logs(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng, rows = random.Random(0), []
    for request in DESK.requests:
        wrong = tuple(map(rng.choice, VALUES))
        rows += [conversation(request, DESK.rules[request]), conversation(request, wrong)]
    long = conversation(DESK.requests[0], DESK.rules[DESK.requests[0]])
    long["messages"][1]["content"] *= 150  # 750 tokens, and the model's context are 512
    lines = [*map(json.dumps, rows), json.dumps({"messages": rows[0]["messages"]}), "{broken", json.dumps(long)]
    Path("logs.jsonl").write_text("\n".join(lines))
    Path("desk.py").write_text(
        "from trl_nlac.environments.embedded import make_environment, make_tasks\n"
        "made = []\n"
        "def desk():\n    made.append(1)\n    return make_environment(make_tasks('service_desk', 0)[0])\n"
    )
    Path("tasks.jsonl").write_text("\n".join(json.dumps({"request": request}) for request in DESK.requests[:2]))
    return tmp_path


def test_from_logs_to_a_better_model(logs, capsys):
    words = ["--environment_factory", "desk.py:desk", "--dataset_name", "tasks.jsonl", "--max_steps", "1"]
    words += ["--max_concurrent_environments", "1"]
    size = "--per_device_train_batch_size 2 --samples_per_iteration 2 --max_turns 2 --disable_tqdm True".split()
    assert main(["improve", "logs.jsonl", *MODEL, *SHORT, *words, *size, "--max_prompt_length", "1024"]) == 0
    printed = capsys.readouterr().out
    assert "8 conversations of 4 tasks, 4 successes and 4 failures; 3 cannot be read." in printed
    assert "first report in improved/report.html" in printed and "report in improved/report.html" in printed
    report = json.loads(Path("improved/improve.json").read_text())
    assert report["format"] == "OpenAI chat conversations" and report["unreadable"]["it is not JSON"] == 1
    assert any("does not fit" in reason for reason in report["unreadable"])
    assert report["held_out"] | {"outcomes": None} == {
        **{"conversations": 2, "tasks": 1, "is_by_task": True, "outcomes": None, "best_guess": 0.5}
    }
    for part in ("before", "after"):
        assert report[part]["critic"]["steps"] == 2 and report[part]["judged_steps"] == 4
        assert 0 <= report[part]["environment"]["episode/success_rate"] <= 1
    assert len(sys.modules["desk"].made) == 1  # for two tasks: the module is loaded again for each evaluation
    assert 0 < report["seconds"]["first_report"] < report["seconds"]["all"]
    held_out, training = (Path("improved/logs", name).read_text() for name in ("held_out.jsonl", "training.jsonl"))
    assert (held_out.count("\n"), training.count("\n")) == (2, 6)
    page = Path("improved/report.html").read_text()
    assert "8 conversations" in page and "Success in the environment" in page
    assert Path("improved/model/adapter_model.safetensors").exists()
    origin = json.loads(Path("improved/model/_nlac_run.json").read_text())
    assert origin["environment_factory"] == ["../../desk.py:desk"]
    agent = NLACAgent.from_pretrained("improved/model")
    assert agent.options.action_format == "text"
    assert Path("improved/model", GUARD_FILE).exists() == (report["guard"] is not None)
    assert main(["improve", "logs.jsonl", *MODEL]) == 2
    assert "has the results of another run" in capsys.readouterr().err
    # Its adapter is trained further, and pushed with a guard of its own.
    again = ["--model_name_or_path", "improved/model", "--output_dir", "second", "--max_steps", "1"]
    again += ["--held_out_share", "0.5", "--learning_rate", "0.01"]
    again += ["--push_to_hub", "True", "--hub_model_id", "me/improved"]
    with HubServer() as hub:
        command = ["-m", "trl_nlac", "improve", "logs.jsonl", *SHORT, *again, *size]
        printed = run_program(*command, **hub.variables(logs / "home"))
    assert "improved/model is an adapter, which is trained further." in printed
    first, second = (load_file(f"{run}/model/adapter_model.safetensors") for run in ("improved", "second"))
    assert first.keys() == second.keys() and any(not torch.equal(first[name], second[name]) for name in first)
    files = hub.files["models/me/improved"]
    assert "adapter_model.safetensors" in files and not hub.unknown
    assert files[GUARD_FILE] == Path("second/model", GUARD_FILE).read_bytes()


def test_reports_are_of_the_model_as_it_is_trained(logs, monkeypatch):
    """Also where it fits into memory only quantized."""
    seen: list[dict] = []

    def load(model, **kwargs):
        seen.append(kwargs["backend_kwargs"])
        raise CommandError("enough")

    monkeypatch.setattr("trl_nlac.cli.improve.NLACAgent.from_pretrained", load)
    words = ["--load_in_4bit", "--dtype", "bfloat16", "--attn_implementation", "eager"]
    assert main(["improve", "logs.jsonl", *MODEL, *words]) == 2
    (kwargs,) = seen
    assert kwargs["quantization_config"].load_in_4bit and kwargs["device_map"] == {"": "cpu"}
    assert (kwargs["dtype"], kwargs["attn_implementation"]) == ("bfloat16", "eager")


def test_a_training_that_fails_is_on_the_page(logs, monkeypatch):
    def fail(*args):
        raise CommandError("the disk is full")

    monkeypatch.setattr("trl_nlac.cli.improve._train", fail)
    assert main(["improve", "logs.jsonl", *MODEL, *SHORT]) == 2
    page = Path("improved/report.html").read_text()
    assert "Training failed: the disk is full" in page and "Not trained." in page


def test_only_a_report(logs, capsys, monkeypatch):
    """Of requests with answers, with text in them that a page must not run, and a secret that it must not show."""
    key = "sk-proj-" + "a1B2" * 12
    rows = [conversation(request, tuple(values[0] for values in VALUES), f" <script>x</script> {key}")
            for request in DESK.requests]  # fmt: skip
    calls = [
        {
            "request": {"messages": row["messages"][:1]},
            "response": {"choices": [{"message": row["messages"][1]}]},
            "metadata": {"outcome": "failed"},
        }
        for row in rows
    ]
    Path("calls.json").write_text(json.dumps(calls))
    numbers, find = [], LogReview.find
    monkeypatch.setattr(LogReview, "find", lambda *args: numbers.append(args[-1]) or find(*args))
    assert main(["improve", "calls.json", *MODEL, *SHORT, "--only_report", "--output_dir", "report"]) == 0
    printed = capsys.readouterr().out
    assert "OpenAI chat requests with their answers" in printed
    assert "All are failures: a conversation succeeds from an outcome of 1 on" in printed
    report = json.loads(Path("report/improve.json").read_text())
    assert report["logs"]["outcomes"]["failures"] == 4 and report["after"] is None
    assert numbers == [2]  # findings
    page = Path("report/report.html").read_text()
    assert "None." not in page
    for readable, words in ((0.0, "No critique of the held-out steps can be read"), (0.5, "says no to no step")):
        report["before"] |= {"findings": [], "critic": {"readable": readable}}
        path = write_page(Path("other.html"), "improvement.html.jinja", ("page.css",), (), {}, report=report)
        assert words in path.read_text()
    assert "<script>x" not in page and key not in page and not Path("report/model").exists()
    texts = {
        "observation": "hi",
        "action": "call(day=1)",
        "critique": "Shut. open(d=2) It creaks.",
        "hindsight": "",
        "better": "call(day=2) <b>",
    }
    numbers = {"conversation": 0, "step": 0, "num_steps": 1, "score": -2.5, "reward": 0.0, "others": [4, 8]}
    report["before"]["findings"], report["warnings"] = [{**texts, **numbers}], ["One <b>warning</b>."]
    page = write_page(Path("other.html"), "improvement.html.jinja", ("page.css",), (), {}, report=report).read_text()
    assert "<mark>call(day=2)</mark> <mark>&lt;b&gt;</mark>" in page and "One &lt;b&gt;warning&lt;/b&gt;." in page
    assert "Shut.\nopen(d=2)\nIt creaks." in page and "Equal in 2 more: conversations 5, 9." in page
    assert "-2.5; the conversation ended with 0<" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: LOGS"),
        (["--max_steps", "3", "logs.jsonl"], "the following arguments are required: LOGS"),
        (["logs.jsonl"], "--model_name_or_path is missing"),
        (["logs.jsonl", "--model_name_or_path", "./nothing"], "./nothing: there is no such folder"),
        (["nothing.jsonl", *MODEL], "nothing.jsonl: there is no such file or folder."),
        (["desk.py", *MODEL], "desk.py must end with .json, .jsonl, .parquet."),
        (["logs.jsonl", *MODEL, "--outcome", "grade"], "fewer than two conversations can be read."),
        (["logs.jsonl", *MODEL, "--held_out_share", "1"], "--held_out_share must be between 0 and 1, got 1.0."),
        (["logs.jsonl", *MODEL, "--num_findings", "0"], "--num_findings must be at least 1, got 0."),
        (["logs.jsonl", *MODEL, "--replay_dataset", "logs.jsonl"], "the logs are named first, without an option."),
        (
            ["logs.jsonl", *MODEL, "--resume_from_checkpoint", "last"],
            "to train on, give the folder of the model to `trl-nlac train`",
        ),
        (["logs.jsonl", *MODEL, "--accelerate_config", "zero3"], "improve trains in one."),
        (["logs.jsonl", *MODEL, "--max_step", "1"], "there is no option '--max_step', did you mean '--max_steps'?"),
    ],
)
def test_errors_are_one_line(logs, capsys, words, message):
    assert main(["improve", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("trl-nlac improve: error: ") and error.count("\n") == 1 and message in error


def test_a_missing_peft_is_found_before_anything_is_judged(logs, capsys, monkeypatch):
    monkeypatch.setattr(trl.trainer.utils, "is_peft_available", lambda: False)
    assert main(["improve", "logs.jsonl", *MODEL, *SHORT]) == 2
    assert "--use_peft True: You need to have PEFT library installed" in capsys.readouterr().err
    assert not Path("improved").exists()
