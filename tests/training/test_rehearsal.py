# SPDX-License-Identifier: Apache-2.0


import pytest
import torch
from datasets import Dataset
from helpers.testing_utils import assert_same, make_roles, make_trainer, weights

from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments.embedded import make_rehearsal_dataset
from trl_nlac.method.sound_answers import ASKED_ROLES
from trl_nlac.training import rehearsal
from trl_nlac.training.rehearsal import Rehearsal
from trl_nlac.types import Prompt, RunRefused


OWN = {"rehearsal_source": "self", "rehearsal_ratio": 0.5}


def make_rehearsal(**kwargs) -> Rehearsal:
    chat: ChatEncoder = make_roles([]).chat
    return Rehearsal(**{"dataset": None, "source": "self", "ratio": 1.0, "chat": chat, "seed": 0, **kwargs})


class TestOwnAnswers:
    def test_first_iteration_writes_answers_of_every_role(self, tmp_path):
        trainer = make_trainer(tmp_path, {**OWN, "logging_steps": 1})
        fill, roles = trainer.rehearsal.fill, set()

        def spy(answers):
            roles.update(role for role, _, _ in answers)
            fill(answers)

        trainer.rehearsal.fill = spy
        assert trainer.rehearsal.is_due
        trainer.train()
        assert not trainer.rehearsal.is_due
        assert {*ASKED_ROLES, "successor"} <= roles
        assert trainer.state.log_history[0]["rehearsal/loss"] > 0

    def test_they_are_what_the_initial_model_sampled(self, tmp_path):
        """With a learning rate of 0 the loss of a greedy answer stays the smallest: the likeliest tokens."""
        greedy = {"temperature": 0.0, "learning_rate": 0.0, "max_steps": 1}
        trainer = make_trainer(tmp_path, {**OWN, **greedy})
        trainer.train()
        model = trainer.model.eval()
        for example in trainer.rehearsal.draw(8):
            ids = torch.tensor([example.prompt.ids + list(example.completion_ids)])
            logits = model(input_ids=ids).logits[0, len(example.prompt.ids) - 1 : -1]
            assert logits.argmax(-1).tolist() == list(example.completion_ids)

    def test_they_are_asked_for_as_in_training(self, tmp_path, monkeypatch):
        """With the source of the future and the rounds of refinement that the run has."""
        asked = []

        def note(roles, transitions, *options):
            asked.append(options)
            return {}

        monkeypatch.setattr(rehearsal, "sound_answers", note)
        config = {**OWN, "bootstrap": "monte_carlo", "num_refinements": 2, "max_steps": 1, "max_turns": 2}
        make_trainer(tmp_path, config).train()
        assert asked == [("monte_carlo", 2)]

    def test_resumed_run_rehearses_the_same(self, tmp_path):
        config = {**OWN, "max_steps": 6, "save_strategy": "steps", "save_steps": 3}
        config["rehearsal_ratio"] = 0.3  # of the first three steps, 0.6 of a sample is still owed
        whole = make_trainer(tmp_path / "whole", config)
        whole.train()
        torch.manual_seed(123)
        resumed = make_trainer(tmp_path / "resumed", config)
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
        draws = [[(e.prompt.ids, e.completion_ids) for e in of.rehearsal.draw(16)] for of in (whole, resumed)]
        assert draws[0] == draws[1] != []
        assert_same(weights(whole.model), weights(resumed.model))

    def test_the_initial_model_is_asked_once(self, tmp_path, caplog):
        """Though it gave no sound answer. Later weights are not the initial ones, nor are those of a resumed run."""
        for max_steps, resumes in ((2, False), (3, True)):
            config = {**OWN, "max_completion_length": 1, "max_steps": max_steps}
            trainer = make_trainer(tmp_path, {**config, "save_strategy": "steps", "save_steps": 1})
            trainer.train(resume_from_checkpoint=resumes)
            assert trainer.state.global_step == max_steps and trainer.rehearsal.draw(4) == []
        assert caplog.text.count("the model gave no sound answer as policy, critique, backup, refine") == 1

    def test_a_checkpoint_without_them_is_refused(self, tmp_path):
        make_trainer(tmp_path, {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}).train()
        trainer = make_trainer(tmp_path, OWN)
        with pytest.raises(RunRefused, match=r"`rehearsal_source='self'` .*checkpoint-1 has none .*`rehearsal_ratio`"):
            trainer.train(resume_from_checkpoint=True)
        assert not (tmp_path / "_superseded").exists()

    def test_rare_roles_are_repeated_and_missing_ones_named(self, caplog):
        rehearsal = make_rehearsal()
        rehearsal.fill([("policy", Prompt.of([1]), (i,)) for i in range(6)] + [("critique", Prompt.of([2]), (9,))])
        drawn = [example.completion_ids for example in rehearsal.draw(1200)]
        assert drawn.count((9,)) == pytest.approx(600, abs=60)  # each role as often
        assert "no sound answer as backup, refine" in caplog.text

    def test_without_a_sound_answer_nothing_is_drawn(self, caplog):
        rehearsal = make_rehearsal()
        rehearsal.fill([])
        assert rehearsal.draw(4) == []
        assert not rehearsal.is_due  # the next weights are not the initial ones
        assert "no sound answer as policy, critique, backup, refine" in caplog.text


