# SPDX-License-Identifier: Apache-2.0

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import chain
from statistics import mean

import pytest
import torch
from datasets import Dataset
from helpers.method_utils import make_transitions
from helpers.testing_utils import (
    DESK,
    TASKS,
    Answering,
    Countdown,
    RecordingTrainer,
    assert_same,
    at,
    make_episode,
    make_tokenizer,
    make_trained,
    make_trainer,
    priorities_of,
    weights,
)
from peft import LoraConfig
from trl.import_utils import is_vllm_available

from benchmarks.learning.methods.extraction import StoredActionsTrainer
from trl_nlac import NLACPrompts, NLACTrainer, PrioritizedReplay
from trl_nlac.environments import StepResult
from trl_nlac.environments.embedded import make_environment
from trl_nlac.method.backup import critic_examples
from trl_nlac.method.batches import NLACCollator, make_batches, spread_by_prefix
from trl_nlac.method.refinement import policy_examples
from trl_nlac.types import Answer, Critique, Prompt, Refinement, Sample, TrainingExample, Transition, Turn


class RecordingOfStored(RecordingTrainer, StoredActionsTrainer):
    """Refines stored actions."""


def log_probabilities(model, prompt: Prompt, example: TrainingExample) -> torch.Tensor:
    """Those of all tokens at each place of the example's completion, after a prompt."""
    ids = [*prompt.ids, *example.completion_ids]
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -len(example.completion_ids) - 1 : -1].log_softmax(-1)


