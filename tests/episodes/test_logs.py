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

import numpy as np
import pytest
from datasets import Dataset
from helpers.method_utils import DESK
from helpers.testing_utils import make_roles, make_roles_of, make_tokenizer, read_logs

from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tool_calls import call_message
from trl_nlac.environments.embedded import make_environment
from trl_nlac.environments.pool import EnvironmentPool
from trl_nlac.episodes.conversations import to_dataset
from trl_nlac.episodes.logs import episodes_from_logs, offline_tasks
from trl_nlac.episodes.rollout import play_episodes


class TestLogs:
    def test_logs_are_as_if_played(self):
        answers = ["route legal ruby photo noon", "route billing amber photo noon"]
        roles = make_roles(answers, max_turns=5)
        pool = EnvironmentPool(lambda: make_environment(DESK))
        (played,) = play_episodes(pool, [{"request": "baku"}], roles)
        contents = ["baku 2", answers[0], "refused needs billing 1", answers[1], "closed win"]
        messages = [{"role": ["user", "assistant"][i % 2], "content": text} for i, text in enumerate(contents)]
        (logged,) = episodes_from_logs(
            Dataset.from_list([{"messages": messages, "reward": 1.0}]), roles.actions, roles.prompts
        )
        np.testing.assert_array_equal(logged.token_ids, played.token_ids)
        assert logged.turns == played.turns and logged.terminated

    def test_what_cannot_be_cut_is_named(self):
        contents = ["baku 2", "route legal ruby photo noon", "refused needs billing 1", "route legal ruby photo noon"]
        messages = [{"role": ["user", "assistant"][i % 2], "content": text} for i, text in enumerate(contents)]
        logs = Dataset.from_list([{"messages": messages, "reward": 0.0}])
        (whole,) = read_logs(logs, make_roles([]))
        for limit, problem in (
            (3, r"row 0: the task has 6 tokens, `max_prompt_length` is 3"),
            (15, "row 0: The state before message 3 does not fit into `max_prompt_length=15`"),
        ):
            with pytest.raises(ValueError, match=problem):
                read_logs(logs, make_roles([]), max_prompt_length=limit)
        end = {"role": "user", "content": "refused " * 20}  # after the last action: of no state
        logs = Dataset.from_list([{"messages": [*messages, end], "reward": 0.0}])
        (logged,) = read_logs(logs, make_roles([]), max_prompt_length=len(whole.token_ids))
        np.testing.assert_array_equal(logged.token_ids, whole.token_ids)

    def test_malformed_rows_are_named(self):
        user, assistant = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
        rows = [
            {"messages": [user, assistant], "reward": 1.0},
            {"messages": [user, user], "reward": 1.0},
            {"messages": [user, assistant], "reward": None},
        ]
        with pytest.raises(
            ValueError, match=r"2 of 3 rows.*row 1: there is no message of the assistant; row 2: the reward is None"
        ):
            read_logs(Dataset.from_list(rows), make_roles([]))
        with pytest.raises(ValueError, match="`replay_dataset` has no column `reward`"):
            read_logs(Dataset.from_list([{"messages": [user]}]), make_roles([]))


class TestToolCalls:
    @staticmethod
    def make_log(*calls: str) -> Dataset:
        said = call_message([(name, {"x": "1"}) for name in calls]) | {"reasoning_content": "Hm."}
        results = [{"role": "tool", "name": name, "content": "ok"} for name in calls]
        messages = [{"role": "user", "content": "go"}, said, *results, {"role": "assistant", "content": "done"}]
        return Dataset.from_list([{"messages": messages, "reward": 1.0}])

    def test_turns_that_the_template_cannot_show_are_named(self):
        roles = make_roles_of(ChatEncoder(make_tokenizer("llama3_1")), [], action_format="tool_call")
        with pytest.raises(
            ValueError, match="row 0: The chat template shows one tool call in a turn, and a turn calls 2"
        ):
            read_logs(self.make_log("look", "take"), roles)
        assert len(read_logs(self.make_log("look"), roles)) == 1

    def test_thoughts_stay_where_the_template_keeps_them(self):
        roles = make_roles_of(ChatEncoder(make_tokenizer("qwen3")), [], action_format="tool_call")
        (episode,) = read_logs(self.make_log("look", "take"), roles)
        assert "<think>\nHm.\n</think>\n\n<tool_call>" in roles.chat.tokenizer.decode(episode.token_ids)
        # The row that it is written to is read as the same tokens.
        (again,) = read_logs(to_dataset([episode], roles.actions), roles)
        np.testing.assert_array_equal(again.token_ids, episode.token_ids)


def make_rows(number: int) -> list[dict]:
    """Make logs of one action each, with a reward that counts up."""
    opening = {"role": "user", "content": "situ 2"}
    actions = [{"role": "assistant", "content": f"go {i}"} for i in range(number)]
    return [{"messages": [opening, action], "reward": float(i)} for i, action in enumerate(actions)]


def test_shares_of_processes():
    rows = make_rows(5)
    rows[3]["reward"] = float("inf")
    dataset = Dataset.from_list(rows)
    assert [e.score for e in read_logs(dataset, make_roles([]), 0, 2)] == [0.0, 2.0, 4.0]
    with pytest.raises(ValueError, match="1 of 2 rows .* are malformed. The first ones: row 3: the reward is inf"):
        read_logs(dataset, make_roles([]), 1, 2)


def test_every_process_needs_a_row():
    logs = Dataset.from_list(make_rows(4))
    with pytest.raises(ValueError, match="`replay_dataset` has 3 rows for 4 processes"):
        offline_tasks(logs.select(range(3)), None, None, world_size=4)
    assert len(offline_tasks(logs, None, None, world_size=4)) == 4
