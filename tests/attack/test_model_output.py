# SPDX-License-Identifier: Apache-2.0

"""Whatever a model writes is an action, or unreadable and counted. It ends no run, and no environment is blamed."""

import json
import random
import time
from functools import cache

import pytest
from datasets import Dataset
from helpers.testing_utils import ScriptedGenerator, make_roles_of, make_tokenizer, make_trainer, play
from transformers import AutoModelForCausalLM, Qwen3Config

from trl_nlac import NLACPrompts
from trl_nlac.chat.call_reader import read_calls
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tool_calls import MAX_NESTING
from trl_nlac.environments import StepResult
from trl_nlac.episodes.conversations import conversation
from trl_nlac.episodes.rewards import EpisodeRewards
from trl_nlac.generation.generator import Completion


TEMPLATES = ("qwen3", "qwen2_5", "llama3_1", "gptoss", "glm4moe", "nemotron_3_nano", "deepseekv3", "gemma4", "phi3")
NUM_OUTPUTS = 2400  # in all
NUMBERS = ("9" * 400, "9" * 5000, "1e999", "-1e999", "NaN", "-Infinity", "0x" + "f" * 9000, "1_0", "1j", "9" * 30)
TEXTS = ('"a"', '"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', "'\\x00'", "b'x'", "f'{1}'", "'\\N{BULLET}'", "null")
NAMES = ("look", "add", "none", "", "NLACMESSAGE0X", "NLACTOOL", "NLACBREAK", "__class__", "\0", "lo\nok", "\x1b[2J")


class Writer:
    """Writes answers of the kinds that broke something once, cut and mixed with tags and random tokens."""

    def __init__(self, chat: ChatEncoder, seed: str):
        self.chat = chat
        self.rng = random.Random(seed)
        self.tags = sorted(token.content for token in chat.tokenizer.added_tokens_decoder.values())

    def answer(self) -> list[int]:
        choose, rng = self.rng.choice, self.rng
        token_ids = self.chat.tokenizer(self.text(), add_special_tokens=False)["input_ids"]
        for _ in range(choose([0, 0, 0, 0, 3, 30])):  # also such as no tokenizer knows
            token_ids.insert(rng.randrange(len(token_ids) + 1), rng.randrange(len(self.chat.tokenizer) + 50))
        return token_ids[: choose([0, 300, 3000, 3000, 3000])] + [self.chat.template.stop_id] * choose([0, 1, 1, 1])

    def text(self) -> str:
        choose, rng = self.rng.choice, self.rng
        parts = [self._part() for _ in range(choose([1, 1, 1, 2, 3]))]
        parts = [part if rng.random() < 0.7 else part[: rng.randrange(len(part) + 1)] for part in parts]
        for _ in range(choose([0, 0, 0, 1, 3])):
            parts.insert(rng.randrange(len(parts) + 1), choose(self.tags))
        start = choose(["", "", "Hm.</think>"]) + choose(["", "Thought: Hm.\nAction: "])
        return start + choose(["", " ", "\n"]).join(parts)

    def _part(self) -> str:
        choose = self.rng.choice
        name, value, arguments = choose(NAMES), self._value(), self._arguments()
        call = f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'
        many = choose([3, 40, 1000])
        forms = (
            *(call, f"[{call}, {call}]", f"<tool_call>\n{call}\n</tool_call>", f'{{"tool_calls": [{call}]}}'),
            *(f"<tool_call>{call}</tool_call>\n<tool_call>{call}</tool_call>", f"{name}({arguments})"),
            *(f"{name}(x={value})", f"{name}(*{arguments}, **{arguments})", f"{name}[{value}]", value, arguments),
            *(f"Action: {name}\nAction Input: {arguments}", f"Thought: {value}\nAction: {name}({arguments})"),
            f"<function={name}>\n<parameter=x>\n{value}\n</parameter>\n</function>",
            f"{name}\n<arg_key>x</arg_key>\n<arg_value>{value}</arg_value>",
            *(f"<think>{value}</think>{call}", f"Future: {value}\nOptimality: No. {value}", f"Correctness: {value}"),
            *(f"<corrected_think>{value}</corrected_think>", f"Future: a\nOptimality: Yes{value}", "\x1b[2J\u202e\0"),
            choose(["Thought:", "Action:", "*", "\n", " \n", "```json\n", "look(", "look=", "{'", "<think>"]) * many,
            choose(['{"name": ', '"look"', "a:", "[{", "<tool_call>", "<function=", "Optimality:", "é\u0300"]) * many,
        )
        return choose(forms)

    def _value(self) -> str:
        deep = self.rng.choice([2, 99, 300, 1200])
        nested = (
            *("[" * deep, "[" * deep + "]" * deep, '{"a":' * deep + "1" + "}" * deep, "(" * deep, "-" * deep + "1"),
            *("1" + "+1" * deep, "x" + ".y" * deep, "f" + "()" * deep, "lambda:" * deep + "1", "'" * deep),
            *("\\" * deep, "not " * deep + "1", "1 if 1 else " * deep + "1", "f'{" * deep, "'a' " * deep),
        )
        return self.rng.choice([*nested, *NUMBERS, *TEXTS])

    def _arguments(self) -> str:
        value = self._value()
        forms = (
            *(f'{{"x": {value}}}', f'{{"numbers": [{value}]}}', f'{{"x": "a", "count": {value}}}'),
            f"{{'x': {value}}}",
            *('{"x": "a"}', '{"numbers": [1, 2]}', '{"": 1}', '{"self": 1, "__class__": 2}', '{"x": 1, "x": [2]}'),
            *("{**{}}", "{(1,): 2}", "{None: 1}", "{1: 2}", '"{\\"x\\": 1}"', "null", '{"x"', f"[{value}]"),
        )
        return self.rng.choice(forms)


