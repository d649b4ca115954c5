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

import json

import pytest
from datasets import Dataset
from helpers.testing_utils import make_logs
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from trl_nlac import NLACAgent
from trl_nlac.agent.datasets import preference_dataset, refine_logs, sft_dataset
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.environments.embedded.service_desk import TOOL


@pytest.fixture(scope="module")
def agent():
    return NLACAgent.from_pretrained(
        TINY_MODEL,
        device="cpu",
        action_format="text",
        role_sampling={role: {"temperature": 0.0} for role in ("backup", "refine")},
    )


@pytest.fixture(scope="module")
def refined(agent, tmp_path_factory):
    """The base policy's logs, and its actions refined in hindsight."""
    logs = make_logs(tmp_path_factory.mktemp("logs"))
    return refine_logs(agent, logs), logs


def test_rows(refined):
    """Most refined actions have the value that the refusal named, and the logged actions lack."""
    rows, logs = refined
    assert len(rows) > 0.9 * 2 * len(logs) and set(rows["reward"]) == {0.0}
    obeyed = []
    for row, (messages, i) in zip(rows, ((m, i) for m in logs["messages"] for i in (1, 3)), strict=False):
        assert [message["role"] for message in row["prompt"]] == ["user", "assistant", "user"][:i]
        assert row["prompt"] == messages[:i] and row["action"] == [messages[i]]
        named = messages[i + 1]["content"].split()[2]  # refused needs ...
        obeyed.append(named in row["refined_action"][0]["content"].split())
        assert named in row["critique"]
    assert sum(obeyed) > 0.7 * len(obeyed)


def test_openings_stay(agent):
    """System messages, examples and tools of logs stay in the prompts of the rows."""
    opening = [
        {"role": "system", "content": "Be brief."},
        *({"role": "user", "content": text} for text in ("x", "situ 2")),
    ]
    tools = json.dumps([TOOL])
    said = [{"role": "assistant", "content": "route billing amber photo noon"}]
    reply = [{"role": "user", "content": "refused needs legal lose"}]
    logs = Dataset.from_list([{"messages": [*opening, *said, *reply], "reward": 0.0, "tools": tools}])
    (row,) = refine_logs(agent, logs)
    system, *rest = row["prompt"]
    assert system["content"].endswith("\n\nBe brief.") and '"name": "route"' in system["content"]
    assert rest == opening[1:] and row["tools"] == "[]"  # the system message has shown them


def test_trainers_of_trl_take_them(refined, tmp_path):
    """Both datasets can be trained on without changes."""
    settings = dict(use_cpu=True, bf16=False, report_to="none", max_steps=1, per_device_train_batch_size=4)
    sft = sft_dataset(refined[0])
    assert sft.column_names == ["prompt", "completion", "tools"]
    trainer = SFTTrainer(TINY_MODEL, SFTConfig(str(tmp_path / "sft"), **settings), train_dataset=sft)
    assert trainer.train().training_loss > 0
    pairs = preference_dataset(refined[0])
    assert 0 < len(pairs) <= len(sft) and set(pairs.column_names) == {"prompt", "chosen", "rejected", "tools"}
    assert all(row["chosen"] != row["rejected"] for row in pairs)
    trainer = DPOTrainer(TINY_MODEL, args=DPOConfig(str(tmp_path / "dpo"), **settings), train_dataset=pairs)
    assert trainer.train().training_loss == pytest.approx(0.693, abs=0.01)
