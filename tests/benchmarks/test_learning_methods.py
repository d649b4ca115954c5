# SPDX-License-Identifier: Apache-2.0


"""The methods of the learning benchmark, each for a few environment steps."""

import argparse
import json
import shlex
import shutil
import sys
from dataclasses import fields, replace
from functools import partial
from itertools import islice

import pytest
import torch
from datasets import Dataset
from helpers.testing_utils import RecordingTrainer, make_roles, make_trainer
from trl.experimental.sdpo.loss_utils import compute_full_logit_self_distillation_loss

from benchmarks.learning import real_models, run
from benchmarks.learning.methods import extraction, memory, nlac, taught
from benchmarks.learning.methods.base import play_base
from benchmarks.learning.methods.grpo import as_completion
from benchmarks.learning.methods.roles import blind_critiques, refine_once
from benchmarks.learning.methods.settings import (
    FRUGAL,
    NLAC,
    POLICY_MIN_P,
    acting_config,
    default_settings,
    merge_settings,
)
from benchmarks.learning.methods.taught import taught_episodes
from benchmarks.learning.playing import Player
from benchmarks.learning.tasks import TASKS, Instances, make_task
from trl_nlac import NLACConfig
from trl_nlac.environments import ServiceDesk, twenty_questions
from trl_nlac.environments.embedded import TINY_MODEL, make_environment
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.recorder import replay_actions
from trl_nlac.episodes.rounds import Rollouts
from trl_nlac.method.critic import critic_prompt
from trl_nlac.method.losses import token_divergences
from trl_nlac.types import Judgement, Prompt, TrainingExample


def small_task(name: str, seed: int):
    """Make a task with few episodes in an evaluation."""
    task = make_task(name, seed)
    instances = {
        name: Instances(chosen.environment_factory, chosen.rows.select(range(0, len(chosen.rows), 16)))
        for name, chosen in task.instances.items()
    }
    return replace(task, instances=instances, final_episodes=1)


def make_args(tmp_path, **changes):
    """Return command-line arguments for a cell of ten environment steps."""
    args = dict(model=None, use_peft=False, user_model="", user_base_url=None, budget=10, runs=tmp_path)
    args |= {"base_model": None, "temperatures": []}
    return argparse.Namespace(**{**args, **changes})


class TestTasks:
    @pytest.mark.parametrize("name", TASKS)
    def test_instances(self, name):
        task, again, other = make_task(name, 3), make_task(name, 3), make_task(name, 4)
        assert list(task.rows) == list(again.rows) and list(task.rows) != list(other.rows)
        held_out, unseen = (list(task.instances[key].rows) for key in ("held_out", "unseen_domain"))
        assert {row[task.group] for row in held_out} == {row[task.group] for row in task.rows}
        assert task.environment_factory().world == task.instances["held_out"].environment_factory().world
        assert task.environment_factory().world != task.instances["unseen_domain"].environment_factory().world
        if "service_desk" in name:
            assert not {row["customer"] for row in held_out} & {row["customer"] for row in task.rows}
            assert unseen != held_out


@pytest.mark.parametrize(("staleness", "expected"), [(4, [0, 4, 4]), (8, [0, (8 + 4) / 2])])
def test_stale_episodes_are_as_old_as_they_may_be(tmp_path, staleness, expected):
    """The first iteration has nothing else, and the last one takes what there is."""
    task = small_task("service_desk_told", 0)
    settings = default_settings(task, "nlac_stale_4")
    del settings["staleness"]
    trainer_class = nlac.TRAINERS[settings.pop("trainer")]
    args = acting_config(task, str(tmp_path), 0, max_steps=16, logging_steps=4, **settings)
    trainer = trainer_class(model=task.model, args=args, **task.trainer_arguments)
    trainer.rollouts = nlac.StaleRollouts(trainer, staleness)
    trainer.train()
    logged = [entry.get("rollout/staleness") for entry in trainer.state.log_history[:-1]]
    assert [age for age in logged if age is not None] == expected
    assert len(trainer.replay.episodes) == 4 * 3


