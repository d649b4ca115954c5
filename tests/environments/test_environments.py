# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

import itertools
import random
import re
from collections import Counter

import pytest
from helpers.testing_utils import make_roles

from trl_nlac.environments import RoomsWorld, ServiceDesk
from trl_nlac.environments.embedded import COMPACT_PROMPTS, make_environment, make_rehearsal_dataset, make_tasks
from trl_nlac.environments.embedded.dialogues import ROLES, ROLES_OF_SEVERAL_FUTURES
from trl_nlac.environments.embedded.names import (
    ALL_NAMES,
    CUSTOMERS,
    HELD_OUT_CUSTOMERS,
    NAMES_OF_VARIANTS,
    REQUESTS_OF_KNOWN_DELAYED_DESKS,
    REQUESTS_OF_KNOWN_DESKS,
    REQUESTS_OF_KNOWN_HINTED_DESKS,
    REQUESTS_OF_NEW_DESKS,
    ROOMS_OF_KNOWN_WORLDS,
    ROOMS_OF_NEW_WORLDS,
)
from trl_nlac.environments.embedded.rooms import DOORS, RoomsFamily
from trl_nlac.environments.embedded.service_desk import ARGUMENTS, VALUES, VARIANTS, format_call, parse_call
from trl_nlac.environments.embedded.service_desk_dialogues import ServiceDeskFamily, lesson
from trl_nlac.environments.pool import EnvironmentPool
from trl_nlac.episodes.recorder import replay_actions
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.prompts import parse_critique
from trl_nlac.types import Transition


def begin_and_end(future: str) -> tuple[str, bool]:
    """The answer that a future begins with, and whether it is won."""
    return re.split(" (?:route|take) ", future)[0], future.endswith("win")


def brute_force_value(world: RoomsWorld, room: str) -> float:
    """The best share of wins of any fixed sequence of doors, which in a house without slips is the optimal value."""
    best = 0.0
    for doors in itertools.product(DOORS, repeat=world.horizon):
        environment = make_environment(world)
        environment.reset(start=room)
        for door in doors:
            result = environment.step(f"take {door}")
            if result.terminated:
                best = max(best, result.reward)
                break
    return best


class TestRooms:
    @pytest.mark.parametrize("seed", range(3))
    def test_values(self, seed):
        world = RoomsWorld.from_seed(seed)
        for room in world.rooms:
            assert world.value(room, world.horizon) == brute_force_value(world, room) == 1

    def test_random_agent_is_mediocre(self):
        world, tasks = make_tasks("rooms", 0)
        rng, environment, wins = random.Random(0), make_environment(world), 0
        for _ in range(250):
            for start in tasks["start"]:
                environment.reset(start=start)
                while not (result := environment.step(f"take {rng.choice(DOORS)}")).terminated:
                    pass
                wins += result.reward
        expected = sum(world.uniform_value(room) for room in world.rooms) / len(world.rooms)
        assert wins / 2000 == pytest.approx(expected, abs=0.03)

    def test_slips(self):
        world = RoomsWorld.from_seed(1)
        world = RoomsWorld(world.doors, slip=0.3)
        room, door = next(key for key, place in world.doors.items() if place not in ("trap", "treasure"))
        successors = world.successors(room, 4, door)
        assert sum(successors.values()) == pytest.approx(1)
        assert successors[f"{world.doors[room, door]} 3"] == pytest.approx(0.7 + 0.3 / 7)
        assert 0 < world.action_value(room, 4, door) < 1

    def test_wasted_time(self):
        environment = make_environment(RoomsWorld.from_seed(0))
        room = environment.world.rooms[0]
        assert environment.reset(start=room) == f"{room} 4"
        assert environment.step("open the door").observation == f"{room} 3"
        for _ in range(2):
            environment.step("?")
        result = environment.step("?")
        assert (result.observation, result.terminated, result.reward) == ("late lose", True, 0.0)

    def test_oracle(self):
        world = RoomsWorld.from_seed(0)
        environment, roles = make_environment(world), make_roles([])
        room, door = next(key for key, place in world.doors.items() if place == "treasure")
        other = next(other for other in DOORS if world.doors[room, other] not in ("trap", "treasure"))
        transition = Transition(replay_actions(environment, {"start": room}, [f"take {door}"], roles), 0)
        oracle = environment.oracle
        assert oracle.quality(transition, f"take {door}") == 1
        assert oracle.quality(transition, "take black") == 0
        assert oracle.future_is_right(transition, f"take {door}", "treasure win")
        assert not oracle.future_is_right(transition, f"take {door}", "trap lose")
        next_room = world.doors[room, other]
        assert not oracle.future_is_right(transition, f"take {other}", f"{next_room} 3")  # not to its end
        assert not oracle.future_is_right(transition, f"take {other}", f"{next_room} 2 take red trap lose")
        walk = f"{next_room} 3"
        assert not oracle.future_is_right(transition, f"take {other}", walk + " take red late lose")

    def test_probes_are_half_best(self):
        world = RoomsWorld.from_seed(0)
        environment, roles = make_environment(world), make_roles([])
        qualities = []
        for task, actions in environment.oracle.probes(40, seed=0):
            episode = replay_actions(environment, task, actions, roles)
            assert len(episode.turns) == len(actions)
            qualities.append(environment.oracle.quality(Transition(episode, len(actions) - 1), actions[-1]))
        assert qualities.count(1) == 20


