# SPDX-License-Identifier: Apache-2.0

import argparse
import shlex
import sys
from dataclasses import fields, replace
from itertools import product

import pytest
from datasets import Dataset
from helpers.testing_utils import make_roles

from benchmarks import reporting
from benchmarks.cells import read_cells
from benchmarks.learning import run
from benchmarks.learning.methods import memory, nlac
from benchmarks.learning.methods.base import play_base, refine_once
from benchmarks.learning.methods.extraction import blind_critiques
from benchmarks.learning.methods.grpo import as_completion
from benchmarks.learning.methods.settings import BASELINES, NLAC, acting_config, default_settings, merge_settings
from benchmarks.learning.tasks import TASKS, Instances, make_task
from trl_nlac import NLACConfig
from trl_nlac.environments import ServiceDesk
from trl_nlac.environments.embedded import make_environment
from trl_nlac.episodes.recorder import replay_actions
from trl_nlac.method.critic import critic_prompt
from trl_nlac.types import Prompt


def small_task(name: str, seed: int):
    task = make_task(name, seed)
    instances = {
        name: Instances(chosen.environment_factory, chosen.rows.select(range(0, len(chosen.rows), 16)))
        for name, chosen in task.instances.items()
    }
    return replace(task, instances=instances, final_episodes=1)


def make_args(tmp_path, **changes):
    args = dict(budget=10, runs=tmp_path, base_model=None, temperatures=[])
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


@pytest.mark.slow
def test_self_distillation_learns_from_refusals(tmp_path):
    task = small_task("service_desk_told", 100)
    settings = default_settings(task, "self_distillation")
    curve = nlac.train(task, acting_config(task, str(tmp_path), 0), 200, 200, **settings)
    assert curve.points[0]["episode/success_rate"] <= 0.05
    assert curve.points[-1]["episode/success_rate"] >= 0.3


def slowly(*methods: str) -> list:
    return [pytest.param(method, marks=pytest.mark.slow) for method in methods]


