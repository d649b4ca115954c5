# SPDX-License-Identifier: Apache-2.0

import asyncio
import itertools
import random
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from helpers.completions_server import CompletionsServer
from helpers.method_utils import DESK
from helpers.testing_utils import Answering, ScriptedGenerator, make_roles, make_roles_of, play
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_nlac import NLACPrompts
from trl_nlac.agent.better_actions import act_better
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tool_calls import call_message
from trl_nlac.environments import StepResult, TextEnvironment
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL, make_environment
from trl_nlac.environments.embedded.service_desk import TOOL
from trl_nlac.episodes.conversations import conversation
from trl_nlac.episodes.logs import episodes_from_logs
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rewards import EpisodeRewards
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.generation.endpoint import EndpointEngine
from trl_nlac.generation.engine import FixedGenerator
from trl_nlac.generation.transformers import TransformersGenerator
from trl_nlac.method.backup import bellman_targets
from trl_nlac.replay.store import decode_episode, encode_episode
from trl_nlac.types import Transition


class Corridor(TextEnvironment):
    """Says how late it is, and ends with the action that ends in 7."""

    def reset(self):
        return [{"role": "system", "content": "take"}, {"role": "user", "content": "win"}]

    def step(self, action):
        return StepResult(f"late {action[-1]}", terminated=action.endswith("7"))


