# SPDX-License-Identifier: Apache-2.0

import json
import os
import random
import runpy
from pathlib import Path

import pytest
import yaml
from helpers.scripts import run_script
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.tiny_models.guess_the_number_dialogues import GuessTheNumberFamily
from benchmarks.tiny_models.samples import GUESS_THE_NUMBER_PROMPTS
from trl_nlac import NLACPrompts
from trl_nlac.cli.train_options import TrainParser
from trl_nlac.environments.embedded import TINY_MODEL


ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "trl_nlac" / "recipes").glob("*.yaml"))
CPU = ["--use_cpu", "--bf16", "False"]


@pytest.mark.parametrize(
    ("world", "action_format"),
    [
        ("support_desk", "text"),
        pytest.param("service_desk", "react", marks=pytest.mark.slow),
        pytest.param("rooms", "tool_call", marks=pytest.mark.slow),
    ],
)
def test_quickstart(tmp_path, world, action_format):
    arguments = ["--max_steps", "3", "--eval_steps", "2", "--num_eval_episodes", "2", "--num_eval_critiques", "8"]
    arguments += ["--world", world, "--action_format", action_format, "--output_dir", str(tmp_path)]
    output = run_script("examples/scripts/nlac_quickstart.py", *arguments)
    assert "What was learned" in output and "accelerate launch" in output
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["after"]["eval_environment/steps"] > results["before"]["eval_environment/steps"] == 0
    assert (tmp_path / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    AutoModelForCausalLM.from_pretrained(tmp_path)
    NLACPrompts.from_file(tmp_path / "nlac_prompts.json")


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "scripts").glob("nlac_*.py")), ids=lambda path: path.stem)
def test_scripts_go_on_from_the_last_checkpoint(path):
    assert "trainer.train(resume_from_checkpoint=find_checkpoint(training_args))" in path.read_text()


def test_notebook(tmp_path, monkeypatch, capsys):
    from IPython.core.interactiveshell import InteractiveShell

    notebook = json.loads((ROOT / "examples" / "notebooks" / "nlac_quickstart.ipynb").read_text())
    monkeypatch.chdir(tmp_path)
    shell = InteractiveShell()
    sizes = {"max_steps=200": "max_steps=2", "eval_steps=40": "eval_steps=1", "logging_steps=20": "logging_steps=1"}
    sizes |= {"num_eval_episodes=24": "num_eval_episodes=2", '"num_decay_steps": 40': '"num_decay_steps": 1'}
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        assert not cell.get("outputs"), "clear the outputs"
        if cell["cell_type"] == "code":
            for size, small in sizes.items():
                text = text.replace(size, small)
            shell.run_cell(text).raise_error()
    assert shell.user_ns["trainer"].state.global_step == 2
    assert "Optimality:" in capsys.readouterr().out
    assert (tmp_path / "runs" / "notebook" / "report.html").exists()


def test_a_small_model_from_a_strong_one(tmp_path):
    """Logs, both reports and a pilot: the whole road."""
    models = ["--strong-model", TINY_MODEL, "--model", TINY_MODEL, "--num_logs", "4", "--num_tasks", "2"]
    sizes = ["--max_steps", "1", "--max_completion_length", "16"]
    folder = ["--output_dir", str(tmp_path / "small")]
    output = run_script("examples/scripts/small_from_strong.py", *models, *sizes, *folder)
    assert "of 4 customers rightly" in output and "episode/success_rate: 0.000 before, 0.000 after" in output
    assert "Pilot of --refine 1: 2 tasks of small_from_strong.py:Shop" in output and "do not enable: no gain" in output
    rows = [json.loads(line) for line in (tmp_path / "small" / "logs.jsonl").read_text().splitlines()]
    assert len(rows) == 4 and all(len(row["messages"]) % 2 == 1 for row in rows)
    assert (tmp_path / "small" / "improved" / "report.html").is_file()


def test_the_shop_of_the_small_model():
    shop = runpy.run_path(str(ROOT / "examples" / "scripts" / "small_from_strong.py"))["Shop"]()
    assert "order A1?" in shop.reset(order="A1", parcel="P2", city="Lima")
    said = ["Look up A1.", "look up P2", "look up P9"]
    assert [shop.step(one).observation for one in said] == ["Sent as parcel P2.", "In Lima.", "There is no P9."]
    assert [shop.step(one).reward for one in ("Lima.", "Lyon")] == [1.0, 0.0]


def test_build_tiny_model(tmp_path):
    output_dir = str(tmp_path / "model")
    sizes = ["--max_steps", "2", "--num_scored", "4"]
    run_script("benchmarks/tiny_models/build.py", "--output_dir", output_dir, "--several_futures", *sizes)
    model = AutoModelForCausalLM.from_pretrained(output_dir)
    assert len(AutoTokenizer.from_pretrained(output_dir)) == model.config.vocab_size
    scores = json.loads((tmp_path / "model" / "build.json").read_text())["scores"]
    assert set(scores) == {
        f"{world} {action_format}"
        for world in ("rooms", "service_desk")
        for action_format in ("text", "react", "tool_call")
    }
    assert scores["rooms text"].keys() >= {"backup_exact", "backup_future_exact", "weighs_futures"}


def test_build_of_the_game(tmp_path):
    size = ["--hidden_size", "32", "--num_layers", "1", "--batch_size", "2", "--num_scored", "2", "--max_steps", "2"]
    game = ["--families", "guess_the_number", "--action_formats", "text", "--output_dir", str(tmp_path)]
    game += ["--roles", "critique", "critique", "refine"]
    run_script("benchmarks/tiny_models/build.py", *size, *game)
    scores = json.loads((tmp_path / "build.json").read_text())["scores"]
    assert scores.keys() == {"guess_the_number text"}
    assert scores["guess_the_number text"].keys() == {"backup_exact", "refine_obeys"}
    tokenizer, rng = AutoTokenizer.from_pretrained(tmp_path), random.Random(0)
    assert tokenizer.tokenize("Future: The target number is lower.") == ["Future:", "ĠTheĠtargetĠnumberĠisĠlower."]
    for role in ("critique", "successor", "backup", "refine"):
        for _ in range(100):
            dialogue = GuessTheNumberFamily().dialogue(rng, role, known=False)
            _, completion = dialogue.messages(role, GUESS_THE_NUMBER_PROMPTS)
            assert len(tokenizer.tokenize(completion["content"])) < 64  # `max_completion_length` of the benchmark


class TestRecipes:
    @pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
    def test_every_key_is_read(self, recipe):
        options = yaml.safe_load(recipe.read_text())
        read = {}
        for part in TrainParser().read(["--config", str(recipe), *CPU]):
            read.update(vars(part))
        for name, value in options.items():
            if name not in ("use_cpu", "bf16"):
                expected = [value] if isinstance(read[name], list) and not isinstance(value, list) else value
                expected = os.path.abspath(value) if name == "output_dir" else expected
                assert read[name] == expected, name

    def test_the_paper_s_settings_depart_from_the_defaults(self):
        _, _, args = TrainParser().read(["--config", "paper", *CPU])
        at_1 = {role: {"temperature": 1.0} for role in ("backup", "critic", "refine")}
        assert args.num_updates_per_generation == 1
        assert (args.bootstrap, args.min_p, args.role_sampling) == ("implicit", 0, at_1)
        assert (args.learning_rate, args.target_update_rate, args.priority_exponent) == (5e-6, 0.005, 0.1)
