# SPDX-License-Identifier: Apache-2.0

import asyncio
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from datetime import date

import pytest
import torch
from helpers.testing_utils import DESK, TASKS, make_config, make_roles, make_trained, make_trainer, play
from helpers.workers import wait_until
from openai import APIStatusError, AsyncOpenAI, AuthenticationError, OpenAI

from trl_nlac import NLACTrainer
from trl_nlac.chat.tool_calls import format_tool_call
from trl_nlac.environments import AgentEnvironment, EnvironmentFailure, StepResult, TextEnvironment
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL, make_environment
from trl_nlac.environments.embedded.service_desk import TOOL
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rewards import EpisodeRewards
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.episodes.text_environment import Opening
from trl_nlac.event_loop import finish
from trl_nlac.gateway.environment import _Run, _run_command
from trl_nlac.gateway.server import the_server
from trl_nlac.replay.prioritized_replay import PrioritizedReplay
from trl_nlac.types import Transition, all_conversations


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def ask(base_url, api_key, messages, **kwargs):
    with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        answer = client.chat.completions.create(model="policy", messages=messages, **kwargs)
        return answer.choices[0].message


def post(base_url, api_key, path, body, timeout=60):
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{base_url}/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)


def desk_agent(task, base_url, api_key):
    desk = make_environment(DESK)
    messages, tools = [user(desk.reset(**task))], [TOOL]
    while True:
        message = ask(base_url, api_key, messages, tools=tools)
        (call,) = message.tool_calls
        result = desk.step(format_tool_call(call.function.name, json.loads(call.function.arguments)))
        if result.terminated:
            return result.reward
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": result.observation}]


def desk_agent_in_text(task, base_url, api_key):
    desk = make_environment(DESK)
    messages = [user(desk.reset(**task))]
    while True:
        message = ask(base_url, api_key, messages)
        result = desk.step(message.content)
        if result.terminated:
            return result.reward
        messages += [message, user(result.observation)]


def greedy_episodes(tmp_path, environment, action_format):
    config = {"action_format": action_format, "temperature": 0.0, "max_completion_length": 48}
    trainer = make_trainer(tmp_path, config, environment_factory=environment)
    try:
        with trainer.roles.generator.session(trainer.model):
            return play_episodes(trainer.environments, list(TASKS), trainer.roles)
    finally:
        trainer.environments.close()


class TestSameAsAClass:
    @pytest.mark.parametrize(
        "agent, action_format", [(desk_agent, "tool_call"), (desk_agent_in_text, "text")], ids=["tools", "text"]
    )
    def test_greedy_episodes(self, tmp_path, agent, action_format):
        by_class = greedy_episodes(tmp_path, lambda: make_environment(DESK, action_format), action_format)
        by_agent = greedy_episodes(tmp_path, AgentEnvironment(agent), action_format)
        assert sum(len(episode.turns) for episode in by_class) > len(TASKS)
        for one, other in zip(by_class, by_agent, strict=True):
            ended = "" if one.terminated else one.turns[-1].next_observation  # an agent's end shows nothing
            assert other.failure is None and other.task == one.task and other.tools == one.tools
            assert other.token_ids.tolist() == one.token_ids.tolist() and other.score == one.score
            assert (other.terminated, other.truncated) == (one.terminated, one.truncated)
            assert [turn.action for turn in other.turns] == [turn.action for turn in one.turns]
            assert [turn.next_observation for turn in other.turns] == [
                *(turn.next_observation for turn in one.turns[:-1]),
                ended,
            ]