class TestServiceDesk:
    def test_play(self):
        desk = ServiceDesk({"baku": ("billing", "amber", "photo", "noon")})
        environment = make_environment(desk)
        assert environment.reset(request="baku") == "baku 2"
        assert environment.step("route legal amber badge noon").observation == "refused needs billing 1"
        result = environment.step("route billing amber badge noon")
        assert (result.observation, result.terminated, result.reward) == ("refused needs photo lose", True, 0.0)
        environment.reset(request="baku")
        assert environment.step("close it").observation == "refused unreadable 1"
        result = environment.step("route billing amber photo noon")
        assert (result.observation, result.terminated, result.reward) == ("closed win", True, 1.0)

    def test_thousands_of_actions(self):
        assert len(list(itertools.product(*VALUES))) == 4096
        for call in itertools.islice(itertools.product(*VALUES), 100):
            assert parse_call(format_call(call)) == call
        assert parse_call("route amber billing photo noon") is None

    def test_oracle(self):
        desk = ServiceDesk({"baku": ("billing", "amber", "photo", "noon")})
        environment, roles = make_environment(desk), make_roles([])
        oracle, right, wrong = environment.oracle, "route billing amber photo noon", "route billing ruby badge noon"
        transition = Transition(replay_actions(environment, {"request": "baku"}, [wrong], roles), 0)
        assert oracle.quality(transition, right) == 1
        assert oracle.quality(transition, wrong) == 0.5
        assert oracle.future_is_right(transition, right, "closed win")
        assert oracle.future_is_right(
            transition, wrong, "refused needs amber 1 route billing amber badge noon refused needs photo lose"
        )
        assert oracle.future_is_right(transition, wrong, f"refused needs amber 1 {right} closed win")
        assert not oracle.future_is_right(transition, wrong, f"refused needs amber 1 {wrong} closed win")
        assert not oracle.future_is_right(transition, wrong, "refused needs photo lose")
        assert not oracle.future_is_right(transition, wrong, "refused needs amber 1")


