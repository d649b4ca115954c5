# SPDX-License-Identifier: Apache-2.0

"""`examples/nlac_in_one_file.py` and the package compute the same: each is the other's oracle."""

import ast
import copy
import importlib.util
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.scripts import run_script
from helpers.testing_utils import play
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_nlac import PrioritizedReplay, TargetWeights
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments.embedded import SUPPORT_MODEL, SUPPORT_PROMPTS
from trl_nlac.environments.embedded.service_desk import random_call, wrong_call
from trl_nlac.environments.embedded.support_desk import (
    ARGUMENTS,
    REFUSALS,
    SupportDesk,
    SupportDeskEnvironment,
    format_call,
)
from trl_nlac.episodes.recorder import replay_actions
from trl_nlac.generation.transformers import TransformersGenerator
from trl_nlac.method.backup import backup_questions, bellman_targets, critic_examples, write_targets
from trl_nlac.method.batches import NLACCollator
from trl_nlac.method.losses import batch_losses
from trl_nlac.method.refinement import policy_examples, refine_attempts, sample_attempts
from trl_nlac.method.roles import Roles
from trl_nlac.method.target_weights import InitialWeights
from trl_nlac.options.role_options import ROLES, RoleOptions
from trl_nlac.types import Episode, Sample, Transition


SCRIPT = "examples/nlac_in_one_file.py"
PATH = Path(__file__).parent.parent / SCRIPT
SPEC = importlib.util.spec_from_file_location("nlac_in_one_file", PATH)
one_file = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(one_file)

TOKENIZER = AutoTokenizer.from_pretrained(SUPPORT_MODEL)
DESK = one_file.SupportDesk(0)
WORLD = SupportDesk({request: tuple(rule.values()) for request, rule in DESK.rules.items()})


def make_roles(temperature: float = 0.0, max_completion_length: int = 64) -> Roles:
    """Make the package's roles for the embedded model, all with the same temperature, which answer once."""
    chat = ChatEncoder(TOKENIZER)
    options = RoleOptions(
        action_format="text",
        max_turns=2,
        max_prompt_length=448,
        max_completion_length=max_completion_length,
        max_format_retries=0,
        role_sampling={role: {"temperature": temperature} for role in ROLES if role != "evaluation"},
    )
    generator = TransformersGenerator(None, TOKENIZER, chat.stop_ids, batch_size=512)
    return Roles(generator, chat, SUPPORT_PROMPTS, options)


def make_model():
    return AutoModelForCausalLM.from_pretrained(SUPPORT_MODEL).eval()


def make_language_model(model, max_completion_length: int = 64):
    """Make the file's language model, greedy wherever it answers."""
    settings = one_file.Settings(temperature=0.0, max_completion_length=max_completion_length)
    return one_file.LanguageModel(copy.deepcopy(model), TOKENIZER, settings)


def make_episodes() -> list[Episode]:
    torch.manual_seed(0)
    model, roles, rng = make_model(), make_roles(temperature=1.0), random.Random(0)
    with roles.generator.session(model):
        tasks = [{"request": request} for request in WORLD.requests]
        episodes = play(tasks, lambda: SupportDeskEnvironment(WORLD), roles)
    for request, rule in WORLD.rules.items():
        wrong = [wrong_call(rng, rule, tuple(ARGUMENTS.values()), first) for first in range(4)]
        for calls in ([rule], [wrong[0], rule], wrong[:2], wrong[2:]):
            texts = [format_call(call) for call in calls]
            environment = SupportDeskEnvironment(WORLD)
            episodes.append(replay_actions(environment, {"request": request}, texts, roles.actions, roles.prompts))
    return episodes


@pytest.fixture(scope="module")
def transitions() -> list[Transition]:
    return [transition for episode in make_episodes() for transition in episode.transitions]


def to_file(transition: Transition):
    state, action, turn = transition.state.ids, list(transition.action_ids), transition.turn
    return one_file.Transition(state, action, turn.next_observation, turn.reward, transition.terminated)


def tokens(answers: list) -> list:
    return [(answer.prompt.ids, list(answer.token_ids)) if answer and answer.parsed else None for answer in answers]


def relative_difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return ((ours - theirs).norm() / theirs.norm()).item()


def gradient(losses: torch.Tensor, model) -> torch.Tensor:
    gradients = torch.autograd.grad(losses.sum(), list(model.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients])


def train(policy, examples: list, num_steps: int) -> Iterator[int]:
    optimizer = torch.optim.AdamW(policy.model.parameters(), 1e-3)
    for step in range(num_steps):
        policy.losses(examples).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield step


