# SPDX-License-Identifier: Apache-2.0

import os

import pyarrow as pa
import pytest
import torch
from datasets import Dataset, IterableDataset
from helpers.testing_utils import TASKS, make_config, make_trainer
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
from transformers.integrations import HfDeepSpeedConfig, is_deepspeed_zero3_enabled

from trl_nlac import NLACTrainer
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL
from trl_nlac.episodes.rewards import RewardModel
from trl_nlac.shards import loaded_whole
from trl_nlac.training.arguments import check_tasks


PROMPTS = Dataset.from_dict(
    {
        "prompt": [[{"role": "user", "content": f"{word} one"}] for word in ("take", "put", "win", "lose")],
        "worth": [1, 2, 3, 4],
    }
)


def length(completions, worth, **kwargs):
    return [worth[i] + len(completion[0]["content"]) for i, completion in enumerate(completions)]


def look() -> str:
    """Look around."""
    return "nothing"


def make(tmp_path, **kwargs) -> NLACTrainer:
    arguments = dict(args=make_config(tmp_path, action_format=None), train_dataset=PROMPTS, prompts=COMPACT_PROMPTS)
    return NLACTrainer(TINY_MODEL, **{**arguments, **kwargs})


@pytest.fixture
def reward_model(tmp_path) -> str:
    folder = str(tmp_path / "reward-model")
    config = AutoConfig.from_pretrained(TINY_MODEL, num_labels=1)
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(TINY_MODEL).save_pretrained(folder)
    return folder


class TestUsersOfGRPO:
    def test_positional_arguments_of_grpo(self, tmp_path):
        for arguments in ((length, make_config(tmp_path), PROMPTS), (length,), ("org/reward-model",), ([length],)):
            with pytest.raises(TypeError, match=r"name them, as in `NLACTrainer\(model, reward_funcs=") as raised:
                NLACTrainer(TINY_MODEL, *arguments)
            assert "\n" not in str(raised.value)

    @pytest.mark.parametrize("name", ["train_dataset", "eval_dataset"])
    def test_iterable_datasets(self, tmp_path, name):
        rows = IterableDataset.from_generator(lambda: iter(PROMPTS))
        with pytest.raises(TypeError, match=rf"`{name}` is an `IterableDataset`.*Dataset.from_list"):
            make(tmp_path, reward_funcs=length, **{name: rows})

    def test_rollout_func(self, tmp_path):
        with pytest.raises(ValueError, match=r"`rollout_func` is not taken.*AgentEnvironment\(run_agent\)"):
            make(tmp_path, reward_funcs=length, rollout_func=lambda prompts, trainer: {})


class TestPrompts:
    def test_a_prompt_is_a_task_of_a_single_step(self, tmp_path):
        trainer = make(tmp_path, reward_funcs=length)
        args = trainer.args
        assert (args.action_format, args.single_step, args.max_turns) == ("text", True, 1)
        trainer.train()
        episodes = trainer.replay.episodes
        assert len(episodes) == trainer.num_environment_steps == 8
        for episode in episodes:
            (turn,) = episode.turns
            assert episode.opening == tuple(episode.task["prompt"]) and not episode.failure
            if episode.terminated:
                assert episode.score == episode.task["worth"] + len(turn.action)
        assert any(episode.terminated for episode in episodes)

    def test_functions_get_text_where_prompts_are_text(self, tmp_path):
        seen: list[tuple] = []

        def note(prompts, completions, **kwargs):
            seen.extend(zip(prompts, completions, strict=True))
            return [0.0] * len(prompts)

        trainer = make(tmp_path, reward_funcs=note, train_dataset=Dataset.from_dict({"prompt": ["win"]}))
        trainer.train()
        episodes = trainer.replay.episodes
        assert episodes[0].opening[-1] == {"role": "user", "content": "win"}
        actions = {episode.turns[0].action for episode in episodes if episode.turns[0].action}
        assert seen[0][0] == "win" and {completion for _, completion in seen} >= actions

    def test_what_is_missing_is_said(self, tmp_path):
        with pytest.raises(ValueError, match="Nothing gives rewards"):
            make(tmp_path, tools=[look])
        with pytest.raises(ValueError, match=r"`reward_weights=\[0.5\]` weigh `reward_funcs`, and there are none"):
            make_trainer(tmp_path, {"reward_weights": [0.5]})
        with pytest.raises(ValueError, match="with the column `prompt` and `reward_funcs`"):
            make(tmp_path, train_dataset=TASKS, reward_funcs=length)


