# SPDX-License-Identifier: Apache-2.0

import json
import shutil
from contextlib import nullcontext

import pytest
import torch
from helpers.testing_utils import assert_same, at, make_trainer, priorities_of, targets_of, weights
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from trl_nlac import NLACConfig, PrioritizedReplay, TargetWeights
from trl_nlac.method.target_weights import InitialWeights
from trl_nlac.shards import Place
from trl_nlac.training import checkpoint
from trl_nlac.training.checkpoint import (
    check_identity,
    drop_outdated,
    load_state,
    options_of_iteration,
    save_state,
    warn_of_kept_options,
)
from trl_nlac.training.manifest import write_manifest
from trl_nlac.types import RunRefused


TARGET_WEIGHTS, INITIAL_WEIGHTS = "target_weights.safetensors", "initial_weights.safetensors"


class TestCheckpoint:
    @pytest.mark.parametrize(
        ("save_steps", "options"),
        [
            pytest.param(4, {}, marks=pytest.mark.slow),
            (3, {}),
            (3, {"target_max_age": 4, "policy_loss_type": "distill"}),
            (4, {"target_update_rate": 1.0, "target_max_age": 0}),
        ],
    )
    def test_resumed_run_is_the_same_run(self, tmp_path, save_steps, options):
        config = dict(max_steps=8, samples_per_iteration=8, save_strategy="steps", save_steps=save_steps, **options)
        whole = make_trainer(tmp_path / "whole", config)
        before = weights(whole.model)
        whole.train()
        torch.manual_seed(123)
        resumed = make_trainer(tmp_path / "resumed", config)
        for parameter in resumed.model.parameters():
            parameter.data.mul_(1.01)  # the checkpoint's count, not those that a resumed run is given
        resumed.initial_weights.load_state_dict(weights(resumed.model))
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{save_steps}"))
        assert_same(weights(whole.model), weights(resumed.model))
        assert_same(whole.target_weights.state_dict(), resumed.target_weights.state_dict())
        assert_same(whole.initial_weights.state_dict(), resumed.initial_weights.state_dict())
        assert_same(whole.initial_weights.state_dict(), before)
        assert (priorities_of(whole.replay) == priorities_of(resumed.replay)).all()
        assert whole.num_environment_steps == resumed.num_environment_steps
        assert whole.target_weights.num_updates == resumed.target_weights.num_updates
        kept = targets_of(whole.replay)
        assert kept == targets_of(resumed.replay) and any(kept) == (whole.args.target_max_age != 0)

    def test_what_monitors_counted_and_the_replay_left_out(self, tmp_path, caplog):
        def count():
            trainer.replay.leave_out([0, 1])
            trainer.idle.num_iterations = {"critic": 0, "policy": 3}

        def look():
            failed = list(resumed.player.failures.failed)
            found.append((resumed.replay.num_left_out, resumed.idle.num_iterations, failed))

        options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2, "max_prompt_length": 300}
        options["learning_rate"] = 3e-3
        trainer = make_trainer(tmp_path / "run", options)
        trainer.add_callback(at("step_end", count, 2))
        trainer.train()
        found, failed = [], list(trainer.player.failures.failed)
        for length in (300, 310):
            caplog.clear()
            changed = {"max_steps": 3, "max_prompt_length": length, "learning_rate": length * 1e-5}
            resumed = make_trainer(tmp_path / str(length), changed)
            resumed.add_callback(at("train_begin", look))
            resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
            assert ("has no effect: the optimizer of" in caplog.text) == (length == 310)
        idle = {"critic": 0, "policy": 3}
        assert found == [(2, idle, failed), (0, idle, failed)] and failed

    @pytest.mark.parametrize(
        ("path", "is_there"),
        [
            ("optimizer.pt", True),
            ("optimizer.bin", True),  # FSDP with FULL_STATE_DICT
            ("optimizer_0/__0_0.distcp", True),  # FSDP2
            ("global_step2/zero_pp_rank_0_mp_rank_00_optim_states.pt", True),  # DeepSpeed
            ("scheduler.pt", False),
        ],
    )
    def test_finds_the_optimizer_however_it_was_saved(self, tmp_path, caplog, path, is_there):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
        args = NLACConfig(str(tmp_path), learning_rate=1e-5, use_cpu=True, bf16=False)
        with pytest.raises(RunRefused, match="name of the optimizer") if is_there else nullcontext():
            check_identity(tmp_path, {"optimizer": {"name": "adamw_torch"}}, {"optimizer": {"name": "sgd"}})
        warn_of_kept_options(tmp_path, {"learning_rate": 1e-6}, args)
        assert ("`learning_rate=1e-05` has no effect" in caplog.text) == is_there

    @pytest.mark.parametrize(
        ("name", "before"),
        [
            ("bootstrap", "monte_carlo"),
            ("num_futures", 2),
            ("single_step", True),
            ("success_threshold", 0.5),
            ("reasoning", True),
        ],
    )
    def test_targets_of_other_options_are_dropped(self, tmp_path, name, before):
        args = NLACConfig(str(tmp_path), use_cpu=True, bf16=False)
        replay, options = PrioritizedReplay(1), options_of_iteration(args)
        replay.targets.load(0, '{"version": 3}')
        for saved, number in ((options, 1), ({**options, name: before}, 0)):
            drop_outdated(tmp_path, saved, args, replay, [])
            assert len(replay.targets) == number

    def test_what_other_options_made_is_dropped(self, tmp_path, caplog):
        config = {"max_steps": 3, "samples_per_iteration": 8, "save_strategy": "steps", "save_steps": 1}
        config |= {"policy_loss_type": "distill", "target_max_age": 9}
        make_trainer(tmp_path / "run", config).train()
        found = []

        def note():
            found.append((len(resumed._batches), bool(len(resumed.replay.targets))))

        for i, changes in enumerate([{}, {"policy_loss_type": "sampled"}, {"bootstrap": "monte_carlo"}]):
            caplog.clear()
            resumed = make_trainer(tmp_path / str(i), {**config, **changes})
            resumed.add_callback(at("train_begin", note))
            resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
            assert resumed.state.global_step == 3 and ("the iteration starts again" in caplog.text) == bool(changes)
        assert found == [(1, True), (0, True), (0, False)]
        assert "`bootstrap='monte_carlo'` (before, 'implicit'): Bellman targets are written anew," in caplog.text

    def test_resume_of_two_processes(self, tmp_path):
        """As if two processes had saved within an iteration: no transition is lost, and the iteration starts again."""
        config = {"max_steps": 4, "samples_per_iteration": 8, "save_strategy": "steps", "save_steps": 1}
        make_trainer(tmp_path, config).train()
        checkpoint = tmp_path / "checkpoint-1"
        path = checkpoint / "nlac" / "rank_00000" / "state.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "world_size": 2}))
        shutil.copytree(path.parent, checkpoint / "nlac" / "rank_00001")
        write_manifest(checkpoint)
        resumed = make_trainer(tmp_path / "resumed", config)
        saved = PrioritizedReplay(100)
        saved.load(path.parent)

        def check():
            tokens = [episode.token_ids.tolist() for episode in saved.episodes]
            loaded = [episode.token_ids.tolist() for episode in resumed.replay.episodes]
            assert sorted(loaded) == sorted(tokens * 2)
            assert resumed.num_environment_steps == len(saved)

        resumed.add_callback(at("train_begin", check))
        resumed.train(resume_from_checkpoint=str(checkpoint))
        assert resumed.state.global_step == 4
        # It plays for steps 2 and 3, and for step 4; with the saved iteration, it would play for steps 3 and 4 only.
        assert len(resumed.replay.episodes) == 2 * len(saved.episodes) + 2 * 4

    def test_parts_on_the_disk_must_be_complete(self, tmp_path):
        def make_model(width: int) -> nn.Module:
            return nn.Sequential(nn.Linear(8, width), nn.Linear(width, 2))

        model = make_model(8)
        target, initial = TargetWeights(model), InitialWeights(model)
        nn.utils.vector_to_parameters(torch.zeros(90), model.parameters())
        target.update(model)
        save_state(tmp_path, 0, PrioritizedReplay(1), target, initial, [], {"world_size": 1}, True)
        for kept, name in ((target, TARGET_WEIGHTS), (initial, INITIAL_WEIGHTS)):
            torch.testing.assert_close(load_file(tmp_path / name), kept.state_dict())
        others = TargetWeights(model), InitialWeights(model)
        load_state(tmp_path, 0, 1, PrioritizedReplay(1), *others)
        for kept, other in zip((target, initial), others, strict=True):
            assert_same(kept.state_dict(), other.state_dict())
        small = make_model(4)
        for kept in ((TargetWeights(small), initial), (target, InitialWeights(small))):
            with pytest.raises(ValueError, match="do not fit the model"):
                load_state(tmp_path, 0, 1, PrioritizedReplay(1), *kept)
        for name in (INITIAL_WEIGHTS, TARGET_WEIGHTS):
            (tmp_path / name).unlink()
            with pytest.raises(ValueError, match=f"lacks a part of {name}"):
                load_state(tmp_path, 0, 1, PrioritizedReplay(1), target, initial)


