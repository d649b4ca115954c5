# SPDX-License-Identifier: Apache-2.0

import json

import pytest
from datasets import Dataset
from helpers.testing_utils import make_roles, make_roles_of, make_tokenizer, make_trained, make_trainer, play
from trl import GRPOConfig, GRPOTrainer

from trl_nlac import NLACPrompts
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments import ServiceDesk, StepResult
from trl_nlac.environments.embedded import TINY_MODEL, make_environment
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rewards import EpisodeRewards
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.episodes.trl_env import ToolEnvironment
from trl_nlac.secrets import HIDDEN, remember_secrets
from trl_nlac.types import Transition


DESK = ServiceDesk.from_seed(0)
REQUESTS = list(DESK.rules)[:3]
PROMPT = [{"role": "user", "content": ""}]


class Counter:
    """A TRL environment."""

    def reset(self, start, **row):
        self.count = start
        return f" Count is {start}."

    def add(self, number: int) -> int:
        """
        Add to the count.

        Args:
            number: What to add.
        """
        self.count += number
        return self.count

    async def double(self) -> int:
        """Double the count."""
        self.count *= 2
        return self.count

    def _secret(self):
        raise AssertionError

    def get_reward(self):
        return float(self.count == 10)


class TestToolEnvironment:
    def test_contract(self):
        environment = ToolEnvironment(Counter())
        assert list(environment.tools) == ["add", "double"]
        assert environment.tool_schemas[0]["function"]["name"] == "add"
        prompt = [{"role": "user", "content": "Make it ten."}]
        assert environment.reset(start=4, prompt=prompt)[-1]["content"] == "Make it ten. Count is 4."
        assert environment.step('{"name": "add", "arguments": {"number": 1}}') == StepResult("5")
        assert environment.step('{"name": "double", "arguments": {}}') == StepResult("10")
        assert environment.step('{"name": "add", "arguments": {"n": 1}}').observation.startswith("{'error': ")
        assert "Tool get_reward not found." in environment.step('{"name": "get_reward", "arguments": {}}').observation
        for answer in ("I am done.", '{"name": "Bob"}'):
            assert environment.step(answer) == StepResult("", terminated=True)
        assert environment.final_reward() == 1

    @pytest.mark.parametrize(
        ("message", "read"),
        [
            ("no such key: order_12345", "no such key: order_12345"),
            ("unexpected token: table_12ab", "unexpected token: table_12ab"),
            ("invalid sort_key=created_at", "invalid sort_key=created_at"),
            ("refused marble-heron-12 and hf_abcdefghijklmnop", f"refused {HIDDEN} and {HIDDEN}"),
            ("x" * 5000, "x" * 5000),
            ("half a character \ud800", "half a character \\ud800"),
        ],
    )
    def test_the_policy_reads_the_errors_of_tools(self, message, read):
        """As TRL phrases them: only secrets of this run, and what looks like one, are hidden."""

        def look():
            """Look."""
            raise ValueError(message)

        remember_secrets({"api_key": "marble-heron-12"})
        observation = ToolEnvironment(tools=[look]).step('{"name": "look", "arguments": {}}').observation
        assert observation == str({"error": read})

    def test_a_tool_that_calls_exit_has_failed(self):
        def run():
            """Run."""
            raise SystemExit("no more")

        result = ToolEnvironment(tools=[run]).step('{"name": "run", "arguments": {}}')
        assert result == StepResult(str({"error": "no more"}))

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_class_can_say_that_it_is_done(self, is_async):
        class Until(Counter):
            """Is done at 10."""

            def _is_done(self):
                return self.count >= 10

        class UntilLater(Until):
            async def _is_done(self):
                return self.count >= 10

        add = '{"name": "add", "arguments": {"number": 3}}'
        kind, roles = UntilLater if is_async else Until, make_roles(add, max_turns=9)
        (episode,) = play([{"start": 4, "prompt": PROMPT}], kind, roles)
        assert [turn.next_observation for turn in episode.turns] == ["7", "10"]
        assert episode.terminated and episode.score == 1 and episode.failure is None
        assert list(ToolEnvironment(Until()).tools) == ["add", "double"]

    def test_reset_can_be_asynchronous(self):
        class Later(Counter):
            async def reset(self, start, **row):
                return super().reset(start, **row)

        openings = [ToolEnvironment(each()).reset(prompt="Make it ten.", start=4) for each in (Counter, Later)]
        assert openings == [[{"role": "user", "content": "Make it ten. Count is 4."}]] * 2

    def test_content_blocks_are_joined(self):
        class Blocks(Counter):
            def reset(self, **row):
                return [
                    {"type": "text", "text": " one"},
                    {"type": "image", "image": None},
                    {"type": "text", "text": "two"},
                ]

            def look(self):
                """Look."""
                return [{"type": "text", "text": "three"}]

        environment = ToolEnvironment(Blocks())
        prompt = [{"role": "user", "content": [{"type": "text", "text": "zero"}]}]
        assert environment.reset(prompt=prompt) == [{"role": "user", "content": "zero one\ntwo"}]
        assert environment.step('{"name": "look", "arguments": {}}') == StepResult("three")

    @pytest.mark.parametrize(
        "returned",
        [["Paris", "Rome"], [], [{"type": "text", "text": "x"}, {"id": 1}], [{"type": "text"}], None],
        ids=str,
    )
    def test_tools_that_return_anything(self, returned):
        class Returns(Counter):
            def look(self):
                """Look."""
                return returned

        assert ToolEnvironment(Returns()).step('{"name": "look", "arguments": {}}') == StepResult(str(returned))

    def test_several_calls_in_one_turn(self):
        seen = {}

        def keep(completions, **kwargs):
            seen["messages"] = completions[0]
            return [0.0]

        chat = ChatEncoder(make_tokenizer("qwen2_5"))
        calls = [("add", {"number": 1}), ("open", {}), ("double", {})]
        functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
        calls_message = [{"type": "function", "function": function} for function in functions]
        said = {"role": "assistant", "content": "", "tool_calls": calls_message}
        roles = make_roles_of(chat, [chat.past_turn(said), "done"], action_format="tool_call", max_turns=5)
        rewards = EpisodeRewards([keep])
        (episode,) = play_episodes(EnvironmentPool(Counter), [{"start": 4}], roles, rewards=rewards)
        assert episode.score == 1 and len(episode.turns) == 2
        results = ["5", "{'error': 'Tool open not found.'}", "10"]
        assert json.loads(episode.turns[0].next_observation) == results
        names = ["add", "open", "double"]
        answers = [{"role": "tool", "name": n, "content": r} for n, r in zip(names, results, strict=True)]
        assert seen["messages"] == [said, *answers, {"role": "assistant", "content": "done"}]
        assert "<tool_response>\n10\n</tool_response>" in chat.tokenizer.decode(roles.generator.prompts[1])

    def test_an_empty_result_stays_in_the_completion(self):
        """As in TRL, where an assistant's message never follows another one."""
        seen = []

        def keep(completions, **kwargs):
            seen.extend(completions)
            return [0.0]

        class Silent(Counter):
            def wait(self):
                """Wait."""
                return ""

        chat = ChatEncoder(make_tokenizer("qwen2_5"))
        said = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "wait", "arguments": {}}}]}
        roles = make_roles_of(chat, [chat.past_turn(said), "done"], action_format="tool_call", max_turns=5)
        rewards = EpisodeRewards([keep])
        play_episodes(EnvironmentPool(Silent), [{"start": 4}], roles, rewards=rewards)
        (messages,) = seen
        assert [message["role"] for message in messages] == ["assistant", "tool", "assistant"]
        assert messages[1] == {"role": "tool", "name": "wait", "content": ""}

    def test_the_policy_is_given_the_tools(self):
        roles = make_roles(['{"name": "add", "arguments": {"number": 6}}', "ten"], prompts=NLACPrompts(), max_turns=5)
        (episode,) = play_episodes(EnvironmentPool(Counter), [{"start": 4}], roles)
        system = roles.chat.tokenizer.decode(roles.generator.prompts[0]).partition("<|user|>")[0]
        assert "Add to the count." in system
        assert episode.score == 1 and len(episode.turns) == 2

    def test_standalone_tools(self):
        def search(query: str) -> str:
            """
            Look something up.

            Args:
                query: What.
            """
            return f"nothing on {query}"

        pool = EnvironmentPool(None, tools=[search])
        assert not pool.pays
        roles = make_roles(['{"name": "search", "arguments": {"query": "it"}}', "done"], max_turns=5)
        (episode,) = play_episodes(pool, [{"prompt": [{"role": "user", "content": "find it"}]}], roles)
        assert episode.turns[0].next_observation == "nothing on it"
        with pytest.raises(ValueError, match="`tools` go with"):
            EnvironmentPool(lambda: make_environment(DESK), tools=[search])


