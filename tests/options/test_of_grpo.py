# SPDX-License-Identifier: Apache-2.0

"""A user of `GRPOConfig` is told what each option is here."""

import copy
import pickle
import re
from dataclasses import fields
from pathlib import Path

import pytest
from trl import GRPOConfig

from trl_nlac import NLACConfig
from trl_nlac.cli.main import main
from trl_nlac.cli.parser import unknown_option
from trl_nlac.options.of_grpo import HINTS


OWN = {option.name for option in fields(NLACConfig)}
PAGE = Path(__file__).parents[2] / "docs" / "source" / "coming_from_grpo.md"


def test_every_option_that_is_lacking_has_a_hint():
    lacking = {option.name for option in fields(GRPOConfig)} - OWN
    assert HINTS.keys() == lacking
    named = {name for text in HINTS.values() for name in re.findall(r"`(\w+)`", text)}
    assert named <= OWN


def test_the_page_says_the_same():
    rows = [
        row.split("|")[1:3] for row in PAGE.read_text().splitlines() if row.startswith("| `") and "Config" not in row
    ]
    assert len(rows) == 8
    for theirs, ours in rows:
        for name in re.findall(r"`(\w+)`", theirs):
            assert set(re.findall(r"`(\w+)`", ours)) == set(re.findall(r"`(\w+)`", HINTS[name])), name
    assert "except `learning_rate` and `min_p`" in PAGE.read_text()
    theirs, ours = ({option.name: option.default for option in fields(of)} for of in (GRPOConfig, NLACConfig))
    shared = theirs.keys() & ours.keys()
    assert {name for name in shared if theirs[name] != ours[name]} == {"learning_rate", "min_p"}


def test_errors_of_python(tmp_path):
    with pytest.raises(TypeError, match="option 'num_generations'.*Leave it out.*GRPO's `num_iterations` is `num_upd"):
        NLACConfig(str(tmp_path), num_generations=8, num_iterations=2)
    for typo, meant in {"foo": ".$", "learning_rat": ", did you mean 'learning_rate'.$"}.items():
        with pytest.raises(TypeError, match=f"`NLACConfig` has no option '{typo}'{meant}"):
            NLACConfig(str(tmp_path), **{typo: 1})

    class Longer(NLACConfig):  # which takes an option of its own
        def __init__(self, *args, beta, **options):
            super().__init__(*args, max_turns=beta, **options)

    assert Longer(str(tmp_path), use_cpu=True, bf16=False, beta=3).max_turns == 3
    config = NLACConfig(str(tmp_path), use_cpu=True, bf16=False, max_turns=3)
    assert copy.deepcopy(config).max_turns == pickle.loads(pickle.dumps(config)).max_turns == 3


@pytest.mark.parametrize("name", HINTS)
def test_a_missing_letter_leads_to_the_option_that_was_meant(name):
    for i in range(len(name)):
        typo = f"--{name[:i]}{name[i + 1 :]}".replace("_", "-")
        error = unknown_option(typo, [*(f"--{option}" for option in OWN), *HINTS])
        assert f", did you mean {name!r}? GRPO's `{name}` {HINTS[name]}." in error


@pytest.mark.parametrize("words", [["--max_tool_calling_iterations", "8"], ["--max_tool_calling_iterations=8"]])
def test_errors_of_the_command_line(words, capsys):
    assert main(["train", "--use_cpu", "True", "--bf16", "False", *words]) == 2
    error = capsys.readouterr().err
    assert "there is no option '--max_tool" in error and "is --max_turns here, which counts" in error