def test_handbooks_have_the_rules_of_other_desks_than_those_of_evaluation():
    task = make_task("service_desk_handbook", 0)
    held_out = task.instances["held_out"]
    assert len({row["desk"] for row in task.rows}) == 200 and len({row["desk"] for row in held_out.rows}) == 50
    assert not {row["desk"] for row in held_out.rows} & {row["desk"] for row in task.rows}
    environment = task.environment_factory()
    for row in held_out.rows.select(range(8)):
        first = environment.reset(**row)
        assert first.endswith(f". {row['request']} {row['customer']} 2")
        right = first.split(f"{row['request']} ")[1].split(".")[0]
        assert environment.step(f"route {right}").reward == 1.0
        [of_row] = islice(taught_episodes(replace(task, rows=[row]), 0), 1)
        assert of_row["messages"][1]["content"] == f"route {right}" and of_row["reward"] == 1.0


@pytest.mark.slow
def test_self_distillation_learns_from_refusals(tmp_path):
    task = small_task("service_desk_told", 100)
    settings = default_settings(task, "self_distillation")
    curve = nlac.train(task, acting_config(task, str(tmp_path), 0), 600, 600, **settings)
    assert curve.points[0]["episode/success_rate"] <= 0.05
    assert curve.points[-1]["episode/success_rate"] >= 0.3


@pytest.mark.slow
def test_a_teacher_teaches_what_the_model_can_learn(tmp_path):
    task = make_task("service_desk_handbook", 0)
    rule = Instances(task.environment_factory, task.rows.select([0]))
    task = replace(task, rows=rule.rows, instances={"held_out": rule}, final_episodes=1)
    acting = acting_config(task, str(tmp_path), 0, num_eval_critiques=0, num_eval_episodes=32)
    curve = taught.train(task, acting, 40, 40, max_steps=20)
    assert [(point["environment_steps"], point["gradient_steps"]) for point in curve.points] == [(0, 0), (40, 20)]
    before, after = (point["episode/success_rate"] for point in curve.points)
    assert before <= 0.1 and after >= 0.6
    with pytest.raises(ValueError, match="'rooms' has none"):
        taught.train(make_task("rooms", 0), acting, 400, 400)


def slowly(*methods: str) -> list:
    """Methods that other ones are close to."""
    return [pytest.param(method, marks=pytest.mark.slow) for method in methods]