class TestTraining:
    def test_trains(self, tmp_path):
        trainer = make_trainer(tmp_path, {"logging_steps": 1, "samples_per_iteration": 8, "max_steps": 4})
        before = weights(trainer.model)
        trainer.train()
        after = weights(trainer.model)
        assert all(not torch.equal(before[name], after[name]) for name in before)
        log = trainer.state.log_history[0]
        expected = """critic/loss policy/loss critic/format_rate critic/optimal_rate refine/changed_rate replay/size
            replay/priority_mean episode/return episode/length episode/success_rate environment/failure_rate
            time/rollout time/target time/refine time/train target/distance health/backup_fidelity
            health/refine_compliance oracle/future_accuracy oracle/verdict_no_rate environment/steps""".split()
        assert not set(expected) - set(log)
        assert trainer.num_environment_steps == len(trainer.replay) == 16  # 2 iterations, 4 episodes of 2 steps

    @pytest.mark.parametrize("rate", [0.1, 1.0])
    def test_target_weights_follow_after_each_step(self, tmp_path, rate):
        """Algorithm 1 updates them after each sample, of which a step has 8."""
        config = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 3}
        trainer = make_trainer(tmp_path, {**config, "target_update_rate": rate})
        expected = weights(trainer.model)

        def average():
            for name, parameter in trainer.model.named_parameters():
                for _ in range(8):
                    expected[name] = rate * parameter.detach() + (1 - rate) * expected[name]

        trainer.add_callback(at("step_end", average))
        trainer.train()
        torch.testing.assert_close(trainer.target_weights.state_dict(), expected)
        assert trainer.target_weights.num_updates == 3

    @pytest.mark.parametrize(
        ("changes", "warns"),
        [
            ({"target_max_age": 2}, True),
            ({}, False),
            ({"target_max_age": None}, False),  # it is chosen
            ({"target_max_age": 2, "bootstrap": "monte_carlo"}, False),
            ({"target_max_age": 9, "max_turns": 1}, False),  # nothing is carried back
        ],
    )
    def test_a_run_that_is_too_short_for_the_age_of_its_targets_says_so(self, tmp_path, caplog, changes, warns):
        make_trained(tmp_path, {"max_turns": 4, "max_steps": 6, "target_max_age": 1, **changes})
        warning = "`target_max_age=2` is long for a run of 6 iterations: a success can need 8 to reach the first of "
        assert (f"{warning}`max_turns=4` steps. Set it to 1, or train longer." in caplog.text) == warns
        assert ("is long for a run of" in caplog.text) == warns

    @pytest.mark.parametrize(("rate", "warns"), [(0.005, True), (0.3, False)])
    def test_a_run_that_is_too_short_for_its_rate_says_so(self, tmp_path, caplog, rate, warns):
        options = {"target_update_rate": rate, "target_max_age": 1, "max_steps": 3, "logging_steps": 1}
        trainer = make_trained(tmp_path, {**options, "per_device_train_batch_size": 4, "samples_per_iteration": 4})
        assert ("is slow for a run of 12 samples: the initial weights still make up 94%" in caplog.text) == warns
        logs = [log for log in trainer.state.log_history if "target/initial_share" in log]
        shares = [log["target/initial_share"] for log in logs]
        assert shares == pytest.approx([(1 - rate) ** (4 * i) for i in range(3)])
        lags = [log["target/lag_iterations"] for log in logs]
        assert lags[0] == 0 and lags == sorted(lags)

    def test_several_updates_on_one_generation(self, tmp_path):
        config = {"num_updates_per_generation": 3, "samples_per_iteration": 16, "max_steps": 12, "logging_steps": 1}
        config.update(per_device_train_batch_size=4, gradient_accumulation_steps=2)
        trainer = make_trained(tmp_path, config, RecordingTrainer)
        assert trainer.num_environment_steps == 2 * 4 * 2  # two iterations of four episodes of two steps
        steps = [
            sorted((e.loss, e.transition_id, e.completion_ids) for batch in pair for e in batch.examples)
            for pair in zip(trainer.micro_batches[::2], trainer.micro_batches[1::2], strict=True)
        ]
        assert steps[0] == steps[2] == steps[4] != steps[1] == steps[3] == steps[5] != steps[6]
        logs = [log for log in trainer.state.log_history if "loss" in log]
        assert logs[4]["critic/loss"] < logs[0]["critic/loss"]
        assert logs[-1]["replay/draws_per_step"] == 12 * 8 / 16

    def test_what_little_there_is_at_first_is_trained_on_more_often(self, tmp_path):
        """Sixteen attempts in one state would cost as much as in sixteen, and teach less."""
        config = {"samples_per_iteration": None, "episodes_per_iteration": 2, "max_turns": 2, "max_steps": 32}
        config["per_device_train_batch_size"] = 8
        trainer = make_trainer(tmp_path, {**config, "num_updates_per_generation": 2, "logging_steps": 1})
        attempted, attempt = [], trainer._attempt
        trainer._attempt = lambda transitions: attempted.append(len(transitions)) or attempt(transitions)
        trainer.train()
        assert trainer.args.samples_per_iteration == 64 and attempted == [8 * 4, 8 * 8]
        logs = [log for log in trainer.state.log_history if "loss" in log]
        assert len(logs) == 32 and all(log["critic/loss"] for log in logs)

    def test_tokens_and_draws_are_counted(self, tmp_path):
        config = {"max_steps": 4, "logging_steps": 1, "save_strategy": "steps", "save_steps": 3, "eval_steps": 2}
        trainers = []
        for name, checkpoint in (("whole", None), ("resumed", str(tmp_path / "whole" / "checkpoint-3"))):
            trainer = make_trainer(
                tmp_path / name, {**config, "eval_strategy": "steps"}, RecordingTrainer, eval_dataset=TASKS
            )
            trainer.train(resume_from_checkpoint=checkpoint)
            trainers.append(trainer)
        whole, resumed = trainers
        logs = [[log for log in trainer.state.log_history if "loss" in log] for trainer in trainers]
        counts = [{k: v for k, v in of_one[-1].items() if "tokens" in k} for of_one in logs]
        assert counts[0] == counts[1] and resumed.state.num_input_tokens_seen == counts[0]["num_tokens"]
        log = logs[0][-1]
        assert log["tokens/generated"] == sum(v for k, v in log.items() if k.startswith("tokens/generated/"))
        assert log["tokens/generated"] == whole.roles.tally.num_generated_tokens
        assert log["num_tokens"] == log["tokens/generated"] + log["tokens/prefilled"]
        sizes = [batch.tokens.inputs["input_ids"].numel() for batch in whole.micro_batches]
        assert log["tokens/trained"] == sum(sizes) and logs[0][0]["tokens/trained"] == sizes[0]
        acted = [turn.action_length for episode in whole.replay.episodes for turn in episode.turns]
        assert log["tokens/generated/act"] == sum(acted)
        assert 0 < log["tokens/cached"] < log["tokens/prefilled"]  # roles read the state of a transition again
        assert [log["step"] for log in logs[1]] == [1, 2, 3, 4]
        for log in chain(*logs):
            assert log["replay/draws_per_step"] == 4 * log["step"] / log["environment/steps"]

    @pytest.mark.parametrize("bootstrap", ["implicit", "explicit"])
    @pytest.mark.parametrize("trainer_class", [NLACTrainer, StoredActionsTrainer])
    def test_which_role_uses_which_weights(self, tmp_path, trainer_class, bootstrap):
        config = {"max_steps": 3, "target_update_rate": 0.1, "learning_rate": 1e-2, "bootstrap": bootstrap}
        trainer = make_trainer(tmp_path, config, trainer_class)
        initial = trainer.model.model.norm.weight.detach().clone()
        ask, asked, trained = trainer.roles.ask, set(), []

        def spy(role, prompts, *args, **kwargs):
            weight = trainer.model.model.norm.weight.detach()
            known = {
                "trained": trained[-1:],
                "target": [trainer.target_weights.state_dict()["model.norm.weight"]],
                "initial": [initial],
            }
            if prompts and trained:
                asked.add((role, *(name for name, of in known.items() if of and torch.equal(weight, of[0]))))
            return ask(role, prompts, *args, **kwargs)

        trainer.add_callback(at("step_end", lambda: trained.append(trainer.model.model.norm.weight.detach().clone())))
        trainer.roles.ask = spy
        trainer.train()
        foreseen = {"implicit": {("successor", "target")}, "explicit": {("policy", "target"), ("critic", "target")}}
        expected = {("policy", "trained"), ("backup", "initial"), ("refine", "initial"), *foreseen[bootstrap]}
        if trainer_class is NLACTrainer:
            expected.add(("critic", "trained"))
        assert asked == expected
        assert torch.equal(trainer.initial_weights.state_dict()["model.norm.weight"], initial)

    def test_gradient_accumulation_is_one_big_batch(self, tmp_path):
        gradients = []

        def note(model):
            gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})

        for batch_size in (8, 2):
            config = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": 8 // batch_size}
            trainer = make_trainer(
                tmp_path / str(batch_size),
                {**config, "max_steps": 1, "episodes_per_iteration": 4, "temperature": 0.0, "max_grad_norm": 0.0},
            )
            trainer.add_callback(at("pre_optimizer_step", partial(note, trainer.model)))
            trainer.train()
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-5)

    def test_an_evaluation_before_training_places_the_model(self, tmp_path, monkeypatch):
        """Where transformers leaves that to training, or to an evaluation loop of its own."""
        moved = []
        for is_left in (False, True):
            options = {"bf16_full_eval": is_left, "num_eval_critiques": 0}
            trainer = make_trainer(tmp_path / str(is_left), options)
            monkeypatch.setattr(trainer, "_move_model_to_device", lambda model, device: moved.append(device))
            trainer.evaluate(trainer.train_dataset.select([0]))
            assert moved == [trainer.args.device] * is_left
        trainer.is_fsdp_enabled = True
        with pytest.raises(ValueError, match="Set `eval_on_start=True`"):
            trainer.evaluate(trainer.train_dataset.select([0]))

    def test_an_iteration_with_nothing_to_learn(self, tmp_path):
        trainer = make_trainer(tmp_path)
        episode = replace(make_episode(1), turns=(Turn(2, 0, "", "unreadable", 0.0),))
        samples, unread = [Sample(Transition(episode, 0), 0, 1.0)] * 8, Answer(Prompt.of([1]), (), "", None)
        critic = critic_examples(trainer.roles, samples, [unread] * 8)
        policy = policy_examples(trainer.roles, samples, [None] * 8)
        batches = make_batches(samples, critic, policy, 1, 2, trainer.roles.chat.end_of_turn_id, spread_by_prefix)
        collate = NLACCollator(trainer.processing_class.pad_token_id)
        assert [[example.weight for example in batch] for batch in batches] == [[0.0], [0.0]]
        for batch in batches:
            assert torch.isfinite(trainer.compute_loss(trainer.model, collate(batch)))
        assert trainer.loss_guard.num_dropped == 0

    def test_where_nothing_but_a_target_could_teach(self, tmp_path):
        trainer = make_trainer(tmp_path, {"max_prompt_length": 60})
        episode = make_transitions(trainer.roles)[0].episode
        long = replace(episode, turns=(replace(episode.turns[0], next_observation="refused " * 99),))
        trainer.replay.add([long, episode])
        samples = [Sample(Transition(long, 0), 0, 1.0)] * 4
        unread = [Answer(Prompt.of([1]), (), "", None)] * 4
        refined = Refinement("a", Critique("", False), Answer(Prompt.of([1]), (2,), "b", "b"))
        for coefficient, refinement, number in ((1.0, None, 0), (1.0, refined, 0), (0.0, refined, 1)):
            trainer.args.policy_loss_coef = coefficient
            trainer._make_batches(samples, unread, [refinement] * 4)
            assert trainer.replay.num_left_out == number
            trainer.replay.take_in()

    def test_micro_batches_have_examples_of_similar_length(self, tmp_path):
        config = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
        config["role_sampling"] = {"critic": {"temperature": 1.0}}  # no refined action is as it was
        trainer = make_trainer(tmp_path, {**config, "max_steps": 1}, RecordingTrainer)
        trainer.shares_prefixes = False
        trainer.train()
        batches = trainer.micro_batches
        assert [len(batch.examples) for batch in batches] == [4] * 4  # 8 transitions in two losses
        lengths = torch.cat([batch.tokens.inputs["attention_mask"].sum(1) for batch in batches]).tolist()
        assert lengths == sorted(lengths) and lengths[0] < lengths[-1]
        assert batches[0].tokens.inputs["input_ids"].shape == (4, lengths[3])

    def test_several_futures(self, tmp_path):
        trainer = make_trainer(tmp_path, {"logging_steps": 1, "num_futures": 2}, RecordingTrainer)
        before = weights(trainer.model)
        trainer.train()
        assert any(not torch.equal(before[name], after) for name, after in weights(trainer.model).items())
        assert set(chain(*trainer.losses())) == {"critic", "policy"}
        assert all(0 <= log["critic/loss"] < 20 for log in trainer.state.log_history if "critic/loss" in log)

    def test_single_step(self, tmp_path):
        def add(action):
            return StepResult("", reward=float("legal" in action), terminated=True)

        factory = partial(Answering, add, "{request}".format)
        prompts = NLACPrompts(
            policy="", correctness="Critique?", backup_correctness="Score {score} Summary?", refine="Revise?"
        )
        config = {"single_step": True, "max_turns": 1, "logging_steps": 1}
        trainer = make_trained(tmp_path, config, environment_factory=factory, prompts=prompts)
        assert len(trainer.replay) == 8 and all(len(episode.turns) == 1 for episode in trainer.replay.episodes)
        # The tiny model never learned "Correctness:", so the critic is not trained, and that is counted.
        assert trainer.state.log_history[0]["critic/format_rate"] == 0

    def test_refinement_in_hindsight(self, tmp_path):
        config = {"bootstrap": "monte_carlo", "critic_loss_coef": 0.0}
        trainer = make_trained(tmp_path, {**config, "max_steps": 2, "logging_steps": 1}, RecordingTrainer)
        assert set(chain(*trainer.losses())) == {"policy"}
        asked = {name for name in trainer.state.log_history[0] if name.startswith("tokens/generated/")}
        assert "tokens/generated/refine" in asked and "tokens/generated/critic" not in asked
        assert trainer.replay.priority_mean == 1

    @pytest.mark.parametrize("is_stored", [False, True], ids=["fresh", "stored"])
    def test_the_refinement_policy_teaches_along_the_action(self, tmp_path, is_stored):
        config = {"policy_loss_type": "distill", "critic_loss_coef": 0.0, "learning_rate": 0.0, "max_steps": 1}
        trainer_class = RecordingOfStored if is_stored else RecordingTrainer
        trainer = make_trainer(tmp_path, {**config, "logging_steps": 1}, trainer_class)
        ask, asked = trainer.roles.ask, []

        def spy(role, prompts, parse=None, sampling=None, *args, **kwargs):
            asked.extend([sampling] * len(prompts) if role == "refine" else [])
            return ask(role, prompts, parse, sampling, *args, **kwargs)

        trainer.roles.ask = spy
        trainer.train()
        (inputs,) = trainer.micro_batches
        assert inputs.examples and {example.loss for example in inputs.examples} == {"policy"}
        assert not {"refine/changed_rate", "oracle/refined_better_rate"} & trainer.state.log_history[0].keys()
        assert all(sampling and sampling.temperature == 0 for sampling in asked)  # asked for, to check targets alone
        stored = {sample.transition_id: sample.transition for sample in trainer.replay.sample(64)}
        decode, initial = trainer.roles.chat.tokenizer.decode, trainer.initial_weights  # those of the teacher
        initial.load_state_dict({name: 0.9 * values for name, values in initial.state_dict().items()})
        own = weights(trainer.model)
        loss = trainer.compute_loss(trainer.model, inputs)
        assert_same(own, weights(trainer.model))
        assert trainer.model.training
        expected = []
        for example in inputs.examples:
            assert not is_stored or example.completion_ids == stored[example.transition_id].action_ids
            state, question = decode(example.prompt.ids), decode(example.teacher_prompt.ids)
            assert question.startswith(state) and "Optimality:" not in state and "Optimality:" in question
            q = log_probabilities(trainer.model, example.prompt, example)
            with initial.swapped_into(trainer.model):
                p = log_probabilities(trainer.model, example.teacher_prompt, example)
            expected.append((p.exp() * (p - q)).sum(-1).mean().item())
        assert loss.item() * trainer.args.per_device_train_batch_size == pytest.approx(sum(expected), rel=1e-3)
        assert mean(expected) > 0.01

    def test_thoughts_are_not_taught_by_those_who_read_the_critique(self, tmp_path):
        with pytest.raises(ValueError, match="`policy_loss_type='distill'` would teach chains of thought"):
            make_trainer(tmp_path, {"policy_loss_type": "distill"}, processing_class=make_tokenizer("qwen3"))

    def test_priorities_are_the_critic_losses(self, tmp_path):
        config = {"max_steps": 1, "logging_steps": 1, "per_device_train_batch_size": 32}
        trainer = make_trained(tmp_path, config, RecordingTrainer)
        trained = priorities_of(trainer.replay)
        trained = trained[trained != 1.0]
        assert len(trained) > 4
        loss = trainer.state.log_history[0]["critic/loss"]
        assert trained.min() < loss < trained.max()
        # Weights of examples are of the loss alone.
        (inputs,) = trainer.micro_batches
        whole, priorities = trainer.compute_loss(trainer.model, inputs), priorities_of(trainer.replay)
        half = trainer.compute_loss(trainer.model, replace(inputs, weights=inputs.weights / 2))
        torch.testing.assert_close(half, whole / 2)
        assert priorities_of(trainer.replay) == pytest.approx(priorities, rel=1e-4)

    @pytest.mark.parametrize("coefficient", [1.0, 0.0])
    def test_a_transition_without_a_target_gets_the_lowest_priority(self, tmp_path, coefficient):
        trainer = make_trainer(tmp_path, {"critic_loss_coef": coefficient})
        roles = trainer.roles
        transitions = make_transitions(roles)
        trainer.replay.add([transitions[0].episode])
        samples = [Sample(transition, i, 1.0) for i, transition in enumerate(transitions)]
        targets = [
            Answer(transitions[0].state_action, (), "", None),
            Answer(transitions[1].state_action, (3,), "", Critique("", True)),
        ]
        refined = Refinement("a", Critique("", False), Answer(Prompt.of([1]), (2,), "b", "b"))
        trainer._make_batches(samples * 2, targets * 2, [refined] * 4)
        assert priorities_of(trainer.replay).tolist() == ([1e-6, 1.0] if coefficient else [1.0, 1.0])
        assert trainer.replay.num_left_out == 0  # a later target can be read

    def test_the_loss_is_the_weighted_sum_of_both(self, tmp_path):
        config = {"logging_steps": 1, "critic_loss_coef": 2.0, "policy_loss_coef": 3.0}
        trainer = make_trained(tmp_path, config, RecordingTrainer)
        log, numbers = trainer.state.log_history[0], Counter(trainer.losses()[0])
        coefficients = {"critic": 2.0, "policy": 3.0}
        assert numbers.keys() == coefficients.keys()
        expected = sum(number * coefficients[loss] * log[f"{loss}/loss"] for loss, number in numbers.items()) / 4
        assert log["loss"] == pytest.approx(expected, rel=1e-3)

    def test_what_is_played_before_training_starts_are_other_tasks(self, tmp_path):
        tasks = Dataset.from_dict({"start": [2] * 20, "fails_at": ["reset"] + [None] * 19})
        config = {"max_steps": 1, "episodes_per_iteration": 1, "shuffle_dataset": False}
        trainer = make_trained(tmp_path, config, train_dataset=tasks, environment_factory=Countdown)
        assert list(trainer.player.failures.failed) == [True, False]
        assert len(trainer.replay) == 2

    def test_react_with_default_prompts(self, tmp_path):
        trainer = make_trained(tmp_path, {"action_format": "react", "logging_steps": 1}, prompts=NLACPrompts())
        # The tiny model cannot write this format. What it writes without a thought is an action, but the questions to
        # the critic do not fit into its context, so that no answer is trained on.
        log, episode = trainer.state.log_history[0], trainer.replay.episodes[0]
        assert log["policy/format_rate"] == 1 and log["prompts/too_long_ratio"] > 0
        assert episode.turns[0].action == trainer.roles.chat.decode(list(episode.transitions[0].action_ids))
        assert "critic/format_rate" not in log and "policy/loss" not in log

    def test_options_reach_their_parts(self, tmp_path):
        config = {"priority_exponent": 0.25, "max_concurrent_environments": 3, "seed": 7}
        config |= {"audit_samples": 1, "disable_dropout": True}
        adapter = LoraConfig(target_modules=["q_proj"], lora_dropout=0.5)
        trainer = make_trainer(tmp_path, config, peft_config=adapter)
        replay, records = trainer.replay, trainer.records
        assert replay.priority_exponent == 0.25
        assert trainer.environments.max_instances == 3
        assert records.audit is not None
        assert {module.p for module in trainer.model.modules() if isinstance(module, torch.nn.Dropout)} == {0}
        # The seed is that of the draws.
        same = PrioritizedReplay(replay.capacity, priority_exponent=0.25, seed=7)
        for buffer in (replay, same):
            buffer.add([make_episode(num_turns=5) for _ in range(4)])
        drawn = [[sample.transition_id for sample in buffer.sample(20)] for buffer in (replay, same)]
        assert drawn[0] == drawn[1]