@pytest.mark.parametrize(
    "world, task, action, future",
    [
        (
            ServiceDesk({"baku": ("billing", "amber", "photo", "noon")}),
            {"request": "baku"},
            "route billing ruby photo noon",
            "refused needs amber 1 route billing amber photo noon closed win",
        ),
        (
            RoomsWorld({("hall", door): "trap" for door in DOORS}, horizon=2),
            {"start": "hall"},
            "take red",
            "trap lose",
        ),
    ],
)
def test_oracle_after_an_unreadable_answer(world, task, action, future):
    """The environment never hears of it, so it is where it was."""
    roles = make_roles(["", action])
    [episode] = play_episodes(EnvironmentPool(lambda: make_environment(world)), [task], roles, max_turns=2)
    assert [turn.action for turn in episode.turns] == ["", action]
    oracle = make_environment(world).oracle
    for index in range(2):
        assert oracle.future_is_right(Transition(episode, index), action, future)


class TestVariantsOfTheServiceDesk:
    RULES = {"baku": ("billing", "amber", "photo", "noon"), "dela": ("legal", "ruby", "badge", "dusk")}

    def play(self, desk, request, actions, seed=0):
        environment = make_environment(desk)
        environment.reset(request=request, seed=seed)
        return [environment.step(action) for action in actions]

    def test_hinted_names_the_argument_alone(self):
        desk = ServiceDesk(self.RULES, names_values=False)
        steps = self.play(desk, "baku", ["route legal amber badge noon", "route billing amber badge dusk"])
        assert [step.observation for step in steps] == ["refused team 1", "refused proof lose"]
        assert self.play(desk, "baku", ["route billing amber photo noon"])[0].observation == "closed win"

    def test_noisy_refusals_mislead_as_often_as_they_should(self):
        desk = ServiceDesk(self.RULES, noise=0.4)
        state, wrong = desk.start("baku"), "route legal amber photo noon"
        answers = desk.answers(state, wrong)
        assert sum(answers.values()) == pytest.approx(1)
        assert answers["refused needs billing 1"] == pytest.approx(0.6)
        assert len(answers) == 29 and "refused needs noon 1" not in answers  # right values are no misleading ones
        assert desk.answers(state, "route billing amber photo noon") == {"closed win": 1.0}
        seen = [self.play(desk, "baku", [wrong], seed)[0].observation for seed in range(300)]
        assert seen == [self.play(desk, "baku", [wrong], seed)[0].observation for seed in range(300)]
        assert 0.5 < seen.count("refused needs billing 1") / 300 < 0.7

    def test_delayed_blames_the_time_at_the_end(self):
        desk = ServiceDesk(self.RULES, attempts=3, follow_ups={"baku": "dela"})
        assert desk.requests == ["baku"]
        assert make_environment(desk).reset(request="baku") == "baku 3"
        closing = "route legal ruby badge dusk"
        in_time, too_late = "route sales azure photo noon", "route billing amber photo dusk"
        steps = self.play(desk, "baku", [in_time, "route legal ruby photo dusk", closing])
        assert [step.observation for step in steps[:2]] == ["accepted dela 2", "refused needs badge 1"]
        late = {f"late needs {time} lose" for time in ARGUMENTS["time"]}
        for first, rate in ((in_time, 0.6), (too_late, 0.0)):
            ends = [self.play(desk, "baku", [first, closing], seed)[1] for seed in range(300)]
            assert {step.observation for step in ends} - {"closed win"} == late
            assert all(step.terminated for step in ends)
            assert sum(step.reward for step in ends) / 300 == pytest.approx(rate, abs=0.07)
            named = [step.observation for step in ends if step.observation in late]
            assert named.count("late needs noon lose") / len(named) == pytest.approx(0.4, abs=0.1)
        state = desk.after(desk.start("baku"), too_late, "accepted dela 2")
        answers = desk.answers(state, closing)
        assert sum(answers.values()) == pytest.approx(1) and answers["late needs noon lose"] == pytest.approx(0.4)
        steps = self.play(desk, "baku", ["route", "route ruby", in_time])
        expected = ["refused unreadable 2", "refused unreadable 1", "accepted dela lose"]
        assert [step.observation for step in steps] == expected

    def test_oracle_of_the_delayed_desk(self):
        desk = ServiceDesk(self.RULES, attempts=3, follow_ups={"baku": "dela"})
        environment, roles = make_environment(desk), make_roles([])
        closing, wrong = "route legal ruby badge dusk", "route billing ruby badge dusk"
        in_time, too_late = "route sales azure photo noon", "route billing amber photo dusk"
        episode = replay_actions(environment, {"request": "baku"}, [too_late, closing], roles)
        first, second = Transition(episode, 0), Transition(episode, 1)
        oracle = environment.oracle
        assert [oracle.quality(first, action) for action in (in_time, too_late, "route noon")] == [1, 0, 0]
        assert [oracle.quality(second, action) for action in (closing, wrong, "route noon")] == [1, 0.75, 0]
        assert oracle.future_is_right(first, too_late, f"accepted dela 2 {closing} late needs dusk lose")
        told = f"accepted dela 2 {wrong} refused needs legal 1 {closing} closed win"
        assert oracle.future_is_right(first, in_time, told)
        assert not oracle.future_is_right(first, too_late, told)
        assert not oracle.future_is_right(first, in_time, f"accepted dela 2 {wrong} closed win")
        assert not oracle.future_is_right(first, in_time, f"refused needs legal 2 {closing} closed win")
        assert oracle.future_is_right(second, closing, "late needs noon lose")

    def test_tools_of_the_delayed_desk(self):
        desk = ServiceDesk.from_seed(0, variant="delayed")
        environment = make_environment(desk, "tool_call")
        assert [tool["function"]["name"] for tool in environment.tool_schemas] == ["route"]
        for task, actions in environment.oracle.probes(8, seed=0):
            environment.reset(**task)
            assert all("unreadable" not in environment.step(action).observation for action in actions)

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_probes_are_half_right(self, variant):
        environment, roles = make_environment(ServiceDesk.from_seed(0, variant=variant)), make_roles([])
        qualities = []
        for task, actions in environment.oracle.probes(32, seed=0):
            episode = replay_actions(environment, task, actions, roles)
            assert len(episode.turns) == len(actions)
            qualities.append(environment.oracle.quality(Transition(episode, len(actions) - 1), actions[-1]))
        assert qualities[::2] == [1] * 16 and max(qualities[1::2]) < 1

    def test_customers_matter_nothing(self):
        environment = make_environment(ServiceDesk(self.RULES))
        assert environment.reset(request="baku", customer="zora") == "baku zora 2"
        assert environment.step("route billing amber photo noon").observation == "closed win"

    def test_unknown_variant(self):
        with pytest.raises(ValueError, match="`variant` must be one of told, hinted, noisy, delayed, got 'loud'"):
            ServiceDesk.from_seed(0, variant="loud")


