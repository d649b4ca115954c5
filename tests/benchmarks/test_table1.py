# SPDX-License-Identifier: Apache-2.0

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from helpers.hub_configs import cache_configs
from helpers.testing_utils import make_config
from trl import ModelConfig, TrlParser

from benchmarks.learning.tasks import make_task
from benchmarks.table1 import cell, paper, run
from benchmarks.table1.baselines import RFTTrainer
from trl_nlac import NLACConfig
from trl_nlac.cli.parsers import plan_parser
from trl_nlac.cli.plan import make_plan


ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "examples" / "recipes").glob("table1_*.yaml"))
ON_CPU = ["--use_cpu", "True", "--bf16", "False", "--use_vllm", "False"]


def read(recipe: Path, *words: str):
    parser = TrlParser((cell.CellArguments, NLACConfig, ModelConfig))
    return parser.parse_args_and_config(["--config", str(recipe), *ON_CPU, *words])


def make_rft_trainer(output_dir, **changes) -> RFTTrainer:
    task = make_task("rooms", 3)
    options = {"learning_rate": 3e-4, "episodes_per_iteration": 32, "samples_per_iteration": 128, "max_turns": 4}
    options |= {"per_device_train_batch_size": 32, "priority_exponent": 0.0, "logging_steps": 1}
    return RFTTrainer(
        model=task.model,
        args=make_config(output_dir, **{**options, **changes}),
        train_dataset=task.rows,
        eval_dataset=task.instances["held_out"].rows,
        environment_factory=task.environment_factory,
        prompts=task.prompts,
    )


class TestRecipes:
    def test_there_is_one_for_every_method_with_and_without_adapters(self):
        names = {path.stem.removeprefix("table1_") for path in RECIPES}
        assert names == {f"{method}{kind}" for method in paper.LABELS for kind in ("", "_lora")}

    @pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
    def test_methods_take_equal_gradient_steps_of_equal_size(self, recipe):
        _, args, model = read(recipe)
        assert args.max_steps == 480
        processes = 1 if model.use_peft else 8
        assert processes * args.per_device_train_batch_size * args.gradient_accumulation_steps == 64
        assert args.learning_rate == (5e-5 if model.use_peft else 5e-6)
        assert args.episodes_per_iteration % processes == 0
        assert f"--config examples/recipes/{recipe.name}" in recipe.read_text()
        method = recipe.stem.split("_")[1]
        assert f"--method {method} " in recipe.read_text()
        if method == "nlac":
            assert args.samples_per_iteration == 1024  # 30 iterations

    @pytest.mark.parametrize("recipe", [path for path in RECIPES if "nlac" in path.stem], ids=lambda path: path.stem)
    def test_nlac_fits_as_planned(self, recipe, tmp_path, monkeypatch):
        cache_configs(tmp_path / "hub", monkeypatch)
        (line,) = re.findall("trl-nlac plan (.*)", recipe.read_text())
        args, words = plan_parser().parse_known_args(shlex.split(line.replace("examples/", f"{ROOT}/examples/")))
        plan, _ = make_plan(args, words)
        assert plan.fits and not plan.warnings and plan.margin > 4e9


