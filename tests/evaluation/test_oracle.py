# SPDX-License-Identifier: Apache-2.0

import asyncio
from dataclasses import replace

import pytest
from helpers.method_utils import asked
from helpers.testing_utils import make_episode, make_roles

from trl_nlac.environments import ServiceDesk, TextEnvironment
from trl_nlac.environments.embedded import make_environment
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.evaluation.oracle import examine_critic, judge_refinements, oracle_metrics
from trl_nlac.types import Answer, Critique, Refinement, Transition


def test_several_futures_are_refined_as_in_training():
    """The critic weighs several futures of each probe, but the refinement policy reads the critique alone, if "No"."""
    pool = EnvironmentPool(lambda: make_environment(ServiceDesk.from_seed(0, variant="noisy")))
    (_, (right,)), (_, (wrong,)) = pool.oracle.probes(2, seed=0)
    futures = ["closed win", "refused needs amber lose"] * 2
    yes, no = "Future: closed win\nOptimality: Yes", "Future: closed win\nOptimality: No"
    roles = make_roles([*futures, yes, no, right], num_futures=2)
    metrics = examine_critic(pool, roles, num_probes=2, seed=0)
    assert metrics == {
        "oracle/future_accuracy": 0.5,  # the wrong call does not close the request
        "oracle/verdict_yes_rate": 1.0,
        "oracle/verdict_no_rate": 1.0,
        "oracle/refined_better_rate": 1.0,
        "oracle/readable_rate": 1.0,
        "oracle/failure_rate": 0.0,
    }
    prompts = asked(roles)
    for i, action in enumerate([right, wrong]):
        (state_action,) = {
            prompt.removesuffix("<|user|> Future:<|end|><|assistant|>") for prompt in prompts[2 * i : 2 * i + 2]
        }
        assert state_action.endswith(f"<|assistant|> {action}<|end|>")
        evaluation = prompts[4 + i]
        assert evaluation.startswith(state_action) and "1. closed win\n2. refused needs amber lose" in evaluation
    question, (refinement,) = "<|user|> Critique?<|end|><|assistant|>", prompts[6:]
    assert refinement == f"{state_action}{question} {no}<|end|><|user|> Revise?<|end|><|assistant|>"
    assert {sampling.temperature for sampling in roles.generator.samplings[4:]} == {0.0}


def test_unreadable_critiques_are_not_compared():
    pool = EnvironmentPool(lambda: make_environment(ServiceDesk.from_seed(0)))
    (_, (right,)), _ = pool.oracle.probes(2, seed=0)
    roles = make_roles(["Future: closed win\nOptimality: Yes", "no critique", right], max_format_retries=0)
    metrics = examine_critic(pool, roles, num_probes=2, seed=0)
    assert metrics == {
        "oracle/future_accuracy": 1.0,
        "oracle/verdict_yes_rate": 1.0,
        "oracle/readable_rate": 0.5,
        "oracle/failure_rate": 0.0,
    }


def test_probes_that_fail_are_counted(caplog):
    class Fails(TextEnvironment):
        def __init__(self):
            self.desk = make_environment(ServiceDesk.from_seed(0))
            self.oracle = self.desk.oracle

        async def reset(self, **task):
            return self.desk.reset(**task)

        async def step(self, action):
            if action == wrong:
                raise SystemExit("broken")
            if action == right:
                await asyncio.sleep(20)
            return self.desk.step(action)

    pool = EnvironmentPool(Fails, max_instances=1, timeout=2.0)
    (_, (right,)), (_, (wrong,)), (_, (other,)) = pool.oracle.probes(3, seed=0)
    roles = make_roles(["Future: closed win\nOptimality: Yes", other])
    metrics = examine_critic(pool, roles, num_probes=3, seed=0)
    assert metrics["oracle/failure_rate"] == pytest.approx(2 / 3) and metrics["oracle/verdict_yes_rate"] == 1.0
    assert "An environment failed at given actions: broken" in caplog.text
    assert "`step` took longer than `environment_timeout=2.0` seconds" in caplog.text
    pool.close()


def test_an_oracle_without_probes(monkeypatch):
    pool = EnvironmentPool(lambda: make_environment(ServiceDesk.from_seed(0)))
    monkeypatch.setattr(type(pool.oracle), "probes", lambda *args: [])
    assert examine_critic(pool, make_roles([]), num_probes=2, seed=0) == {}


class Graded:
    GRADES = {"best": 1.0, "good": 0.5, "as good": 0.5, "bad": 0.0}

    def quality(self, transition, action):
        return self.GRADES[action]

    def future_is_right(self, transition, action, future):
        return True


def test_only_a_better_action_is_an_improvement():
    transition, no = Transition(make_episode(), 0), Critique("closed", False)
    judged = [(transition, "good", no, refined) for refined in ("best", "as good", "bad", None)]
    assert oracle_metrics(Graded(), judged)["oracle/refined_better_rate"] == 0.25


def test_logs_are_not_compared_with_an_oracle():
    played = make_episode()
    transitions = [Transition(played, 0), Transition(replace(played, is_log=True), 0)]
    refinements = [
        Refinement(attempt, Critique("closed", True), Answer(None, (), attempt, attempt))
        for attempt in ("best", "bad")
    ]
    rates = judge_refinements(Graded(), transitions, refinements)
    assert rates == {"oracle/future_accuracy": 1.0, "oracle/verdict_yes_rate": 1.0}