class Tools:
    def reset(self, number):
        return "Begin."

    def look(self, x: str, count: int = 1) -> str:
        """
        Look.

        Args:
            x: Where.
            count: How often.
        """
        return f"{x} {count}"

    def add(self, numbers: list[float]) -> str:
        """
        Add.

        Args:
            numbers: The numbers.
        """
        return str(sum(numbers))

    def get_reward(self):
        return 1.0


class Texts:
    """An environment that is strict with its actions."""

    def reset(self, number):
        return "Begin."

    def step(self, action):
        if not action.strip() or not action.encode():
            raise ValueError("this is no action")
        return StepResult("So be it.", reward=1.0)


def pay(completions, **kwargs):
    return [float(len(json.dumps(completion)) > 0) for completion in completions]


@cache
def chat_of(template: str) -> ChatEncoder:
    return ChatEncoder(make_tokenizer(template))


def formats_of(template: str) -> list[str]:
    return ["react", "text", *(["tool_call"] if chat_of(template).calls_tools else [])]


CASES = [
    (template, name, environment)
    for template in TEMPLATES
    for name in formats_of(template)
    for environment in (Tools, Texts)
]


@pytest.mark.parametrize(("template", "name", "environment"), CASES)
def test_every_answer_is_an_action_or_unreadable(template, name, environment):
    chat = chat_of(template)
    writer = Writer(chat, f"{template} {name} {environment.__name__}")
    number = -(-NUM_OUTPUTS // len(CASES))
    answers = [writer.answer() for _ in range(number)]
    options = {"action_format": name, "max_turns": 1, "max_prompt_length": None}
    roles = make_roles_of(chat, answers, NLACPrompts(), **options)
    start = time.process_time()
    episodes = play([{"number": i} for i in range(number)], environment, roles, rewards=EpisodeRewards([pay]))
    assert [episode.failure for episode in episodes] == [None] * number
    assert time.process_time() - start < 30
    readable = [bool(episode.turns[0].action) for episode in episodes]
    assert roles.tally.metrics["policy/format_rate"] == list(map(float, readable)) and 0 < sum(readable) < number
    for episode in episodes:
        for text in (episode.turns[0].action, episode.turns[0].next_observation):
            text.encode()
    # What is kept can be shown, exported and told to a model again.
    for episode in episodes:
        json.dumps(conversation(episode, roles.actions), ensure_ascii=False, allow_nan=False).encode()
        assert roles.actions.completion(episode.turns[0].action, "")


class WildGenerator(ScriptedGenerator):
    def __init__(self, chat: ChatEncoder, seed: str, sound: str):
        super().__init__(chat, "")
        self.writer = Writer(chat, seed)
        self.sound = chat.completion(sound)

    def _completion(self, answer, begun=()):
        is_sound = self.writer.rng.random() < 0.5
        answer = Completion(self.sound if is_sound else self.writer.answer(), self.writer.rng.random() < 0.9)
        return super()._completion(answer, begun)


def test_a_run_of_wild_answers(tmp_path):
    tokenizer = make_tokenizer("qwen3")
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = Qwen3Config(**shape, vocab_size=len(tokenizer) + 50, num_key_value_heads=1, head_dim=16)
    options = {
        **{"action_format": "tool_call", "max_completion_length": 4096, "max_turns": 2},
        **{"log_completions": True, "num_completions_to_print": 0, "audit_samples": 4, "logging_steps": 1},
        **{"per_device_train_batch_size": 8, "save_strategy": "steps", "save_steps": 2},
    }
    arguments = {
        "environment_factory": Tools,
        "processing_class": tokenizer,
        "train_dataset": Dataset.from_dict({"number": list(range(16))}),
        "prompts": NLACPrompts(),
        "reward_funcs": [pay],
    }

    def make(max_steps: int):
        model = AutoModelForCausalLM.from_config(config)
        trainer = make_trainer(tmp_path, options | {"max_steps": max_steps}, model=model, **arguments)
        sound = "Future: It ends.\nOptimality: No. Look again."
        trainer.roles.generator = WildGenerator(trainer.roles.chat, str(max_steps), sound)
        return trainer

    make(4).train()
    trainer = make(6)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 6 and len(trainer.replay) >= 40
    logs = [log for log in trainer.state.log_history if "policy/format_rate" in log]
    assert all(0 < log["policy/format_rate"] < 1 for log in logs) and len(logs) >= 6
    assert not any(log["environment/failure_rate"] for log in logs)


PARAMETERS = {"type": "object", "properties": {"x": {"type": "string", "description": "Where."}}}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": PARAMETERS}}


@pytest.mark.parametrize("length", [100, 600, 1000, 3000])
@pytest.mark.parametrize("part", ["+1", ".y", "()", " if 1 else 1", "[0]", " and 1", ".y()", "-1"])
def test_long_expressions(part, length):
    for text in (f"look(1{part * length})", f"look(x=1{part * length})", f'{{"name": "look", "x": 1{part * length}}}'):
        assert read_calls(text, [TOOL]) is None


def test_nesting_of_calls_is_limited():
    """What Python reads once, templates and copies cannot follow."""
    for depth, is_read in ((MAX_NESTING - 4, True), (MAX_NESTING + 1, False), (400, False), (10**5, False)):
        text = f'{{"name": "look", "arguments": {{"x": {"[" * depth}1{"]" * depth}}}}}'
        assert bool(read_calls(text, [TOOL])) == is_read


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"x": True}, "required": ["x"]},
        {"properties": {"x": {"type": "string"}}, "required": True},
        {"properties": ["x"]},
        {"properties": {"x": {"type": 5}}, "required": [["x"], 1]},
        ["x"],
        True,
    ],
)
def test_odd_schemas_of_tools_end_nothing(parameters):
    tools = [{"type": "function", "function": {"name": "look", "parameters": parameters}}]
    assert read_calls('{"name": "look", "arguments": {"x": "a"}}', tools) == [("look", {"x": "a"})]
    for text in ("Action: look\nAction Input: a", "<function=look><parameter=x>a</parameter></function>", "hello"):
        assert read_calls(text, tools) in (None, [], [("look", {"x": "a"})])


def test_text_stays_text_where_a_parameter_can_also_be_null():
    tools = [{"name": "look", "parameters": {"properties": {"x": {"type": ["string", "null"]}}, "required": ["x"]}}]
    assert read_calls("<function=look><parameter=x>00123</parameter></function>", tools) == [("look", {"x": "00123"})]
    assert read_calls("<function=look><parameter=x>123</parameter></function>", tools) == [("look", {"x": "123"})]


@pytest.mark.parametrize("opening", ['{"action":', '[{"action":', "[", '{"tool_calls":['])
@pytest.mark.parametrize("depth", [2, 90, 300, 450, 900, 1200])
def test_calls_within_calls_within_calls(opening, depth):
    closing = "".join({"{": "}", "[": "]"}.get(mark, "") for mark in reversed(opening))
    tools = [{"name": "look", "parameters": {"properties": {"x": {"type": "string"}}}}]
    assert read_calls(opening * depth + "1" + closing * depth, tools) in (None, [])