class TestPlayEpisodes:
    def test_tokens_are_those_that_were_sampled(self):
        roles = make_roles(["route legal ruby photo noon", "route billing amber photo noon"], max_turns=5)
        (episode,) = play([{"request": "baku"}], lambda: make_environment(DESK), roles)
        assert episode.terminated and episode.score == 1
        text = roles.chat.tokenizer.decode(episode.token_ids)
        assert text == (
            "<|user|> baku 2<|end|><|assistant|> route legal ruby photo noon<|end|><|user|> refused needs billing 1"
            "<|end|><|assistant|> route billing amber photo noon<|end|>"
        )
        assert roles.generator.prompts[1] == Transition(episode, 1).state.ids
        assert [turn.reward for turn in episode.turns] == [0, 1]

    def test_all_living_episodes_are_one_batch(self):
        wrong = "route legal ruby photo noon"
        roles = make_roles([wrong, "route billing amber photo noon", wrong], max_turns=5)
        made = []
        pool = EnvironmentPool(lambda: made.append(make_environment(DESK)) or made[-1])
        episodes = play_episodes(pool, [{"request": "baku"}] * 2, roles)
        assert roles.generator.batch_sizes == [2, 1]
        assert [episode.score for episode in episodes] == [0, 1]
        play_episodes(pool, [{"request": "baku"}], make_roles([wrong, wrong], max_turns=5))
        assert len(made) == 2  # instances are reused

    def test_a_long_history_is_cut_in_the_middle(self):
        prompts = NLACPrompts(**{**vars(COMPACT_PROMPTS), "history_cut": "trap"})
        roles = make_roles([f"take {i}" for i in range(8)], prompts=prompts, max_turns=9, max_prompt_length=40)
        (episode,) = play_episodes(EnvironmentPool(Corridor), [{}], roles)
        assert episode.terminated and len(episode.turns) == 8
        opening = "<|system|> take<|end|><|user|> win"
        for i, prompt in enumerate(roles.generator.prompts):
            assert len(prompt) <= 40
            assert prompt == Transition(episode, i).state.ids  # the stored states are what the policy saw
            text = roles.chat.tokenizer.decode(prompt)
            start = text.index("<|assistant|>")
            assert text[:start] in (f"{opening}<|end|>", f"{opening}\n\ntrap<|end|>")
            turns = [f"<|assistant|> take {k}<|end|><|user|> late {k}<|end|>" for k in range(i)]
            kept = text[start:].removesuffix("<|assistant|>")
            assert "".join(turns).endswith(kept) and (kept or not i)  # the newest turns, whole
        assert "take 0" not in text and "trap" in text
        # A cut keeps as many turns as fit into half of the room, so that the next prompts can grow again.
        numbers = [roles.chat.tokenizer.decode(prompt).count("late") for prompt in roles.generator.prompts]
        assert numbers == [0, 1, 2, 3, 4, 2, 3, 2]
        action = Transition(episode, 7).state_action
        assert roles.chat.tokenizer.decode(action.ids).endswith("<|assistant|> take 7<|end|>")
        assert decode_episode(encode_episode(episode)).turns == episode.turns
        logs = Dataset.from_list([conversation(episode, roles.actions)])
        (logged,) = episodes_from_logs(logs, roles.actions, roles.prompts, max_prompt_length=40)
        np.testing.assert_array_equal(logged.token_ids, episode.token_ids)  # a log is cut as if it had been played
        assert logged.turns == episode.turns and logged.opening == episode.opening

    @pytest.mark.parametrize("limit", [None, 40])
    def test_states_without_history(self, limit):
        answers = [f"take {i}" for i in range(8)]
        roles = make_roles(answers, max_turns=9, max_prompt_length=limit, keep_history=False)
        (episode,) = play_episodes(EnvironmentPool(Corridor), [{}], roles)
        assert episode.terminated and [turn.action for turn in episode.turns] == answers
        for i, prompt in enumerate(roles.generator.prompts):
            transition = Transition(episode, i)
            assert prompt == transition.state.ids
            seen = f"late {i - 1}" if i else "win"
            assert roles.chat.tokenizer.decode(prompt) == f"<|system|> take<|end|><|user|> {seen}<|end|><|assistant|>"
            assert transition.observation == seen
            assert roles.chat.tokenizer.decode(transition.state_action.ids).endswith(f"<|assistant|> take {i}<|end|>")
            if i < 7:
                assert roles.builder.observe(transition).ids == Transition(episode, i + 1).state.ids
        assert decode_episode(encode_episode(episode)).turns == episode.turns
        row = conversation(episode, roles.actions)
        assert [message["content"] for message in row["messages"]][1:4] == ["win", "take 0", "late 0"]
        logs = Dataset.from_list([row])
        (logged,) = episodes_from_logs(logs, roles.actions, roles.prompts, max_prompt_length=limit)
        np.testing.assert_array_equal(logged.token_ids, episode.token_ids)
        assert logged.turns == episode.turns

    def test_a_history_that_just_fits_is_whole(self):
        def play_within(limit):
            roles = make_roles([f"take {i}" for i in range(8)], max_turns=9, max_prompt_length=limit)
            (episode,) = play([{}], Corridor, roles)
            return episode.token_ids.tolist(), max(map(len, roles.generator.prompts))

        whole, longest = play_within(None)
        assert play_within(longest) == (whole, longest)
        assert play_within(longest - 1)[1] < longest

    def test_the_newest_turn_stays_where_it_fills_the_room(self):
        answer = " ".join(["take"] * 16)
        prompts = NLACPrompts(**{**vars(COMPACT_PROMPTS), "history_cut": "trap"})
        roles = make_roles(answer, prompts=prompts, max_turns=4, max_prompt_length=40)
        (episode,) = play([{}], lambda: Answering(StepResult("late 1"), "win"), roles)
        states = [roles.chat.tokenizer.decode(prompt) for prompt in roles.generator.prompts]
        assert [state.count(answer) for state in states] == [0, 1, 1, 1] and episode.failure is None

    def test_an_observation_that_does_not_fit_ends_the_episode(self):
        opening = [{"role": "system", "content": "take " * 8}, {"role": "user", "content": "win"}]
        roles = make_roles(["take 0"] * 4, max_turns=4, max_prompt_length=24, keep_history=False)
        (episode,) = play([{}], lambda: Answering(StepResult("late " * 12), opening), roles)
        assert episode.truncated and len(episode.turns) == 1

    @pytest.mark.parametrize("turn_limit", ["truncate", "terminate"])
    @pytest.mark.parametrize("action", ["route legal ruby photo noon", ""], ids=["loops", "unreadable"])
    def test_running_out_of_turns(self, turn_limit, action):
        """Either the episode was cut, and the backup predicts how it goes on, or it is told the score so far."""

        class Paying(Answering, TextEnvironment):
            def final_reward(self):
                return 0.5

        roles = make_roles(action, max_turns=2, turn_limit=turn_limit, max_format_retries=0)
        (episode,) = play([{}], lambda: Paying(StepResult("nothing", reward=0.25)), roles)
        assert len(episode.turns) == 2 and episode.score == (1.0 if action else 0.5)
        assert (episode.terminated, episode.truncated) == (turn_limit == "terminate", turn_limit == "truncate")
        assert decode_episode(encode_episode(episode)).terminated == episode.terminated
        logs = Dataset.from_list([conversation(episode, roles.actions)])
        (logged,) = episodes_from_logs(logs, roles.actions, roles.prompts)
        assert (logged.terminated, logged.score) == (episode.terminated, episode.score)
        first = len(roles.generator.prompts)
        bellman_targets(roles, [Transition(episode, 1)], "implicit")
        question = roles.chat.tokenizer.decode(roles.generator.prompts[first])
        score = f"Score {episode.score:g} Summary?<|end|><|assistant|>"
        assert question.endswith(score if turn_limit == "terminate" else "Scenario?<|end|><|assistant|>")

    def test_the_turn_limit_is_not_the_environment_s(self):
        """Where an environment itself cuts an episode or ends its task, that counts."""
        ends = {"cut": StepResult("late", truncated=True), "done": StepResult("won", reward=1.0, terminated=True)}
        ends["both"] = replace(ends["done"], truncated=True)  # as environments of Gymnasium may say

        for turn_limit, end in itertools.product(("truncate", "terminate"), ends):
            roles = make_roles("take red", max_turns=1, turn_limit=turn_limit)
            (episode,) = play([{}], lambda end=end: Answering(ends[end]), roles)
            assert (episode.terminated, episode.truncated) == (end != "cut", end == "cut")

    def test_a_score_that_fails_at_the_turn_limit_drops_the_last_turn(self):
        class Broken(Answering, TextEnvironment):
            def final_reward(self):
                raise RuntimeError("broken")

        roles = make_roles("take red", max_turns=2, turn_limit="terminate")
        (episode,) = play([{}], lambda: Broken(StepResult("nothing")), roles)
        assert episode.truncated and not episode.terminated and len(episode.turns) == 1

    def test_tasks_that_are_too_long_are_reported(self):
        roles = make_roles([], max_turns=5, max_prompt_length=3)
        (episode,) = play([{"request": "baku"}], lambda: make_environment(DESK), roles)
        assert not episode.turns and "tokens, `max_prompt_length` is 3" in episode.failure

    @pytest.mark.parametrize("max_turns", [1, 2])
    def test_words_that_the_chat_template_cannot_show_truncate(self, max_turns):
        class Talking(TextEnvironment):
            tool_schemas = [TOOL]

            def reset(self, words):
                self.words = words
                return "begin"

            def step(self, action):
                return StepResult("found", words=self.words)

        tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
        refused = "loop.previtem is defined and loop.previtem.role == 'tool' and message.role == 'user'"
        loop = "{%- for message in messages %}"
        refusal = f"{loop}{{%- if {refused} %}}{{{{ raise_exception('no user here') }}}}{{% endif %}}"
        tokenizer.chat_template = tokenizer.chat_template.replace(loop, refusal)
        chat = ChatEncoder(tokenizer)
        call = chat.completion(call_message([("route", {})]))
        roles = make_roles_of(chat, [call] * (1 + max_turns), action_format="tool_call", max_turns=max_turns)
        episodes = play([{"words": "and now?"}, {"words": ""}], Talking, roles)
        assert [len(episode.turns) for episode in episodes] == [0, max_turns]
        assert episodes[0].failure.startswith("step: ValueError: The chat template cannot show calls of route")
        assert episodes[0].truncated and episodes[1].failure is None


