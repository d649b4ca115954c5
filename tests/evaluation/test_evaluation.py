# SPDX-License-Identifier: Apache-2.0

import pytest
import torch
from datasets import Dataset, IterableDataset
from helpers.testing_utils import TASKS, Answering, Countdown, make_roles, make_trainer

from trl_nlac import nlac_trainer
from trl_nlac.environments import StepResult
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.evaluation.evaluation import evaluate_policy


class TestEvaluation:
    def test_evaluate(self, tmp_path, monkeypatch):
        config = {"num_eval_episodes": 5, "num_eval_critiques": 6}
        trainer = make_trainer(tmp_path, config, eval_dataset=TASKS)
        numbers = []

        def evaluate(pool, tasks, roles, *args, **kwargs):
            numbers.append(args)
            return evaluate_policy(pool, tasks, roles, *args, **kwargs)

        monkeypatch.setattr(nlac_trainer, "evaluate_policy", evaluate)
        state = torch.get_rng_state()
        metrics = trainer.evaluate()
        assert numbers == [(5, 6, trainer.args.seed)]
        assert torch.equal(torch.get_rng_state(), state)
        assert len(trainer.replay) == 0
        assert metrics["eval_episode/success_rate_low"] <= metrics["eval_episode/success_rate"]
        assert metrics["eval_episode/length"] == pytest.approx(2, abs=0.2)
        assert metrics["eval_oracle/readable_rate"] == 1
        assert 0 <= metrics["eval_oracle/verdict_no_rate"] <= 1
        assert trainer.evaluate() == {
            **metrics,
            **{k: v for k, v in trainer.state.log_history[-1].items() if "runtime" in k or "per_second" in k},
        }
        for rows in (list(TASKS), IterableDataset.from_generator(lambda: iter(TASKS))):
            with pytest.raises(TypeError, match="`eval_dataset`"):
                trainer.evaluate(rows)

    def test_metrics_of_training_stay(self, tmp_path):
        trainer = make_trainer(tmp_path, {"num_eval_episodes": 2}, eval_dataset=TASKS)
        trainer.roles.tally.metrics["policy/format_rate"] += [1.0, 0.0]
        trainer.evaluate()
        assert trainer.roles.take_metrics() == {"policy/format_rate": 0.5}

    def test_pass_hat_k_and_failures(self, tmp_path):
        rows = [{"start": 2, "fails_at": None}, {"start": 2, "fails_at": "reset"}, {"start": 9, "fails_at": None}]
        trainer = make_trainer(
            tmp_path,
            {"num_eval_episodes": 3, "role_sampling": {"evaluation": {"temperature": 0.0}}, "num_eval_critiques": 0},
            train_dataset=Dataset.from_list(rows),
            eval_dataset=Dataset.from_list(rows),
            environment_factory=Countdown,
            reward_funcs=lambda completions, **kwargs: [0.25] * len(completions),
        )
        metrics = trainer.evaluate()
        chances = {name: value for name, value in metrics.items() if "pass^" in name}
        assert chances == {"eval_episode/pass^1": 0.5, "eval_episode/pass^2": 0.5}  # the third task is cut
        assert metrics["eval_environment/failure_rate"] == metrics["eval_environment/reset_failure_rate"]
        assert metrics["eval_environment/failure_rate"] == pytest.approx(1 / 3)
        assert metrics["eval_episode/success_rate"] == 0.5 and metrics["eval_episode/length"] == 3
        assert metrics["eval_episode/return"] == 0.75  # with what the reward function gives

    def test_verdicts_are_compared_with_success(self):
        pool = EnvironmentPool(lambda: Answering(StepResult("", reward=0.5, terminated=True)))
        roles = make_roles("Future: closed win\nOptimality: Yes", success_threshold=0.5)
        evaluation = evaluate_policy(pool, dict.fromkeys(range(3), {}), roles, num_critiques=2)
        pool.close()
        assert [success for _, success in evaluation.outcomes] == [1.0] * 3
        assert [success for _, success in evaluation.verdicts] == [1.0] * 2

    def test_the_seed_chooses_the_actions_to_judge(self):
        pool = EnvironmentPool(Countdown)
        tasks = dict.fromkeys(range(6), {"start": 2})

        def judged(seed: int) -> set[tuple[int, int]]:
            roles = make_roles("Future: closed win\nOptimality: Yes")
            return {*evaluate_policy(pool, tasks, roles, num_critiques=2, seed=seed).judgements}

        chosen = [judged(seed) for seed in range(4)]
        pool.close()
        assert judged(0) == chosen[0] and len({frozenset(one) for one in chosen}) > 1
