# SPDX-License-Identifier: Apache-2.0

"""Tests with τ-bench itself; a script behind a local OpenAI-compatible server plays the user."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest


os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # otherwise litellm asks the network for prices
pytest.importorskip("tau_bench")

from helpers.scripts import run_script  # noqa: E402
from helpers.testing_utils import make_tokenizer  # noqa: E402
from tau_bench.envs.airline.tasks_test import TASKS as AIRLINE_TASKS  # noqa: E402
from tau_bench.envs.retail.tasks_test import TASKS_TEST  # noqa: E402
from tau_bench.envs.retail.tasks_train import TASKS_TRAIN  # noqa: E402
from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: E402

from benchmarks.chat_server import ChatServer  # noqa: E402
from trl_nlac.chat.tool_calls import format_tool_call  # noqa: E402
from trl_nlac.environments.tau_bench import TauBenchEnvironment, make_tasks  # noqa: E402


class UserServer(ChatServer):
    """Plays the user: greets, and says goodbye once the agent does. The first `failures` requests are refused."""

    def __init__(self):
        super().__init__(self.say)
        self.failures = 0
        self.silent = False

    def say(self, messages: list[dict]) -> str | int:
        if self.failures:
            self.failures -= 1
            return 500
        if self.silent:
            return ""
        if len(messages) == 2:
            return "Hello, I have a request."
        return "###STOP###" if "goodbye" in messages[-1]["content"].lower() else "Please go on."


@pytest.fixture
def server():
    server = UserServer()
    with server.running():
        yield server


def make_environment(server, env_name="retail", task_split="test", **kwargs) -> TauBenchEnvironment:
    return TauBenchEnvironment(env_name, task_split, user_model="customer", user_base_url=server.url, **kwargs)


def right_actions(task) -> list[str]:
    calls = [format_tool_call(action.name, action.kwargs) for action in task.actions]
    return [*calls, f"All done. {' '.join(task.outputs)} Goodbye!"]


def play(environment, task_index: int, actions: list[str]) -> list:
    environment.reset(task_index=task_index)
    return [environment.step(action) for action in actions]


@pytest.mark.parametrize(
    ("env_name", "task_split", "tasks"),
    [("retail", "test", TASKS_TEST), ("retail", "train", TASKS_TRAIN), ("airline", "test", AIRLINE_TASKS)],
)
def test_right_and_wrong_play(server, env_name, task_split, tasks):
    environment = make_environment(server, env_name, task_split)
    actions = right_actions(tasks[0])
    steps = play(environment, 0, actions)
    assert [step.terminated for step in steps] == [False] * (len(actions) - 1) + [True]
    assert [step.reward for step in steps] == [0.0] * (len(actions) - 1) + [1.0]
    assert not any(step.truncated for step in steps)
    assert steps[-1].observation == "###STOP###" and steps[-1].info["reward_info"]["reward"] == 1.0

    steps = play(environment, 0, actions[-1:])  # promises something and does nothing
    assert steps[-1].terminated and steps[-1].reward == 0.0


def test_what_has_to_be_said(server):
    index = next(i for i, task in enumerate(TASKS_TEST) if task.outputs)
    actions = right_actions(TASKS_TEST[index])
    environment = make_environment(server)
    assert play(environment, index, actions)[-1].reward == 1.0
    assert play(environment, index, [*actions[:-1], "Goodbye!"])[-1].reward == 0.0


def test_a_transfer_ends_the_task(server):
    (step,) = play(make_environment(server), 0, [format_tool_call("transfer_to_human_agents", {"summary": "stuck"})])
    assert step.terminated and step.reward == 0.0 and step.observation == "Transfer successful"


def test_the_conversation(server):
    environment = make_environment(server, user_kwargs={"temperature": 0.5})
    assert not server.requests  # no call before the first task
    messages = environment.reset(task_index=3, environment="retail_test")
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[0]["content"].startswith("# Retail agent policy")
    assert messages[1]["content"] == "Hello, I have a request."
    (request,) = server.requests
    assert request["model"] == "customer" and request["temperature"] == 0.5
    assert TASKS_TEST[3].instruction in request["messages"][0]["content"]

    for action in ("What is your name?", format_tool_call("respond", {"content": "What is your name?"})):
        step = environment.step(action)
        assert step.observation == "Please go on." and not step.terminated
        assert server.requests[-1]["messages"][-1] == {"role": "user", "content": "What is your name?"}
    result = environment.step(format_tool_call("list_all_product_types", {}))
    assert "T-Shirt" in json.loads(result.observation) and len(server.requests) == 3


def test_tools_are_listed(server):
    environment = make_environment(server)
    names = [schema["function"]["name"] for schema in environment.tool_schemas]
    assert names[-1] == "respond" and "get_order_details" in names and len(set(names)) == len(names)
    silent = make_environment(server, "airline", respond_tool=False)
    names = [schema["function"]["name"] for schema in silent.tool_schemas]
    assert "respond" not in names and "book_reservation" in names


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (format_tool_call("open_door", {}), "Unknown action open_door"),
        (format_tool_call("get_order_details", {}), "missing 1 required positional argument: 'order_id'"),
        (format_tool_call("get_order_details", {"order_id": "#W1", "data": {}}), "multiple values"),
        (format_tool_call("get_order_details", {"order_id": "#W1"}), "order not found"),
        (format_tool_call("respond", {"text": "hello"}), "respond takes the argument `content`"),
        (format_tool_call("respond", {"content": 3}), "respond takes the argument `content`"),
        (format_tool_call("calculate", {"expression": "9**9**9"}), "powers are not allowed"),
        ('{"name": "get_order_details", "arguments": {"order_id": ', "a tool call is written"),
        ('{"name": "get_order_details", "arguments": "#W1"}', "a tool call is written"),
    ],
)
def test_mistakes_are_answered(server, action, words):
    (step,) = play(make_environment(server), 0, [action])
    assert words in step.observation and step.observation.startswith(("Error: ", "Unknown action "))
    assert not step.terminated and step.reward == 0.0
    assert len(server.requests) == 1  # nothing reached the user


def test_a_tool_without_an_answer(server):
    environment = make_environment(server, "airline")
    certificate = format_tool_call("send_certificate", {"user_id": AIRLINE_TASKS[0].user_id, "amount": 50})
    steps = play(environment, 0, [certificate] * 4)
    assert "added to user" in steps[2].observation
    assert steps[3].observation == "Error: send_certificate could not do this"


def test_a_failing_user_is_raised(server):
    environment = make_environment(server, user_kwargs={"num_retries": 0, "max_retries": 0})
    environment.reset(task_index=0)
    server.failures = 1
    with pytest.raises(Exception, match="InternalServerError"):
        environment.step("Hello?")
    server.silent = True
    with pytest.raises(RuntimeError, match="The user's model 'customer' returned no text"):
        environment.step("Hello?")
    server.silent = False
    assert play(environment, 0, right_actions(TASKS_TEST[0]))[-1].reward == 1.0  # then it can be used again


def test_a_failing_user_is_asked_again(server):
    environment = make_environment(server)
    server.failures = 1
    assert environment.reset(task_index=0)[-1]["content"] == "Hello, I have a request."
    assert len(server.requests) == 2


def test_instances_share_nothing(server):
    before = [task.model_dump() for task in TASKS_TEST[:4]]
    fresh = make_environment(server)
    fresh.reset(task_index=0)
    untouched = json.dumps(fresh._env.data)
    environments = [make_environment(server) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            futures = [
                pool.submit(play, environment, i, right_actions(TASKS_TEST[i]))
                for i, environment in enumerate(environments)
            ]
            assert [future.result()[-1].reward for future in futures] == [1.0] * 4
    assert json.dumps(fresh._env.data) == untouched
    assert [task.model_dump() for task in TASKS_TEST[:4]] == before

    play(fresh, 0, right_actions(TASKS_TEST[0])[:-1])
    assert json.dumps(fresh._env.data) != untouched
    fresh.reset(task_index=0)
    assert json.dumps(fresh._env.data) == untouched


def test_tasks_come_from_the_package():
    tasks = make_tasks("retail", "train")
    assert len(tasks) == len(TASKS_TRAIN) and tasks[7] == {"environment": "retail_train", "task_index": 7}
    assert len(make_tasks("airline", "test")) == len(AIRLINE_TASKS)
    with pytest.raises(ValueError, match="no tasks for `env_name='airline'` and `task_split='train'`"):
        make_tasks("airline", "train")
    with pytest.raises(ValueError, match="`env_name='telecom'`"):
        make_tasks("telecom")


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "tau_bench.envs", None)
    with pytest.raises(ImportError, match="pip install git"):
        TauBenchEnvironment()


@pytest.mark.slow
def test_example_script(server, tmp_path):
    tokenizer = make_tokenizer("qwen2_5")
    tokenizer.save_pretrained(tmp_path / "model")
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = Qwen2Config(**shape, vocab_size=len(tokenizer), num_key_value_heads=1)
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "model")
    arguments = f"""--output_dir {tmp_path}/run --report_to none
        --model_name_or_path {tmp_path}/model --use_cpu --bf16 False --action_format tool_call
        --user_model customer --user_base_url {server.url} --num_eval_tasks 1 --per_device_train_batch_size 1
        --max_steps 2 --max_turns 2 --max_completion_length 4 --max_prompt_length 20000"""
    output = run_script("examples/scripts/nlac_tau_bench.py", *arguments.split())
    assert "retail: solves" in output and "airline: solves" in output
    assert len(server.requests) >= 4  # two training tasks, and one of each company
