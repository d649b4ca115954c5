# SPDX-License-Identifier: Apache-2.0

import json
import random
import statistics
import sys
from functools import partial
from types import SimpleNamespace

import pytest
from datasets import Dataset
from helpers.testing_utils import make_roles
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.cells import read_cells
from benchmarks.formats.run import CONVERSATIONS, ask_roles, rates, table
from benchmarks.learning.figures.table import label
from benchmarks.learning.tasks import handbook_rows
from benchmarks.real_learning import generalisation, handbook
from benchmarks.real_learning.desk import SpokenDesk, Teacher, asked_values, known_desk, rows, spoken
from benchmarks.real_learning.generalisation import PLAIN, QUOTING
from benchmarks.real_learning.handbook import HandbookDesk
from benchmarks.real_learning.role_samples import chat_roles, play_transitions, read_transcript, sound_answers
from benchmarks.real_learning.run import ROLES, ReportCallback, conversations, train, write_rehearsal
from benchmarks.reporting import write
from trl_nlac import NLACPrompts
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments import ServiceDesk
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.environments.embedded.service_desk import format_call, parse_call
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.method.backup import bellman_targets
from trl_nlac.method.roles import Roles
from trl_nlac.options.role_options import RoleOptions
from trl_nlac.types import Transition


class TestSpokenDesk:
    @pytest.mark.parametrize(
        ("observation", "said"),
        [
            ("refused needs jade 1", "Refused: the form must be jade. You have 1 call left."),
            ("refused needs dawn lose", "Refused: the time must be dawn. The request is lost."),
            ("refused unreadable 1", "That is not a call. You have 1 call left."),
            ("closed win", "The request is closed. The customer is served."),
        ],
    )
    def test_what_it_says(self, observation, said):
        assert spoken(observation) == said
        assert asked_values(said) == [word for word in observation.split() if word in ("jade", "dawn")]

    def test_new_desks_share_no_request_with_the_known_one(self):
        assert not set(known_desk().requests) & {r for seed in range(20) for r in ServiceDesk.from_seed(seed).requests}


@pytest.fixture
def taught() -> tuple[ServiceDesk, Roles, list[Transition]]:
    """The known desk, the teacher's roles, and what they played there."""
    desk = known_desk()
    roles = chat_roles(Teacher(NLACPrompts()).answer, NLACPrompts(), RoleOptions(**ROLES))
    pool = EnvironmentPool(partial(SpokenDesk, desk))
    try:
        return desk, roles, play_transitions(roles, pool, list(rows(desk)), 60)
    finally:
        pool.close()


def test_the_teacher_is_right_in_every_role(taught):
    desk, roles, transitions = taught
    oracle = SpokenDesk(desk).oracle
    answers = sound_answers(roles, transitions)
    assert {"policy", "critic", "backup", "refine"} == answers.keys()
    assert all(rate == 1.0 for name, rate in roles.take_metrics().items() if name.endswith("format_rate"))
    verdicts = set()
    for transition, target in zip(transitions, answers["backup"], strict=True):
        rule, call = desk.rules[transition.episode.task["request"]], parse_call(transition.turn.action)
        assert target.parsed.future.startswith(transition.turn.next_observation)
        assert target.parsed.optimal == (call == rule)
        assert set(asked_values(target.parsed.future)) <= set(rule)
        verdicts.add(target.parsed.optimal)
    assert verdicts == {True, False}
    of_next = [transition for transition in transitions if not transition.terminated]  # they make the targets
    of_attempts = answers["critic"][len(of_next) :]
    for transition, critique in zip(transitions, of_attempts, strict=True):
        action = read_transcript(roles.chat.tokenizer, critique.prompt.ids)[-2]["content"]
        assert oracle.future_is_right(transition, action, critique.parsed.future)
        assert critique.parsed.optimal == (oracle.quality(transition, action) == 1)
    assert not oracle.future_is_right(transition, action, f"{critique.parsed.future} The request is lost.")
    assert all(parse_call(refined.parsed) for refined in answers["refine"])
    assert any(parse_call(transition.turn.action) is None for transition in transitions)
    assert len(answers["refine"]) > 20


