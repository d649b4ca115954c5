# SPDX-License-Identifier: Apache-2.0

"""Texts of any size: `max_prompt_length` bounds the prompts of every role, and what is trained on."""

import json
import tracemalloc
from dataclasses import replace
from functools import partial

import pytest
from datasets import Dataset
from helpers.testing_utils import (
    Answering,
    ScriptedGenerator,
    make_roles_of,
    make_tokenizer,
    make_trained,
    make_trainer,
    play,
    read_logs,
)

from trl_nlac import NLACPrompts
from trl_nlac.agent.better_actions import refinement_rounds
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments import StepResult
from trl_nlac.method.backup import bellman_targets, critic_examples, is_answerable
from trl_nlac.method.critic import critic_prompt
from trl_nlac.method.refinement import policy_examples, refine_attempts, sample_attempts
from trl_nlac.types import Sample, TrainingStopped, Transition


LIMIT = 5000
HUGE = "<|im_end|>\n" + "line of a log 17 {[\n" * 20_000 + "the end"
MARK = "characters left out ...]"
JUDGED = "<think>\nHm.\n</think>\n\nFuture: It ends.\nOptimality: No. Do better."
REWRITTEN = "<corrected_think>\nI expect so.\n</corrected_think>"
CALL = '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "look", "arguments": {"x": "1"}}\n</tool_call>'


class RoleGenerator(ScriptedGenerator):
    """Answers every role in its form: judgements, rewritten thoughts and actions."""

    def generate(self, prompts, sampling, seeds, bar=None):
        texts = [self.chat.tokenizer.decode(prompt[-250:]) for prompt in prompts]
        questions = [text.rpartition("<|im_start|>user")[2] for text in texts]
        self.answers = [
            REWRITTEN
            if "corrected_think" in text
            else JUDGED
            if "Future:" in text or "success or" in text
            else CALL.replace("1", "2" if "act anew" in text else "1")
            for text in questions
        ]
        return super().generate(prompts, sampling, seeds, bar)

    def _completion(self, answer, begun=()):
        template = self.chat.template
        return super()._completion([*template.encode(answer), template.stop_id], begun)


class Tools:
    huge = ""

    def reset(self, number):
        return HUGE if self.huge == "task" else "Look around."

    def look(self, x: str) -> str:
        """
        Look.

        Args:
            x: Where.
        """
        if self.huge == "error":
            raise ValueError(HUGE)
        return HUGE if self.huge == "result" else "nothing"


class Texts:
    huge = ""

    def reset(self, number):
        system = HUGE if self.huge in ("system", "opening") else "Be brief."
        task = HUGE if self.huge == "opening" else "Begin."
        return [{"role": "system", "content": system}, {"role": "user", "content": task}]

    def step(self, action):
        return StepResult(HUGE if self.huge == "observation" else "nothing", reward=0.5)


DOORS = [(Tools, "task"), (Tools, "result"), (Tools, "error"), (Texts, "system"), (Texts, "opening")]


@pytest.fixture(scope="module")
def chat():
    return ChatEncoder(make_tokenizer("qwen3"))


def make_bounded_roles(chat, limit=LIMIT, **options):
    options = {"action_format": "tool_call", "max_turns": 3, "max_completion_length": 200, **options}
    roles = make_roles_of(chat, [], NLACPrompts(), max_prompt_length=limit, **options)
    roles.generator = RoleGenerator(chat, "")
    return roles


def play_huge(roles, environment, door):
    kind = type("Huge", (environment,), {"huge": door})
    (episode,) = play([{"number": 1}], kind, roles)
    return episode


def ask_every_role(roles, transitions, targets_of=("implicit", "explicit", "monte_carlo")):
    for bootstrap in targets_of:
        targets = bellman_targets(roles, transitions, bootstrap)
    attempts = sample_attempts(roles, transitions)
    refinements = refine_attempts(roles, attempts)
    refinement_rounds(roles, {i: a for i, a in enumerate(attempts) if a is not None}, num_rounds=2)
    samples = [Sample(transition, i, 1.0) for i, transition in enumerate(transitions)]
    return critic_examples(roles, samples, targets), policy_examples(roles, samples, refinements)


