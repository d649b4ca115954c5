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
import random

import pytest

from trl_nlac.evaluation.metrics import PassHatK, SuccessRate


class TestSuccessRate:
    def test_wilson_interval(self):
        result = SuccessRate().compute(successes=[1] * 8 + [0] * 2)
        assert result["success_rate"] == 0.8
        assert result["success_rate_low"] == pytest.approx(0.490, abs=1e-3)
        assert result["success_rate_high"] == pytest.approx(0.943, abs=1e-3)
        assert SuccessRate().compute(successes=[0] * 10)["success_rate_high"] == pytest.approx(0.278, abs=1e-3)


class TestPassHatK:
    def test_definition(self):
        """Compare with counting: of all ways to choose k episodes of a task, the share in which all succeed."""
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
