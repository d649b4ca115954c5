# SPDX-License-Identifier: Apache-2.0

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from helpers.replay_utils import make_text_episode
from helpers.testing_utils import make_episode, priorities_of

from trl_nlac import PrioritizedReplay


class TestPrioritizedReplay:
    @pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
    def test_sampling_follows_priorities(self, alpha):
        replay = PrioritizedReplay(capacity=13, priority_exponent=alpha, seed=1)
        replay.add([make_episode(num_turns=5), make_episode(num_turns=5)])
        priorities = np.array([0.1, 0.5, 1, 2, 5, 0.3, 0.2, 4, 1, 1])
        replay.update_priorities(range(10), priorities)
        samples = replay.sample(20_000)
        counts = np.bincount([sample.transition_id for sample in samples], minlength=10)
        expected = priorities**alpha / (priorities**alpha).sum() * 20_000
        assert ((counts - expected) ** 2 / expected).sum() < 21.67  # 1 % point of chi-square, 9 degrees of freedom

    def test_the_largest_priority_falls_with_those_of_the_stored_transitions(self, tmp_path):
        """As losses do in training; otherwise new transitions would soon be drawn almost alone."""
        replay = PrioritizedReplay(capacity=6, priority_exponent=1.0)
        replay.add([make_episode()])
        assert priorities_of(replay).tolist() == [1.0, 1.0]
        replay.update_priorities([0, 1], [7.0, 2.0])
        replay.update_priorities([0, 1], [0.5, 0.25])
        replay.save(tmp_path)
        loaded = PrioritizedReplay(capacity=6, priority_exponent=1.0)
        loaded.load(tmp_path)
        for buffer in (replay, loaded):
            buffer.add([make_episode()])
            assert priorities_of(buffer).tolist() == [0.5, 0.25, 0.5, 0.5]
        replay.update_priorities([0], [9.0])
        replay.add([make_episode(), make_episode()])  # the one with the largest priority has left
        replay.update_priorities(range(2, 8), [0.1] * 6)
        replay.add([make_episode(num_turns=1)])
        assert priorities_of(replay)[-1] == 0.1

    def test_where_no_transition_has_a_priority_new_ones_get_the_first(self):
        replay = PrioritizedReplay(capacity=6)
        replay.add([make_episode()])
        replay.update_priorities([0, 1], [7.0, 7.0])
        replay.leave_out([0, 1])
        replay.add([make_episode()])
        assert priorities_of(replay)[2:].tolist() == [1.0, 1.0]

    def test_transitions_that_are_taken_in_get_the_largest_priority(self):
        replay = PrioritizedReplay(capacity=4)
        replay.add([make_episode()])
        replay.update_priorities([1], [7.0])
        replay.leave_out([0])
        replay.take_in()
        assert priorities_of(replay).tolist() == [7.0, 7.0]

    @pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
    def test_transitions_can_be_left_out_of_draws(self, alpha, tmp_path):
        replay = PrioritizedReplay(capacity=6, priority_exponent=alpha)
        replay.add([make_episode(num_turns=3)])
        replay.leave_out([0, 2, -7])
        replay.save(tmp_path)
        loaded = PrioritizedReplay(capacity=6, priority_exponent=alpha)
        loaded.load(tmp_path)
        for buffer in (replay, loaded):
            assert buffer.num_left_out == 2 and len(buffer) == 3
            assert {sample.transition_id for sample in buffer.sample(1000)} == {1}
            buffer.take_in()
            assert buffer.num_left_out == 0 and len({sample.transition_id for sample in buffer.sample(1000)}) == 3
            buffer.leave_out([0, 2])
            buffer.leave_out([1])  # nothing else is left to draw
            counts = np.bincount([sample.transition_id for sample in buffer.sample(3000)])
            assert counts == pytest.approx([1000] * 3, rel=0.15)
            buffer.add([make_episode(num_turns=1)])
            assert {sample.transition_id for sample in buffer.sample(1000)} == {3}
            buffer.leave_out([])
            buffer.add([make_episode(num_turns=5)])  # those that are left out leave like others
            assert buffer.num_left_out == 0

    def test_oldest_episodes_leave_whole(self):
        replay = PrioritizedReplay(capacity=7)
        for i in range(10):
            replay.add([make_episode(num_turns=2 + i % 2, text=str(i))])
        assert [episode.task["name"] for episode in replay.episodes] == ["8", "9"]
        assert [episode.task["name"] for episode in replay.newest(1)] == ["9"]
        assert len(replay) == 5
        for sample in replay.sample(200):
            assert sample.transition.episode in replay.episodes
            assert sample.transition_id in range(20, 25)

    def test_priorities_of_evicted_transitions_are_skipped(self):
        replay = PrioritizedReplay(capacity=4, priority_exponent=1.0)
        replay.add([make_episode(text="old"), make_episode(text="kept"), make_episode(text="new")])
        replay.update_priorities([0, 1], [1000.0, 1000.0])
        names = [sample.transition.episode.task["name"] for sample in replay.sample(1000)]
        assert 400 < names.count("new") < 600

    def test_saved_buffer_continues_exactly(self, tmp_path):
        replay = PrioritizedReplay(capacity=9, seed=3)
        replay.add([make_episode(num_turns=4, text=str(i), terminated=bool(i % 2)) for i in range(5)])
        replay.update_priorities([12, 13, 17], [0.5, 2.0, 3.0])
        replay.sample(10)
        replay.save(tmp_path)
        loaded = PrioritizedReplay(capacity=9, seed=99)
        loaded.load(tmp_path)
        for _ in range(3):
            ours, theirs = replay.sample(50), loaded.sample(50)
            assert [sample.transition_id for sample in ours] == [sample.transition_id for sample in theirs]
            for a, b in zip(ours, theirs, strict=True):
                assert a.transition.turn == b.transition.turn
                assert a.transition.terminated == b.transition.terminated
                np.testing.assert_array_equal(a.transition.episode.token_ids, b.transition.episode.token_ids)
            for buffer in (replay, loaded):
                buffer.add([make_episode(num_turns=3)])

    def test_a_loss_of_zero_is_drawn_again(self):
        replay = PrioritizedReplay(capacity=4, priority_exponent=1.0)
        replay.add([make_episode()])
        replay.update_priorities([0, 1], [0.0, 0.0])
        assert {sample.transition_id for sample in replay.sample(100)} == {0, 1}

    def test_empty_buffer_round_trip(self, tmp_path):
        PrioritizedReplay(capacity=4).save(tmp_path)
        loaded = PrioritizedReplay(capacity=4)
        loaded.load(tmp_path)
        assert len(loaded) == 0

    def test_errors(self):
        replay = PrioritizedReplay(capacity=2)
        with pytest.raises(ValueError, match="empty"):
            replay.sample(1)
        with pytest.raises(ValueError, match="replay_buffer_size=2"):
            replay.add([make_episode(num_turns=3)])
        replay.add([make_episode()])
        with pytest.raises(ValueError, match="finite"):
            replay.update_priorities([0], [float("nan")])

    def test_fill_refuses_what_does_not_fit(self):
        replay = PrioritizedReplay(capacity=7)
        replay.fill([make_episode(text="kept"), make_episode(text="kept too")])
        replay.update_priorities([1, 3], [0.5, 7.0])
        before = priorities_of(replay).tolist()
        with pytest.raises(ValueError, match="4 transitions do not fit into `replay_buffer_size=7`. Make it"):
            replay.fill([make_episode(), make_episode()])
        assert [episode.task["name"] for episode in replay.episodes] == ["kept", "kept too"]
        assert priorities_of(replay).tolist() == before == [1.0, 0.5, 1.0, 7.0]
        replay.fill([make_episode(num_turns=3, text="fits")])
        assert len(replay) == 7 and replay.episodes[-1].task["name"] == "fits"