class TestCells:
    @pytest.mark.parametrize(
        "method",
        [
            *(*run.METHODS, "nlac_blind", "nlac_enduring_self", "self_distillation", "nlac_verdict_weighted"),
            *slowly("nlac_monte_carlo", FRUGAL, "nlac_stale_4", "grpo_long", "nlac_useful_critiques"),
        ],
    )
    def test_cell(self, method, tmp_path, monkeypatch):
        monkeypatch.setattr(run, "make_task", small_task)
        cell = run.run_cell("service_desk_delayed", method, 0, make_args(tmp_path), {})
        steps = [point["environment_steps"] for point in cell["points"]]
        if method in ("base", "base_refined"):
            assert steps == [0] and cell["settings"] == {}
        else:
            assert steps[0] == 0 and steps == sorted(set(steps)) and steps[-1] >= 10
            trains = method != "base_remembering"
            assert trains == (cell["settings"].get("learning_rate", 0) > 0)
            spent = [point["generated_tokens"] for point in cell["points"]]
            assert spent == sorted(spent) and spent[-1] > spent[0] == 0
            end, tokens = cell["points"][-1], cell["tokens"]
            assert end["generated_tokens"] == sum(n for name, n in tokens.items() if name.startswith("generated/"))
            assert 0 < tokens["generated/act"] < tokens["prefilled/act"] <= end["prefilled_tokens"]
            assert end["trained_tokens"] == tokens["trained"] and (tokens["trained"] > 0) == trains
        assert set(cell["final"]) == {"held_out", "train", "unseen_domain"}
        for point in (*cell["points"], *cell["final"].values(), *cell["before"].values()):
            assert 0 <= point["episode/success_rate"] <= 1
            assert method == "base_remembering" or 0 <= point["oracle/future_accuracy"] <= 1
        assert cell["command"].startswith(
            f"python -m benchmarks.learning.run --tasks service_desk_delayed --methods {method}"
        )

    @pytest.mark.parametrize("method", ["nlac_critiques_at_1", "hindsight_acts_sharply"])
    def test_policies_are_decoded_at_several_temperatures(self, method, tmp_path, monkeypatch):
        monkeypatch.setattr(run, "make_task", small_task)
        cell = run.run_cell("service_desk_noisy", method, 0, make_args(tmp_path, temperatures=[0.5, 0.0]), {})
        assert [tuple(of.values())[:3] for of in cell["decoded"]] == [
            *(("held_out", 0.5, 0.0), ("held_out", 0.5, 0.05), ("held_out", 0.0, 0.0)),
            *(("train", 0.5, 0.0), ("train", 0.5, 0.05), ("train", 0.0, 0.0)),
        ]
        assert all(0 <= of["success"] <= 1 for of in cell["decoded"])
        assert "--temperatures 0.5 0.0" in cell["command"]

    def test_a_sampling_replaces_that_of_evaluation(self, tmp_path):
        task = make_task("rooms", 0)
        player = play_base(task, acting_config(task, str(tmp_path), 0))
        sampling = player.roles.samplings["evaluation"]
        same, greedy = (player.evaluate("held_out", 1, replace(sampling, temperature=t)) for t in (1.0, 0.0))
        assert same["episode/success_rate"] == player.evaluate()["episode/success_rate"]
        assert same["episode/success_rate"] != greedy["episode/success_rate"]
        assert "oracle/future_accuracy" in player.evaluate() and "oracle/future_accuracy" not in same

    def test_settings_of_the_command_line(self):
        words = ["--learning_rate", "1e-3", "--use_vllm", "--beta", "-1", "--bootstrap", "explicit", "--bf16", "false"]
        expected = {"learning_rate": 0.001, "use_vllm": True, "beta": -1, "bootstrap": "explicit", "bf16": False}
        assert run.read_settings(words) == expected
        with pytest.raises(ValueError, match="'4' in '--num_refinements 2 4' has no name"):
            run.read_settings(["--num_refinements", "2", "4"])

    def test_targets_are_kept_as_long_as_their_average_takes(self):
        ages = [default_settings(make_task(f"service_desk_{desk}", 0), FRUGAL) for desk in ("told", "hinted")]
        assert [settings["target_max_age"] for settings in ages] == [40, 100]
        assert "target_max_age" not in default_settings(make_task("service_desk_told", 0), "nlac")

    def test_settings_of_single_roles_are_merged(self):
        merged = merge_settings(NLAC, POLICY_MIN_P, {"role_sampling": {"successor": {"temperature": 0.0}}})
        assert merged["role_sampling"] == {
            "successor": {"temperature": 0.0, "min_p": 0.0},
            "backup": {"temperature": 0.0},
            "critique": {"min_p": 0.0},
            "refine": {"min_p": 0.0},
        }
        assert {**merged, "role_sampling": None} == {**NLAC, "min_p": 0.05, "role_sampling": None}
        assert NLAC["role_sampling"] == {"successor": {"temperature": 0.5}, "backup": {"temperature": 0.0}}

    def test_changes_of_the_command_line_are_in_the_cell(self, tmp_path, monkeypatch):
        monkeypatch.setattr(run, "make_task", small_task)
        changes = {"num_refinements": 2, "role_sampling": {"critique": {"temperature": 0.5}}, "target_max_age": 3}
        cell = run.run_cell("service_desk_told", "nlac", 0, make_args(tmp_path), changes)
        acting = cell["acting"]
        assert (acting["bootstrap"], acting["target_max_age"], acting["max_completion_length"]) == ("implicit", 3, 64)
        assert not set(acting) & set(cell["settings"])
        assert cell["settings"]["role_sampling"] == {**NLAC["role_sampling"], "critique": {"temperature": 0.5}}
        words = shlex.split(cell["command"])
        assert run.read_settings(words[words.index("10") + 1 :]) == changes

    @pytest.mark.slow
    def test_a_cell_can_be_run_again(self, tmp_path, monkeypatch):
        monkeypatch.setattr(run, "make_task", small_task)
        first, again = (run.run_cell("service_desk_told", "nlac", 0, make_args(tmp_path), {}) for _ in range(2))
        for point in [*first["points"], *again["points"]]:
            del point["seconds"]
        assert again == first