HOUSE = Dataset.from_dict({"environment": ["house"], "start": [3]})


class WithoutReset:
    def step(self, action):
        return StepResult("")


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"train_dataset": TASKS.select([])}, ValueError, "`train_dataset` is empty"),
            ({"environment_factory": WithoutReset}, TypeError, "returned a WithoutReset, which has no `reset`"),
            ({"environment_factory": make_environment(DESK)}, TypeError, "`environment_factory` must be a callable"),
            (
                {"environment_factory": {"count": Countdown}, "train_dataset": HOUSE},
                ValueError,
                "`train_dataset` .*`environment` of a task is 'house'",
            ),
        ],
    )
    def test_arguments(self, tmp_path, arguments, error, message):
        with pytest.raises(error, match=message):
            make_trainer(tmp_path, **arguments)

    @pytest.mark.skipif(is_vllm_available(), reason="needs an environment without vLLM")
    def test_vllm_that_is_not_installed(self, tmp_path):
        with pytest.raises(ImportError, match="`use_vllm=True` needs vLLM"):
            make_trainer(tmp_path, {"use_vllm": True})

    def test_what_a_plain_environment_cannot_have(self, tmp_path):
        class Paid:
            takes_seed = True

            def reset(self, **task):
                return "begin"

            def step(self, action):
                return StepResult("done", terminated=True)

            def final_reward(self):
                return 1.0

        with pytest.raises(
            ValueError, match=r"Paid defines `final_reward`, `takes_seed`, .* `class Paid\(TextEnvironment\)`"
        ):
            make_trainer(tmp_path, environment_factory=Paid)

    def test_tasks_that_do_not_fit_reset(self, tmp_path):
        for name, columns in (("train_dataset", {"begin": [3]}), ("eval_dataset", {"start": [3], "speed": [1]})):
            datasets = {"train_dataset": Dataset.from_dict({"start": [3]}), name: Dataset.from_dict(columns)}
            with pytest.raises(ValueError, match=f"`{name}` has the columns .*`reset` of Countdown does not take"):
                make_trainer(tmp_path, environment_factory=Countdown, **datasets)