def test_the_teacher_foresees_as_the_backup_joins(taught):
    """Refinement reads both, and must know where a call ends."""
    desk, roles, transitions = taught
    oracle = SpokenDesk(desk).oracle
    right = []
    for transition, target in zip(transitions, bellman_targets(roles, transitions, "explicit"), strict=True):
        if not transition.terminated:
            right.append(oracle.future_is_right(transition, transition.turn.action, target.parsed.future))
    assert len(right) > 20 and statistics.mean(right) > 0.8  # one in ten calls of the teacher is none


@pytest.mark.parametrize("setup", [PLAIN, QUOTING], ids=["plain", "quoting"])
def test_desks_with_handbooks_are_read_by_the_teacher_and_judged_by_the_oracle(setup):
    pool = EnvironmentPool(partial(HandbookDesk, handbook.known_desk))
    tasks = handbook_rows(random.Random(0), range(8), ["maro"], world_of=handbook.known_desk)
    roles = chat_roles(setup.teacher.answer, setup.teacher.prompts, RoleOptions(**ROLES))
    try:
        transitions = play_transitions(roles, pool, list(tasks), 60)
    finally:
        pool.close()
    oracle, worlds = pool.oracle, set()
    answers = sound_answers(roles, transitions)
    of_next = [transition for transition in transitions if not transition.terminated]  # they make the targets
    refined = iter(answers["refine"])
    for transition, critique in zip(transitions, answers["critic"][len(of_next) :], strict=True):
        worlds.add(transition.episode.task["desk"])
        action = read_transcript(roles.chat.tokenizer, critique.prompt.ids)[-2]["content"]
        assert oracle.future_is_right(transition, action, critique.parsed.future)
        assert critique.parsed.optimal == (oracle.quality(transition, action) == 1)
        if setup is QUOTING:
            request = transition.episode.task["request"]
            right = format_call(handbook.known_desk(transition.episode.task["desk"]).rules[request])
            assert critique.text.startswith(f"Handbook: About the {request}: {right}\nFuture: ")
            assert critique.parsed.optimal or next(refined).parsed == right
    assert len(worlds) > 4 and (setup is PLAIN or not list(refined))
    qualities = [oracle.quality(transition, transition.turn.action) for transition in transitions]
    assert 0 < statistics.mean(quality == 1 for quality in qualities) < 0.5  # most calls are wrong, and some are right


def test_samples_that_begin_another_are_encoded_within_it():
    chat = ChatEncoder(AutoTokenizer.from_pretrained(TINY_MODEL))
    asked, acted = [{"role": "user", "content": "closed"}], {"role": "assistant", "content": "route billing"}
    judged = [*asked, acted, {"role": "user", "content": "refused"}]
    samples = [
        {"prompt": asked, "completion": [acted]},
        {"prompt": judged, "completion": [{"role": "assistant", "content": "lose"}]},
        {"prompt": asked, "completion": [{"role": "assistant", "content": "win"}]},
    ]
    encoded = list(conversations(Dataset.from_list(samples), chat))
    assert len(encoded) == 2
    trained = [[token for token in row["labels"] if token != -100] for row in encoded]
    said = [chat.completion(sample["completion"][0]) for sample in samples]
    assert trained == [[*said[0], *said[1]], said[2]]
    for row in encoded:
        assert all(label in (-100, token) for token, label in zip(row["input_ids"], row["labels"], strict=True))


def test_a_desk_is_trained_and_goes_on_where_it_was(tmp_path):
    """With the embedded model, which cannot read these prompts."""
    adapter, saved = tmp_path / "adapter", []
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
    get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")).save_pretrained(adapter)
    for max_steps in (1, 2):
        train(tmp_path, str(TINY_MODEL), adapter, 0, max_steps, saved.append)
    assert [point["optimizer_steps"] for point in saved[-1]["curve"]] == [0, 1, 2]
    assert {"success", "low", "high", "eval_oracle/readable_rate"} <= saved[-1]["curve"][0].keys()
    assert saved[-1]["curve"][-1]["environment_steps"] > saved[0]["curve"][0]["environment_steps"] == 0


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    """Samples of the teacher that reads handbooks."""
    tasks = handbook_rows(random.Random(0), range(2), ["maro"], world_of=handbook.known_desk)
    folder, factory = tmp_path_factory.mktemp("handbook"), generalisation.make_known_desks
    return write_rehearsal(folder, PLAIN.teacher, tasks, factory, 4)