class TestConversations:
    def test_an_agent_chooses_what_its_model_sees(self, tmp_path):
        with pytest.raises(ValueError, match="`keep_history=False` does not fit an agent"):
            make_trainer(tmp_path, {"keep_history": False}, environment_factory=AgentEnvironment(desk_agent))

    def test_results_come_back_in_the_order_of_the_calls(self):
        seen = []

        def agent(task, base_url, api_key):
            messages = [user("win")]
            message = ask(base_url, api_key, messages, tools=[TOOL])
            seen.append(message)
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": f"result {i}"}
                for i, call in enumerate(message.tool_calls)
            ]
            messages += [message, *reversed(results), user("and now?")]
            message = ask(base_url, api_key, messages, tools=[TOOL])
            seen.append(message)
            return 0.5

        two = json.dumps([{"name": "route", "arguments": {"time": "noon"}}, {"name": "route", "arguments": {}}])
        (episode,) = play([{}], AgentEnvironment(agent), make_roles([two, "done"]))
        assert episode.failure is None and episode.score == 0.5 and episode.terminated
        assert [turn.action for turn in episode.turns] == [two, "done"]
        assert json.loads(episode.turns[0].next_observation.partition("\n\n")[0]) == ["result 0", "result 1"]
        assert episode.turns[0].words == "and now?"
        assert seen[0].content is None and seen[1].tool_calls is None and seen[1].content == "done"
        assert len({call.id for call in seen[0].tool_calls}) == 2 and episode.tools == (TOOL,)

    @pytest.mark.parametrize("names", [["nothing"], ["route", "nothing"]], ids=["alone", "beside another"])
    def test_calls_of_unknown_tools_do_not_reach_the_agent(self, names):
        def agent(task, base_url, api_key):
            assert ask(base_url, api_key, [user("win")], tools=[TOOL]).content == "done"
            return 1.0

        calls = json.dumps([{"name": name, "arguments": {}} for name in names])
        (episode,) = play([{}], AgentEnvironment(agent), make_roles([calls, "done"]))
        assert episode.failure is None and episode.score == 1 and len(episode.turns) == 2
        problems = [str({"error": "Not called, as another tool was not found."})] * (len(names) - 1)
        problems.append(str({"error": "Tool nothing not found."}))
        seen = episode.turns[0].next_observation
        assert (json.loads(seen) if len(names) > 1 else [seen]) == problems

    def test_other_tools_begin_a_conversation_of_their_own(self):
        def agent(task, base_url, api_key):
            messages = [user("win")]
            messages += [ask(base_url, api_key, messages), user("now with a tool")]
            ask(base_url, api_key, messages, tools=[TOOL])
            return 1.0

        (episode,) = play([{}], AgentEnvironment(agent), make_roles(["one", "two"]))
        conversations = all_conversations([episode])
        assert [one.tools for one in conversations] == [(), (TOOL,)]
        assert [[turn.action for turn in one.turns] for one in conversations] == [["one"], ["two"]]

    def test_sub_agents_have_conversations_of_their_own(self):
        def agent(task, base_url, api_key):
            messages = [user("main")]
            messages += [ask(base_url, api_key, messages), user("main 2")]
            for _ in range(2):
                sub = [{"role": "system", "content": "helper"}, user("sub")]
                sub += [ask(base_url, api_key, sub), user("sub 2")]
                ask(base_url, api_key, sub)
            ask(base_url, api_key, messages)
            return 0.5

        (episode,) = play([{}], AgentEnvironment(agent), make_roles([f"answer {i}" for i in range(6)], max_turns=9))
        assert episode.failure is None and episode.num_turns == 6
        conversations = all_conversations([episode])
        assert [[turn.action for turn in one.turns] for one in conversations] == [
            ["answer 0", "answer 5"],
            ["answer 1", "answer 2"],
            ["answer 3", "answer 4"],
        ]
        assert [one.turns[0].next_observation for one in conversations] == ["main 2", "sub 2", "sub 2"]
        assert all(one.terminated and one.score == 0.5 and not one.segments for one in conversations)
        assert [one.opening[0]["content"] for one in conversations] == ["main", "helper", "helper"]
        replay = PrioritizedReplay(100)
        replay.add(conversations)
        assert len(replay) == 6

    def test_parallel_requests_of_one_agent(self):
        async def agent(task, base_url, api_key):
            async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:

                async def two_turns(name):
                    messages = [user(name)]
                    for _ in range(2):
                        answer = await client.chat.completions.create(model="policy", messages=messages)
                        messages += [answer.choices[0].message, user(f"{name} again")]

                await asyncio.gather(*(two_turns(f"part {i}") for i in range(4)))
            return 1.0

        (episode,) = play([{}], AgentEnvironment(agent), make_roles("take red", max_turns=9))
        assert episode.failure is None and len(episode.segments) == 3
        for one in all_conversations([episode]):
            assert len(one.turns) == 2 and one.score == 1 and one.terminated
            name = one.opening[0]["content"]
            assert [turn.next_observation for turn in one.turns] == [f"{name} again", ""]

    @pytest.mark.parametrize("keeps", [True, False])
    def test_a_compacted_history_goes_on_in_a_new_conversation(self, keeps):
        def agent(task, base_url, api_key):
            messages = [user("win")]
            messages += [ask(base_url, api_key, messages), user("lost")]
            messages += [ask(base_url, api_key, messages), user("lost again")]
            kept = messages[-2:] if task["keeps"] else messages[-1:]
            ask(base_url, api_key, [messages[0], user("summary: lost twice"), *kept])
            return 1.0

        answers = ["one", "two", "three"]
        (episode,) = play([{"keeps": keeps}], AgentEnvironment(agent), make_roles(answers))
        first, second = all_conversations([episode])
        # What came back is known where the answer stands before it.
        assert [turn.next_observation for turn in first.turns] == ["lost", "lost again" if keeps else ""]
        kept = ["win", "summary: lost twice", *(["two"] if keeps else []), "lost again"]
        assert [message["content"] for message in second.opening] == kept
        assert [turn.action for turn in second.turns] == ["three"] and first.score == second.score == 1
        assert Transition(first, 1).terminated

    def test_another_answer_is_not_what_came_back(self):
        def agent(task, base_url, api_key):
            question = user("win")
            ask(base_url, api_key, [question])
            other = ask(base_url, api_key, [question])
            ask(base_url, api_key, [question, {"role": "assistant", "content": "mine"}, user("Is it right?")])
            ask(base_url, api_key, [question, other, user("Sure?")])
            return 1.0

        (episode,) = play([{}], AgentEnvironment(agent), make_roles(["one", "two", "no", "yes"], max_turns=9))
        conversations = all_conversations([episode])
        seen = [[turn.next_observation for turn in one.turns] for one in conversations]
        assert seen == [[""], ["Sure?", ""], [""]]

    def test_what_was_asked_before_the_answer_does_not_follow_it(self, monkeypatch):
        """Even if it has the very words that the model then says."""
        asked, ask_one = [], _Run.ask

        def ask_when_both_are_there(self, request):
            asked.append(request)
            if len(asked) == 2:
                for one in sorted(asked, key=lambda one: len(one.question.messages)):
                    ask_one(self, one)

        async def at_once(task, base_url, api_key):
            async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
                ask_for = client.chat.completions.create
                history = [user("win"), {"role": "assistant", "content": "one"}, user("early")]
                await asyncio.gather(*(ask_for(model="policy", messages=m) for m in ([user("win")], history)))
            return 1.0

        monkeypatch.setattr(_Run, "ask", ask_when_both_are_there)
        (episode,) = play([{}], AgentEnvironment(at_once), make_roles("one", max_turns=9))
        assert [[turn.next_observation for turn in one.turns] for one in all_conversations([episode])] == [[""], [""]]

    @pytest.mark.parametrize("way", ["one by one", "the other first", "the first alone", "without ids", "equal calls"])
    def test_calls_that_come_back_in_other_ways(self, way):
        def agent(task, base_url, api_key):
            message = ask(base_url, api_key, [user("win")], tools=[TOOL]).model_dump(exclude_none=True)
            one, other = message["tool_calls"]
            if way == "equal calls":  # of another reply, which is asked for in between
                ask(base_url, api_key, [user("win")], tools=[TOOL])
            order = {"the other first": [other, one], "the first alone": [one]}.get(way, [one, other])
            history = [user("win")]
            for call in order:
                result = {"role": "tool", "content": f"result {call['function']['arguments']}"}
                if way == "without ids":
                    call = {"type": "function", "function": call["function"]}
                else:
                    result["tool_call_id"] = call["id"]
                history += [{"role": "assistant", "content": None, "tool_calls": [call]}, result]
            ask(base_url, api_key, history, tools=[TOOL])
            return 1.0

        two = json.dumps([{"name": "route", "arguments": {"time": "noon"}}, {"name": "route", "arguments": {}}])
        (episode,) = play([{}], AgentEnvironment(agent), make_roles([two, *[two] * (way == "equal calls"), "done"]))
        first, *others = all_conversations([episode])
        results = ['result {"time": "noon"}', "" if way == "the first alone" else "result {}"]
        assert json.loads(first.turns[0].next_observation) == results
        is_new = way == "the first alone"
        assert [turn.action for turn in (others[0] if is_new else first).turns][-1] == "done"
        assert len(others) == (way in ("the first alone", "equal calls"))

    @pytest.mark.parametrize("interface", ["chat", "responses"])
    def test_one_call_where_a_client_takes_one(self, interface):
        taken = []

        def agent(task, base_url, api_key):
            with OpenAI(base_url=base_url, api_key=api_key) as client:
                if interface == "chat":
                    options = {"tools": [TOOL], "parallel_tool_calls": False}
                    taken.extend(ask(base_url, api_key, [user("win")], **options).tool_calls)
                else:
                    tools = [{"type": "function", **TOOL["function"]}]
                    answer = client.responses.create(
                        model="policy", input="win", tools=tools, parallel_tool_calls=False
                    )
                    taken.extend(item for item in answer.output if item.type == "function_call")
            return 1.0

        one = {"name": "route", "arguments": {}}
        answers = [json.dumps([one, one]), json.dumps(one)]
        (episode,) = play([{}], AgentEnvironment(agent), make_roles(answers))
        assert len(taken) == 1 and "an answer can call one tool here" in episode.turns[0].next_observation

    def test_a_limit_cuts_all_conversations(self):
        errors = []

        def agent(task, base_url, api_key):
            messages = [user("main")]
            messages += [ask(base_url, api_key, messages), user("main 2")]
            sub = [user("sub")]
            sub += [ask(base_url, api_key, sub), user("sub 2")]
            try:
                ask(base_url, api_key, sub)
            except APIStatusError as error:
                errors.append(error.status_code)
            return task["reward"]

        tasks = [{"reward": 0.25}, {"reward": None}]
        for episode, task in zip(
            play(tasks, AgentEnvironment(agent), make_roles("take red", max_turns=2)), tasks, strict=True
        ):
            (sub,) = all_conversations([episode])  # the consequence of the first answer is unknown
            assert sub.truncated and sub.failure is None and sub.turns[0].next_observation == "sub 2"
            assert sub.score == (task["reward"] or 0)
        assert errors == [410, 410]

    def test_interfaces(self):
        def agent(task, base_url, api_key):
            with OpenAI(base_url=base_url, api_key=api_key) as client:
                assert [model.id for model in client.models.list()] == ["policy"]
                if task["streamed"]:
                    with client.chat.completions.stream(model="policy", messages=[user("win")], stop="!") as stream:
                        assert stream.get_final_completion().choices[0].message.content == "take red"
                    with client.responses.stream(model="policy", input="win") as stream:
                        answer = stream.get_final_response()
                else:
                    assert ask(base_url, api_key, [user("win")], stop=["!"]).content == "take red"
                    answer = client.responses.create(model="policy", input="win")
                assert answer.output_text == "take red! Now." and answer.usage.output_tokens > 2
            return 1.0

        tasks = [{"streamed": False}, {"streamed": True}]
        for episode in play(tasks, AgentEnvironment(agent), make_roles("take red! Now.")):
            assert episode.failure is None and episode.num_turns == 2

    def test_tokens_are_those_of_the_policy(self):
        usage = {}

        def agent(task, base_url, api_key):
            usage.update(post(base_url, api_key, "chat/completions", {"messages": [user("win")]})["usage"])
            return 1.0

        (episode,) = play([{}], AgentEnvironment(agent), make_roles("take red " * 8))
        (transition,) = episode.transitions
        assert usage["prompt_tokens"] == len(transition.state.ids)
        assert usage["completion_tokens"] == len(transition.action_ids)