@pytest.mark.parametrize("environment, door", [*DOORS, (Texts, "observation")])
def test_every_prompt_of_every_role_is_bounded(chat, environment, door):
    roles = make_bounded_roles(chat)
    episode = play_huge(roles, environment, door)
    assert len(episode.turns) == 3 and episode.failure is None
    assert roles.tally.metrics["environment/num_shortened"] == [
        {"opening": 2, "observation": 3, "result": 3, "error": 3}.get(door, 1)
    ]
    transitions = [Transition(episode, i) for i in range(3)]
    played = len(roles.generator.prompts)
    ended = replace(episode, terminated=True, truncated=False)
    transitions += [Transition(ended, 0), Transition(ended, 2)]
    of_critic, of_policy = ask_every_role(roles, transitions)
    assert {name for name in roles.tally.metrics if name.endswith("format_rate")} == {
        f"{role}/format_rate" for role in ("policy", "successor", "backup", "critic", "refine", "correction")
    }
    assert not sum(roles.tally.metrics["prompts/too_long_ratio"])
    most = LIMIT + len(chat.prefill)
    texts = [chat.tokenizer.decode(prompt) for prompt in roles.generator.prompts]
    assert max(map(len, roles.generator.prompts)) <= most
    shown = [MARK in text for text in texts]
    assert all(shown) if door in ("task", "system", "opening") else sum(shown) > len(texts) / 2
    # What is trained on is what was seen: by the policy, and by the critic.
    for i, transition in enumerate(transitions[:3]):
        assert roles.builder.opened(transition.state).ids == roles.generator.prompts[:played][i]
    for example in filter(None, [*of_critic, *of_policy]):
        assert example.prompt.num_tokens <= most and example.prompt.ids in roles.generator.prompts
        if example.teacher_prompt is not None:
            assert example.teacher_prompt.num_tokens <= most
    assert all(of_critic) and all(of_policy)


class CountingEncoder(ChatEncoder):
    num_characters = 0

    def _encode(self, content, space=""):
        self.num_characters += len(content)
        return super()._encode(content, space)


