# SPDX-License-Identifier: Apache-2.0

from dataclasses import replace

import pytest
import torch
from helpers.method_utils import CRITIQUE, asked, make_transitions
from helpers.testing_utils import make_roles, make_trained, make_trainer

from trl_nlac.method.worked_examples import Look, WorkedExamples
from trl_nlac.prompts import WORKED_EXAMPLES
from trl_nlac.types import RunRefused


CPU = torch.device("cpu")


ASKED = "Critique? route legal amber ticket noon dusk route legal"


def choose(answers: list[str], caplog):
    roles = make_roles(answers, max_format_retries=0)
    roles.prompts = replace(roles.prompts, examples=[], critique=ASKED)  # which nobody shares
    examples = WorkedExamples(roles, is_on=True)

    def begin_again():
        return [make_transitions(roles)[0].episode]

    return roles, examples, examples.choose(begin_again(), begin_again, 0, CPU), caplog.text


READ = [CRITIQUE, CRITIQUE, "a", "b", CRITIQUE, CRITIQUE, "c", "d"]  # critic, policy, backup, refinement
FIRST = WORKED_EXAMPLES[0]


class TestChoose:
    def test_roles_that_keep_to_their_form_are_left_alone(self, caplog):
        roles, examples, look, text = choose(READ, caplog)
        assert not examples.are_shown and not text and not examples.is_due
        assert look.rates == {"policy": 1.0, "critic": 1.0, "backup": 1.0, "refine": 1.0}
        num_tokens = sum(len(roles.chat.completion(answer)) for answer in READ) / 2  # about a transition
        forecast = look.forecast(8)
        assert f"8 samples, up to 40 answers of the roles, about {8 * 1.25 * num_tokens:,.0f} tokens, 0:0" in forecast

    @pytest.mark.parametrize("bad", ["mumble", f"{CRITIQUE} {ASKED}"])
    def test_a_model_that_does_not_begins_again_with_examples(self, bad, caplog):
        roles, examples, look, text = choose([bad, *READ[1 : 8 if bad != "mumble" else 7], *READ], caplog)
        assert examples.are_shown and roles.prompts.examples == WORKED_EXAMPLES
        assert "critic 0.50, then 1.00" in text and look.rates["critic"] == 1.0
        assert [FIRST["task"] in prompt for prompt in asked(roles)] == [False] * (len(asked(roles)) - 8) + [True] * 8
        again = WorkedExamples(roles, is_on=True)
        again.load_state_dict(examples.state_dict())
        assert again.are_shown and not again.is_due

    def test_examples_that_are_copied_do_not_help(self, caplog):
        copied = [FIRST["critique"], FIRST["critique"], "a", "b", FIRST["backup"], FIRST["backup"], "c", "d"]
        _, examples, look, text = choose(["mumble", *READ[1:7], *copied], caplog)
        assert not examples.are_shown and not text and look.rates["critic"] == 0.5

    def test_examples_are_shown_on_all_processes_or_on_none(self, monkeypatch, caplog):
        """They must fit the tasks of all: processes that begin again wait for each other."""
        monkeypatch.setattr("trl_nlac.method.worked_examples.gather_object", lambda own: [*own, *map(other, own)])

        def other(said):
            return False if isinstance(said, bool) else said

        roles, examples, look, _ = choose(["mumble", *READ[1:7]], caplog)
        assert not examples.are_shown and look.rates["critic"] == 0.5

    def test_a_role_that_nobody_can_read_ends_the_run(self, caplog):
        bad = ["mumble", "mumble", *READ[2:6]]
        with pytest.raises(RunRefused, match=r"can be used of: critic \(0%\)"):
            choose([*bad, *bad], caplog)


class TestTrainer:
    def test_nothing_is_trained_that_nobody_can_read(self, tmp_path):
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

    @pytest.mark.parametrize("helps", [True, False])
    def test_a_run_begins_again_with_examples(self, tmp_path, monkeypatch, helps):
        short = [{"task": "dava 2", "action": "route legal jade", "critique": "Future: closed win\nOptimality: Yes"}]
        monkeypatch.setattr("trl_nlac.method.worked_examples.WORKED_EXAMPLES", short)
        looks = iter([0.5, 0.9 if helps else 0.4])
        monkeypatch.setattr(WorkedExamples, "look", lambda *_: Look({"critic": next(looks)}, 1, 1, 0, 1.0))
        options = {"examples": "auto", "max_steps": 1, "save_strategy": "steps", "save_steps": 1}
        trainer = make_trained(tmp_path, options)
        assert trainer.num_environment_steps == 2 * len(trainer.replay)
        texts = [trainer.roles.chat.decode(episode.token_ids.tolist()) for episode in trainer.replay.episodes]
        assert len(texts) == 4 and all(("route legal jade" in text) == helps for text in texts)
        resumed = make_trainer(tmp_path, options | {"max_steps": 2})
        resumed.train(resume_from_checkpoint=True)
        assert resumed.examples.are_shown == helps and len(resumed.replay.episodes) == 8

    def test_a_run_is_the_same_where_nothing_is_shown(self, tmp_path):
        """Asking changes neither random state nor rates."""
        logs, options = [], {"max_steps": 2, "logging_steps": 1, "max_completion_length": 64}
        for examples in ("auto", "given"):
            trainer = make_trained(tmp_path / examples, options | {"examples": examples})
            names = ("loss", "grad_norm", "format_rate", "success_rate", "tokens/generated")
            logs.append([{k: v for k, v in log.items() if k.endswith(names)} for log in trainer.state.log_history[:2]])
        assert logs[0] == logs[1]