class TestRewards:
    @pytest.mark.parametrize(
        "paid, returned, score",
        [([], 1, 1.0), ([0.25, 0.5], None, 0.75), ([0.25], 0.5, 0.75), ([], None, None), ([], "won", None)],
    )
    def test_returned_and_sent(self, paid, returned, score):
        def agent(task, base_url, api_key):
            ask(base_url, api_key, [user("win")])
            for reward in paid:
                assert post(base_url, api_key, "reward", {"reward": reward})["reward"] == reward
            return returned

        (episode,) = play([{}], AgentEnvironment(agent))
        if score is None:
            assert episode.failure.startswith("reward: ") and not episode.turns
        else:
            assert episode.failure is None and episode.score == score

    def test_a_score_that_fails_at_the_limit_of_a_conversation_that_has_just_begun(self):
        def agent(task, base_url, api_key):
            ask(base_url, api_key, [user("main")])
            with suppress(APIStatusError):
                ask(base_url, api_key, [user("sub")])

        def fails(completions, **kwargs):
            raise EnvironmentFailure("no judge")

        roles = make_roles("take red", max_turns=1, turn_limit="terminate")
        (episode,) = play([{}], AgentEnvironment(agent, pays=False), roles, rewards=EpisodeRewards([fails]))
        assert "no judge" in episode.failure and episode.truncated

    def test_reward_functions(self):
        def length(completions, prompts, environments, **kwargs):
            assert type(environments[0]) is AgentEnvironment
            return [float(len(completion[0]["content"])) for completion in completions]

        def agent(task, base_url, api_key):
            ask(base_url, api_key, [user("win")])
            return "ignored"

        environment = AgentEnvironment(agent, pays=False)
        assert not EnvironmentPool(environment).pays
        (episode,) = play([{}], environment, rewards=EpisodeRewards([length]))
        assert episode.failure is None and episode.score == len("take red")

    def test_nothing_pays(self, tmp_path):
        with pytest.raises(ValueError, match="Nothing gives rewards"):
            make_trainer(tmp_path, environment_factory=AgentEnvironment(desk_agent, pays=False))


