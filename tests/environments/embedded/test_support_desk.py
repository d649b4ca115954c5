# SPDX-License-Identifier: Apache-2.0

import random
import re

import pytest
from helpers.method_utils import probe_qualities, replayed

from benchmarks.tiny_models.dialogues import ROLES
from benchmarks.tiny_models.samples import make_role_samples
from benchmarks.tiny_models.support_desk_dialogues import SupportDeskFamily, advice, named_values
from trl_nlac.environments.embedded import SUPPORT_PROMPTS, make_environment, make_tasks
from trl_nlac.environments.embedded.support_desk import (
    ITEMS,
    REQUESTS_OF_KNOWN_DESK,
    REQUESTS_OF_NEW_DESKS,
    SupportDesk,
    format_call,
    parse_call,
)
from trl_nlac.prompts import parse_critique


REQUEST = "My kettle never arrived."
RIGHT = ("shipping", "invoice", "refund", "Friday")
DESK = SupportDesk({REQUEST: RIGHT})
NEEDS_INVOICE = "Refused: this customer needs the invoice first."


class TestSupportDesk:
    def test_play(self):
        environment = make_environment(DESK)
        assert environment.reset(request=REQUEST) == "My kettle never arrived. Two calls left."
        wrong = 'route(team="legal", proof="photo", remedy="refund", day="Friday")'
        assert environment.step(wrong).observation == "Refused: the shipping team handles this. One call left."
        result = environment.step(format_call(("shipping", "photo", "loan", "today")))
        lost = (f"{NEEDS_INVOICE} The customer gave up.", True, 0.0)
        assert (result.observation, result.terminated, result.reward) == lost
        environment.reset(request=REQUEST)
        assert environment.step("close it").observation == "Refused: this is not a call of route. One call left."
        result = environment.step(format_call(RIGHT))
        assert (result.observation, result.terminated, result.reward) == ("Closed: the customer is happy.", True, 1.0)

    @pytest.mark.parametrize(
        "action",
        [
            'route(team="legal", proof="photo", remedy="refund")',
            'route(proof="photo", team="legal", remedy="refund", day="Friday")',
            'route(team="legal", proof="photo", remedy="refund", day="noon")',
            'close(team="legal", proof="photo", remedy="refund", day="Friday")',
            'I would route(team="legal", proof="photo", remedy="refund", day="Friday")',
        ],
    )
    def test_what_is_no_call(self, action):
        assert parse_call(action) is None

    def test_desks_are_seeded(self):
        assert SupportDesk.from_seed(3) == SupportDesk.from_seed(3) != SupportDesk.from_seed(4)
        assert set(SupportDesk.from_seed(0).requests) <= set(REQUESTS_OF_NEW_DESKS)
        assert len(set(REQUESTS_OF_KNOWN_DESK + REQUESTS_OF_NEW_DESKS)) == len(set(ITEMS)) == 96

    def test_no_tool_calls(self):
        with pytest.raises(ValueError, match="`action_format` must be 'text' or 'react' .* got 'tool_call'"):
            make_environment(DESK, "tool_call")

    def test_oracle(self):
        environment = make_environment(DESK)
        oracle, right = environment.oracle, format_call(RIGHT)
        wrong = format_call(("shipping", "photo", "refund", "today"))
        [transition] = replayed(environment, {"request": REQUEST}, [wrong])
        assert (oracle.quality(transition, right), oracle.quality(transition, wrong)) == (1, 0.5)
        assert oracle.future_is_right(transition, right, "Closed: the customer is happy.")
        again, closed = f"{NEEDS_INVOICE} One call left.", "Closed: the customer is happy."
        lost = f"{NEEDS_INVOICE} The customer gave up."
        assert oracle.future_is_right(transition, wrong, f"{again} {right} {closed}")
        assert oracle.future_is_right(transition, wrong, f"{again} {wrong} {lost}")
        assert not oracle.future_is_right(transition, wrong, f"{again} {wrong} {closed}")
        assert not oracle.future_is_right(transition, wrong, lost)  # one call is left
        assert not oracle.future_is_right(transition, wrong, again)
        assert not oracle.future_is_right(transition, wrong, f"{again} {right} {closed} And more.")
        assert [quality == 1 for quality in probe_qualities(environment, 16)] == [True, False] * 8


class TestDialogues:
    def test_advice(self):
        text = f"Refused: the legal team handles this. One call left. {NEEDS_INVOICE} {NEEDS_INVOICE}"
        assert named_values(text) == ["legal", "invoice"]
        assert advice(["legal", "invoice"]) == "Send it to the legal team and ask for the invoice."
        assert advice(["Friday"]) == "Do it by Friday." and advice([]) == ""

    @pytest.mark.parametrize("role", ROLES)
    def test_dialogues_are_true(self, role):
        rng, family = random.Random(0), SupportDeskFamily()
        for _ in range(100):
            dialogue = family.dialogue(rng, role, known=rng.random() < 0.5)
            messages, completion = dialogue.messages(role, SUPPORT_PROMPTS)
            assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2) + ["user"]
            if role in ("critique", "backup"):
                critique = parse_critique(completion["content"])
                assert critique == dialogue.critique and critique.text == completion["content"]
                assert critique.optimal == (critique.future == "Closed: the customer is happy.")
            if role == "refine":  # nothing but what the last critique advises changes
                old, new = parse_call(dialogue.action), parse_call(completion["content"])
                changed = [value for value, before in zip(new, old, strict=True) if value != before]
                assert all(re.search(rf"\b{value}\b", dialogue.advice) for value in changed)

    def test_samples_leak_nothing(self):
        own = set(make_tasks("support_desk", 0)[1]["request"])
        for row in make_role_samples("support_desk", size=300):
            is_of_any_desk = row["prompt"][-1]["content"].endswith((SUPPORT_PROMPTS.backup, SUPPORT_PROMPTS.refine))
            assert is_of_any_desk or not row["prompt"][0]["content"].startswith(tuple(own))
