# SPDX-License-Identifier: Apache-2.0

import itertools

import pytest
import yaml

from trl_nlac import NLACPrompts
from trl_nlac.prompts import (
    _REQUIRED_FIELDS,
    WORKED_EXAMPLES,
    WORKED_SOLUTIONS,
    parse_corrected_think,
    parse_correctness,
    parse_critique,
    parse_future,
    render,
)
from trl_nlac.types import Critique


class TestParsing:
    @pytest.mark.parametrize(
        "text",
        [
            "Future: The door opens.\nOptimality: No, try the key.",
            "Future:\nThe door opens.\n\nOptimality:\nNo. try the key.",
            "**Future:** The door opens.\n**Optimality:** No - try the key.",
            "future: The door opens. optimality: no try the key.",
        ],
    )
    def test_tolerant_reader(self, text):
        critique = parse_critique(text)
        assert critique.future.rstrip(".") == "The door opens"
        assert not critique.optimal
        assert critique.advice == "try the key."

    def test_written_critiques_are_read_back(self):
        for critique in (Critique("it works", True), Critique("it fails", False, "wait")):
            assert parse_critique(critique.text) == critique

    def test_correctness(self):
        assert parse_correctness("Correctness:\nNo. The sum is wrong.") == Critique("", False, "The sum is wrong.")
        assert parse_correctness("**Correctness:** Yes").optimal

    def test_future(self):
        assert parse_future(" It ends. ") == Critique("It ends.", None)
        assert parse_future(" ") is None

    @pytest.mark.parametrize(
        ("text", "thoughts"),
        [
            ("<corrected_think>\nso\n</corrected_think>", "so"),
            ("<corrected_think>a</corrected_think><corrected_think>b</corrected_think>", None),
            ("<corrected_think><think>a</think></corrected_think>", None),
            ("<corrected_think> </corrected_think>", None),
            ("Well: <corrected_think>a</corrected_think>", None),
            ("a", None),
        ],
    )
    def test_corrected_thoughts(self, text, thoughts):
        assert parse_corrected_think(text) == thoughts