COMMAND = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": sys.argv[1]}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
answer = json.load(urllib.request.urlopen(request))
print(answer["choices"][0]["message"]["content"])
sys.exit(task["code"]) if task["code"] else print(task["reward"])
"""


class TestCommands:
    def test_a_program_in_a_process(self, tmp_path):
        script = tmp_path / "agent.py"
        script.write_text(COMMAND)
        tasks = [{"text": "win {x}", "code": 0, "reward": 0.5}, {"text": "win", "code": 3, "reward": 1}]
        for command in ([sys.executable, str(script), "{text}"], f"{sys.executable} {script} '{{text}}'"):
            won, failed = play(tasks, AgentEnvironment(command))
            assert won.failure is None and won.score == 0.5 and won.first_observation == "win {x}"
            assert failed.failure.startswith("step: EnvironmentFailure: the agent failed") and not failed.turns
            assert "exit code 3" in failed.failure

    def test_one_that_hangs_is_killed_with_its_children(self, tmp_path):
        pid = tmp_path / "pid"
        command = ["sh", "-c", f"sleep 300 & echo $! > {pid}; wait"]
        (episode,) = play([{}], AgentEnvironment(command), timeout=2.0)
        assert episode.failure.startswith("timeout: ")
        wait_until(lambda: not _is_alive(int(pid.read_text())))

    @pytest.mark.parametrize("helper", ["sleep 15", "setsid sleep 15"], ids=["child", "daemon"])
    def test_one_ends_without_its_helpers(self, helper, monkeypatch):
        monkeypatch.setattr("trl_nlac.gateway.environment.ENDING_SECONDS", 0.2)
        command = ["sh", "-c", f"{helper} & echo 0.5"]
        start = time.monotonic()
        assert finish(_run_command(command, {}, "", "")) == 0.5
        assert time.monotonic() - start < 10

    def test_a_task_with_a_date_reaches_a_command(self):
        command = ["sh", "-c", 'grep -q "2026-11-29" && echo 1']
        assert finish(_run_command(command, {"day": date(2026, 11, 29)}, "", "")) == 1.0

    @pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
    def test_a_proxy_is_not_for_the_policy(self, name, monkeypatch):
        """What the user reaches without one stays so, in both spellings of the variable."""
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv(name, "internal.example")
        command = ["sh", "-c", 'test "$NO_PROXY $no_proxy" = "$1 $1" && echo 1', "", "internal.example,127.0.0.1"]
        assert finish(_run_command(command, {}, "", "")) == 1.0

    def test_what_is_no_command(self):
        for wrong in (None, "", [], ["python", 3]):
            with pytest.raises(TypeError, match="`run_agent` must be a function"):
                AgentEnvironment(wrong)


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class TestFaults:
    @pytest.mark.parametrize("is_async", [False, True], ids=["function", "coroutine"])
    def test_each_is_counted(self, is_async):
        never = threading.Event()

        def behave(fault, base_url, api_key):
            if fault == "silent":
                return 1.0
            if fault == "early":
                raise RuntimeError("broken")
            messages = [user("win")]
            messages += [ask(base_url, api_key, messages), user("win 2")]
            if fault == "exit":
                sys.exit(1)
            if fault == "hang":
                never.wait(30)
            if fault == "asks for two":
                ask(base_url, api_key, messages, n=2)
            messages += [ask(base_url, api_key, messages), user("win 3")]
            if fault == "late":
                raise RuntimeError("broken")
            return 1.0

        async def behave_later(task, base_url, api_key):
            if task["fault"] == "hang":
                await asyncio.to_thread(ask, base_url, api_key, [user("win")])
                await asyncio.sleep(30)
            return await asyncio.to_thread(behave, task["fault"], base_url, api_key)

        agent = behave_later if is_async else lambda task, *where: behave(task["fault"], *where)
        faults = ["silent", "early", "exit", "hang", "asks for two", "late", None]
        episodes = play([{"fault": fault} for fault in faults], AgentEnvironment(agent), timeout=5.0)
        never.set()
        kinds = [episode.failure and episode.failure.partition(":")[0] for episode in episodes]
        assert kinds == ["reset", "reset", "step", "timeout", "step", "step", None]
        assert [len(episode.turns) for episode in episodes] == [0, 0, 0, 0, 0, 1, 2]
        assert [episode.score for episode in episodes] == [0] * 6 + [1]
        assert all(episode.truncated and not episode.terminated for episode in episodes[:-1])
        assert "without a request" in episodes[0].failure and "RuntimeError: broken" in episodes[1].failure
        assert "`n=2` is not offered" in episodes[4].failure
        assert not the_server()._clients  # every key has gone with its episode

    def test_keys(self):
        keys = []

        def agent(task, base_url, api_key):
            ask(base_url, api_key, [user("win")])
            keys.append((base_url, api_key))
            for wrong in ("sk-nlac-wrong", api_key[:-1]):
                with pytest.raises(AuthenticationError, match="The key is wrong, or its episode has ended"):
                    ask(base_url, wrong, [user("win")])
            return 1.0

        (episode,) = play([{}], AgentEnvironment(agent))
        assert episode.failure is None and len(episode.turns) == 1
        with pytest.raises(AuthenticationError):
            ask(*keys[0], [user("win")])
        assert keys[0][0].startswith("http://127.0.0.1:")

    def test_a_client_that_leaves_and_asks_again_gets_the_same_answer(self):
        """The policy is not asked twice; one that leaves for good is no failure."""
        answered = threading.Event()

        def agent(task, base_url, api_key):
            with pytest.raises(TimeoutError):
                post(base_url, api_key, "chat/completions", {"messages": [user("win")]}, timeout=0.2)
            answered.wait(10)
            assert ask(base_url, api_key, [user("win")]).content == "take red"
            return 1.0

        roles = make_roles("take red")
        generate = roles.generator.generate

        def slow(*args, **kwargs):
            time.sleep(0.6)
            completions = generate(*args, **kwargs)
            answered.set()
            return completions

        roles.generator.generate = slow
        (episode,) = play([{}], AgentEnvironment(agent), roles)
        assert episode.failure is None and episode.num_turns == 1 and len(roles.generator.prompts) == 1

    @pytest.mark.parametrize(
        "path, data, status, headers",
        [
            ("chat/completions", b"{", 400, {}),
            ("chat/completions", b"[" * 100_000, 400, {}),
            ("chat/completions", b"\xff", 400, {}),
            ("chat/completions", b"[]", 400, {}),
            ("chat/completions", b'{"messages": [{"role": ["user"], "content": "win"}]}', 400, {}),
            ("chat/completions", b"{}", 400, {"Content-Type": "application/json; charset=none-such"}),
            ("chat/completions", b"{}", 400, {"Content-Encoding": "gzip"}),
            ("reward", b'{"reward": "1"}', 400, {}),
            ("reward", b'{"reward": NaN}', 400, {}),
            ("reward", b'{"reward": 1%s}' % (b"0" * 400), 400, {}),
            ("embeddings", b"{}", 404, {}),
        ],
        ids=str,
    )
    def test_odd_requests(self, path, data, status, headers):
        def agent(task, base_url, api_key):
            sent = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json", **headers}
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(f"{base_url}/{path}", data, sent))
            assert refused.value.code == status
            assert json.loads(refused.value.read())["error"]["message"]
            ask(base_url, api_key, [user("win")])
            return 1.0

        (episode,) = play([{}], AgentEnvironment(agent))
        assert episode.failure is None, episode.failure


ANOTHER = Opening([{"role": "user", "content": "Another task."}])


def delegating(*results):
    class Delegating(TextEnvironment):
        def reset(self):
            self.results = iter(results)
            return "begin"

        def step(self, action):
            return next(self.results)

    return Delegating


def test_the_reward_of_a_step_that_opens_a_conversation():
    environment = delegating(
        StepResult("", reward=0.25, conversation=ANOTHER),
        StepResult("back", reward=0.125, conversation=0),
        StepResult("", reward=0.5, terminated=True),
    )
    (episode,) = play([{}], environment, make_roles(["one", "two", "three"], max_turns=4))
    rewards = [[turn.reward for turn in one.turns] for one in (episode, *episode.segments)]
    assert episode.failure is None and rewards == [[0.375, 0.5], [0.5]]


def test_a_limit_that_ends_the_task_keeps_the_answers_that_wait():
    environment = delegating(StepResult("", conversation=ANOTHER), StepResult("go on"))
    roles = make_roles(["one", "two"], max_turns=2, turn_limit="terminate")
    (episode,) = play([{}], environment, roles)
    conversations = all_conversations([episode])
    assert [[turn.action for turn in one.turns] for one in conversations] == [["one"], ["two"]]
    assert all(one.terminated and not one.truncated for one in conversations)


def test_the_reward_of_the_step_that_ends_an_episode_is_that_of_all_conversations():
    environment = delegating(StepResult("", conversation=ANOTHER), StepResult("", reward=1.0, terminated=True))
    (episode,) = play([{}], environment, make_roles(["one", "two"], max_turns=4))
    assert [(one.score, one.terminated) for one in all_conversations([episode])] == [(1.0, True)] * 2
    assert len(episode.segments) == 1


class TestTraining:
    def test_in_processes(self, tmp_path):
        trainer = make_trained(
            tmp_path, {"environment_workers": "process"}, environment_factory=AgentEnvironment(desk_agent_in_text)
        )
        assert trainer.num_environment_steps and not any(e.failure for e in trainer.replay.episodes)

    def test_segments_are_trained_on_and_counted(self, tmp_path):
        def agent(task, base_url, api_key):
            for name in ("plan", "do"):
                ask(base_url, api_key, [user(f"{name} {task['request']}")])
            return 1.0

        config = make_config(tmp_path, logging_steps=1, log_completions=True)
        trainer = NLACTrainer(
            TINY_MODEL, config, TASKS, environment_factory=AgentEnvironment(agent), prompts=COMPACT_PROMPTS
        )
        torch.manual_seed(0)
        trainer.train()
        logs = [log for log in trainer.state.log_history if "loss" in log]
        assert all(log["episode/num_segments"] == 2 for log in logs)
        assert logs[-1]["environment/steps"] == len(trainer.replay) == 2 * 2 * config.episodes_per_iteration
        assert {len(episode.turns) for episode in trainer.replay.episodes} == {1}


def test_secrets_of_episodes_are_hidden():
    def agent(task, base_url, api_key):
        ask(base_url, api_key, [user("win")])
        raise RuntimeError(f"refused with {api_key}")

    (episode,) = play([{}], AgentEnvironment(agent))
    assert "refused with <hidden>" in episode.failure


def test_commands_do_not_get_the_keys_of_others(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")
    script = tmp_path / "agent.py"
    script.write_text("import os, sys; sys.exit(os.environ['OPENAI_API_KEY'])")
    (episode,) = play([{}], AgentEnvironment([sys.executable, str(script)]))
    assert "sk-of-the-user" not in episode.failure and os.environ["OPENAI_API_KEY"] == "sk-of-the-user"