class TestCells:
    @pytest.mark.parametrize(
        "method",
        [*(*run.METHODS, "nlac_blind", "self_distillation"), *slowly("nlac_monte_carlo", "nlac_replay", "grpo_long")],
    )
    def test_cell(self, method, tmp_path, monkeypatch):
        monkeypatch.setattr(run, "make_task", small_task)
        cell = run.run_cell("service_desk_delayed", method, 0, make_args(tmp_path), [])
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

    @pytest.mark.parametrize("method", ["nlac", "hindsight"])
    def test_policies_are_decoded_at_several_temperatures(self, method, tmp_path, monkeypatch):
        monkeypatch.setattr(run, "make_task", small_task)
        cell = run.run_cell("service_desk_noisy", method, 0, make_args(tmp_path, temperatures=[0.5, 0.0]), [])
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
        with pytest.raises(ValueError, match="'4' in '--num_futures 2 4' has no name"):
            run.read_settings(["--num_futures", "2", "4"])

    def test_settings_of_single_roles_are_merged(self):
        first = {"learning_rate": 1e-3, "role_sampling": {"successor": {"temperature": 0.5}, "backup": {"min_p": 0.1}}}
        merged = merge_settings(
            first,
            {"min_p": 0.05, "role_sampling": {"successor": {"min_p": 0.0}, "critic": {"min_p": 0.0}}},
            {"role_sampling": {"successor": {"temperature": 0.0}}},
        )
        assert merged["role_sampling"] == {
            "successor": {"temperature": 0.0, "min_p": 0.0},
            "backup": {"min_p": 0.1},
            "critic": {"min_p": 0.0},
        }
        assert {**merged, "role_sampling": None} == {"learning_rate": 1e-3, "min_p": 0.05, "role_sampling": None}
        assert first["role_sampling"] == {"successor": {"temperature": 0.5}, "backup": {"min_p": 0.1}}

    def test_changes_of_the_command_line_are_in_the_cell(self, tmp_path, monkeypatch):
        monkeypatch.setattr(run, "make_task", small_task)
        words = ["--role_sampling", '{"critic": {"temperature": 0.5}}', "--target_max_age", "3"]
        words += ["--max_completion_length", "48"]
        cell = run.run_cell("service_desk_told", "nlac", 0, make_args(tmp_path), words)
        acting = cell["acting"]
        assert acting["max_completion_length"] == 48 and not set(acting) & set(cell["settings"])
        assert {**acting, **cell["settings"]}.items() >= {**NLAC, "target_max_age": 3}.items()
        assert cell["settings"]["role_sampling"] == {"critic": {"temperature": 0.5}}
        assert shlex.split(cell["command"])[-len(words) :] == words

    def test_swaps_show_every_combination_of_weights(self, tmp_path, monkeypatch):
        monkeypatch.setattr(run, "make_task", small_task)
        cell = run.run_cell("service_desk_told", "nlac", 0, make_args(tmp_path), ["--swaps", "3"])
        played = [(row["policy"], row["critic"], row["refinement"]) for row in cell["swaps"]]
        assert played == list(product(("initial", "trained"), repeat=3))
        assert all(0 <= row["quality"] <= 1 and 0 <= row["refined_quality"] <= 1 for row in cell["swaps"])

    @pytest.mark.slow
    def test_a_cell_can_be_run_again(self, tmp_path, monkeypatch):
        monkeypatch.setattr(run, "make_task", small_task)
        first, again = (run.run_cell("service_desk_told", "nlac", 0, make_args(tmp_path), []) for _ in range(2))
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

    def test_failed_cells_are_reported(self, start, tmp_path, capsys):
        words = ["--tasks", "rooms", "--methods", "nlac", "--seeds", "0", "--cells", str(tmp_path / "cells")]
        with pytest.raises(SystemExit, match="1 of 1 cells failed"):
            start(run.main, *words, "--runs", str(tmp_path), "--num_dreams", "2")
        log = tmp_path / "rooms" / "nlac" / "0" / "log.txt"
        out = capsys.readouterr().out
        assert f"rooms nlac 0: failed, see {log}\n" in out
        assert "num_dreams" in log.read_text()
        assert not (tmp_path / "cells").exists()

    @pytest.mark.parametrize("words", [["--num_futures", "2"], ["--budget", "100"]])
    def test_the_table_keeps_the_settings_of_the_code(self, start, words, capsys):
        with pytest.raises(SystemExit):
            start(run.main, "--tasks", "rooms", *words)
        assert f"add --cells, a folder for --tasks rooms {' '.join(words)}" in capsys.readouterr().err

    def test_published_cells_are_not_run_again(self, start, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        start(run.main, "--tasks", "rooms", "--methods", "grpo", "base", "--runs", str(tmp_path / "runs"))
        assert capsys.readouterr().out == "" and list(tmp_path.iterdir()) == []

    def test_existing_cells_are_not_run_again_and_make_a_table(self, start, tmp_path, capsys):
        words = ["--tasks", "rooms", "--methods", "base", "--seeds", "0", "--cells", str(tmp_path)]
        table = {tuple(cell[name] for name in run.IDENTITY): cell for cell in read_cells("learning", "table")}
        reporting.write(table["rooms", "base", 0], run.cell_path(tmp_path, "rooms", "base", 0))
        start(run.main, *words)
        assert capsys.readouterr().out.splitlines()[2].startswith("| Rooms | Base model | 1 | 0 | 0.18 |")


class TestDefaults:
    def test_nlac_is_what_a_user_gets(self, tmp_path):
        task = make_task("service_desk_told", 0)
        args = replace(acting_config(task, str(tmp_path), 0), **default_settings(task, "nlac"))
        default = NLACConfig(output_dir=str(tmp_path), max_turns=args.max_turns, use_cpu=True, bf16=False)
        changed = {field.name for field in fields(NLACConfig) if vars(args)[field.name] != vars(default)[field.name]}
        assert default_settings(task, "nlac") == {"learning_rate": 1e-3}
        of_device = {"gradient_checkpointing", "activation_checkpointing", "max_generation_batch_size"}
        of_writing = {*"seed report_to save_strategy disable_tqdm overwrite_output_dir logging_dir run_name".split()}
        assert changed <= {"learning_rate", "max_completion_length", "action_format"} | of_device | of_writing


class TestCommittedCells:
    """`make bench-learning` from scratch would use the settings of the table for the baselines."""

    @pytest.mark.parametrize("name", TASKS)
    def test_settings_are_those_of_the_code(self, name):
        task = make_task(name, 0)
        cells = [cell for cell in read_cells("learning", "table") if cell["task"] == name]
        assert len(cells) >= len(run.METHODS) * len(run.SEEDS)
        for cell in cells:
            path, method = (cell["method"], cell["seed"]), cell["method"]
            if method not in BASELINES:
                continue  # NLAC had settings for each task, by options that are gone
            expected = default_settings(task, method)
            # Cells that are older than `min_p` do not record it, and tau counted optimizer steps.
            min_p = cell.get("sampling", {}).get("min_p")
            tau = {"target_update_rate": expected["target_update_rate"]} if method == "scalar" else {}
            assert {**cell["settings"], "min_p": min_p, **tau} == {"min_p": None, **expected}, path
            assert cell["budget"] == run.budget_of(name, method), path
            command = f"python -m benchmarks.learning.run --tasks {name} --methods {method} --seeds {cell['seed']}"
            assert cell["command"].startswith(command), path


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
        roles = make_roles(critiques, role_sampling={"critic": {"temperature": 1.0}})
        action = roles.chat.past_turn("route billing ruby photo noon")
        states = [roles.chat.start([{"role": "user", "content": f"{t} 2"}], None) for t in ("baku", "dela", "baku")]
        prompts = [Prompt.of(state).extended(action) for state in states]
        answers = blind_critiques(roles, prompts)
        assert [answer.text for answer in answers] == [critiques[1], critiques[2], critiques[1]]
        assert [answer.prompt.ids for answer in answers] == [critic_prompt(roles, prompt).ids for prompt in prompts]


class TestRefineOnce:
    @pytest.mark.parametrize(
        "answers, action",
        [
            (["take red", "Future: win\nOptimality: No", "take blue"], "take blue"),
            (["take red", "Future: win\nOptimality: Yes"], "take red"),  # what is called the best is kept
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