@pytest.mark.parametrize("kind", [pa.string_view(), pa.list_(pa.string_view()), pa.large_list(pa.large_string())])
def test_texts_of_arrow_are_columns_of_tasks(kind):
    value = "a" if kind == pa.string_view() else ["a"]
    dataset = Dataset(pa.table({"question": pa.array([value, value], kind)}))
    check_tasks(dataset, None, lambda row: None)


def test_options_without_a_use_are_named(tmp_path, caplog):
    args = make_config(tmp_path, label_smoothing_factor=0.1, train_sampling_strategy="sequential")
    make(tmp_path, reward_funcs=length, args=args)
    assert "ignored: `label_smoothing_factor`, `train_sampling_strategy`." in caplog.text
    caplog.clear()
    make(tmp_path, reward_funcs=length)
    assert "ignored" not in caplog.text


def test_an_optimizer_that_averages_by_itself_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`optim='schedule_free_adamw'` takes gradients at other weights"):
        make(tmp_path, reward_funcs=length, args=make_config(tmp_path, optim="schedule_free_adamw"))


class TestRewardModels:
    def test_by_name_and_as_a_model(self, tmp_path, reward_model):
        model = AutoModelForSequenceClassification.from_pretrained(reward_model)
        tokenizer = AutoTokenizer.from_pretrained(reward_model)
        trainer = make(
            tmp_path / "run",
            reward_funcs=[reward_model, model, length],
            reward_processing_classes=[None, tokenizer, None],
            args=make_config(tmp_path / "run", action_format=None, reward_weights=[1.0, 1.0, 0.0]),
        )
        trainer.train()
        assert trainer.state.global_step == 2 and any(episode.terminated for episode in trainer.replay.episodes)
        for episode in trainer.replay.episodes:
            completion = [{"role": "assistant", "content": episode.turns[0].action}]
            text = tokenizer.apply_chat_template([*episode.opening, *completion], tokenize=False)
            inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)
            expected = model(**inputs).logits.item()
            if episode.terminated:
                assert episode.score == pytest.approx(2 * expected, rel=1e-3, abs=1e-5)

    def test_what_cannot_be_used_is_refused_before_anything_starts(self, tmp_path, reward_model):
        with pytest.raises(ValueError, match="reward model 'org/missing' in `reward_funcs` cannot be loaded"):
            make(tmp_path, reward_funcs="org/missing")
        with pytest.raises(ValueError, match="`reward_processing_classes` has 2 entries for 1"):
            make(tmp_path, reward_funcs=length, reward_processing_classes=[None, None])
        with pytest.raises(TypeError, match="`reward_processing_classes` must be a tokenizer"):
            make(tmp_path, reward_funcs=length, reward_processing_classes="tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(reward_model)
        tokenizer.chat_template = None
        with pytest.raises(ValueError, match="its tokenizer no chat template"):
            RewardModel(reward_model, tokenizer)

    def test_they_are_loaded_and_asked_as_the_model_to_train(self, tmp_path, reward_model):
        tokenizer = AutoTokenizer.from_pretrained(reward_model)
        tokenizer.chat_template += "{{ mark }}"
        options = {"model_init_kwargs": {"dtype": "bfloat16"}, "chat_template_kwargs": {"mark": "win"}}
        args = make_config(tmp_path / "run", action_format=None, **options)
        trainer = make(tmp_path, reward_funcs=reward_model, reward_processing_classes=tokenizer, args=args)
        (reward,) = trainer.rewards.reward_funcs
        assert reward.model.dtype == torch.bfloat16
        messages = [{"role": "user", "content": "take one"}], [{"role": "assistant", "content": "take"}]
        unmarked = RewardModel(reward.model, tokenizer)
        assert reward(*([part] for part in messages)) != unmarked(*([part] for part in messages))
        assert reward(["take one"], [" take"]) == unmarked(["take one"], [" take"])  # text, without any template
        with pytest.raises(ValueError, match=r"cannot be loaded with .*'revision': 'v2'.*`model_init_kwargs`"):
            RewardModel("org/missing", init_kwargs={"revision": "v2"})

    def test_they_are_whole_where_the_model_to_train_is_sharded(self, reward_model, monkeypatch):
        monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
        live = HfDeepSpeedConfig({"zero_optimization": {"stage": 3}})
        with loaded_whole():
            assert os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "false" and not is_deepspeed_zero3_enabled()
        assert os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "true" and is_deepspeed_zero3_enabled()
        model = RewardModel(reward_model).model
        assert is_deepspeed_zero3_enabled() and live.is_zero3()
        assert all(weights.numel() for weights in model.parameters())
        next(model.parameters()).ds_tensor = torch.zeros(1)
        with pytest.raises(ValueError, match="'[^']*reward-model' in `reward_funcs` is sharded .*Give its name"):
            RewardModel(model)