class TestNLACPrompts:
    def test_every_required_field_is_asked_for(self):
        for name, required in _REQUIRED_FIELDS.items():
            for field in required:
                others = " ".join(f"{{{other}}}" for other in required - {field})
                with pytest.raises(ValueError, match=f"`{name}` lacks the field `{{{field}}}`"):
                    NLACPrompts(**{name: f"Say. {others}"})

    def test_a_field_without_a_value_is_named(self):
        for name, field in [("policy", "score"), ("critique", "next_observation"), ("tools", "futures")]:
            with pytest.raises(ValueError, match=f"`{name}` has the field `{{{field}}}`, for which it gets no value"):
                NLACPrompts(**{name: f"{{tools}} {{{field}}}" if name == "tools" else f"{{{field}}}"})
        NLACPrompts(policy="{action_format}", refine="{action_format}", unreadable_action="", critique="{other}")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("policy:", "The prompt `policy` must be a text, got None"),
            ("critique: [a, b]", r"The prompt `critique` must be a text, got \['a', 'b'\]"),
            ("examples:", "`examples` must be a list of worked examples, got None"),
            ("1: a\nno: b", "names the prompt `1`, which does not exist"),
        ],
    )
    def test_what_is_no_text_is_named_with_its_file(self, tmp_path, text, message):
        (tmp_path / "prompts.yaml").write_text(text)
        with pytest.raises(ValueError, match=f"prompts.yaml:? {message}"):
            NLACPrompts.from_file(tmp_path / "prompts.yaml")

    def test_braces_in_templates_and_values_stay(self):
        template = '{next_observation} {"json": 1} {score}'
        assert render(template, next_observation="{score}", score="1") == '{score} {"json": 1} 1'

    def test_files(self, tmp_path):
        (tmp_path / "prompts.yaml").write_text(yaml.safe_dump({"critique": "How good was that?"}))
        prompts = NLACPrompts.from_file(tmp_path / "prompts.yaml")
        assert prompts.critique == "How good was that?"
        assert prompts.refine == NLACPrompts().refine
        prompts.save(tmp_path / "prompts.json")
        assert NLACPrompts.from_file(tmp_path / "prompts.json") == prompts
        (tmp_path / "wrong.yaml").write_text("critic: How good?")
        with pytest.raises(ValueError, match="names the prompt `critic`, which does not exist"):
            NLACPrompts.from_file(tmp_path / "wrong.yaml")

    def test_system_message(self):
        prompts = NLACPrompts(policy="Act: {action_format}", tools="Tools: {tools}", format_text="one word")
        tools = [{"name": "route"}, {"name": "close"}]
        assert prompts.system("text", []) == "Act: one word"
        assert prompts.system("text", [], "Be brief.") == "Act: one word\n\nBe brief."
        shown = 'Act: one word\n\nTools: {"name": "route"}\n{"name": "close"}'
        assert prompts.system("text", tools) == shown
        assert prompts.system("text", tools, "Be brief.") == f"{shown}\n\nBe brief."
        assert prompts.system("react", []) == f"Act: {prompts.format_react}"
        assert NLACPrompts(policy="").system("text", []) == ""

    def test_worked_examples_are_conversations_before_the_task(self):
        example = {
            **dict(task="A door.", thought="It may be open.", action="push"),
            **dict(critique="Future: a\nOptimality: No. Pull.", refine_thought="It opens inwards.", refine="pull"),
            **dict(next_observation="It opens.", successor="I go out."),
        }
        texts = {"critique": "Judge.", "refine": "Again: {action_format}", "policy": "Act.", "format_text": "words"}
        texts |= {"example": "So:", "after_examples": "Now:", "successor": "Seen: {next_observation}"}
        prompts = NLACPrompts(examples=[example], **texts)
        messages = prompts.opening([{"role": "user", "content": "A gate."}], "text", [])
        assert [message["role"][0] for message in messages] == [*"s", *"uauauaua", *"u"]
        answers = ["push", example["critique"], "pull", "I go out."]
        asked = ["So:\nA door.", "Judge.", "Again: words", "Seen: It opens."]
        expected = ["Act.", *itertools.chain.from_iterable(zip(asked, answers, strict=True)), "Now:\nA gate."]
        assert [message["content"] for message in messages] == expected
        opened = prompts.opening([{"role": "assistant", "content": "Hello."}], "react", [])
        assert opened[2]["content"] == "Thought: It may be open.\nAction: push"
        assert [message["content"] for message in opened[-2:]] == ["Now:", "Hello."]
        assert NLACPrompts(policy="").opening(task := [{"role": "user", "content": "A"}], "text", []) == task

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"critic": "Yes"}, "An example answers `critic`. What it can have is"),
            ({"critique": ["Yes"]}, "An example must map names to texts"),
            ({"action": None}, "An example must map names to texts"),
            ({"critique": "It is good."}, "answer to the prompt `critique` does not have the form"),
            ({"backup_correctness": "Future: a"}, "answer to the prompt `backup_correctness` does not have the form"),
            ({"successor": "I go out."}, "answers `successor`, and lacks its field `next_observation`"),
        ],
    )
    def test_wrong_examples_are_named(self, changes, error):
        with pytest.raises(ValueError, match=error):
            NLACPrompts(examples=[{"task": "A door.", "action": "push", **changes}])
        with pytest.raises(ValueError, match="must map names to texts, `task` and `action` among them"):
            NLACPrompts(examples=[{"task": "A door."}])

    @pytest.mark.parametrize("examples", [WORKED_EXAMPLES, WORKED_SOLUTIONS])
    def test_own_examples_are_right(self, examples):
        prompts = NLACPrompts(examples=examples)
        for example in examples:
            for name in ("backup_terminated", "backup_correctness"):
                if name in example:
                    parsed = {"backup_terminated": parse_critique, "backup_correctness": parse_correctness}[name]
                    assert parsed(example[name]).optimal == (example["score"] == "1")
        (repeats,) = prompts.repeated_in(["Well: " + examples[0]["task"]])
        assert repeats and prompts.repeated_in(
            ["Search the shelf.", "and nothing else:\nFuture: <what happens next and how"]
        ) == [False, True]
