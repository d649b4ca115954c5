# SPDX-License-Identifier: Apache-2.0

import pytest

from trl_nlac.evaluation.readiness import NO_GO, OK, UNCLEAR, check_iteration, check_refinement, check_success


GOOD = {
    **{"policy/format_rate": 1.0, "critic/format_rate": 0.8, "backup/format_rate": 0.9, "refine/format_rate": 0.95},
    **{"health/backup_fidelity": 0.6, "health/refine_compliance": 0.5, "completions/clipped_ratio": 0.2},
    **{"prompts/too_long_ratio": 0.0, "environment/failure_rate": 0.0, "loss": 3.0},
}


class TestIteration:
    def test_what_the_run_has_is_checked(self):
        checks = check_iteration(GOOD)
        assert {check.name for check in checks} == GOOD.keys() - {"loss"}
        assert all(check.verdict == OK for check in checks)


@pytest.mark.parametrize(
    ("plain", "refined", "expected"),
    [(0.2, 0.3, OK), (0.2, 0.2, OK), (0.0, 0.0, UNCLEAR), (0.0, 0.25, OK), (0.3, 0.25, UNCLEAR), (0.6, 0.1, NO_GO)],
)
def test_refinement(plain, refined, expected):
    assert check_refinement(plain, refined, 64).verdict == expected


@pytest.mark.parametrize(("number", "expected"), [(64, UNCLEAR), (1000, NO_GO)])
def test_success_that_was_measured_elsewhere(number, expected):
    """With few episodes a difference of five points can be chance."""
    assert check_success(0.25, number, 0.27).verdict == OK
    assert check_success(0.25, number, 0.30).verdict == expected
