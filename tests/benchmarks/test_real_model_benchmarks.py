# SPDX-License-Identifier: Apache-2.0

import json
import random
import statistics
import sys
from functools import partial

import pytest
from datasets import Dataset
from helpers.testing_utils import make_roles
from transformers import AutoTokenizer

from benchmarks.cells import read_cells
from benchmarks.formats.run import CONVERSATIONS, ask_roles, rates, table
from benchmarks.learning.figures.tables import label
from benchmarks.learning.tasks import handbook_rows
from benchmarks.real_learning import desk, generalisation
from benchmarks.real_learning.desk import HandbookDesk, asked_values, spoken
from benchmarks.real_learning.generalisation import PLAIN, QUOTING
from benchmarks.real_learning.role_samples import chat_roles, play_transitions, read_transcript, sound_answers
from benchmarks.real_learning.warm_up import ROLES, conversations, write_rehearsal
from benchmarks.reporting import write
from trl_nlac import NLACPrompts
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.environments.embedded.service_desk import format_call
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.options.role_options import RoleOptions


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        ("refused needs jade 1", "Refused: the form must be jade. You have 1 call left."),
        ("refused needs dawn lose", "Refused: the time must be dawn. The request is lost."),
        ("refused unreadable 1", "That is not a call. You have 1 call left."),
        ("closed win", "The request is closed. The customer is served."),
    ],
)
def test_what_a_spoken_desk_says(observation, said):
    assert spoken(observation) == said
    assert asked_values(said) == [word for word in observation.split() if word in ("jade", "dawn")]


@pytest.mark.parametrize("setup", [PLAIN, QUOTING], ids=["plain", "quoting"])
def test_desks_with_handbooks_are_read_by_the_teacher_and_judged_by_the_oracle(setup):
    pool = EnvironmentPool(partial(HandbookDesk, desk.known_desk))
    tasks = handbook_rows(random.Random(0), range(8), ["maro"], world_of=desk.known_desk)
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
            right = format_call(desk.known_desk(transition.episode.task["desk"]).rules[request])
            assert critique.text.startswith(f"Handbook: About the {request}: {right}\nFuture: ")
            assert critique.parsed.optimal or next(refined).parsed == right
    assert not oracle.future_is_right(transition, action, f"{critique.parsed.future} The request is lost.")
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


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    """Samples of the teacher that reads handbooks."""
    tasks = handbook_rows(random.Random(0), range(2), ["maro"], world_of=desk.known_desk)
    factory = partial(HandbookDesk, desk.known_desk)
    return write_rehearsal(tmp_path_factory.mktemp("handbook"), PLAIN.teacher, tasks, factory, 4)


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