class Waiter:
    others_done = threading.Semaphore(0)

    def reset(self, number, waits_for=0):
        self.number, self.waits_for, self.turn = number, waits_for, 0
        return f"win {number}"

    def step(self, action):
        self.turn += 1
        if self.waits_for and self.turn == 1:
            for _ in range(self.waits_for):
                if not self.others_done.acquire(timeout=20):
                    raise RuntimeError("the others were held up")
        if self.turn == 3:
            self.others_done.release()
        return StepResult(f"win {action[-1]}", float(self.turn == 3), terminated=self.turn == 3)


class Slowed:
    rng = random.Random(0)

    def __init__(self):
        self.environment = make_environment(DESK)

    def reset(self, request):
        return self.environment.reset(request=request)

    def step(self, action):
        time.sleep(self.rng.choice([0, 0, 0.02]))
        return self.environment.step(action)


class TestConcurrency:
    def test_slow_environments_do_not_hold_up_fast_ones(self):
        tasks = [{"number": 0, "waits_for": 3}, {"number": 1}, {"number": 2}, {"number": 3}]
        episodes = play_episodes(EnvironmentPool(Waiter), tasks, make_roles(["take 1"] * 12, max_turns=5))
        assert [(episode.failure, episode.score) for episode in episodes] == [(None, 1)] * 4

    def test_environments_step_at_once(self):
        barrier = threading.Barrier(8)

        class Meeting:
            def reset(self):
                return "win"

            def step(self, action):
                barrier.wait(timeout=20)
                return StepResult("win", 1.0, terminated=True)

        class AsyncMeeting(Meeting):
            async def step(self, action):
                while barrier.n_waiting < 7:  # all the others
                    await asyncio.sleep(0.001)
                return await asyncio.to_thread(super().step, action)

        for kinds in ([Meeting] * 8, [Meeting] * 7 + [AsyncMeeting]):
            factories = {f"{i}": kind for i, kind in enumerate(kinds)}
            tasks = [{"environment": name} for name in factories]
            episodes = play_episodes(EnvironmentPool(factories), tasks, make_roles(["take 1"] * 8, max_turns=5))
            assert [(episode.failure, episode.score) for episode in episodes] == [(None, 1)] * 8

    def test_the_same_seed_gives_the_same_episodes(self):
        model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
        roles = make_roles([], max_turns=4)
        tokenizer = roles.chat.tokenizer
        roles.generator = TransformersGenerator(Accelerator(cpu=True), tokenizer, [tokenizer.eos_token_id], 128)
        played = []
        with roles.generator.session(model):
            for seed, max_instances in [(0, None), (0, 1), (0, 5), (1, None)]:
                torch.manual_seed(seed)
                pool = EnvironmentPool(Slowed, max_instances=max_instances)
                episodes = play_episodes(pool, [{"request": "baku"}] * 12, roles)
                played.append([episode.token_ids.tolist() for episode in episodes])
        assert played[0] == played[1] == played[2] != played[3]
        assert len(set(map(tuple, played[0]))) > 6

    def test_reward_functions_see_the_environment_of_their_episode(self):
        def final_number(environments, number, **kwargs):
            assert [environment.number for environment in environments] == number
            return [environment.number for environment in environments]

        made = []
        pool = EnvironmentPool(lambda: made.append(Waiter()) or made[-1], max_instances=2)
        tasks = [{"number": i} for i in range(5)]
        rewards = EpisodeRewards([final_number])
        episodes = play_episodes(pool, tasks, make_roles(["take 1"] * 15, max_turns=5), rewards=rewards)
        assert [episode.score for episode in episodes] == [1, 2, 3, 4, 5]
        assert len(made) == 2

    def test_environments_get_the_seed_of_their_episode(self):
        seeds = []

        class Seeded(TextEnvironment):
            takes_seed = True

            def reset(self, seed, **task):
                seeds.append(seed)
                return "win"

            def step(self, action):
                return StepResult("win", terminated=True)

        for tasks in ([{}] * 3, [{"seed": None}] * 3, [{"seed": 5}]):
            torch.manual_seed(0)
            pool = EnvironmentPool(Seeded, max_instances=1)
            play_episodes(pool, tasks, make_roles(["take"] * 3, max_turns=5))
            pool.try_reset({"seed": None})
        first, second = seeds[:3], seeds[4:7]
        assert first == second and len(set(first)) == 3 and None not in first
        assert seeds[3] == seeds[7] == 0 and seeds[8] == 5


