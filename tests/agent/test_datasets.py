# SPDX-License-Identifier: Apache-2.0

import json

import pytest
from datasets import Dataset
from helpers.testing_utils import ScriptedGenerator, make_logs, make_tokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from trl_nlac import NLACAgent
from trl_nlac.agent.datasets import preference_dataset, refine_logs, sft_dataset
from trl_nlac.chat.actions import ActionFormat
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tool_calls import call_message
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.environments.embedded.service_desk import TOOL
from trl_nlac.episodes.logs import logs_dataset
from trl_nlac.options.role_options import RoleOptions


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
    logs = make_logs(tmp_path_factory.mktemp("logs")).filter(lambda row: row["reward"] == 0)
    return refine_logs(agent, logs), logs


def test_rows(refined):
    rows, logs = refined
    assert len(logs) > 10 and len(rows) > 0.9 * 2 * len(logs) and set(rows["reward"]) == {0.0}
    obeyed = []
    for row, (messages, i) in zip(rows, ((m, i) for m in logs["messages"] for i in (1, 3)), strict=False):
        assert [message["role"] for message in row["prompt"]] == ["user", "assistant", "user"][:i]
        assert row["prompt"] == messages[:i] and row["action"] == [messages[i]]
        named = messages[i + 1]["content"].split()[2]  # refused needs ...
        obeyed.append(named in row["refined_action"][0]["content"].split())
        assert named in row["critique"]
    assert sum(obeyed) > 0.7 * len(obeyed)


def test_openings_stay(agent):
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


def test_prompts_without_history(agent, refined):
    actions = agent.roles.actions
    agent.roles.actions = ActionFormat(actions.chat, actions.name, keeps_history=False)
    try:
        rows = refine_logs(agent, refined[1].select(range(4)))
    finally:
        agent.roles.actions = actions
    seen = [message for messages in refined[1]["messages"][:4] for message in (messages[0], messages[2])]
    assert len(rows) >= 6 and all(len(row["prompt"]) == 1 and row["prompt"][0] in seen for row in rows)


def test_trainers_of_trl_take_them(refined, tmp_path):
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


USER = {"role": "user", "content": "begin"}
CRITIQUE = "Future: It is lost.\nOptimality: No. Ask first."


def make_agent(tokenizer, answers: list, **options) -> NLACAgent:
    """Make an agent that calls tools, with scripted answers: all judgements, then all refinements."""
    chat = ChatEncoder(tokenizer)
    answers = [answer if isinstance(answer, str) else chat.completion(answer) for answer in answers]
    options = RoleOptions(action_format="tool_call", max_format_retries=0, **options)
    return NLACAgent(ScriptedGenerator(chat, answers), chat, options)


def make_call(arguments: dict | str, **others) -> dict:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **others}


class TestToolCalls:
    def test_arguments_stay(self):
        """Of different types under one name, which `datasets` would merge, or refuse."""
        given = ['{"x":1}', '{"x": "a", "date": "2024-01-01"}', '{"x": 1.0, "y": null}']
        result = {"role": "tool", "tool_call_id": "call_1", "content": "no"}
        rows = [{"messages": [USER, make_call(text, reasoning="Hm."), result], "reward": 0.0} for text in given]
        better = [[("f", {"x": 1})], [("f", {"x": "a"})], [("f", {"y": None, "x": 1})]]
        agent = make_agent(make_tokenizer("qwen2_5"), [CRITIQUE] * 3 + [call_message(calls) for calls in better])
        refined = refine_logs(agent, logs_dataset(rows))
        said = [{**row["messages"][1], "content": ""} for row in rows]
        assert [row["action"] for row in refined] == [[message] for message in said]
        calls = [row["refined_action"][0]["tool_calls"][0]["function"]["arguments"] for row in refined]
        assert calls == ['{"x": 1}', '{"x": "a"}', '{"y": null, "x": 1}']
        sft = sft_dataset(refined)
        calls = [row["completion"][0]["tool_calls"][0]["function"]["arguments"] for row in sft]
        assert [repr(call) for call in calls] == [repr(of_turn[0][1]) for of_turn in better]
        pairs = preference_dataset(refined)  # the first call is the same
        assert [row["chosen"][0]["tool_calls"][0]["function"]["arguments"] for row in pairs] == calls[1:]
        assert pairs[1]["rejected"][0]["tool_calls"][0]["function"]["arguments"] == {"x": 1.0, "y": None}

    def test_a_conversation_stays(self):
        """With ids and words of the user; results in the order of calls, and without keys that no template reads."""
        calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in "ab"]
        said = {"role": "assistant", "content": "So.", "tool_calls": calls}
        results = [{"role": "tool", "tool_call_id": i, "content": i} for i in "ba"]
        messages = [USER, {**said, "refusal": None}, *results, USER, {"role": "assistant", "content": "done"}]
        agent = make_agent(make_tokenizer("qwen2_5"), [CRITIQUE] * 2 + ["So.", "done"])
        first, second = refine_logs(agent, logs_dataset([{"messages": messages, "reward": 1.0}]))
        assert second["prompt"][1:] == [USER, said, *results[::-1], USER] and first["action"] == [said]

    def test_what_is_left_out_is_counted_by_reason(self, caplog):
        users = [{"role": "user", "content": f"Task {i}."} for i in range(4)]  # the same question is asked once
        rows = [{"messages": [user, make_call("{}")], "reward": 0.0} for user in users]
        answers = ["no critique", CRITIQUE, CRITIQUE, CRITIQUE, "<tool_call>", "go", ""]
        refined = refine_logs(make_agent(make_tokenizer("qwen2_5"), answers), logs_dataset(rows))
        assert len(refined) == 1 and refined[0]["refined_action"][0]["content"] == "go"
        assert caplog.messages == [
            "Of 4 actions, 3 are left out: 1 whose judgement could not be parsed and 2 whose refinement could not be "
            "parsed."
        ]

    def test_a_future_without_a_verdict_refines_nothing(self):
        logs = logs_dataset([{"messages": [{"role": "user", "content": "Go."}, make_call("{}")], "reward": 0.0}])
        several = make_agent(make_tokenizer("qwen2_5"), ["won"], num_futures=2)
        with pytest.raises(ValueError, match="has none with `num_futures=2`"):
            refine_logs(several, logs)

    def test_numbers_that_datasets_does_not_keep_are_left_out_for_other_trainers(self, caplog):
        given = [{"x": 1}, {"x": 10**30}, {"x": 0.1234567890123456}]
        rows = [{"messages": [USER, make_call(arguments)], "reward": 0.0} for arguments in given]
        answers = [CRITIQUE] * 3 + [call_message([("f", arguments)]) for arguments in given]
        refined = refine_logs(make_agent(make_tokenizer("qwen2_5"), answers), logs_dataset(rows))
        assert [json.loads(row["action"][0]["tool_calls"][0]["function"]["arguments"]) for row in refined] == given
        assert len(sft_dataset(refined)) == 1
        assert "Of 3 rows, 2 are left out. The first one: a message of the assistant cannot" in caplog.text

    def test_no_rows(self):
        agent = make_agent(make_tokenizer("qwen2_5"), ["no critique"])
        refined = refine_logs(agent, logs_dataset([{"messages": [USER, make_call("{}")], "reward": 0.0}]))
        for dataset in (refined, sft_dataset(refined), preference_dataset(refined)):
            assert len(dataset) == 0 and dataset.column_names
