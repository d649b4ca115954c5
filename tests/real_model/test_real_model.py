# SPDX-License-Identifier: Apache-2.0

"""Everything once with a pretrained model, SmolLM2-135M-Instruct: `make test-real`."""

import json

import pytest
import torch
from datasets import Dataset
from helpers.testing_utils import weights
from openai import OpenAI
from peft import LoraConfig

from benchmarks.real_model import real_model_path
from trl_nlac import NLACAgent, NLACConfig, NLACPrompts, NLACTrainer
from trl_nlac.agent.better_actions import predict_futures
from trl_nlac.cli.main import main
from trl_nlac.environments import AgentEnvironment, StepResult
from trl_nlac.method.critic import critiques, judge_actions
from trl_nlac.prompts import WORKED_EXAMPLES


pytestmark = pytest.mark.real_model

MODEL = str(real_model_path())
FLOAT32 = {"dtype": "float32"}  # many CPUs have no instructions for bfloat16: a backward pass takes 20 times as long
PROMPTS = NLACPrompts(examples=WORKED_EXAMPLES)
TASKS = Dataset.from_dict({"room": ["kitchen", "cellar"]})
CONVERSATION = [{"role": "user", "content": "You are in the kitchen. Find the key within two moves."}]


class Search:
    """Anything but opening the right drawer is answered with a hint."""

    def reset(self, room):
        return f"You are in the {room}. Find the key within two moves. A move is written: open <thing>."

    def step(self, action):
        if "drawer" in action:
            return StepResult("You found the key.", reward=1.0, terminated=True)
        return StepResult("Nothing is there. There is also a drawer.")


def make_trainer(
    folder, prompts=PROMPTS, model=None, peft_config=None, environment_factory=Search, **config
) -> NLACTrainer:
    settings = {
        **dict(output_dir=str(folder), use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none"),
        **dict(save_strategy="no", logging_steps=1, max_steps=1, learning_rate=1e-4, max_turns=2, min_p=0.1),
        **dict(per_device_train_batch_size=2, episodes_per_iteration=2, samples_per_iteration=2),
        **dict(max_completion_length=64, model_init_kwargs=FLOAT32),
        "examples": "given",  # with "auto" this model is refused: it repeats the examples
    }
    return NLACTrainer(
        model=model or MODEL,
        args=NLACConfig(**{**settings, **config}),
        train_dataset=TASKS,
        eval_dataset=TASKS,
        environment_factory=environment_factory,
        prompts=prompts,
        peft_config=peft_config,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    lora = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = make_trainer(folder, peft_config=lora, log_completions=True)
    before = weights(trainer.model)
    trainer.train()
    trainer.save_model()
    return folder, trainer, before


class TestTraining:
    def test_lora(self, run):
        _, trainer, before = run
        after = weights(trainer.model)
        changed = {name for name in after if not torch.equal(after[name], before[name])}
        assert changed and all("lora" in name for name in changed)
        logs = trainer.state.log_history[0]
        assert logs["critic/num_examples"] + logs["policy/num_examples"] > 0
        assert 0 < logs["loss"] < 20

    def test_every_role_is_read_with_worked_examples(self, run):
        """The model seldom keeps to a form without them."""
        logs = run[1].state.log_history[0]
        rates = {name: logs[name] for name in logs if name.endswith("format_rate")}
        assert {"policy", "critic", "backup"} <= {name.partition("/")[0] for name in rates}
        assert rates["critic/format_rate"] >= 0.5

    def test_full(self, tmp_path):
        trainer = make_trainer(tmp_path, max_completion_length=32)
        before = weights(trainer.model)
        trainer.train()
        after = weights(trainer.model)
        assert any(not torch.equal(after[name], before[name]) for name in after)
        assert trainer.target_weights.distance(trainer.model) > 0


class TestAgent:
    def test_saved_model_plays_its_roles(self, run):
        folder, *_ = run
        agent = NLACAgent.from_pretrained(str(folder), temperature=0.0, backend_kwargs=FLOAT32)
        assert agent.roles.prompts == PROMPTS
        state = agent.encode(CONVERSATION)
        with agent.generating():
            state_action = state.extended(agent.roles.chat.past_turn("Thought: It is a drawer.\nAction: open drawer"))
            (critique,) = critiques(agent.roles, [state_action])
            assert critique.parsed is not None, critique.text
            (judgement,) = judge_actions(agent.roles, [state_action])
            assert judgement.verdict == critique.parsed.optimal and abs(judgement.verdict_score) < 100
            assert predict_futures(agent.roles, [state_action], 1)[0]
        assert agent.act(CONVERSATION).text


def search_agent(task, base_url, api_key) -> float:
    search = Search()
    messages = [{"role": "user", "content": search.reset(**task)}]
    with OpenAI(base_url=base_url, api_key=api_key) as client:
        for _ in range(2):
            said = client.chat.completions.create(model="policy", messages=messages).choices[0].message.content
            result = search.step(said)
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": result.observation}]
            if result.terminated:
                break
    return result.reward


def test_an_agent_behind_the_gateway_trains(tmp_path):
    lora = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = make_trainer(tmp_path, peft_config=lora, environment_factory=AgentEnvironment(search_agent))
    before = weights(trainer.model)
    trainer.train()
    episodes = list(trainer.replay.episodes)
    assert len(episodes) == 2 and all(episode.failure is None and episode.turns for episode in episodes)
    for episode in episodes:
        assert all(turn.action for turn in episode.turns)  # language, as it came to the agent
        assert episode.score == float("drawer" in episode.turns[-1].action)
    after = weights(trainer.model)
    assert any(not torch.equal(after[name], before[name]) for name in after)


def test_a_report_on_logs(tmp_path, capsys):
    """What a critic in language says of logs that it has not learned from."""
    rows = []
    for i in range(6):
        said = "open the drawer" if i % 2 else "open the window"
        result = Search().step(said)
        messages = [
            *CONVERSATION,
            {"role": "assistant", "content": said},
            {"role": "user", "content": result.observation},
        ]
        rows.append({"messages": messages, "reward": result.reward, "task": {"number": i}})
    (tmp_path / "logs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    PROMPTS.save_pretrained(tmp_path)
    words = ["--prompts", str(tmp_path / "nlac_prompts.json"), "--max_completion_length", "64", "--only_report"]
    words += ["--model_name_or_path", MODEL, "--output_dir", str(tmp_path / "improved")]
    assert main(["improve", str(tmp_path / "logs.jsonl"), *words]) == 0
    assert "Actions are read and trained as 'text'" in capsys.readouterr().out
    report = json.loads((tmp_path / "improved" / "improve.json").read_text())
    assert report["before"]["judged_steps"] == 3 and report["before"]["critic"]["steps"] == 1
    assert all(finding["critique"] for finding in report["before"]["findings"])
