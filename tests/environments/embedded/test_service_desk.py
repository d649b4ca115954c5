# SPDX-License-Identifier: Apache-2.0


import pytest
from helpers.method_utils import probe_qualities, replayed
from helpers.testing_utils import make_roles

from trl_nlac.environments import RoomsWorld, ServiceDesk
from trl_nlac.environments.embedded import make_environment
from trl_nlac.environments.embedded.rooms import DOORS
from trl_nlac.environments.embedded.service_desk import ARGUMENTS, VARIANTS
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.types import Transition


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

    def test_oracle(self):
        desk = ServiceDesk({"baku": ("billing", "amber", "photo", "noon")})
        environment = make_environment(desk)
        oracle, right, wrong = environment.oracle, "route billing amber photo noon", "route billing ruby badge noon"
        [transition] = replayed(environment, {"request": "baku"}, [wrong])
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
    """An unreadable answer does not reach the environment, so the state stays the same."""
    roles = make_roles(["", action], max_turns=2)
    [episode] = play_episodes(EnvironmentPool(lambda: make_environment(world)), [task], roles)
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
        assert len(answers) == 29 and "refused needs noon 1" not in answers  # right values are not misleading
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
        environment = make_environment(desk)
        closing, wrong = "route legal ruby badge dusk", "route billing ruby badge dusk"
        in_time, too_late = "route sales azure photo noon", "route billing amber photo dusk"
        first, second = replayed(environment, {"request": "baku"}, [too_late, closing])
        oracle = environment.oracle
        assert [oracle.quality(first, action) for action in (in_time, too_late, "route noon")] == [1, 0, 0]
        assert [oracle.quality(second, action) for action in (closing, wrong, "route noon")] == [1, 0.75, 0]
        assert oracle.future_is_right(first, too_late, f"accepted dela 2 {closing} late needs dusk lose")
        course = f"accepted dela 2 {wrong} refused needs legal 1 {closing} closed win"
        assert oracle.future_is_right(first, in_time, course)
        assert not oracle.future_is_right(first, too_late, course)
        assert not oracle.future_is_right(first, in_time, f"accepted dela 2 {wrong} closed win")
        assert not oracle.future_is_right(first, in_time, f"refused needs legal 2 {closing} closed win")
        assert oracle.future_is_right(second, closing, "late needs noon lose")

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_probes_are_half_right(self, variant):
        qualities = probe_qualities(make_environment(ServiceDesk.from_seed(0, variant=variant)), 32)
        assert qualities[::2] == [1] * 16 and max(qualities[1::2]) < 1

    def test_customers_have_no_effect(self):
        environment = make_environment(ServiceDesk(self.RULES))
        assert environment.reset(request="baku", customer="zora") == "baku zora 2"
        assert environment.step("route billing amber photo noon").observation == "closed win"

    def test_unknown_variant(self):
        with pytest.raises(ValueError, match="`variant` must be one of told, hinted, noisy, delayed, got 'loud'"):
            ServiceDesk.from_seed(0, variant="loud")