class TestLesson:
    CALL = "route billing amber photo noon"

    @pytest.mark.parametrize(
        "steps, advice",
        [
            ([(CALL, "closed win")], ""),
            ([(CALL, "refused needs legal 1"), (CALL, "refused needs ruby lose")], "use legal ruby"),
            ([(CALL, "refused needs legal 1"), ("route legal amber photo noon", "closed win")], ""),
            ([(CALL, "refused form 1"), (CALL, "refused form lose")], "avoid amber"),
            ([(CALL, "refused form 1"), ("route billing ruby badge dusk", "refused time lose")], "use ruby badge"),
            ([(CALL, "accepted dela 2"), (CALL, "late needs dusk lose")], "use dusk"),
            ([(CALL, "accepted dela 2"), (CALL, "refused needs ruby 1"), (CALL, "late needs dusk lose")], "use dusk"),
            ([(CALL, "accepted dela 2"), (CALL, "refused needs ruby 1"), (CALL, "refused needs ruby lose")], ""),
            ([(CALL, "late needs dusk lose")], ""),
            ([(CALL, "refused needs ruby 1"), (CALL, "late needs dusk lose")], "use ruby"),
        ],
    )
    def test_advice(self, steps, advice):
        assert lesson(steps).advice == advice


class TestFamilies:
    def test_names_are_disjoint(self):
        names = ROOMS_OF_KNOWN_WORLDS + ROOMS_OF_NEW_WORLDS + REQUESTS_OF_KNOWN_DESKS + REQUESTS_OF_NEW_DESKS
        assert names == ALL_NAMES and len(names) == 240
        variants = REQUESTS_OF_KNOWN_HINTED_DESKS + REQUESTS_OF_KNOWN_DELAYED_DESKS + CUSTOMERS + HELD_OUT_CUSTOMERS
        assert variants == NAMES_OF_VARIANTS and len(set(names + variants)) == 368
        for seed in range(10):
            assert set(RoomsWorld.from_seed(seed).rooms) <= set(ROOMS_OF_NEW_WORLDS)
            assert set(ServiceDesk.from_seed(seed).rules) <= set(REQUESTS_OF_NEW_DESKS)

    def test_instances_are_seeded(self):
        assert RoomsWorld.from_seed(3) == RoomsWorld.from_seed(3)
        assert RoomsWorld.from_seed(3) != RoomsWorld.from_seed(4)
        assert ServiceDesk.from_seed(3) == ServiceDesk.from_seed(3)
        assert ServiceDesk.from_seed(3) != ServiceDesk.from_seed(4)

    @pytest.mark.parametrize(
        "family",
        [RoomsFamily(), ServiceDeskFamily(), ServiceDeskFamily("hinted", True), ServiceDeskFamily("delayed", True)],
    )
    @pytest.mark.parametrize("role", [*ROLES, *ROLES_OF_SEVERAL_FUTURES])
    def test_dialogues_are_true(self, family, role):
        rng = random.Random(0)
        for _ in range(50):
            dialogue = family.dialogue(rng, role, known=rng.random() < 0.5)
            messages, completion = dialogue.messages(role, COMPACT_PROMPTS)
            completion = completion["content"]
            assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2) + ["user"]
            if role in ("critique", "backup", "evaluation"):
                critique = parse_critique(completion)
                assert critique.future.startswith(dialogue.future[0][1])
                assert critique.optimal == critique.future.endswith("win")
            if role in ("future", "backup_future"):
                assert completion == dialogue.critique.future
            if role == "evaluation":
                begin, is_won = begin_and_end(critique.future)
                foreseen = list(map(begin_and_end, dialogue.foreseen))
                begins = Counter(begin for begin, _ in foreseen)
                ends = Counter(is_won for other, is_won in foreseen if other == begin)
                assert (begins[begin], ends[is_won]) == (max(begins.values()), max(ends.values()))
                assert messages[-1]["content"].count("\n") == len(dialogue.foreseen) - 1 > 0
            if role == "refine":
                assert (completion == dialogue.action) == dialogue.won or isinstance(family, ServiceDeskFamily)

    @pytest.mark.parametrize("several_futures", [False, True])
    @pytest.mark.parametrize("world", ["rooms", "service_desk"])
    def test_rehearsal_leaks_nothing(self, world, several_futures):
        new_names = {"rooms": ROOMS_OF_NEW_WORLDS, "service_desk": REQUESTS_OF_NEW_DESKS}[world]
        rows = make_rehearsal_dataset(world, size=300, several_futures=several_futures)
        questions = [row["prompt"][-1]["content"] for row in rows]
        for row, question in zip(rows, questions, strict=True):
            if row["prompt"][0]["content"].split()[0] in new_names:
                weighs = question.startswith("1. ") and question.endswith(" Critique?")
                assert weighs or question.endswith(("Summary?", "Revise?", "Summary? Future:"))
        assert several_futures == any(question.endswith("Future:") for question in questions)
        assert several_futures == any(question.startswith("1. ") for question in questions)
