# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

import itertools
import json
import logging
import random

import pytest
from accelerate import PartialState, skip_first_batches
from accelerate.data_loader import prepare_data_loader
from helpers.testing_utils import make_episode
from torch.utils.data import DataLoader

from trl_nlac.evaluation.health import HealthMonitor, SuccessMonitor, backup_fidelity, refine_compliance
from trl_nlac.evaluation.metrics import PassHatK, SuccessRate
from trl_nlac.method.refinement import Refinement
from trl_nlac.prompts import Critique
from trl_nlac.training.sampler import IterationSampler
from trl_nlac.types import Answer, Transition


@pytest.fixture(autouse=True)
def process():
    """The only process; of several, the first one warns."""
    PartialState(cpu=True)


class TestHealth:
    def test_backup_fidelity(self):
        transition = Transition(make_episode(text="the door is"), 0)  # next observation: the door is 0
        assert backup_fidelity(transition, Critique("The door is 0 and then it opens", True)) == 1
        assert backup_fidelity(transition, Critique("the window is 7", True)) == 0.5

    @pytest.mark.parametrize(
        ("optimal", "refined", "compliance"), [(True, "a", 1), (True, "b", 0), (False, "a", 0), (False, "b", 1)]
    )
    def test_refine_compliance(self, optimal, refined, compliance):
        answers = [Answer(None, (), text, text) for text in ("a", refined)]
        assert refine_compliance(Refinement("a", "a", Critique("", optimal), answers[1])) == compliance

    def test_warns_once_by_name(self, caplog):
        monitor = HealthMonitor(warning_ratio=0.7)
        healthy, ill = {"health/backup_fidelity": 0.95}, {"health/backup_fidelity": 0.3}
        with caplog.at_level(logging.WARNING):
            assert not any(monitor.update(healthy) for _ in range(20))
            assert sum((monitor.update(ill) for _ in range(20)), []) == ["health/backup_fidelity"]
            assert "role of the backup" in caplog.text and "rehearsal_ratio" in caplog.text
            for _ in range(30):
                monitor.update(healthy)
            assert sum((monitor.update(ill) for _ in range(20)), []) == ["health/backup_fidelity"]


class TestSuccessMonitor:
    @staticmethod
    def play(monitor, chance, episodes, rng):
        return sum(monitor.update([rng.random() < chance for _ in range(4)]) for _ in range(episodes // 4))

    def test_warns_once_of_a_fall_and_again_after_a_recovery(self, caplog):
        monitor, rng = SuccessMonitor(warning_ratio=0.7), random.Random(0)
        with caplog.at_level(logging.WARNING):
            assert self.play(monitor, 0.1, 200, rng) + self.play(monitor, 0.9, 200, rng) == 0
            assert self.play(monitor, 0.1, 400, rng) == 1
            assert "Success fell from 0.9" in caplog.text and "`min_p=0.05`" in caplog.text
        assert self.play(monitor, 0.9, 200, rng) == 0
        assert self.play(monitor, 0.1, 200, rng) == 1

    def test_chance_is_no_fall(self):
        rng = random.Random(0)
        monitors = [SuccessMonitor(warning_ratio=0.7) for _ in range(50)]
        assert (
            sum(
                self.play(monitor, chance, 2000, rng)
                for monitor, chance in zip(monitors, [0.1, 0.5] * 25, strict=True)
            )
            <= 1
        )

    def test_state(self):
        rng = random.Random(0)
        monitor, resumed = SuccessMonitor(warning_ratio=0.7), SuccessMonitor(warning_ratio=0.7)
        self.play(monitor, 0.9, 200, rng)
        resumed.load_state_dict(json.loads(json.dumps(monitor.state_dict())))
        assert self.play(resumed, 0.1, 80, rng) == 1


class TestSuccessRate:
    def test_wilson_interval(self):
        result = SuccessRate().compute(successes=[1] * 8 + [0] * 2)
        assert result["success_rate"] == 0.8
        assert result["success_rate_low"] == pytest.approx(0.490, abs=1e-3)
        assert result["success_rate_high"] == pytest.approx(0.943, abs=1e-3)
        assert SuccessRate().compute(successes=[0] * 10)["success_rate_high"] == pytest.approx(0.278, abs=1e-3)


class TestIterationSampler:
    def test_rounds_are_repeated_and_filled_up(self):
        sampler = IterationSampler(range(5), 3, 2, shuffle=False, seed=0)
        assert list(sampler) == [0, 1, 2, 0, 1, 2, 3, 4, 0, 3, 4, 0]
        assert len(sampler) == 12

    def test_fewer_tasks_than_episodes(self):
        assert list(IterationSampler(range(2), 5, 1, shuffle=False, seed=0)) == [0, 1, 0, 1, 0]

    def test_epochs_differ_and_repeat(self):
        epochs = iter([0, 1, 0])
        sampler = IterationSampler(range(50), 10, 1, shuffle=True, seed=0, epoch=lambda: next(epochs))
        first, second, again = list(sampler), list(sampler), list(sampler)
        assert sorted(second) == sorted(first) and second != first and again == first

    @pytest.mark.parametrize("num_processes", [1, 2])
    def test_a_resumed_epoch_has_its_own_order(self, num_processes):
        def batches(epoch, skipped=0):
            sampler = IterationSampler(range(8), 4, 2, shuffle=True, seed=0, epoch=lambda: epoch)
            loader = DataLoader(range(8), batch_size=4 // num_processes, sampler=sampler)
            loader = prepare_data_loader(loader, num_processes=num_processes, process_index=0)
            return [batch.tolist() for batch in (skip_first_batches(loader, skipped) if skipped else loader)]

        assert batches(1, skipped=2) == batches(1)[2:] != batches(0)[2:]


class TestPassHatK:
    def test_definition(self):
        """Against the share of all ways to choose k of the episodes of a task in which all succeed."""
        rng = random.Random(0)
        tasks = [task for task in range(5) for _ in range(4)] + [5, 5]
        successes = [rng.randrange(2) for _ in tasks]
        rates = PassHatK(keep_in_memory=True).compute(tasks=tasks, successes=successes)
        for k in range(1, 5):
            chances = []
            for task in set(tasks):
                won = [success for other, success in zip(tasks, successes, strict=True) if other == task]
                choices = list(itertools.combinations(won, k))
                if choices:
                    chances.append(sum(map(all, choices)) / len(choices))
            assert rates[f"pass^{k}"] == pytest.approx(sum(chances) / len(chances))
        assert set(rates) == {"pass^1", "pass^2", "pass^3", "pass^4"}
