# SPDX-License-Identifier: Apache-2.0

from dataclasses import replace

import pytest
import torch
from helpers.method_utils import CRITIQUE, asked, make_transitions
from helpers.testing_utils import make_roles, make_trainer

from trl_nlac.method.worked_examples import WorkedExamples
from trl_nlac.prompts import WORKED_EXAMPLES
from trl_nlac.types import RunRefused


CPU = torch.device("cpu")


def make_own_roles(answers: list[str]):
    """Make roles whose prompts nobody shares."""
    roles = make_roles(answers, max_format_retries=0)
    roles.prompts = replace(roles.prompts, examples={})
    return roles


def choose(answers: list[str], caplog):
    """Ask the roles about two transitions, the last of which ends its task, with scripted answers."""
    roles = make_own_roles(answers)
    examples = WorkedExamples(roles, is_on=True)
    forecast = examples.choose([make_transitions(roles)[0].episode], num_samples=8, seed=0, device=CPU)
    return roles, examples, caplog.text, forecast


READ = [CRITIQUE, CRITIQUE, "a", "b", CRITIQUE, CRITIQUE, "c", "d"]  # critic, policy, backup, refinement


class TestChoose:
    def test_roles_that_keep_to_their_form_are_left_alone(self, caplog):
        roles, examples, text, forecast = choose(READ, caplog)
        assert not roles.prompts.examples and not text and not examples.is_due
        num_tokens = sum(len(roles.chat.completion(answer)) for answer in READ) / 2  # about a transition
        assert f"8 samples, up to 40 answers of the roles, about {8 * 1.25 * num_tokens:,.0f} tokens, 0:0" in forecast

    def test_a_role_that_does_not_is_shown_examples(self, caplog):
        # Policy and backup, which were read, are not asked again; there was one refined action.
        roles, examples, text, _ = choose(["mumble", *READ[1:7], *READ[:2], *READ[6:]], caplog)
        shown = {"critique", "evaluation", "correctness"}
        assert set(roles.prompts.examples) >= shown and "backup" not in roles.prompts.examples
        assert "critic 0.50, with them 1.00" in text
        last = [prompt for prompt in asked(roles) if "Critique?" in prompt][-1]
        assert WORKED_EXAMPLES["critique"][0].split(".")[0] in last
        again = WorkedExamples(make_own_roles([]), is_on=True)
        again.load_state_dict(examples.state_dict())
        assert again.roles.prompts.examples.keys() == roles.prompts.examples.keys() and not again.is_due

    def test_a_role_that_nobody_can_read_ends_the_run(self, caplog):
        bad = ["mumble", "mumble", *READ[2:6]]
        with pytest.raises(RunRefused, match=r"can be read of: critic \(0%\)"):
            choose([*bad, *bad[:2]], caplog)


class TestTrainer:
    def test_nothing_is_trained_that_nobody_can_read(self, tmp_path):
        """A model of random weights."""
        trainer = make_trainer(tmp_path, {"examples": "auto", "max_steps": 1})
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.normal_()
        with pytest.raises(RunRefused, match="`examples='given'` trains all the same"):
            trainer.train()
        assert trainer.state.global_step == 0 and not list(tmp_path.glob("checkpoint-*"))

    def test_answers_that_are_cut_off(self, tmp_path):
        trainer = make_trainer(tmp_path, {"examples": "auto", "max_steps": 1, "max_completion_length": 6})
        with pytest.raises(
            RunRefused, match=r"Raise `max_completion_length` \(6\), at which \d+ answers were cut off"
        ):
            trainer.train()

    def test_a_run_is_the_same_where_nothing_is_shown(self, tmp_path):
        """Asking changes neither random state nor rates."""
        logs, options = [], {"max_steps": 2, "logging_steps": 1, "max_completion_length": 64}
        for examples in ("auto", "given"):
            trainer = make_trainer(tmp_path / examples, options | {"examples": examples})
            trainer.train()
            names = ("loss", "grad_norm", "format_rate", "success_rate", "tokens/generated")
            logs.append([{k: v for k, v in log.items() if k.endswith(names)} for log in trainer.state.log_history[:2]])
        assert logs[0] == logs[1]