def test_nodes_without_a_shared_disk_write_whole_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    target, initial = TargetWeights(nn.Linear(2, 2)), InitialWeights(nn.Linear(2, 2))
    save_state(tmp_path, 1, PrioritizedReplay(1), target, initial, [], {"world_size": 2}, writes_whole=True)
    kept = target, initial
    saved = [{name: values.clone() for name, values in of.state_dict().items()} for of in kept]
    for values in (*target.state_dict().values(), *initial.state_dict().values()):
        values.zero_()
    load_state(tmp_path, 1, 2, PrioritizedReplay(1), target, initial)
    for before, of in zip(saved, kept, strict=True):
        assert_same(before, of.state_dict())


@pytest.mark.parametrize("shape", [(640,), (64, 10), (1, 640), ()])
def test_a_process_reads_its_part_of_saved_weights(tmp_path, monkeypatch, shape):
    """Of all files together: what it needs, but for the rest of the rows that its range begins and ends in."""
    whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
    rows = max(len(whole), 1) if shape else 1
    num_files = 8 if rows > 1 else 1
    for rank, part in enumerate(whole.chunk(num_files) if shape else [whole]):
        folder = tmp_path / "nlac" / f"rank_{rank:05d}"
        folder.mkdir(parents=True)
        start = rank * part.numel()
        places = {"places": json.dumps({"w": [start, *shape]})}
        save_file({"w": part.contiguous()}, folder / TARGET_WEIGHTS, places)
    read = []

    class Noted:
        """A file or a part of one, of which everything that is read is noted."""

        def __init__(self, of):
            self.of = of

        def __getattr__(self, name):
            return getattr(self.of, name)

        def get_slice(self, name):
            return Noted(self.of.get_slice(name))

        def get_tensor(self, name):
            read.append(self.of.get_tensor(name))
            return read[-1]

        def __getitem__(self, index):
            read.append(self.of[index])
            return read[-1]

    monkeypatch.setattr(checkpoint, "safe_open", lambda *args: nullcontext(Noted(safe_open(*args))))
    first, size = (93, 80) if shape else (0, 1)

    class Shard:
        places = {"w": Place(torch.Size(shape), first, size, True)}

        def state_dict(self):
            return {"w": torch.zeros(size)}

        def load_state_dict(self, state):
            self.state = state

    target = Shard()
    checkpoint._load_weights(tmp_path, target, TARGET_WEIGHTS)
    assert target.state["w"].equal(whole.flatten()[first : first + size])
    row_size = 10 if shape == (64, 10) else 640 if shape == (1, 640) else 1
    assert sum(part.numel() for part in read) <= size + 2 * row_size