CALL = '{"name": "add", "arguments": {"number": 6}}'


class TestMalformedCalls:
    @pytest.mark.parametrize("action_format", ["react", "text", "tool_call"])
    @pytest.mark.parametrize(("text", "is_readable"), [(f"```json\n{CALL}\n```", True), (CALL[:-1], False)])
    def test_none_ends_an_episode(self, text, is_readable, action_format):
        said, end = (f"Thought: hm\nAction: {act}" if action_format == "react" else act for act in (text, "ten"))
        chat = ChatEncoder(make_tokenizer("qwen2_5"))
        roles = make_roles_of(chat, [said, end], prompts=NLACPrompts(), action_format=action_format, max_turns=5)
        (episode,) = play_episodes(EnvironmentPool(Counter), [{"start": 4}], roles)
        first, last = episode.turns
        notice = roles.prompts.unreadable(action_format)
        assert (first.action, first.next_observation) == ((CALL, "10") if is_readable else ("", notice))
        assert (last.action, episode.score) == ("ten", float(is_readable))
        assert Transition(episode, 0).action_ids == tuple(chat.past_turn(said))

    @pytest.mark.parametrize("action", ["I am done.", '{"count": 10}', "The tool add works.", "[10]"])
    def test_what_is_no_call_is_the_final_answer(self, action):
        (episode,) = play_episodes(EnvironmentPool(Counter), [{"start": 10}], make_roles([action], max_turns=5))
        assert (episode.turns[0].action, episode.terminated, episode.score) == (action, True, 1)