class OneByOne(ScriptedGenerator):
    """Answers threads at the same time: the prompts about "win 0" only once the other episodes have ended."""

    is_concurrent = True

    def generate(self, prompts, sampling, seeds, bar=None):
        ((prompt,),) = [prompts]
        if self.chat.tokenizer.decode(prompt).startswith("<|user|> win 0"):
            for _ in range(3):
                assert Waiter.others_done.acquire(timeout=20), "the others were held up"
            for _ in range(3):
                Waiter.others_done.release()
        return super().generate(prompts, sampling, seeds, bar)


class Slow(ScriptedGenerator):
    """Takes longer for an answer than environments may for a step."""

    is_concurrent = True

    def generate(self, *args, **kwargs):
        time.sleep(1.2)
        return super().generate(*args, **kwargs)


class Failing(ScriptedGenerator):
    is_concurrent = True
    asked = threading.Barrier(2)

    def generate(self, prompts, sampling, seeds, bar=None):
        self.asked.wait(20)
        raise IndexError


class TestContinuousBatching:
    def test_slow_answers_do_not_hold_up_other_episodes(self):
        roles = make_roles("take 1", max_turns=5)
        roles.generator = OneByOne(roles.chat, "take 1")
        Waiter.others_done = threading.Semaphore(0)
        episodes = play_episodes(EnvironmentPool(Waiter), [{"number": i} for i in range(4)], roles)
        assert [(episode.failure, episode.score) for episode in episodes] == [(None, 1)] * 4
        assert roles.generator.batch_sizes == [1] * 12
        assert roles.tally.metrics["policy/format_rate"] == [1.0] * 12

    def test_the_time_limit_is_that_of_the_environment(self):
        roles = make_roles([], max_turns=1)
        roles.generator = Slow(roles.chat, "take 1")
        (episode,) = play([{"number": 1}], Waiter, roles, timeout=1.0)
        assert episode.failure is None and len(episode.turns) == 1

    def test_answers_do_not_depend_on_their_order(self):
        """Over a real connection; the agent's actions too, whose critiques and refinements draw seeds as well."""
        roles, played = make_roles([], max_turns=4), []
        end = roles.chat.tokenizer.eos_token_id
        server = CompletionsServer("tiny", owner="vllm")
        with server.running() as url:
            roles.generator = FixedGenerator(EndpointEngine(roles.chat.tokenizer, url, "tiny", 64), [end])
            better = partial(act_better, roles, refine=1, num_candidates=2)
            for act, seed in ((None, 0), (None, 0), (None, 1), (better, 0), (better, 0)):
                torch.manual_seed(seed)
                episodes = play_episodes(EnvironmentPool(Slowed), [{"request": "baku"}] * 6, roles, act)
                played.append([episode.token_ids.tolist() for episode in episodes])
        assert server.most_at_once > 1
        assert played[0] == played[1] != played[2] and played[3] == played[4]
        assert len(set(map(tuple, played[0]))) > 2

    def test_an_error_of_the_generator_ends_the_rollout(self):
        roles = make_roles([], max_turns=5)
        roles.generator, pool = Failing(roles.chat, []), EnvironmentPool(Waiter)
        with pytest.raises(IndexError):
            play_episodes(pool, [{"number": 1}] * 2, roles)
        assert not pool._workers and not pool._hanging

    @pytest.mark.parametrize("has_rewards", [False, True])
    def test_the_pool_can_be_used_again_after_an_error(self, has_rewards):
        roles, pool = make_roles("take 1", max_turns=1), EnvironmentPool(Waiter, max_instances=2)
        rewards = EpisodeRewards([lambda completions, **kwargs: [1.0] * len(completions)]) if has_rewards else None

        def act(prompts, seeds):
            raise RuntimeError("out of memory")

        with pytest.raises(RuntimeError, match="out of memory"):
            play_episodes(pool, [{"number": 1}] * 4, roles, act, rewards)
        played = []
        thread = threading.Thread(
            target=lambda: played.extend(play_episodes(pool, [{"number": 1}] * 4, roles, rewards=rewards)), daemon=True
        )
        thread.start()
        thread.join(60)
        assert len(played) == 4 and not any(episode.failure for episode in played)