class TestCommandLine:
    @pytest.fixture
    def start(self, tmp_path, monkeypatch):
        def start(main, *words):
            monkeypatch.setattr(sys, "argv", ["run.py", *words])
            main()

        return start

    def test_existing_cells_make_the_table(self, start, tmp_path, capsys):
        report = pytest.importorskip("benchmarks.learning.figures.report")
        for method in ("grpo", "base"):
            shutil.copytree(run.CELLS / "rooms" / method, tmp_path / "cells" / "rooms" / method)
        words = ["--tasks", "rooms", "--methods", "grpo", "base", "--cells", str(tmp_path / "cells")]
        start(run.main, *words, "--json", str(tmp_path / "json" / "rooms.json"))
        summary = json.loads((tmp_path / "json" / "rooms.json").read_text())
        final = summary["tasks"]["rooms"]["methods"]["grpo"]["final"]["mean"]
        lines = capsys.readouterr().out.splitlines()
        assert lines[1:3] == ["| task | GRPO | Base model |", "|---|---|---|"]
        assert lines[3].startswith(f"| Rooms | {final:.2f} (") and len(lines) == 4
        start(report.main, "--json", str(tmp_path / "json" / "rooms.json"), "--plots", str(tmp_path / "plots"))
        assert {path.name for path in (tmp_path / "plots").iterdir()} == {"learning_rooms.png", "learning_rooms.svg"}

    def test_failed_cells_are_reported(self, start, tmp_path, capsys):
        words = ["--tasks", "rooms", "--methods", "nlac", "--seeds", "0", "--cells", str(tmp_path / "cells")]
        with pytest.raises(SystemExit, match="1 of 1 cells failed"):
            start(run.main, *words, "--runs", str(tmp_path), "--num_dreams", "2")
        log = tmp_path / "rooms" / "nlac" / "0" / "log.txt"
        out = capsys.readouterr().out
        assert f"rooms nlac 0: failed, see {log}\n" in out and "| Rooms | – |" in out
        assert "num_dreams" in log.read_text()
        assert not (tmp_path / "cells").exists()

    @pytest.mark.parametrize("words", [["--num_refinements", "2"], ["--budget", "100"]])
    def test_the_table_keeps_the_settings_of_the_code(self, start, words, capsys):
        with pytest.raises(SystemExit):
            start(run.main, "--tasks", "rooms", *words)
        assert f"add --cells, a folder for --tasks rooms {' '.join(words)}" in capsys.readouterr().err

    def test_other_models_have_their_own_folder(self):
        assert run.default_cells(None, quick=False) == run.CELLS
        assert str(run.default_cells("Qwen/Qwen2.5-7B-Instruct", quick=False)) == "runs/learning_Qwen2.5-7B-Instruct"


class TestCommittedCells:
    """`make bench-learning` from scratch would use the settings of the table."""

    @pytest.mark.parametrize("name", TASKS)
    def test_settings_are_those_of_the_code(self, name):
        defaults = {field.name: field.default for field in fields(NLACConfig)}

        def changed(settings):
            return {key: value for key, value in settings.items() if key not in defaults or value != defaults[key]}

        task = make_task(name, 0)
        paths = sorted((run.CELLS / name).glob("*/*.json"))
        assert len(paths) >= len(run.METHODS) * len(run.SEEDS)
        for path in paths:
            cell, method = json.loads(path.read_text()), path.parent.name
            trains = method not in ("base", "base_refined")
            expected = default_settings(task, method) if trains else {}
            # Cells that are older than `min_p` do not record it.
            min_p = cell.get("sampling", {}).get("min_p")
            assert changed({**cell["settings"], "min_p": min_p}) == changed({"min_p": None, **expected}), path
            assert cell["budget"] == run.budget_of(name, method), path
            command = f"python -m benchmarks.learning.run --tasks {name} --methods {method} --seeds {cell['seed']}"
            assert cell["command"].startswith(command), path
            named = run.read_settings(shlex.split(cell["command"].removeprefix(command)))
            assert merge_settings(expected, named) == expected, path


