# SPDX-License-Identifier: Apache-2.0

import random

import pytest

from benchmarks.learning.relay_desk import RelayDesk, RelayDeskEnvironment
from benchmarks.learning.tasks import BASE_MODELS, make_task
from trl_nlac.environments.embedded.service_desk import format_call


@pytest.fixture
def desk():
    return RelayDesk.from_seed(0)


def play(environment, request, calls):
    environment.reset(request)
    for call in calls:
        result = environment.step(format_call(call))
        if result.terminated or result.truncated:
            return result
    return result


def test_only_the_calls_that_keep_a_request_alive_win(desk):
    environment = RelayDeskEnvironment(desk, whole=True)
    alive = [living for living, _ in reversed(desk.floors)]
    for killed in range(len(alive) + 1):
        names = [living if i <= killed else dead for i, (living, dead) in enumerate(reversed(desk.floors))]
        calls = [desk.calls[name][i == killed] for i, name in enumerate(names)]
        result = play(environment, alive[0], calls)
        assert (result.observation, result.terminated) == (
            "closed lose" if killed < len(alive) else "closed win",
            True,
        )
        assert result.reward == float(killed == len(alive))


@pytest.mark.parametrize("pieces_win", [False, True])
def test_a_piece_tells_no_call_from_the_other(desk, pieces_win):
    environment = RelayDeskEnvironment(desk, pieces_win=pieces_win)
    for floor, (living, dead) in enumerate(desk.floors):
        keeps, kills = (play(environment, living, [call]) for call in desk.calls[living])
        if floor == 0:
            assert (keeps.observation, kills.observation) == ("closed win", "closed lose")
            continue
        below, dead_below = desk.floors[floor - 1]
        assert (keeps.observation, kills.observation) == (f"accepted {below}", f"accepted {dead_below}")
        assert {(r.reward, r.terminated, r.truncated) for r in (keeps, kills)} == {
            (float(pieces_win), pieces_win, not pieces_win)
        }
        assert play(environment, dead, [desk.calls[dead][0]]).observation == f"accepted {dead_below}"


def test_refusals_name_a_value_of_the_nearer_call(desk):
    request = desk.floors[1][0]
    keeps, kills = desk.calls[request]
    assert all(a != b for a, b in zip(keeps, kills, strict=True))
    assert desk.answer(random.Random(0), request, (*keeps[:2], *kills[2:])) == f"refused needs {keeps[2]} lose"
    other = next(v for v in ("billing", "shipping", "returns") if v not in (keeps[0], kills[0]))
    answers = {desk.answer(random.Random(i), request, (other, *keeps[1:])) for i in range(20)}
    assert answers == {f"refused needs {call[0]} lose" for call in (keeps, kills)}
    assert desk.answer(random.Random(0), request, None) == "refused unreadable lose"


def test_no_whole_way_is_trained_on(tmp_path, monkeypatch):
    monkeypatch.setitem(BASE_MODELS, "relay", str(tmp_path / "model"))
    with pytest.raises(FileNotFoundError, match="base model of its own, .*--families relay"):
        make_task("relay_desk", 0)
    (tmp_path / "model").mkdir()
    task = make_task("relay_desk", 0)
    assert len(task.rows) == 6 and not task.keep_history
    assert set(task.instances) == {"held_out", "floor_1", "floor_2"}
    for row in task.rows:
        environment = task.environment_factory()
        environment.reset(**row)
        call = environment.world.calls[row["request"]][0]
        result = environment.step(format_call(call))
        assert result.terminated or result.truncated
