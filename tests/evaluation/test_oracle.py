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

from helpers.method_utils import asked
from helpers.testing_utils import make_roles

from trl_nlac.environments import ServiceDesk
from trl_nlac.environments.embedded import make_environment
from trl_nlac.environments.pool import EnvironmentPool
from trl_nlac.evaluation.oracle import examine_critic


def test_several_futures_are_refined_as_in_training():
    """The critic weighs several futures of each probe, but the refinement policy reads the critique alone."""
    pool = EnvironmentPool(lambda: make_environment(ServiceDesk.from_seed(0, variant="noisy")))
    (_, (right,)), (_, (wrong,)) = pool.oracle.probes(2, seed=0)
    futures = ["closed win", "refused needs amber lose"] * 2
    yes, no = "Future: closed win\nOptimality: Yes", "Future: closed win\nOptimality: No"
    roles = make_roles([*futures, yes, no, right, right], num_futures=2)
    metrics = examine_critic(pool, roles, num_probes=2, seed=0)
    assert metrics == {
        "oracle/future_accuracy": 0.5,  # the wrong call does not close the request
        "oracle/verdict_yes_rate": 1.0,
        "oracle/verdict_no_rate": 1.0,
        "oracle/refined_better_rate": 1.0,
        "oracle/readable_rate": 1.0,
    }
    prompts = asked(roles)
    for i, (action, critique) in enumerate([(right, yes), (wrong, no)]):
        (state_action,) = {
            prompt.removesuffix("<|user|> Future:<|end|><|assistant|>") for prompt in prompts[2 * i : 2 * i + 2]
        }
        assert state_action.endswith(f"<|assistant|> {action}<|end|>")
        evaluation, refinement = prompts[4 + i], prompts[6 + i]
        assert evaluation.startswith(state_action) and "1. closed win\n2. refused needs amber lose" in evaluation
        question = "<|user|> Critique?<|end|><|assistant|>"
        assert refinement == f"{state_action}{question} {critique}<|end|><|user|> Revise?<|end|><|assistant|>"
    assert {sampling.temperature for sampling in roles.generator.samplings[4:]} == {0.0}


def test_unreadable_critiques_are_not_compared():
    pool = EnvironmentPool(lambda: make_environment(ServiceDesk.from_seed(0)))
    (_, (right,)), _ = pool.oracle.probes(2, seed=0)
    roles = make_roles(["Future: closed win\nOptimality: Yes", "no critique", right], max_format_retries=0)
    metrics = examine_critic(pool, roles, num_probes=2, seed=0)
    assert metrics == {"oracle/future_accuracy": 1.0, "oracle/verdict_yes_rate": 1.0, "oracle/readable_rate": 0.5}


def test_an_oracle_without_probes(monkeypatch):
    pool = EnvironmentPool(lambda: make_environment(ServiceDesk.from_seed(0)))
    monkeypatch.setattr(type(pool.oracle), "probes", lambda *args: [])
    assert examine_critic(pool, make_roles([]), num_probes=2, seed=0) == {}