class TestRealModels:
    """With the tiny model in place of a real model: tasks, prompts and settings are those of real models."""

    CPU = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "max_completion_length": 8}

    SMALL = {
        "nlac": {"samples_per_iteration": 4, "gradient_accumulation_steps": 2},
        "hindsight": {"samples_per_iteration": 4, "gradient_accumulation_steps": 2},
        "grpo": {"updates_per_iteration": 1},
        "rft": {"batch_size": 2, "updates_per_iteration": 1},
        "scalar": {"samples_per_iteration": 4, "batch_size": 2},
    }

    @pytest.fixture
    def short_games(self, monkeypatch):
        """Play with few objects and two questions."""
        make_real_task, make_rows = real_models.make_task, twenty_questions.make_tasks
        monkeypatch.setattr(twenty_questions, "make_tasks", lambda split: make_rows(split).select(range(4)))
        monkeypatch.setattr(
            real_models,
            "make_task",
            lambda *args, **kwargs: replace(make_real_task(*args, **kwargs), max_turns=2),
        )

    @pytest.mark.parametrize("use_peft", [False, True])
    @pytest.mark.parametrize("method", ["nlac", "hindsight", "grpo", "rft", "scalar", "base"])
    def test_cell(self, method, use_peft, tmp_path, short_games):
        changes = {**self.CPU} if method == "base" else {**self.CPU, "episodes_per_iteration": 4, **self.SMALL[method]}
        args = make_args(tmp_path, model=TINY_MODEL, use_peft=use_peft)
        cell = run.run_cell("twenty_questions", method, 0, args, changes)
        assert set(cell["final"]) == {"held_out"} and not cell["before"]
        assert cell["points"][-1]["environment_steps"] >= (10 if method != "base" else 0)
        assert cell["model"] == TINY_MODEL
        if method != "base":
            assert cell["settings"]["learning_rate"] == 5e-6
            assert cell["settings"].get("rehearsal_ratio", 0) == 0

    def test_desks_are_shown_as_tools(self, tmp_path):
        task = real_models.make_task("service_desk_told", 0, TINY_MODEL)
        assert not task.is_tiny and make_task("service_desk_told", 0).is_tiny
        assert task.environment_factory().tool_schemas
        acting = acting_config(task, str(tmp_path), 0, use_cpu=True, bf16=False)
        assert (acting.action_format, acting.max_prompt_length) == ("tool_call", 8192)
        game = real_models.make_task("guess_the_number", 0, TINY_MODEL)
        assert not game.is_tiny and game.rehearsal is None and make_task("guess_the_number", 0).is_tiny
        with pytest.raises(ValueError, match="--tasks rooms"):
            real_models.make_task("rooms", 0, TINY_MODEL)


class TestEvaluation:
    def test_costs_nothing(self, tmp_path):
        task = small_task("service_desk_told", 0)
        player = play_base(task, acting_config(task, str(tmp_path), 0))
        player.play(list(task.rows)[:2])
        spent = player.num_environment_steps, player.roles.tally.num_generated_tokens
        metrics = {name: list(values) for name, values in player.roles.tally.metrics.items()}
        assert spent[0] in (2, 3, 4) and spent[1] > 0 and metrics["policy/format_rate"]
        first, second = player.evaluate(), player.evaluate()
        assert first == second
        assert (player.num_environment_steps, player.roles.tally.num_generated_tokens) == spent
        assert player.roles.tally.metrics == metrics


DESK = ServiceDesk({"baku": ("billing", "amber", "photo", "noon"), "dela": ("legal", "ruby", "badge", "dusk")})


