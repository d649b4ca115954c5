# SPDX-License-Identifier: Apache-2.0

import pytest
from helpers.method_utils import DESK
from helpers.testing_utils import Countdown, make_roles, make_roles_of, make_tokenizer, play

from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tool_calls import call_message
from trl_nlac.environments import EnvironmentFailure
from trl_nlac.environments.embedded import make_environment
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rewards import EpisodeRewards, load_rewards
from trl_nlac.episodes.rollout import play_episodes


class TestEpisodeRewards:
    def test_reward_functions(self):
        seen = {}

        async def length(completions, request, **kwargs):
            seen.update(kwargs, completions=completions, request=request)
            return [len(messages) / 2 for messages in completions]

        def nothing(prompts, **kwargs):
            return [None] * len(prompts)

        roles = make_roles(["route legal ruby photo noon", "route billing amber photo noon"], max_turns=5)
        rewards = EpisodeRewards([length, nothing], [0.5, 1.0])
        (episode,) = play([{"request": "baku"}], lambda: make_environment(DESK), roles, rewards=rewards)
        assert episode.score == 1 + 0.5 * 2
        assert seen["request"] == ["baku"]
        assert seen["completions"][0][0] == {"role": "assistant", "content": "route legal ruby photo noon"}
        assert roles.chat.decode(seen["completion_ids"][0]).count("route") == 2

    def test_columns_with_the_names_of_other_arguments(self):
        """The trainer's own arguments have these names, as in TRL."""
        seen = {}

        def note(**kwargs):
            seen.update(kwargs)
            return [1.0]

        taken = ("prompts", "completions", "completion_ids", "environments", "log_extra", "trainer_state")
        task = dict.fromkeys((*taken, "prompt", "completion", "number"), "of the dataset")
        rewards = EpisodeRewards([note], context=lambda: {"trainer_state": "own"})
        assert rewards([[]], [[]], [[]], [None], [task])[0].reward == 1.0
        assert [name for name, value in seen.items() if value == ["of the dataset"]] == ["number"]
        assert set(seen) == {*taken, "number"} and seen["trainer_state"] == "own"

    def test_functions_of_one_name_are_numbered(self):
        def good(**kwargs):
            return [0.25]

        rewards = EpisodeRewards([lambda **kwargs: [1.0], good, lambda **kwargs: [0.5]])
        (score,) = rewards([[]], [[]], [[]], [None], [{}])
        assert score.notes == {"rewards/<lambda>_1": 1.0, "rewards/good": 0.25, "rewards/<lambda>_2": 0.5}

    def test_tasks_with_other_columns(self):
        seen = {}

        def note(**kwargs):
            seen.update({name: kwargs[name] for name in ("color", "size")})
            return [1.0, 1.0]

        EpisodeRewards([note])([[], []], [[], []], [[], []], [None, None], [{"color": "red"}, {"size": 3}])
        assert seen == {"color": ["red", None], "size": [None, 3]}

    @pytest.mark.parametrize(("environment_pays", "number"), [(False, 1), (True, 0)])
    def test_episodes_without_any_reward_are_reported_once(self, caplog, environment_pays, number):
        def none(prompts, **kwargs):
            return [None] * len(prompts)

        def nan(prompts, **kwargs):
            return [1.0] + [float("nan")] * (len(prompts) - 1)

        rewards = load_rewards([none, nan], None, dict, environment_pays)
        for tasks in ([{}], [{}, {}], [{}, {}, {}]):
            episodes = [[] for _ in tasks]
            rewards(episodes, episodes, episodes, [None] * len(tasks), tasks)
            warnings = [record.getMessage() for record in caplog.records]
            assert len(warnings) == (number if len(tasks) > 1 else 0)
        assert all("None of `reward_funcs` (none, nan)" in warning for warning in warnings)

    def test_reward_functions_see_the_raw_text(self):
        chat = ChatEncoder(make_tokenizer("qwen2_5"))
        call = chat.tokenizer.decode(chat.past_turn(call_message([("route", {"team": "legal"})]))[:-1])
        answers = [chat.template.encode(text) for text in (f"{call[:40]}<|im_end|>", f"{call} There.<|im_end|>")]
        roles = make_roles_of(chat, answers, action_format="tool_call", max_turns=2, max_format_retries=0)
        seen = []

        def note(completions, **kwargs):
            seen.extend(completions[0])
            return [0.0]

        play([{"request": "baku"}], lambda: make_environment(DESK), roles, rewards=EpisodeRewards([note]))
        unreadable, called = (message for message in seen if message["role"] == "assistant")
        assert unreadable == {"role": "assistant", "content": call[:40].strip()}
        assert called["content"] == "There." and called["tool_calls"]

    def test_completions_are_the_sampled_tokens(self):
        chat, seen = ChatEncoder(make_tokenizer("qwen3")), []
        sampled = chat.template.encode("<think>\nHm.\n</think>\n\ntake red<|im_end|>")

        def note(completion_ids, **kwargs):
            seen.extend(completion_ids)
            return [0.0]

        roles = make_roles_of(chat, [sampled], max_turns=1)
        play([{"start": 1}], Countdown, roles, rewards=EpisodeRewards([note]))
        assert seen == [sampled]

    @pytest.mark.parametrize(("name", "problem"), [("raises", "no such key"), ("short", "gave 1 rewards")])
    def test_failures_are_warnings(self, caplog, name, problem):
        def raises(**kwargs):
            raise KeyError("no such key")

        def short(**kwargs):
            return [1.0]

        rewards = EpisodeRewards([{"raises": raises, "short": short}[name]])
        pool = EnvironmentPool(lambda: make_environment(DESK))
        episodes = play_episodes(pool, [{"request": "baku"}] * 3, make_roles("take red", max_turns=1), rewards=rewards)
        pool.close()
        assert all(problem in episode.failure for episode in episodes)
        (warning,) = [record.getMessage() for record in caplog.records if "no reward" in record.getMessage()]
        assert warning.startswith("3 episodes got no reward, and are truncated: ") and problem in warning
        assert problem in pool.last_failure

    def test_reward_function_errors(self):
        with pytest.raises(ValueError, match="`reward_weights` has 2 entries for 1"):
            EpisodeRewards([len], [1.0, 2.0])
        two_episodes = ([[], []], [[], []], [[], []], [None, None], [{}, {}])
        with pytest.raises(EnvironmentFailure, match="`<lambda>` failed: the reward is 6e[+]38"):
            EpisodeRewards([lambda **kwargs: [3e38, 0]], [2.0])(*two_episodes)

        def note(log_extra, **kwargs):
            log_extra("mood", ["good"])
            return [1.0, 1.0]

        with pytest.raises(EnvironmentFailure, match=r"`note` failed: it gave 1 values in `log_extra\('mood', ...\)`"):
            EpisodeRewards([note])(*two_episodes)