class TestDataset:
    @pytest.mark.parametrize(
        ("bootstrap", "expected"),
        [("implicit", "no sample of refine, successor"), ("explicit", "no sample of refine,")],
    )
    def test_roles_that_are_asked_and_not_rehearsed_are_named(self, tmp_path, caplog, bootstrap, expected):
        dataset = make_rehearsal_dataset("rooms", size=3).add_column("role", ["policy", "critique", "backup"])
        config = {"rehearsal_ratio": 0.5, "bootstrap": bootstrap}
        make_trainer(tmp_path, config, rehearsal_dataset=dataset)
        assert f"`rehearsal_dataset` has {expected}" in caplog.text

    def test_roles_that_are_not_known_are_not_missed(self, caplog):
        make_rehearsal(source="dataset", dataset=make_rehearsal_dataset("rooms", size=2))
        assert "no sample of" not in caplog.text


class TestOptions:
    @pytest.mark.parametrize("completion", ["take red", [], [{"role": "assistant", "content": "take red"}] * 2])
    def test_a_completion_is_one_message(self, tmp_path, completion):
        """Of text only the first letter would be trained, and of several messages the first."""
        rows = [{"prompt": [{"role": "user", "content": "Which?"}], "completion": completion}]
        with pytest.raises(ValueError, match="Row 0 of `rehearsal_dataset`: `completion` must be a list of one"):
            make_trainer(tmp_path, {"rehearsal_ratio": 0.5}, rehearsal_dataset=Dataset.from_list(rows))

    def test_two_sources_are_refused(self):
        with pytest.raises(ValueError, match="there is a `rehearsal_dataset` as well"):
            make_rehearsal(dataset=make_rehearsal_dataset("rooms", size=2))

    def test_a_source_without_a_ratio_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="`rehearsal_source='self'` rehearses nothing with `rehearsal_ratio=0`"):
            make_trainer(tmp_path, {"rehearsal_source": "self"})


@pytest.mark.parametrize("size", [1, 2, 3, 6, 32])
@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.5, 1.0])
def test_small_batches_have_their_share(ratio, size):
    """Of eight processes with a batch of two each, none would draw a quarter of its two, rounded."""
    rehearsal = make_rehearsal(ratio=ratio)
    rehearsal.fill([(role, Prompt.of([1]), (2,)) for role in ASKED_ROLES])
    drawn = [len(rehearsal.draw(size)) for _ in range(200)]
    assert sum(drawn) == pytest.approx(200 * ratio * size, abs=1) and max(drawn) - min(drawn) <= 1