class TestMemory:
    def test_an_episode_begins_with_earlier_turns_about_the_same_request(self):
        rows = Dataset.from_list([{"request": "baku"}, {"request": "dela"}])
        played = Instances(lambda: make_environment(DESK), rows)
        task = replace(make_task("service_desk_told", 0), environment_factory=lambda: make_environment(DESK))
        task = memory.remembering(replace(task, instances={"held_out": played}), num_turns=2)
        first, second = task.environment_factory(), task.environment_factory()
        assert first.reset(request="baku") == [{"role": "user", "content": "baku 2"}]
        first.step("route billing amber photo dusk")
        first.step("route billing amber photo noon")
        assert [message["content"] for message in second.reset(request="baku")] == [
            *("baku 2", "route billing amber photo dusk", "refused needs noon 1"),
            *("route billing amber photo noon", "closed win", "baku 2"),
        ]
        assert second.reset(request="dela") == [{"role": "user", "content": "dela 2"}]
        second.step("route legal ruby badge noon")
        assert [message["content"] for message in first.reset(request="dela")][1] == "route legal ruby badge noon"

    def test_evaluation_leaves_it_as_it_is(self):
        task = memory.remembering(make_task("service_desk_told", 0), num_turns=2)
        chosen = task.instances["held_out"]
        environment, row = chosen.environment_factory(), dict(chosen.rows[0])
        before = environment.reset(**row)
        environment.step("route legal ruby badge noon")
        assert environment.reset(**row) == before


class TestGRPO:
    def test_only_actions_are_trained_on(self):
        roles = make_roles([])
        actions = ["route billing ruby photo noon", "route billing amber badge noon"]
        episode = replay_actions(make_environment(DESK), {"request": "baku"}, actions, roles.actions, roles.prompts)
        prompt_ids, completion_ids, mask = as_completion(episode)
        decode = roles.chat.tokenizer.decode
        assert decode(prompt_ids) == "<|user|> baku 2<|end|><|assistant|>"
        trained = [token_id for token_id, trained in zip(completion_ids, mask, strict=True) if trained]
        assert decode(trained) == "".join(f" {action}<|end|>" for action in actions)
        rest = [token_id for token_id, trained in zip(completion_ids, mask, strict=True) if not trained]
        assert decode(rest) == "<|user|> refused needs amber 1<|end|><|assistant|>"


class TestBlindRefinement:
    def test_critiques_are_about_other_requests(self):
        critiques = [f"Future: {word} win\nOptimality: Yes" for word in ("treasure", "closed", "late")]
        roles = make_roles(critiques)
        action = roles.chat.past_turn("route billing ruby photo noon")
        states = [
            roles.chat.start([{"role": "user", "content": f"{topic} 2"}], None) for topic in ("baku", "dela", "baku")
        ]
        prompts = [Prompt.of(state).extended(action) for state in states]
        answers = blind_critiques(roles, prompts)
        assert [answer.text for answer in answers] == [critiques[1], critiques[2], critiques[1]]
        assert [answer.prompt.ids for answer in answers] == [critic_prompt(roles, prompt).ids for prompt in prompts]


class TestRefineOnce:
    @pytest.mark.parametrize(
        "answers, action",
        [
            (["take red", "Future: win\nOptimality: No", "take blue"], "take blue"),
            (["take red", "Future: win\nOptimality: Yes", "take blue"], "take blue"),  # also what is called the best
            (["take red", "win", "win"], "take red"),  # the critique is unreadable, twice
            (["take red", "Future: win\nOptimality: No", "", ""], "take red"),  # the refinement is
            ([""], None),
        ],
    )
    def test_action(self, answers, action):
        roles = make_roles(answers)
        prompt = Prompt.of(roles.chat.start([{"role": "user", "content": "win 1"}], None))
        [answer] = refine_once(roles, [prompt], [0])
        assert (answer.parsed, answer.prompt) == (action, prompt)
        assert len(roles.generator.prompts) == len(answers)


