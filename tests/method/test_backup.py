# SPDX-License-Identifier: Apache-2.0

from dataclasses import replace

import pytest
from helpers.method_utils import CRITIQUE, DESK, WRONG, asked, make_transitions
from helpers.testing_utils import make_roles, make_roles_of, make_tokenizer

from trl_nlac import NLACPrompts
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tool_calls import format_tool_call
from trl_nlac.environments.embedded import COMPACT_PROMPTS, make_environment
from trl_nlac.environments.embedded.service_desk import ARGUMENTS
from trl_nlac.episodes.recorder import replay_actions
from trl_nlac.method.backup import backup_questions, bellman_targets, critic_examples, is_answerable, write_targets
from trl_nlac.method.critic import critic_prompt, critiques
from trl_nlac.types import Answer, Critique, Sample, Transition


class TestBellmanTargets:
    def test_prompts_of_the_roles(self):
        roles = make_roles(["route legal olive serial dawn closed win", CRITIQUE, CRITIQUE])
        targets = bellman_targets(roles, make_transitions(roles), "implicit")
        successor, backup, terminated = asked(roles)
        state = "<|user|> baku 2<|end|><|assistant|> route billing ruby photo noon<|end|>"
        question = "<|user|> refused needs amber 1 Scenario?<|end|><|assistant|>"
        assert successor == state + question
        bootstrapped = " route legal olive serial dawn closed win<|end|>"
        assert backup == state + question + bootstrapped + "<|user|> Summary?<|end|><|assistant|>"
        # The last step: the prompt has the score, nothing is bootstrapped.
        last = "<|user|> refused needs amber 1<|end|><|assistant|> route billing amber badge noon<|end|>"
        score = "<|user|> refused needs photo lose Score 0 Summary?<|end|><|assistant|>"
        assert terminated == state + last + score
        assert [target.parsed.future for target in targets] == ["closed win"] * 2

    def test_the_score_of_the_episode_has_a_scale(self):
        prompts = replace(
            COMPACT_PROMPTS, backup_terminated="{next_observation} {score} of {success_threshold} Summary?"
        )
        roles = make_roles([CRITIQUE], prompts, success_threshold=2.0)
        episode = make_transitions(roles)[1].episode
        rewarded = tuple(replace(turn, reward=reward) for turn, reward in zip(episode.turns, (4.0, 1.0), strict=True))
        bellman_targets(roles, [Transition(replace(episode, turns=rewarded), 1)], "implicit")
        assert "lose\nThe reward of this step is 1. 5 of 2 Summary?" in asked(roles)[0]

    def test_explicit_bootstrap_samples_as_the_policy_and_the_critic_do(self):
        """The next action is the policy's own, and its future the critic's (equation 1)."""
        future = "Future: refused needs photo lose\nOptimality: No use photo"
        limits = {"policy": 11, "successor": 7, "critic": 13, "backup": 17}
        role_sampling = {role: {"max_tokens": number, "temperature": number / 10} for role, number in limits.items()}
        roles = make_roles(["route billing amber badge noon", future, CRITIQUE], role_sampling=role_sampling)
        roles.samplings["policy"] = replace(roles.samplings["policy"], regex="route .*")
        bellman_targets(roles, make_transitions(roles)[:1], bootstrap="explicit")
        asked_with = [(sampling.max_tokens, sampling.temperature) for sampling in roles.generator.samplings]
        assert asked_with == [(11, 1.1), (13, 1.3), (17, 1.7)]
        assert [sampling.regex for sampling in roles.generator.samplings] == ["route .*", None, None]

    def test_the_backup_is_shown_all_arguments_of_equation_1(self):
        roles = make_roles([WRONG[1], "Future: it opens\nOptimality: No", CRITIQUE])
        episode = make_transitions(roles)[0].episode
        turns = (replace(episode.turns[0], reward=0.25), episode.turns[1])
        (target,) = bellman_targets(roles, [Transition(replace(episode, turns=turns), 0)], bootstrap="explicit")
        arguments = {
            "s_t": "<|user|> baku 2<|end|>",
            "a_t": f"<|assistant|> {WRONG[0]}<|end|>",
            "s_{t+1}": "<|user|> refused needs amber 1",
            "r_t": "The reward of this step is 0.25.",
            "a_{t+1}": f"<|assistant|> {WRONG[1]}",
            "d_{t+1}": "it opens<|end|>",
            "question": "<|user|> Summary?<|end|>",
        }
        policy, critic, backup = asked(roles)
        places = {name: backup.find(text) for name, text in arguments.items()}
        assert -1 not in places.values() and list(places.values()) == sorted(places.values()), places
        assert target.parsed is not None
        assert "reward" not in policy + critic  # they are asked in s_{t+1}, as when acting

    @pytest.mark.parametrize("bootstrap", ["explicit", "implicit", "monte_carlo"])
    @pytest.mark.parametrize(
        ("index", "rewards", "is_shown"),
        [
            (0, (0.5, 0.0), True),
            (0, (0.0, 1.0), False),
            (1, (0.0, 1.0), False),  # the final score says it
            (1, (0.5, 1.0), True),
            (1, (0.5, 0.0), False),
        ],
    )
    def test_the_reward_of_a_step_is_shown_where_nothing_else_says_it(self, bootstrap, index, rewards, is_shown):
        roles = make_roles(CRITIQUE)
        episode = make_transitions(roles)[0].episode
        turns = tuple(replace(turn, reward=r) for turn, r in zip(episode.turns, rewards, strict=True))
        (question,) = backup_questions(roles, [Transition(replace(episode, turns=turns), index)], bootstrap)
        shown = f"The reward of this step is {rewards[index]:g}."
        assert roles.chat.tokenizer.decode(question.ids).count("reward") == is_shown
        assert (shown in roles.chat.tokenizer.decode(question.ids)) == is_shown

    def test_the_reward_of_a_step_need_not_be_shown(self):
        roles = make_roles(CRITIQUE, replace(COMPACT_PROMPTS, step_reward=""))
        episode = make_transitions(roles)[0].episode
        turns = (replace(episode.turns[0], reward=0.5, next_observation="seen"), episode.turns[1])
        (question,) = backup_questions(roles, [Transition(replace(episode, turns=turns), 0)], "implicit")
        assert "<|user|> seen Scenario?<|end|>" in roles.chat.tokenizer.decode(question.ids)

    def test_questions_are_asked_and_answered_apart(self):
        roles = make_roles(["", "closed win"], max_format_retries=0)
        transitions = make_transitions(roles)
        questions = backup_questions(roles, [transitions[0], *transitions], "implicit")
        assert [question is not None for question in questions] == [False, True, True]
        assert not any(prompt.endswith("Summary?<|end|><|assistant|>") for prompt in asked(roles))
        roles.generator.answers = [CRITIQUE, CRITIQUE.replace("Yes", "No")]
        targets = write_targets(roles, [transitions[0], *transitions], questions)
        assert [target.parsed and target.parsed.optimal for target in targets] == [None, True, False]
        assert [t.prompt.ids for t in targets] == [q.ids for q in (transitions[0].state_action, *questions[1:])]

    def test_explicit_bootstrap_takes_one_of_several_futures(self):
        """k > 1: the successor model's, not what the evaluator makes of k (equation 1)."""
        action = "route billing amber badge noon"
        roles = make_roles([action, "it works", "merged"], num_futures=2)
        (target,) = bellman_targets(roles, make_transitions(roles)[:1], bootstrap="explicit")
        _, future, backup = asked(roles)
        assert f" {action}<|end|>" in future and "Future:" in future
        assert f" {action} it works<|end|>" in backup and target.parsed == Critique("merged", None)

    @pytest.mark.parametrize("index", [0, 1], ids=["going on", "terminated"])
    def test_a_policy_can_learn_where_no_target_can_be_written(self, index):
        roles = make_roles([])
        episode = make_transitions(roles)[0].episode
        turns = list(episode.turns)
        turns[index] = replace(turns[index], next_observation="refused " * 999)
        transition = Transition(replace(episode, turns=tuple(turns)), index)
        roles.options.max_prompt_length = 80
        assert is_answerable(roles, transition, needs_target=False)
        assert not is_answerable(roles, transition, needs_target=True)
        roles = make_roles([], single_step=True, max_turns=1, max_prompt_length=500)
        assert is_answerable(roles, transition, needs_target=True)  # nobody is shown it where a task is a single step

    def test_monte_carlo(self):
        roles = make_roles([CRITIQUE, CRITIQUE], replace(COMPACT_PROMPTS, observed_end=NLACPrompts().observed_end))
        first, last = make_transitions(roles)
        targets = bellman_targets(roles, [last, first], bootstrap="monte_carlo")
        assert all(target.parsed for target in targets)
        terminated, backup = asked(roles)
        assert terminated.endswith("refused needs photo lose Score 0 Summary?<|end|><|assistant|>")
        assert backup.endswith(
            "<|user|> refused needs amber 1 Scenario?<|end|><|assistant|> route billing amber badge noon"
            " refused needs photo lose The task ended with that, with a final score of 0.<|end|>"
            "<|user|> Summary?<|end|><|assistant|>"
        )

    def test_monte_carlo_shortens_a_long_course(self):
        roles = make_roles([CRITIQUE], max_prompt_length=120)
        first = make_transitions(roles)[0]
        turns = (first.turn, replace(first.episode.turns[1], next_observation="refused " * 999))
        (target,) = bellman_targets(roles, [Transition(replace(first.episode, turns=turns), 0)], "monte_carlo")
        assert target.parsed is not None and len(roles.generator.prompts[0]) <= 120

    def test_monte_carlo_bootstraps_where_the_episode_was_cut(self):
        roles = make_roles(["closed win", CRITIQUE])
        cut = replace(make_transitions(roles)[1].episode, terminated=False, truncated=True)
        bellman_targets(roles, [Transition(cut, 0)], bootstrap="monte_carlo")
        successor, backup = asked(roles)
        assert successor.endswith("refused needs photo lose Scenario?<|end|><|assistant|>")
        assert backup.endswith(
            "<|user|> refused needs amber 1 Scenario?<|end|><|assistant|> route billing amber badge noon"
            " refused needs photo lose closed win<|end|><|user|> Summary?<|end|><|assistant|>"
        )

    def test_monte_carlo_has_no_target_where_the_guess_after_the_cut_is_empty(self):
        roles = make_roles(["", ""])  # asked twice
        cut = replace(make_transitions(roles)[1].episode, terminated=False, truncated=True)
        (target,) = bellman_targets(roles, [Transition(cut, 0)], bootstrap="monte_carlo")
        assert target.parsed is None

    def test_several_futures(self):
        """k > 1: the critic learns futures, and a separate evaluation reads k of them (equation 3)."""
        roles = make_roles(["it ends", "it begins anew", "it all ends"], num_futures=2)
        targets = bellman_targets(roles, make_transitions(roles), "implicit")
        assert [target.parsed for target in targets] == [
            Critique("it begins anew", None),
            Critique("it all ends", None),
        ]
        _, going_on, ended = asked(roles)
        assert "it ends<|end|><|user|> Summary? Future:" in going_on and "Score 0 Summary? Future:" in ended

        roles = make_roles(["it works", "", "it fails", "Future: mixed\nOptimality: No wait"], num_futures=3)
        roles.options.max_format_retries = 0
        (critique,) = critiques(roles, [make_transitions(roles)[0].state_action])
        *foreseen, evaluation = asked(roles)
        assert len(set(foreseen)) == 1 and foreseen[0].count("Future:") == 1
        assert "1. it works\n2. it fails" in evaluation and "3." not in evaluation
        assert critique.parsed == Critique("mixed", False, "wait")

    def test_single_step(self):
        roles = make_roles(
            ["Correctness: No the sum", "Correctness: Yes"], single_step=True, max_turns=1, max_format_retries=0
        )
        cut, ended = make_transitions(roles)
        targets = bellman_targets(roles, [cut, ended], "implicit")
        assert targets[0].parsed is None  # a step that was cut has no score
        assert targets[1].parsed == Critique("", False, "the sum")
        (backup,) = asked(roles)
        assert "final score of your solution is 0" in backup and "Future" not in backup
        (critique,) = critiques(roles, [ended.state_action])
        assert critique.parsed.optimal and "score" not in asked(roles)[-1]

    def test_without_history(self):
        """Action and future after an observation are asked for in the state that is this observation alone."""
        answers = [WRONG[1], "Future: lost\nOptimality: No wait", CRITIQUE]
        roles = make_roles(answers, keep_history=False)
        episode = replay_actions(make_environment(DESK), {"request": "baku"}, WRONG, roles.actions, roles.prompts)
        (target,) = bellman_targets(roles, [Transition(episode, 0)], bootstrap="explicit")
        policy, critic, backup = asked(roles)
        assert policy == "<|user|> refused needs amber 1<|end|><|assistant|>"
        assert critic.startswith(f"{policy} {WRONG[1]}<|end|>") and "baku" not in critic
        acted = f"<|user|> baku 2<|end|><|assistant|> {WRONG[0]}<|end|><|user|> refused needs amber 1"
        assert backup.startswith(acted) and policy not in backup
        assert f"{WRONG[1]} lost" in backup and target.parsed.optimal

    def test_tool_calls(self):
        desk = make_environment(DESK, "tool_call")
        chat = ChatEncoder(make_tokenizer("qwen2_5"))
        wrong = [format_tool_call("route", dict(zip(ARGUMENTS, call.split()[1:], strict=True))) for call in WRONG]
        again = make_roles_of(chat, [], action_format="tool_call").actions.completion(wrong[1], "")
        answers = [again, "Future: lost\nOptimality: No wait", CRITIQUE]
        roles = make_roles_of(chat, answers, action_format="tool_call")
        episode = replay_actions(desk, {"request": "baku"}, wrong, roles.actions, roles.prompts)
        assert [turn.action for turn in episode.turns] == wrong and episode.terminated
        (target,) = bellman_targets(roles, [Transition(episode, 0)], bootstrap="explicit")
        policy, critic, backup = asked(roles)
        result = "<tool_response>\nrefused needs amber 1\n</tool_response><|im_end|>"
        assert result in policy and policy == roles.chat.tokenizer.decode(Transition(episode, 1).state.ids)
        assert critic.startswith(policy) and critic.endswith("Critique?<|im_end|>\n<|im_start|>assistant\n")
        assert f"{wrong[1]} lost" in backup and target.parsed.optimal


class TestCriticExamples:
    def test_they_answer_the_question_to_the_critic(self):
        chat = ChatEncoder(make_tokenizer("qwen3"), {"enable_thinking": False})
        roles = make_roles_of(chat, [])
        transitions = make_transitions(roles)
        samples = [Sample(t, i, 1.0) for t, i in zip(transitions, (3, 7), strict=True)]
        targets = [Answer(t.state, (5, i), "", Critique("", True)) for i, t in enumerate(transitions)]
        examples = critic_examples(roles, samples, targets)
        assert chat.prefill
        for example, transition in zip(examples, transitions, strict=True):
            assert example.prompt.ids == [*critic_prompt(roles, transition.state_action).ids, *chat.prefill]
            assert example.teacher_prompt is None
        values = [(example.completion_ids, example.transition_id, example.weight) for example in examples]
        assert values == [((5, 0), 3, 1.0), ((5, 1), 7, 1.0)]