class TestRows:
    def test_row(self):
        before, after = ({"mean": 0.1, "low": 0.05, "high": 0.2}, {"mean": 0.3, "low": 0.2, "high": 0.4})
        results = {"20q": {"before": before, "after": after}}
        text = paper.row(results, "Qwen2.5-7B-Instruct", "nlac")
        assert "| 20Q | 0.10 (0.05 to 0.20) | 0.30 (0.20 to 0.40) | 0.26 |" in text
        assert "| 20Q | 0.10 (0.05 to 0.20) | 0.30 (0.20 to 0.40) | – |" in paper.row(results, "another", "nlac")

    def test_a_base_model_that_starts_elsewhere_stops_the_row(self, capsys):
        success = {"math": {"mean": 0.2, "low": 0.15, "high": 0.25, "episodes": 500}}
        run.check_base(success, ["math=0.21", "20q=0.9"])
        with pytest.raises(SystemExit, match="Tasks, prompts, lengths or sampling differ"):
            run.check_base(success, ["math=0.4"])
        assert "math: 0.20, expected 0.4" in capsys.readouterr().out

    def test_every_step_is_taken_once(self, tmp_path, monkeypatch, capsys):
        stages = []

        def launch(accelerate, words):
            stages.append(words[words.index("--stage") + 1])
            cell.main(words)

        monkeypatch.setattr(run, "launch", launch)
        recipe = next(path for path in RECIPES if path.stem == "table1_nlac_lora")
        words = ["run", "--method", "nlac", "--config", str(recipe), "--tasks", "math", "--dry_run"]
        monkeypatch.setattr(sys, "argv", [*words, "--runs", str(tmp_path), "--json", str(tmp_path / "row.json")])
        run.main()
        assert stages == ["evaluate", "preflight", "train", "evaluate"]
        assert "| MATH500-Hard | 0.00 (0.00 to 0.66) | 0.00 (0.00 to 0.66) | – |" in capsys.readouterr().out
        row = json.loads((tmp_path / "row.json").read_text())
        assert set(row["results"]) == {"math"} and row["results"]["math"]["after"]["episodes"] == 2
        folder = tmp_path / "tiny" / "nlac" / "math"
        assert (folder / "adapter_config.json").exists() and (folder / "checkpoint-2").exists()
        run.main()
        assert stages[4:] == ["train"]

    def test_a_preflight_that_says_no_go_stops_the_row(self, tmp_path, monkeypatch):
        recipe = next(path for path in RECIPES if path.stem == "table1_nlac")
        of_model = tmp_path / "Qwen2.5-7B-Instruct"
        checks = [{"name": "critic/format_rate", "verdict": "no-go"}, {"name": "policy/format_rate", "verdict": "ok"}]
        found = {"base/math.json": {"success": {}}, "nlac/math/preflight.json": {"checks": checks}}
        for name, content in found.items():
            (of_model / name).parent.mkdir(parents=True, exist_ok=True)
            (of_model / name).write_text(json.dumps(content))
        monkeypatch.setattr(run, "launch", lambda accelerate, words: pytest.fail("nothing is to be started"))
        words = ["run", "--method", "nlac", "--config", str(recipe), "--tasks", "math", "--runs", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit, match="The preflight of math says no-go: critic/format_rate"):
            run.main()


class TestRFT:
    def test_it_learns_from_its_successes(self, tmp_path):
        trainer = make_rft_trainer(tmp_path, max_steps=48, num_eval_critiques=0)
        before = trainer.evaluate()["eval_episode/success_rate"]
        trainer.train()
        after = trainer.evaluate()["eval_episode/success_rate"]
        assert before < 0.5 and after > before + 0.2
        failed = [e for e in trainer.replay.episodes if e.score < 1]
        assert trainer.replay.num_left_out == sum(len(episode.turns) for episode in failed) > 0
        assert all(sample.transition.episode.score == 1 for sample in trainer.replay.sample(256))

    def test_without_a_success_nothing_is_learned(self, tmp_path):
        trainer = make_rft_trainer(tmp_path, max_steps=4, success_threshold=2.0)
        before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
        trainer.train()
        assert all(before[name].equal(weight) for name, weight in trainer.model.named_parameters())
        assert trainer.state.log_history[0]["policy/num_examples"] == 0


@pytest.mark.parametrize("method", ["rft", "grpo"])
def test_baselines_train_and_save(tmp_path, method):
    tiny = run.write_tiny(tmp_path)
    options = {**run.TINY, **tiny, "user_base_url": "http://127.0.0.1:1/v1"}
    recipe = next(path for path in RECIPES if path.stem == f"table1_{method}")
    words = ["--method", method, "--task", "20q", "--config", str(recipe), *run.words_of(options)]
    cell.main([*words, "--stage", "train", "--output_dir", str(tmp_path / "run")])
    assert (tmp_path / "run" / "model.safetensors").exists() and (tmp_path / "run" / "checkpoint-1").exists()
    results = tmp_path / "after.json"
    words += ["--stage", "evaluate", "--output_dir", str(tmp_path / "aside"), "--results", str(results)]
    cell.main([*words, "--model_name_or_path", str(tmp_path / "run")])
    assert json.loads(results.read_text())["success"]["20q"]["episodes"] == 2
