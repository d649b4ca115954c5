# SPDX-License-Identifier: Apache-2.0

from dataclasses import replace

import numpy as np
from helpers.replay_utils import make_target
from helpers.testing_utils import make_episode, targets_of

from trl_nlac import PrioritizedReplay
from trl_nlac.types import Answer, Prompt, Sample


def make_buffer(capacity: int = 6, num_episodes: int = 3) -> tuple[PrioritizedReplay, list[Sample]]:
    replay = PrioritizedReplay(capacity)
    replay.add([make_episode(text=str(i)) for i in range(num_episodes)])
    drawn = {sample.transition_id: sample for sample in replay.sample(200)}
    return replay, [drawn[i] for i in sorted(drawn)]


def assert_same_answer(ours: Answer, theirs: Answer) -> None:
    plain = [{**vars(answer), "prompt": {**vars(answer.prompt), "trunk": None}} for answer in (ours, theirs)]
    assert plain[0] == plain[1]
    assert ours.parsed is None or ours.parsed.verdict_span == theirs.parsed.verdict_span
    assert ours.prompt.ids == theirs.prompt.ids


class TestKeptTargets:
    def test_nothing_of_a_target_is_lost(self):
        replay, samples = make_buffer()
        target = make_target(samples[3].transition, "is <|end|> é 🙂 \ud800")
        replay.targets.keep(samples[3], target, version=5)
        assert replay.targets.version(samples[3]) == 5 and replay.targets.version(samples[2]) is None
        read = replay.targets.target(samples[3])
        assert_same_answer(target, read)
        assert read.prompt.trunk is samples[3].transition.episode.token_ids  # stored once

    def test_a_target_that_could_not_be_read_is_kept_as_such(self, tmp_path):
        replay, samples = make_buffer()
        broken = replace(make_target(samples[3].transition), text="mumble", parsed=None)
        nothing = Answer(samples[2].transition.state_action, (), "", None)  # there was no question
        for sample, target in ((samples[3], broken), (samples[2], nothing)):
            replay.targets.keep(sample, target, version=5)
        replay.save(tmp_path)
        loaded = PrioritizedReplay(6)
        loaded.load(tmp_path)
        for targets in (replay.targets, loaded.targets):
            for sample, target in ((samples[3], broken), (samples[2], nothing)):
                assert targets.version(sample) == 5
                assert_same_answer(target, targets.target(sample))

    def test_a_prompt_whose_history_was_cut(self):
        replay, samples = make_buffer()
        cut = Prompt.of([1, 2, 5, 6], opening_length=samples[0].transition.state.opening_length).extended([3])
        target = replace(make_target(samples[0].transition), prompt=cut)
        replay.targets.keep(samples[0], target, version=0)
        assert_same_answer(target, replay.targets.target(samples[0]))

    def test_they_leave_with_their_episodes(self):
        replay, samples = make_buffer()
        for sample in samples:
            replay.targets.keep(sample, make_target(sample.transition), version=0)
        replay.add([make_episode(text="new")])
        assert len(replay.targets) == 4
        assert [target is None for target in targets_of(replay)] == [False] * 4 + [True] * 2
        replay.add([make_episode(num_turns=6)])
        assert len(replay.targets) == 0

    def test_they_are_saved_with_their_transitions(self, tmp_path):
        replay, samples = make_buffer(num_episodes=4)  # the first episode has left
        for sample in samples[1:3]:
            replay.targets.keep(sample, make_target(sample.transition, f"of {sample.transition_id}"), version=7)
        replay.save(tmp_path)
        for loaded in (PrioritizedReplay(6), PrioritizedReplay(4)):
            loaded.targets.keep(samples[0], make_target(samples[0].transition), version=1)  # is replaced
            loaded.load(tmp_path)
            assert targets_of(loaded) == targets_of(replay)[-loaded.capacity :]
        found = {sample.transition_id: sample for sample in loaded.sample(100)}
        assert [loaded.targets.version(found[i]) for i in sorted(found)] == [7, None, None, None]
        read = loaded.targets.target(found[4])
        assert read.parsed.future == "of 4"
        np.testing.assert_array_equal(read.prompt.trunk, samples[2].transition.episode.token_ids)

    def test_old_ones_can_be_dropped(self):
        replay, samples = make_buffer()
        for version, sample in enumerate(samples):
            replay.targets.keep(sample, make_target(sample.transition), version)
        replay.targets.keep(samples[0], make_target(samples[0].transition, "newer"), 9)
        replay.targets.drop_before(4)
        assert [replay.targets.version(sample) for sample in samples] == [9, None, None, None, 4, 5]
        assert replay.targets.target(samples[0]).parsed.future == "newer"