class TestStoredEpisodes:
    def test_tasks_that_cannot_be_stored(self):
        replay = PrioritizedReplay(capacity=10)
        replay.add([make_episode()])
        odd = replace(make_episode(), task={"when": {1, 2}})
        with pytest.raises(TypeError, match="columns that JSON can hold"):
            replay.add([make_episode(), odd, make_episode()])
        assert len(replay) == 4  # earlier episodes are stored and can be sampled
        assert {sample.transition_id for sample in replay.sample(200)} == {0, 1, 2, 3}

    def test_samples_of_an_episode_share_it(self):
        replay = PrioritizedReplay(capacity=10)
        episode = make_episode(num_turns=5)
        replay.add([episode])
        assert replay.sample(1)[0].transition.episode is episode
        del episode
        samples = replay.sample(20)
        assert len({id(sample.transition.episode.token_ids) for sample in samples}) == 1
        assert replay.sample(1)[0].transition.episode is samples[0].transition.episode

    def test_memory_is_less_than_the_token_ids(self):
        rng = np.random.default_rng(0)
        replay = PrioritizedReplay(capacity=3000)
        tracemalloc.start()
        num_bytes = 0
        for _ in range(1000):
            episode = make_text_episode(rng, num_tokens=2000)
            episode = replace(episode, token_ids=episode.token_ids % 2**17)
            num_bytes += episode.token_ids.nbytes
            replay.add([episode])
        del episode
        memory, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(replay) == 3000 and memory < num_bytes