class TestExtraction:
    def test_reverse_divergences(self):
        """Over two teachers the reverse divergence is least where both agree, the other one at their mean."""
        torch.manual_seed(0)
        logits, teacher = torch.randn(8, 7), torch.randn(8, 7)
        of_trl = compute_full_logit_self_distillation_loss(logits, teacher, distillation_alpha=1.0)
        torch.testing.assert_close(extraction.reverse_divergences(logits, teacher), of_trl)
        teachers = torch.tensor([[0.50, 0.49, 0.01], [0.50, 0.01, 0.49]]).log()
        found = []
        for divergence in (extraction.reverse_divergences, token_divergences):
            student = torch.zeros(3, requires_grad=True)
            optimizer = torch.optim.Adam([student], lr=0.05)
            for _ in range(400):
                optimizer.zero_grad()
                divergence(student.expand(2, 3), teachers).sum().backward()
                optimizer.step()
            found.append(student.softmax(-1)[0].item())
        assert found == pytest.approx([0.78, 0.50], abs=0.01)

    def test_policy_learns_by_the_divergence_of_its_trainer(self, tmp_path):
        task = make_task("service_desk_told", seed=100)
        settings = default_settings(task, "self_distillation_reverse")
        forward = default_settings(task, "self_distillation")
        classes = [nlac.TRAINERS[of.pop("trainer")] for of in (settings, forward)]
        assert settings == forward
        args = acting_config(task, str(tmp_path), 0, max_steps=1, logging_steps=1, **settings)
        args.learning_rate = 0.0
        logs = {}
        for trainer in classes:
            trained = trainer(model=task.model, args=args, **task.trainer_arguments)
            trained.train()
            logs[trainer] = trained.state.log_history[0]["policy/loss"]
        reverse, forward = logs.values()
        assert reverse > 0 and forward > 0 and reverse != pytest.approx(forward, rel=0.01)

    def test_weight_of_a_preference(self):
        assert extraction.preference(-1.0, -1.0) == 1.0
        assert extraction.preference(0.0, 1.0) + extraction.preference(1.0, 0.0) == pytest.approx(2.0)
        assert extraction.preference(0.0, 1e6) == 2.0 and extraction.preference(1e6, 0.0) < 1e-20

    @pytest.mark.parametrize(("score", "factor"), [(100.0, 2.0), (0.0, 1.0), (-100.0, 0.0)])
    def test_the_policy_learns_by_what_the_critic_prefers(self, tmp_path, monkeypatch, score, factor):
        """With given verdict scores in place of the critic's own."""
        judgement = Judgement("Future: win\nOptimality: Yes", True, 0.0)
        monkeypatch.setattr(extraction, "judge_critiques", lambda roles, found: [judgement] * len(found))
        after = judgement._replace(verdict_score=score)
        monkeypatch.setattr(extraction, "judge_actions", lambda roles, prompts: [after] * len(prompts))
        task = small_task("service_desk_told", 0)
        settings = default_settings(task, "nlac")
        args = acting_config(task, str(tmp_path), 0, max_steps=4, logging_steps=4, **settings)
        trainer = extraction.VerdictWeightedTrainer(model=task.model, args=args, **task.trainer_arguments)
        made = []
        make = trainer._make_batches
        monkeypatch.setattr(trainer, "_make_batches", lambda *of: made.append((of[0], make(*of))) or made[-1][1])
        trainer.train()
        [(samples, batches)] = made
        weights = {sample.transition_id: sample.weight for sample in samples}
        examples = [example for batch in batches for example in batch]
        of_policy = [example for example in examples if example.loss == "policy"]
        assert len(of_policy) > 64 and sum(example.loss == "critic" for example in examples) > 64
        for example in examples:
            expected = {"policy": factor, "critic": 1.0, "rehearsal": 1.0}[example.loss]
            assert example.weight == pytest.approx(expected * weights.get(example.transition_id, 1.0), abs=1e-20)
        assert trainer.state.log_history[0]["policy/preference"] == pytest.approx(factor, abs=1e-20)

    def test_critiques_of_refined_episodes_that_win_are_useful(self):
        """Rounds: the policy alone loses, a refined action wins, the policy alone wins, a refined action loses."""
        right, wrong = "route billing amber photo noon", "route legal amber photo noon"
        useful, other = ("Future: closed win\nOptimality: No, billing", "Future: closed win\nOptimality: No, legal")
        answers = [wrong, wrong, wrong, useful, right, right, right, other, wrong, wrong, other, wrong]
        roles, pool = make_roles(answers, max_turns=2), EnvironmentPool(partial(make_environment, DESK))
        rollouts = extraction.AdvisedRollouts(Rollouts(pool, roles, None), seed=0)
        try:
            scores, kept = [], []
            for step in range(4):
                [episode] = rollouts.play([{"request": "baku"}], step, waits=False, is_last=False)
                scores.append(episode.score)
                kept.append(len(rollouts.useful))
        finally:
            pool.close()
        assert scores == [0.0, 1.0, 1.0, 0.0] and kept == [0, 1, 1, 1]
        [example, again] = rollouts.draw(2)
        assert example is again and (example.loss, example.weight) == ("critic", 1.0)
        decode = roles.chat.tokenizer.decode
        assert decode(list(example.completion_ids), skip_special_tokens=True).strip() == useful
        assert wrong in decode(example.prompt.ids) and right not in decode(example.prompt.ids)

    def test_useful_critiques_are_trained_on_beside_the_targets(self, tmp_path, monkeypatch):
        task = small_task("service_desk_told", 0)
        settings = default_settings(task, "nlac")
        args = acting_config(task, str(tmp_path), 0, max_steps=4, logging_steps=4, **settings)
        trainer = extraction.UsefulCriticTrainer(model=task.model, args=args, **task.trainer_arguments)
        example = TrainingExample("critic", Prompt.of([0, 1]), (2, 3), 0.5)
        trainer.rollouts.useful.append(example)
        trained = []
        prepare = trainer._prepare_inputs
        monkeypatch.setattr(trainer, "_prepare_inputs", lambda batch: trained.extend(batch) or prepare(batch))
        trainer.train()
        assert sum(one is example for one in trained) == settings["samples_per_iteration"] // 4
        assert trainer.state.log_history[0]["critic/num_useful"] == 1.0