class DeskTools:
    """The service desk as a TRL environment that records its calls."""

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
    tasks = Dataset.from_list([{"prompt": PROMPT, "request": request} for request in REQUESTS])
    config = dict(use_cpu=True, bf16=False, report_to="none", max_steps=1, top_k=1, per_device_train_batch_size=6)
    own = dict(num_generations=2, max_completion_length=200, max_tool_calling_iterations=3, save_strategy="no")
    args = GRPOConfig(str(tmp_path / "grpo"), **own, **config)
    grpo = GRPOTrainer(model=TINY_MODEL, args=args, train_dataset=tasks, environment_factory=DeskTools)
    config |= dict(action_format="tool_call", episodes_per_iteration=3, max_turns=3, max_completion_length=64)
    nlac = make_trainer(tmp_path / "nlac", config, train_dataset=tasks, environment_factory=DeskTools)
    expected = diaries_of(grpo)
    assert len(expected) == len(REQUESTS) and any(len(diary) > 4 for diary in expected)
    assert diaries_of(nlac) == expected


def test_environments_may_own_their_data(tmp_path):
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

    arguments = dict(environment_factory=Tools, train_dataset=None)
    make_trained(tmp_path, {"max_steps": 2}, **arguments)
    assert Tools.resets == [{"prompt": PROMPT}] * 8
    with pytest.raises(ValueError, match="`train_dataset`"):
        make_trainer(tmp_path / "other", {"max_steps": -1}, **arguments).train()


def test_what_functions_log_in_an_evaluation_is_its_own(tmp_path):
    def judge(prompts, completions, log_metric, **kwargs):
        log_metric("is_eval", float("seven" in prompts[0][-1]["content"]))
        return [1.0] * len(prompts)

    def tasks(word):
        return Dataset.from_list([{"prompt": [{"role": "user", "content": f"Say {word}."}]}] * 2)

    config = {"max_steps": 2, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    datasets = {"train_dataset": tasks("one"), "eval_dataset": tasks("seven")}
    trainer = make_trained(tmp_path, config, environment_factory=None, reward_funcs=judge, **datasets)
    logged = [{log[name] for log in trainer.state.log_history if name in log} for name in ("is_eval", "eval_is_eval")]
    assert logged == [{0.0}, {1.0}]


def test_reward_functions_get_what_trl_gives_them(tmp_path):
    def count(environments, trainer_state, log_metric, log_extra, request, **kwargs):
        assert isinstance(environments[0], DeskTools) and len(request) == len(environments)
        log_extra("request", request)
        log_metric("my/step", trainer_state.global_step)
        return [len(environment.diary) for environment in environments]

    tasks = Dataset.from_list([{"prompt": PROMPT, "request": request} for request in REQUESTS])
    config = {"action_format": "tool_call", "logging_steps": 1}
    arguments = {"train_dataset": tasks, "environment_factory": DeskTools, "reward_funcs": count}
    trainer = make_trained(tmp_path, config, **arguments)
    assert [entry["my/step"] for entry in trainer.state.log_history if "my/step" in entry] == [0, 1]
    assert trainer.state.log_history[0]["episode/return"] >= 1