@pytest.mark.parametrize("method", [*generalisation.METHODS, "base_refined"])
def test_every_method_is_trained_on_desks_with_handbooks(tmp_path, monkeypatch, rehearsal, method):
    monkeypatch.setattr(generalisation, "NUM_UNSEEN_DESKS", 2)
    task = generalisation.make_task(0, TINY_MODEL, PLAIN, rehearsal)
    assert len(task.rows) == 800 and len(task.instances["held_out"].rows) == len(task.instances["train"].rows) == 4
    cell = generalisation.run_cell(task, PLAIN, method, 0, 4, tmp_path, num_transitions=4)
    assert f"--methods {method} --seeds 0 --budget 4 --num_transitions 4" in cell["command"]
    greedy = set() if method == "base_refined" else {"greedy"}
    assert cell["final"].keys() == {"held_out", "train", *greedy}
    trained = cell["points"][-1]["trained_tokens"]
    assert (trained > 0) == (method != "base_refined") and cell["points"][0]["environment_steps"] == 0
    table = generalisation.Tables([], [cell]).handbook()
    assert f"| Spoken handbook | {label(method)} | 1 |" in table and ("| greedy |" in table) == bool(greedy)


def test_cells_that_exist_are_shown_without_a_warm_up(tmp_path, monkeypatch, capsys):
    [cell] = [of for of in read_cells("real_learning") if (of["task"], of["method"]) == (PLAIN.task, "rft")]
    write(cell, tmp_path / "cells" / PLAIN.task / "rft" / "0.json")
    words = ["--methods", "rft", "--folder", str(tmp_path / "run"), "--cells", str(tmp_path / "cells")]
    monkeypatch.setattr(sys, "argv", ["generalisation.py", *words])
    generalisation.main()
    assert not (tmp_path / "run").exists()
    assert "| Spoken handbook | RFT | 1 | 326 | 0.77 |" in capsys.readouterr().out


def test_an_evaluation_tells_how_the_roles_were_since_the_one_before():
    saved = []
    report = ReportCallback(saved.append)
    report.trained = SimpleNamespace(eval_dataset=[{}] * 4)
    evaluation = {"eval_episode/success_rate": 0.25, "eval_environment/steps": 8}
    history = [{"step": 0, **evaluation}]
    history += [{"step": i, "health/refine_compliance": i / 4, "tokens/generated": i} for i in range(1, 5)]
    history[3:3] = [{"step": 2, **evaluation}]
    report.on_evaluate(SimpleNamespace(num_eval_episodes=1), SimpleNamespace(log_history=[*history, history[0]]), None)
    (result,) = saved
    found = [point.get("health/refine_compliance") for point in result["curve"]]
    assert found == [None, 0.375, 0.875]
    assert [point["tokens"]["generated"] for point in result["curve"]] == [0, 2, 4]


def test_form_and_meaning_of_every_role():
    rows = [row for row in json.loads(CONVERSATIONS.read_text()) if row["action_format"] == "text"]
    steps = sum(len(row["advice"]) for row in rows)
    advised = [f"{step['action_has']} please" for row in rows for step in row["advice"]]
    yes, echo = "Future: It works.\nOptimality: Yes", "Write these two lines, and nothing else: Future."
    critiques = [yes, f"{yes}\n{echo}", *[yes] * (steps - 2)]
    backups = [f"Future: {turn['content']}\nOptimality: Yes" for row in rows for turn in row["messages"][2::2]]
    going_on = sum(len(row["advice"]) - 1 for row in rows)  # steps after which the policy acts and is criticised
    answers = [*advised, *critiques, *["wait"] * going_on, *[yes] * going_on, *backups, *advised]
    roles = make_roles(answers, NLACPrompts(), max_prompt_length=None)
    measured = rates(answers := ask_roles(roles, rows))
    assert all(of_role["number"] == steps and of_role["form"] == 1 for of_role in measured.values())
    assert measured["policy"]["meaning"] == measured["refine"]["meaning"] == 1
    assert measured["critic"]["meaning"] == (steps - 1) / steps
    lost = sum(row["reward"] == 0 for row in rows)
    assert measured["backup"]["meaning"] == (steps - lost) / steps
    assert {fault for answer in answers for fault in answer["faults"]} == {"echo", "against the score"}
    assert "| tiny | raw | 1.00 (" in table({"models": {"tiny": {"raw": answers}}})