def test_ten_megabytes_cost_no_more_than_a_hundredth_of_it():
    """Neither in characters that are encoded, nor in memory beyond a few copies of the text itself."""

    class Log:
        def reset(self, size):
            self.text = "line of a log 17\n" * (size // 17)
            return "Begin."

        def step(self, action):
            return StepResult(self.text)

    counts, peaks = [], []
    for size in (10**5, 10**7):
        chat = CountingEncoder(make_tokenizer("qwen3"))
        roles = make_bounded_roles(chat, action_format="text")
        tracemalloc.start()
        (episode,) = play([{"size": size}], Log, roles)
        ask_every_role(roles, [Transition(episode, i) for i in range(3)], ["monte_carlo"])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        counts.append(chat.num_characters)
        assert max(len(turn.next_observation) for turn in episode.turns) < 16 * LIMIT
    assert counts[1] < 1.5 * counts[0] and counts[1] < 10**7
    assert peaks[1] - peaks[0] < 6 * 10**7


@pytest.mark.parametrize("number, length", [(0, 60), (7, 60), (30, 200), (30, 5000), (10**6, 300)])
def test_a_shortened_text_keeps_its_ends(chat, number, length):
    text = "first " + "Zwölf Boxkämpfer {jagen} <|im_end|> 😀\n" * number + " last"
    shortened = chat.shortened(text, length)
    size = len(chat.tokenizer(shortened, add_special_tokens=False, split_special_tokens=True)["input_ids"])
    assert size <= length and chat.shortened(shortened, length) == shortened
    if number * 30 > length:
        start, _, end = shortened.partition(" [... ")
        left_out, _, end = end.partition(f" {MARK} ")
        assert text.startswith(start) and text.endswith(end)
        assert len(start) + len(end) + int(left_out.replace(",", "")) == len(text)
        assert size > 0.9 * length or number == 10**6
    else:
        assert shortened == text


def test_results_of_several_tools_share_the_room(chat):
    roles = make_bounded_roles(chat)
    call = '{"name": "look", "arguments": {"x": "1"}}'
    action = f"[{call}, {call}, {call}]"
    whole = ["small", HUGE, "x" * 9 + HUGE]
    shortened = roles.actions.shortened(action, json.dumps(whole), 900)
    results = json.loads(shortened)
    assert results[0] == "small" and all(MARK in result for result in results[1:])
    assert len(roles.actions.observation_ids(chat.end_of_turn_id, action, shortened)) < 1000
    shortened = roles.actions.shortened(action, HUGE, 900)  # no list of three: each tool is answered with it
    assert len(roles.actions.observation_ids(chat.end_of_turn_id, action, shortened)) < 1000
    spaced = '["a",   "b", "c"]'
    assert roles.actions.shortened(action, spaced, 900) == spaced


def test_long_histories_are_cut_for_the_critic_too(chat):
    class Corridor:
        def reset(self, number):
            self.turn = 0
            return "Begin."

        def step(self, action):
            self.turn += 1
            return StepResult(f"room {self.turn} " + "and nothing in it " * 40)

    roles = make_bounded_roles(chat, limit=2500, action_format="text", max_turns=12)
    (episode,) = play([{"number": 1}], Corridor, roles)
    transitions = [Transition(episode, i) for i in range(12)]
    played = len(roles.generator.prompts)
    assert all(roles.builder.opened(t.state).ids == roles.generator.prompts[i] for i, t in enumerate(transitions))
    ask_every_role(roles, transitions)
    asked = roles.generator.prompts[played:]
    assert max(map(len, asked)) <= 2500 + len(chat.prefill)
    assert not sum(roles.tally.metrics["prompts/too_long_ratio"])
    cut = marked = 0
    for transition in transitions:
        question = critic_prompt(roles, transition.state_action)
        text, whole = (chat.tokenizer.decode(prompt.ids) for prompt in (question, transition.state_action))
        opening = whole[: whole.index("Begin.")]
        assert text.startswith(opening + "Begin.")
        if question.trunk is not transition.state_action.trunk:
            cut += 1
            before, mark, newest = text.partition(NLACPrompts().history_cut)
            assert before == f"{opening}Begin.\n\n" and mark not in newest  # where the recorder puts it, and once
            assert "<|im_start|>assistant\n<|im_end|>" not in text
            marked += mark in whole
            newest = newest.partition("<|im_start|>assistant\n")[2].rpartition("<|im_start|>user")[0]
            assert mark and newest.startswith("<tool_call>")  # the turns are whole
            assert whole.rstrip().endswith(newest.rstrip())
    assert cut > marked > 0  # the recorder had cut some before


def test_what_does_not_fit_is_counted_and_not_asked(chat):
    roles = make_bounded_roles(chat, action_format="text")
    episode = play_huge(roles, Texts, "")
    transition = Transition(episode, 0)
    assert is_answerable(roles, transition, needs_target=True)
    roles.options.max_prompt_length = transition.state_action.num_tokens
    asked = len(roles.generator.prompts)
    assert not is_answerable(roles, transition, needs_target=False)
    ((example,), _) = ask_every_role(roles, [transition])
    assert example is None
    for prompt in roles.generator.prompts[asked:]:
        assert len(prompt) <= roles.options.max_prompt_length + len(chat.prefill)
    metrics = roles.take_metrics()
    assert metrics["prompts/too_long_ratio"] > 0
    roles.options.max_prompt_length = None  # no limit
    assert is_answerable(roles, transition, needs_target=True)


def test_logs_are_shortened_with_a_warning_or_refused(chat, caplog):
    roles = make_bounded_roles(chat, action_format="text")
    task, answer = {"role": "user", "content": HUGE}, {"role": "assistant", "content": "act"}
    rows = [
        {"messages": [task, answer, task, answer], "reward": 1.0},
        {"messages": [answer | task, answer], "reward": 0},
    ]
    episodes = read_logs(Dataset.from_list(rows), roles, max_prompt_length=LIMIT)
    assert all(transition.state.num_tokens <= LIMIT for e in episodes for transition in [Transition(e, 0)])
    assert Transition(episodes[0], 1).state.num_tokens <= LIMIT
    assert "2 rows of `replay_dataset` have texts that are too long for `max_prompt_length=5000`" in caplog.text
    said = Dataset.from_list([{"messages": [task, answer | {"content": HUGE}], "reward": 1.0}])
    with pytest.raises(ValueError, match="row 0: An answer of .* tokens does not fit into `max_prompt_length=5000`"):
        read_logs(said, roles, max_prompt_length=LIMIT)


def test_what_cannot_be_trained_on_is_not_drawn_again(tmp_path):
    ends = StepResult("refused needs billing 1", reward=1.0, terminated=True)
    config = {"max_prompt_length": 40, "max_completion_length": 16, "max_steps": 6, "logging_steps": 1}
    dataset = Dataset.from_dict({"number": [1, 34] * 8})
    factory = partial(Answering, ends, lambda number: "baku " * number + "2")
    arguments = {"environment_factory": factory, "train_dataset": dataset}
    trainer = make_trained(tmp_path, config | {"shuffle_dataset": False}, **arguments)
    counts = [entry["replay/num_left_out"] for entry in trainer.state.log_history if "replay/num_left_out" in entry]
    assert 0 < counts[0] <= counts[-1] <= 12
    before = {sample.transition_id for sample in trainer.replay.sample(200)}
    is_long = {i for i, episode in enumerate(trainer.replay.episodes) if episode.task["number"] == 34}
    assert len(before & is_long) == len(is_long) - counts[-1]
    trainer = make_trainer(
        tmp_path / "long", config | {"max_steps": 12}, **arguments | {"train_dataset": dataset.select([1] * 8)}
    )
    with pytest.raises(TrainingStopped, match="of all roles are longer than `max_prompt_length`"):
        trainer.train()
