# SPDX-License-Identifier: Apache-2.0

import pytest
import yaml

from trl_nlac import NLACPrompts
from trl_nlac.chat.actions import parse_react
from trl_nlac.prompts import (
    _REQUIRED_FIELDS,
    WORKED_EXAMPLES,
    parse_corrected_think,
    parse_correctness,
    parse_critique,
    parse_future,
    render,
)
from trl_nlac.types import Critique


class TestParsing:
    """Many more answers are in chat/answers.json."""

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
    def test_lacking_field_is_named(self):
        with pytest.raises(ValueError, match="`successor` lacks the field `{next_observation}`"):
            NLACPrompts(successor="What comes next?")
        with pytest.raises(ValueError, match="`backup_terminated` lacks the field `{score}`"):
            NLACPrompts(backup_terminated="{next_observation} Judge.")

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
            ("examples:", "`examples` must map names of prompts to lists of texts, got None"),
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
        """The policy's prompt with the format, then the tools if it shows any, then the environment's instructions."""
        prompts = NLACPrompts(policy="Act: {action_format}", tools="Tools: {tools}", format_text="one word")
        tools = [{"name": "route"}, {"name": "close"}]
        assert prompts.system("text", []) == "Act: one word"
        assert prompts.system("text", [], "Be brief.") == "Act: one word\n\nBe brief."
        shown = 'Act: one word\n\nTools: {"name": "route"}\n{"name": "close"}'
        assert prompts.system("text", tools) == shown
        assert prompts.system("text", tools, "Be brief.") == f"{shown}\n\nBe brief."
        assert prompts.system("react", []) == f"Act: {prompts.format_react}"
        assert NLACPrompts(policy="").system("text", []) == ""

    def test_worked_examples_are_turns_before_the_question(self):
        """Those of a format come before the first action, and before a refined one."""
        examples = {"critique": ["Future: a\nOptimality: Yes", "Future: b\nOptimality: No. c"], "format_text": ["go"]}
        texts = {"critique": "Judge.", "refine": "Again.", "policy": "Act."}
        prompts = NLACPrompts(examples=examples, example="So:", **texts)

        def contents(messages):
            roles = "".join(message["role"][0] for message in messages)
            assert roles.removeprefix("s") in ("u", "uau", "uauau")
            return [message["content"] for message in messages]

        first, second = examples["critique"]
        asked = "So:\n\nJudge."
        assert contents(prompts.question("critique")) == [asked, first, asked, second, "Judge."]
        assert contents(prompts.refinement("text")) == ["So:\n\nAgain.", "go", "Again."]
        task = [{"role": "user", "content": "Here is a door."}]
        assert contents(prompts.opening(task, "text", [])) == ["Act.", "So:", "go", "Here is a door."]
        assert contents(prompts.question("future")) == [prompts.future]

    def test_wrong_examples_are_named(self):
        with pytest.raises(ValueError, match="`examples` has examples of `critic`. Prompts with examples are"):
            NLACPrompts(examples={"critic": ["Yes"]})
        with pytest.raises(ValueError, match="`examples` of the prompt `critique` must be a list of texts, got 'Yes'"):
            NLACPrompts(examples={"critique": "Yes"})
        for name, example in (("critique", "It is good."), ("backup_correctness", "Future: a\nOptimality: Yes")):
            with pytest.raises(ValueError, match=f"An example of the prompt `{name}` does not have the form"):
                NLACPrompts(examples={name: [example]})

    @pytest.mark.parametrize("name", WORKED_EXAMPLES)
    def test_own_examples_can_be_read(self, name):
        parse = {"format_react": parse_react, "successor": parse_future, "correctness": parse_correctness}
        parse |= dict.fromkeys(("format_text", "future", "backup_future", "backup_future_terminated"), parse_future)
        parse |= {"backup_correctness": parse_correctness}
        assert all(parse.get(name, parse_critique)(example) is not None for example in WORKED_EXAMPLES[name])

    def test_scores_come_with_their_scale(self):
        values = {"next_observation": "The door is shut.", "score": "0.5", "success_threshold": "2"}
        (asked,) = NLACPrompts().question("backup_terminated", **values)
        assert "The final score is 0.5; a score of 2 or more is a success." in asked["content"]
