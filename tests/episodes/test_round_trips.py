# SPDX-License-Identifier: Apache-2.0

import pytest

from benchmarks.round_trips import FORMATS, FORMS, REASONS, draw_cases, run


@pytest.fixture(scope="module")
def drawn():
    return draw_cases(200)


def test_conversations_come_back_as_they_were(drawn):
    report = run(drawn)
    assert report["problems"] == []
    read_ = report["outcomes"]["read"]
    assert sum(report["outcomes"].values()) == 200 and read_ > 100
    assert report["came_back_equal"] == dict.fromkeys(report["came_back_equal"], read_)
    assert len(report["came_back_equal"]) == 7 and report["by_template"].keys() == FORMATS.keys()


@pytest.mark.parametrize("fault", [fault for fault in REASONS if fault])
def test_faults_are_refused_with_the_reason(fault):
    drawn = draw_cases(5, fault=fault)
    report = run(drawn)
    assert report["problems"] == [] and report["refused"] == {fault: 5}


@pytest.mark.parametrize("form", FORMS)
def test_odd_forms_are_read_as_the_common_one(form):
    drawn = draw_cases(5, fault=form)
    report = run(drawn)
    read_, refused = report["outcomes"]["read"], report["refused"]
    assert report["problems"] == [] and report["read_odd_forms"] == {form: read_} and read_ >= 3
    assert sum(refused.values()) == 5 - read_ and refused.keys() <= {"the chat template cannot show it"}