def test_is_short_and_stands_alone():
    text = PATH.read_text()
    assert len(text.splitlines()) <= 500
    nodes = list(ast.walk(ast.parse(text)))
    names = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    foreign = {name.split(".")[0] for name in names} - sys.stdlib_module_names
    assert foreign == {"torch", "transformers", "trl"}


def test_the_desk_answers_as_the_package_s():
    rng, environment, desk = random.Random(0), SupportDeskEnvironment(WORLD), copy.copy(DESK)
    observations = set()
    for request, rule in WORLD.rules.items():
        values = tuple(ARGUMENTS.values())
        calls = [rule, random_call(rng, values), *(wrong_call(rng, rule, values, first) for first in range(4))]
        actions = [*map(format_call, calls), "", "Hello.", format_call(("moon", *rule[1:])), format_call(rule) + "."]
        for first in actions:
            for second in actions:
                assert desk.reset(request) == environment.reset(request=request)
                for action in (first, second):
                    expected = environment.step(action)
                    ours = desk.step(action)
                    assert ours == (expected.observation, expected.reward, expected.terminated)
                    observations.add(ours[0])
                    if ours[2]:
                        break
    # Two refusals of each kind and request, two of what is no call, and the end.
    named = {REFUSALS[i].format(rule[i]) for rule in WORLD.rules.values() for i in range(4)}
    assert len(observations) == 2 * len(named) + 2 + 1


class TestAgainstThePackage:
    @pytest.mark.parametrize("max_completion_length", [64, 16])
    def test_bellman_targets(self, max_completion_length, transitions):
        """Greedy, token by token; answers that are cut off are left out."""
        model, roles = make_model(), make_roles(max_completion_length=max_completion_length)
        with roles.generator.session(model):
            expected = tokens(bellman_targets(roles, transitions, "explicit"))
        ours = make_language_model(model, max_completion_length)
        assert one_file.bellman_targets(ours, ours, [to_file(t) for t in transitions]) == expected
        bootstrapped = [
            target is not None for t, target in zip(transitions, expected, strict=True) if not t.terminated
        ]
        ended = [target is not None for t, target in zip(transitions, expected, strict=True) if t.terminated]
        assert all(ended) and (all(bootstrapped) if max_completion_length == 64 else not any(bootstrapped))

    @pytest.mark.parametrize("max_completion_length", [64, 16])
    def test_refined_actions(self, max_completion_length, transitions):
        model, roles = make_model(), make_roles(max_completion_length=max_completion_length)
        with roles.generator.session(model):
            refined = refine_attempts(roles, sample_attempts(roles, transitions))
        expected = tokens([r and r.complies and r.refined_action or None for r in refined])
        ours = make_language_model(model, max_completion_length)
        assert one_file.refine_actions(ours, ours, [t.state.ids for t in transitions], temperature=0.0) == expected
        assert any(expected) and (max_completion_length == 64 or None in expected)
        kept = [refinement.is_kept for refinement in refined if refinement is not None]
        assert max_completion_length < 64 or set(kept) == {True, False}

    def test_losses_and_gradients(self, transitions):
        model, roles = make_model(), make_roles()
        samples = [Sample(t, i, priority=1.0) for i, t in enumerate(transitions)]
        with roles.generator.session(model):
            targets = bellman_targets(roles, transitions, "explicit")
            refinements = refine_attempts(roles, sample_attempts(roles, transitions))
        policy, stored = make_language_model(model), [to_file(t) for t in transitions]
        judged, of_critic = one_file.critic_examples(policy, stored, one_file.bellman_targets(policy, policy, stored))
        refined = one_file.refine_actions(policy, policy, [t.state for t in stored], temperature=0.0)
        assert judged == stored
        for ours, theirs in (
            (of_critic, critic_examples(roles, samples, targets)),
            (one_file.policy_examples(stored, refined), policy_examples(roles, samples, refinements)),
        ):
            losses = policy.losses(ours)
            learned = [example for example in theirs if example is not None]
            expected = batch_losses(model, NLACCollator(TOKENIZER.pad_token_id)(learned))
            torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
            assert relative_difference(gradient(losses, policy.model), gradient(expected, model)) < 1e-5

    def test_target_and_initial_weights(self, transitions):
        model, roles = make_model(), make_roles()
        policy, stored = make_language_model(model), [to_file(t) for t in transitions]
        states = [t.state for t in stored]
        target, initial, tau = copy.deepcopy(policy), copy.deepcopy(policy), 1 - (1 - 0.05) ** 4
        before = one_file.bellman_targets(target, target, stored)
        refined = one_file.refine_actions(policy, policy, states, temperature=0.0)
        found = [example for example in before + refined if example and example.prompt not in states]
        other = [(example.prompt, found[i - 1].answer) for i, example in enumerate(found)]
        for _ in train(initial, other[::2], num_steps=10):
            pass
        weights, first = TargetWeights(model, 0.05), InitialWeights(model)
        first.load_state_dict(dict(initial.model.named_parameters()))
        for _ in train(policy, [(t.state, t.action) for t in stored], num_steps=3):
            one_file.update_target(target, policy, tau)
            model.load_state_dict(policy.model.state_dict())
            weights.update(model, num_samples=4)
        for name, average in weights.state_dict().items():
            assert torch.equal(average, target.model.get_parameter(name)), name
        with roles.generator.session(model):
            attempts = sample_attempts(roles, transitions)
        with weights.swapped_into(model), roles.generator.session(model):
            questions = backup_questions(roles, transitions, "explicit")
        with first.swapped_into(model), roles.generator.session(model):
            expected = tokens(write_targets(roles, transitions, questions))
            refinements = refine_attempts(roles, attempts)
        ours = one_file.bellman_targets(target, initial, stored)
        assert ours == expected != before
        assert ours != one_file.bellman_targets(policy, initial, stored)
        assert ours != one_file.bellman_targets(target, policy, stored)
        ours = one_file.refine_actions(policy, initial, states, temperature=0.0)
        assert ours == tokens([r and r.complies and r.refined_action or None for r in refinements])
        assert ours != one_file.refine_actions(policy, policy, states, temperature=0.0)

    def test_probabilities_of_replay(self, transitions):
        theirs = PrioritizedReplay(100, priority_exponent=0.1)
        ours = one_file.ReplayBuffer(100, alpha=0.1)
        stored, episodes = [to_file(t) for t in transitions], list(dict.fromkeys(t.episode for t in transitions))
        losses = [3.0, 0.0, 1e-9, 0.5, 20.0]
        for half in (slice(0, 10), slice(10, None)):  # the second one gets the largest priority of the first
            theirs.add(episodes[half])
            ours.add([t for t, of in zip(stored, transitions, strict=True) if of.episode in episodes[half]])
            theirs.update_priorities(range(len(losses)), losses)
            ours.update(stored[: len(losses)], losses)
            draws = [sample for _ in range(20) for sample in theirs.sample(5000)]
            weights = {sample.transition_id: sample.priority**0.1 for sample in draws}
            expected = torch.tensor([weights[i] for i in range(len(ours.transitions))], dtype=torch.float64)
            torch.testing.assert_close(ours.probabilities(), expected / expected.sum())
            counts = torch.tensor([sample.transition_id for sample in draws]).bincount() / len(draws)
            torch.testing.assert_close(counts.double(), ours.probabilities(), rtol=0.1, atol=0)
        found = ours.probabilities()
        assert found[-1] == found[4] > found[0] > found[5] > found[3] > found[1] == found[2]
        torch.manual_seed(0)
        counts = torch.zeros(len(stored), dtype=torch.float64)
        places = {id(t): i for i, t in enumerate(stored)}
        for drawn in ours.sample(200_000):
            counts[places[id(drawn)]] += 1
        torch.testing.assert_close(counts / 200_000, ours.probabilities(), rtol=0.1, atol=0)


