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

import pytest
from datasets import Dataset
from helpers.testing_utils import make_config
from trl import GRPOConfig, GRPOTrainer

from trl_nlac import NLACTrainer
from trl_nlac.environments import ServiceDesk, StepResult
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL, make_environment


DESK = ServiceDesk.from_seed(0)
REQUESTS = list(DESK.rules)[:3]
PROMPT = [{"role": "user", "content": ""}]


class DeskTools:
    """The service desk as a TRL environment that keeps a diary."""

    diaries: list[tuple[str, ...]] = []

    def __init__(self):
        self.desk = make_environment(DESK)

    def reset(self, request, **row):
        assert row == {"prompt": PROMPT}  # the whole row, with the prompt
        self.diary, self.reward = [request], 0.0
        return self.desk.reset(request=request)

    async def route(self, team: str, form: str, proof: str, time: str) -> str:
        """
        Route the request.

        Args:
            team: Who works on it.
            form: With which form.
            proof: With which proof.
            time: When.
        """
        call = f"route {team} {form} {proof} {time}"
        result = self.desk.step(call)
        self.reward += result.reward
        self.diary += [call, result.observation]
        return result.observation

    def get_reward(self):
        self.diaries.append((*self.diary, f"{self.reward}"))
        return self.reward


def diaries_of(trainer) -> set[tuple[str, ...]]:
    DeskTools.diaries.clear()
    trainer.train()
    return set(DeskTools.diaries)


def test_the_same_episodes_as_under_grpo(tmp_path):
    """The same class, model and greedy sampling: every call, every answer and every reward are the same."""
    tasks = Dataset.from_list([{"prompt": PROMPT, "request": request} for request in REQUESTS])
    config = dict(use_cpu=True, bf16=False, report_to="none", max_steps=1, top_k=1, per_device_train_batch_size=6)
    grpo = GRPOTrainer(
        model=TINY_MODEL,
        args=GRPOConfig(
            str(tmp_path / "grpo"),
            num_generations=2,
            max_completion_length=200,
            max_tool_calling_iterations=3,
            save_strategy="no",
            **config,
        ),
        train_dataset=tasks,
        environment_factory=DeskTools,
    )
    nlac = NLACTrainer(
        model=TINY_MODEL,
        args=make_config(
            tmp_path / "nlac",
            action_format="tool_call",
            episodes_per_iteration=3,
            max_turns=3,
            max_completion_length=64,
            **config,
        ),
        train_dataset=tasks,
        environment_factory=DeskTools,
        prompts=COMPACT_PROMPTS,
    )
    expected = diaries_of(grpo)
    assert len(expected) == len(REQUESTS) and any(len(diary) > 4 for diary in expected)
    assert diaries_of(nlac) == expected


@pytest.mark.parametrize("kind", ["trl", "text"])
def test_environments_may_own_their_data(tmp_path, kind):
    class Tools:
        resets: list[dict] = []

        def reset(self, **row):
            self.resets.append(row)
            return "baku 2"

        def route(self, team: str) -> str:
            """
            Route the request.

            Args:
                team: Who works on it.
            """
            return "closed"

        def get_reward(self):
            return 1.0

    class Text:
        resets: list[dict] = []

        def reset(self):
            self.resets.append({})
            return "baku 2"

        def step(self, action):
            return StepResult("closed win", 1.0, terminated=True)

    environment = Tools if kind == "trl" else Text
    arguments = dict(model=TINY_MODEL, environment_factory=environment, prompts=COMPACT_PROMPTS)
    trainer = NLACTrainer(args=make_config(tmp_path, max_steps=2), **arguments)
    trainer.train()
    assert environment.resets == [{"prompt": PROMPT} if kind == "trl" else {}] * 8
    with pytest.raises(ValueError, match="`train_dataset`"):
        NLACTrainer(args=make_config(tmp_path, max_steps=-1), **arguments).train()


def test_reward_functions_get_what_trl_gives_them(tmp_path):
    def count(environments, trainer_state, log_metric, log_extra, request, **kwargs):
        assert isinstance(environments[0], DeskTools) and len(request) == len(environments)
        log_extra("request", request)
        log_metric("my/step", trainer_state.global_step)
        return [len(environment.diary) for environment in environments]

    tasks = Dataset.from_list([{"prompt": PROMPT, "request": request} for request in REQUESTS])
    trainer = NLACTrainer(
        model=TINY_MODEL,
        args=make_config(tmp_path, action_format="tool_call", logging_steps=1),
        train_dataset=tasks,
        environment_factory=DeskTools,
        reward_funcs=count,
        prompts=COMPACT_PROMPTS,
    )
    trainer.train()
    assert [entry["my/step"] for entry in trainer.state.log_history if "my/step" in entry] == [0, 1]
    assert trainer.state.log_history[0]["episode/return"] >= 1
