# SPDX-License-Identifier: Apache-2.0

import random
import re
from collections import Counter

import pytest

from benchmarks.tiny_models.dialogues import ROLES, ROLES_OF_SEVERAL_FUTURES
from benchmarks.tiny_models.rooms_dialogues import RoomsFamily
from benchmarks.tiny_models.samples import make_role_samples
from benchmarks.tiny_models.service_desk_dialogues import ServiceDeskFamily, lesson
from trl_nlac.environments import RoomsWorld, ServiceDesk
from trl_nlac.environments.embedded import COMPACT_PROMPTS
from trl_nlac.environments.embedded.names import (
    ALL_NAMES,
    CUSTOMERS,
    HELD_OUT_CUSTOMERS,
    NAMES_OF_VARIANTS,
    REQUESTS_OF_KNOWN_DELAYED_DESKS,
    REQUESTS_OF_KNOWN_DESKS,
    REQUESTS_OF_KNOWN_HINTED_DESKS,
    REQUESTS_OF_NEW_DESKS,
    ROOMS_OF_KNOWN_WORLDS,
    ROOMS_OF_NEW_WORLDS,
)
from trl_nlac.prompts import parse_critique


def begin_and_end(future: str) -> tuple[str, bool]:
    return re.split(" (?:route|take) ", future)[0], future.endswith("win")


class TestLesson:
    CALL = "route billing amber photo noon"

    @pytest.mark.parametrize(
        "steps, advice",
        [
            ([(CALL, "closed win")], ""),
            ([(CALL, "refused needs legal 1"), (CALL, "refused needs ruby lose")], "use legal ruby"),
            ([(CALL, "refused needs legal 1"), ("route legal amber photo noon", "closed win")], ""),
            ([(CALL, "refused form 1"), (CALL, "refused form lose")], "avoid amber"),
            ([(CALL, "refused form 1"), ("route billing ruby badge dusk", "refused time lose")], "use ruby badge"),
            ([(CALL, "accepted dela 2"), (CALL, "late needs dusk lose")], "use dusk"),
            ([(CALL, "accepted dela 2"), (CALL, "refused needs ruby 1"), (CALL, "late needs dusk lose")], "use dusk"),
            ([(CALL, "accepted dela 2"), (CALL, "refused needs ruby 1"), (CALL, "refused needs ruby lose")], ""),
            ([(CALL, "late needs dusk lose")], ""),
            ([(CALL, "refused needs ruby 1"), (CALL, "late needs dusk lose")], "use ruby"),
        ],
    )
    def test_advice(self, steps, advice):
        assert lesson(steps).advice == advice


class TestFamilies:
    def test_names_are_disjoint(self):
        names = ROOMS_OF_KNOWN_WORLDS + ROOMS_OF_NEW_WORLDS + REQUESTS_OF_KNOWN_DESKS + REQUESTS_OF_NEW_DESKS
        assert names == ALL_NAMES and len(names) == 240
        variants = REQUESTS_OF_KNOWN_HINTED_DESKS + REQUESTS_OF_KNOWN_DELAYED_DESKS + CUSTOMERS + HELD_OUT_CUSTOMERS
        assert variants == NAMES_OF_VARIANTS and len(set(names + variants)) == 368
        for seed in range(10):
            assert set(RoomsWorld.from_seed(seed).rooms) <= set(ROOMS_OF_NEW_WORLDS)
            assert set(ServiceDesk.from_seed(seed).rules) <= set(REQUESTS_OF_NEW_DESKS)

    def test_instances_are_seeded(self):
        assert RoomsWorld.from_seed(3) == RoomsWorld.from_seed(3)
        assert RoomsWorld.from_seed(3) != RoomsWorld.from_seed(4)
        assert ServiceDesk.from_seed(3) == ServiceDesk.from_seed(3)
        assert ServiceDesk.from_seed(3) != ServiceDesk.from_seed(4)

    @pytest.mark.parametrize(
        "family",
        [RoomsFamily(), ServiceDeskFamily(), ServiceDeskFamily("hinted", True), ServiceDeskFamily("delayed", True)],
    )
    @pytest.mark.parametrize("role", [*ROLES, *ROLES_OF_SEVERAL_FUTURES])
    def test_dialogues_are_true(self, family, role):
        rng = random.Random(0)
        for _ in range(50):
            dialogue = family.dialogue(rng, role, known=rng.random() < 0.5)
            messages, completion = dialogue.messages(role, COMPACT_PROMPTS)
            completion = completion["content"]
            assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2) + ["user"]
            if role in ("critique", "backup", "evaluation"):
                critique = parse_critique(completion)
                assert critique.future.startswith(dialogue.future[0][1])
                assert critique.optimal == critique.future.endswith("win")
            if role in ("future", "backup_future"):
                assert completion == dialogue.critique.future
            if role == "evaluation":
                begin, is_won = begin_and_end(critique.future)
                foreseen = list(map(begin_and_end, dialogue.foreseen))
                begins = Counter(begin for begin, _ in foreseen)
                ends = Counter(is_won for other, is_won in foreseen if other == begin)
                assert (begins[begin], ends[is_won]) == (max(begins.values()), max(ends.values()))
                assert messages[-1]["content"].count("\n") == len(dialogue.foreseen) - 1 > 0
            if role == "refine":
                assert (completion == dialogue.action) == dialogue.won or isinstance(family, ServiceDeskFamily)

    @pytest.mark.parametrize("several_futures", [False, True])
    @pytest.mark.parametrize("world", ["rooms", "service_desk"])
    def test_samples_leak_nothing(self, world, several_futures):
        new_names = {"rooms": ROOMS_OF_NEW_WORLDS, "service_desk": REQUESTS_OF_NEW_DESKS}[world]
        rows = make_role_samples(world, size=300, several_futures=several_futures)
        questions = [row["prompt"][-1]["content"] for row in rows]
        for row, question in zip(rows, questions, strict=True):
            if row["prompt"][0]["content"].split()[0] in new_names:
                weighs = question.startswith("1. ") and question.endswith(" Critique?")
                assert weighs or question.endswith(("Summary?", "Revise?", "Summary? Future:"))
        assert several_futures == any(question.endswith("Future:") for question in questions)
        assert several_futures == any(question.startswith("1. ") for question in questions)