class TestPlayer:
    def test_self_refinement_changes_what_is_played(self, tmp_path):
        """A critic that names the right value, followed by refinement, corrects the first call of the base model."""
        task = small_task("service_desk_told", 0)
        acting: NLACConfig = acting_config(task, str(tmp_path), 0)
        plain: Player = play_base(task, acting)
        refined: Player = play_base(task, acting, refines=True)
        rows = [task.rows[0]]
        for player in (plain, refined):
            player.roles.samplings = {
                name: replace(sampling, temperature=0.0) for name, sampling in player.roles.samplings.items()
            }
        own, mended = plain.play(rows)[0].turns[0].action, refined.play(rows)[0].turns[0].action
        assert own != mended and mended.startswith("route ")
        assert refined.roles.tally.num_generated_tokens > plain.roles.tally.num_generated_tokens


class Rehearsed(RecordingTrainer, extraction.RehearsedRefinementsTrainer):
    """Notes its micro-batches."""


class TestRehearsedRefinements:
    def test_every_step_trains_on_its_own(self, tmp_path):
        """On those that obey, after the question to the refinement policy, in every update of a generated batch."""
        config = {"num_updates_per_generation": 2, "max_steps": 4}
        config |= {"samples_per_iteration": 8, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
        trainer = make_trainer(tmp_path, config, Rehearsed)
        trainer.train()
        chat = trainer.roles.chat
        steps = [[e for e in batch.examples if e.loss == "rehearsal"] for batch in trainer.micro_batches]
        found = [example for step in steps for example in step]
        assert found and all(chat.decode(example.prompt.ids).endswith("Revise?") for example in found)
        asked = sum(example.loss == "policy" for batch in trainer.micro_batches for example in batch.examples)
        assert len(found) <= asked
        half = len(steps) // 2
        first, second = ({e.completion_ids for step in of for e in step} for of in (steps[:half], steps[half:]))
        assert first == second