LINE = re.compile(
    r"iteration +(\d+)  environment steps +(\d+)  success (\d\.\d\d)"
    r"(?:  critic loss (\d+\.\d+)  policy loss (\d+\.\d+)  \d+ s)?"
)


def curve(output: str) -> list[tuple[str, ...]]:
    return [LINE.fullmatch(line).groups() for line in output.splitlines() if line.startswith("iteration")]


def test_runs():
    sizes = ["--iterations", "2", "--samples_per_iteration", "16", "--batch_size", "8", "--eval_episodes", "4"]
    output = run_script(SCRIPT, *sizes, "--eval_iterations", "1")
    begin, first, second = curve(output)
    assert (begin[:2], first[0], second[0]) == (("0", "0"), "1", "2")
    assert 4 <= int(first[1]) <= 8 and int(first[1]) < int(second[1]) <= 16
    backup, critic = output[output.index("The backup") :].split("The critic foresees")
    assert "The score is" in backup or backup.count("How will this end?") == 1
    assert backup.count("So was it the best call?") == 1 and backup.count("\nOptimality: ") == 1
    assert critic.count("How will this end, and was it the best call?") == 1
    assert re.search(r"Which call is best\?\n<\|assistant\|>route\(.+\)\n$", critic)


@pytest.mark.slow
def test_learns():
    begin, *_, end = curve(run_script(SCRIPT))
    assert float(begin[2]) < 0.1 and float(end[2]) > 0.9
