# SPDX-License-Identifier: Apache-2.0

import json
import math
import re
from pathlib import Path
from statistics import median

import pytest


pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from benchmarks.learning.figures import (
    again,
    baselines,
    bases,
    costs,
    endurance,
    extraction,
    game,
    generalisation,
    sharpening,
    staleness,
    stored,
)
from benchmarks.learning.figures.claims import FACTOR_NOT_SHOWN, FAILS, HOLDS, HOLDS_IN_THE_MEAN, UNKNOWN, claims
from benchmarks.learning.figures.correction import holm
from benchmarks.learning.figures.report import (
    ablation_verdict,
    choice,
    claim_sentence,
    defeats,
    gap,
    prices,
    render,
    spent,
    winner_sentences,
    write_pages,
)
from benchmarks.learning.figures.search import change_words, changed_settings, searches
from benchmarks.learning.figures.seeds import difference, over_seeds
from benchmarks.learning.figures.summary import (
    METHODS,
    area,
    curve,
    measured,
    point_at,
    reach,
    summarize,
    summarize_folders,
    training_costs,
)
from benchmarks.learning.figures.table import comparison, rate, task_label
from benchmarks.reporting import read_cells


ROOT = Path(__file__).parents[2]
TOLD, HINTED, DELAYED = (f"service_desk_{variant}" for variant in ("told", "hinted", "delayed"))


def make_cell(method: str, seed: int, successes: list[float], steps: int = 100, task: str = TOLD, **changes) -> dict:
    """Make a cell with an evaluation every `steps` environment steps."""
    points = [
        {
            "environment_steps": i * steps,
            "generated_tokens": i * steps * (30 if method.startswith("nlac") else 5),
            "seconds": i * steps / 10,
            "gradient_steps": i,
            "episode/success_rate": success,
            "episode/success_rate_low": success - 0.01,
            "episode/success_rate_high": success + 0.01,
            "oracle/future_accuracy": min(1.0, 0.2 + 0.1 * i),
            "oracle/verdict_yes_rate": 0.25,
            "oracle/verdict_no_rate": 0.75,
        }
        for i, success in enumerate(successes)
    ]
    cell = {"task": task, "method": method, "seed": seed, "budget": (len(points) - 1) * steps, "oracle_success": 1.0}
    cell.update(
        points=points,
        settings={},
        machine={"cpu_count": 2, "platform": "here"},
        versions={"torch": "2"},
        python="3.11",
    )
    held_out, before, after = ({"episode/success_rate": success} for success in (successes[-1], 0.1, 0.3))
    final = {"held_out": held_out, "unseen_domain": after}
    return {**cell, "before": {"unseen_domain": before}, "final": final, **changes}


def make_cells(method: str, curves: list[list[float]], steps: int = 100, task: str = TOLD) -> list[dict]:
    return [make_cell(method, seed, successes, steps, task) for seed, successes in enumerate(curves)]


class TestSearch:
    def test_changes_to_the_table(self):
        def cell(seed, success, task=TOLD, sampling=None, **settings):
            sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, **(sampling or {})}
            return make_cell("rft", seed, [0.0, success], task=task, settings=settings, sampling=sampling)

        table = [cell(0, 0.5, sampling={"min_p": 0.05}, learning_rate=1e-3, anchor_ratio=0.5)]
        tried = [
            cell(101, 0.2, learning_rate=1e-3),
            cell(100, 0.1, learning_rate=1e-3),
            cell(100, 0.7, sampling={"min_p": 0.05}, learning_rate=1e-3, anchor_ratio=0.5),
            cell(100, 0.9, task=HINTED),
        ]
        del tried[0]["sampling"]  # the first cells do not record it
        without, same = searches(tried, table)
        assert without == {
            "task": TOLD,
            "method": "rft",
            "changes": {"anchor_ratio": None, "min_p": None},
            "budget": 100,
            "success": {"100": 0.1, "101": 0.2},
        }
        assert (same["changes"], same["success"]) == ({}, {"100": 0.7})
        assert change_words(without["changes"]) == "anchor_ratio by default, min_p by default"
        assert change_words({"learning_rate": 3e-4}) == "learning_rate = 0.0003"
        assert change_words({}) == "as in the table"

    def test_single_roles_are_compared_setting_by_setting(self):
        ours = {"critique": {"temperature": 0.5, "min_p": 0.0}, "refine": {"min_p": 0.0}}
        theirs = {"critique": {"temperature": 0.5}, "refine": {"min_p": 0.1}, "backup": {"temperature": 0.0}}
        cells = [make_cell("nlac", 0, [0.0], settings={"role_sampling": roles}) for roles in (ours, theirs)]
        changes = changed_settings(*cells)
        assert changes == {"backup.temperature": None, "critique.min_p": 0.0, "refine.min_p": 0.0}
        assert change_words(changes) == "backup.temperature by default, critique.min_p = 0.0, refine.min_p = 0.0"
        assert changed_settings(cells[0], cells[0]) == {}


class TestStatistics:
    def test_interval_is_students(self):
        value = over_seeds({"0": 0.2, "1": 0.4, "2": 0.9})
        assert value["mean"] == 0.5
        margin = 4.303 * math.sqrt((0.3**2 + 0.1**2 + 0.4**2) / 2) / math.sqrt(3)
        assert value["high"] - 0.5 == pytest.approx(margin, abs=1e-4)
        assert 0.5 - value["low"] == pytest.approx(margin, abs=1e-4)
        assert value["worst"] == 0.2

    def test_single_seed_has_no_interval(self):
        assert over_seeds({"3": 0.2, "4": None}) == {
            "mean": 0.2,
            "low": None,
            "high": None,
            "worst": 0.2,
            "seeds": {"3": 0.2},
        }
        assert over_seeds({"3": None}) is None

    def test_area_is_mean_success_up_to_the_budget(self):
        cell = make_cell("nlac", 0, [0.0, 1.0, 1.0])
        assert area(cell, 200) == pytest.approx(0.75)
        assert area(cell, 100) == pytest.approx(0.5)
        assert area(cell, 50) == pytest.approx(0.25)  # cut between evaluations
        assert area(cell, 400) == pytest.approx((50 + 300) / 400)  # constant after the last evaluation
        assert area(make_cell("base", 0, [0.3]), 400) == pytest.approx(0.3)

    def test_point_at_is_the_last_evaluation_within_the_steps(self):
        cell = make_cell("nlac", 0, [0.0, 0.1, 0.2])
        assert [measured(point_at(cell, steps), "success") for steps in (0, 99, 100, 500)] == [0.0, 0.0, 0.1, 0.2]

    def test_balanced_accuracy_needs_both_rates(self):
        rates = {"oracle/verdict_yes_rate": 1.0, "oracle/verdict_no_rate": 0.0}
        assert measured(rates, "verdict_accuracy") == 0.5
        rates.popitem()
        assert measured(rates, "verdict_accuracy") is None

    def test_reach_is_the_median_with_infinity(self):
        fast, slow, never = [0.0, 0.6, 0.9], [0.0, 0.2, 0.5], [0.0, 0.49, 0.0]
        cells = make_cells("grpo", [fast, slow, never])
        assert reach(cells, 0.5) == {
            "num_seeds": 2,
            "seeds": {"0": 100, "1": 200},
            "environment_steps": 200,
            "generated_tokens": 1000,
            "seconds": 20.0,
        }
        cells = make_cells("grpo", [fast, never, never])
        assert reach(cells, 0.5) == {
            "num_seeds": 1,
            "seeds": {"0": 100},
            "environment_steps": None,
            "generated_tokens": None,
            "seconds": None,
        }

    def test_curve_is_interpolated_on_a_common_grid(self):
        cells = [make_cell("nlac", 0, [0.0, 1.0], steps=200), make_cell("nlac", 1, [0.0, 0.5, 1.0], steps=50)]
        line = curve(cells, "success", "environment_steps")
        assert line["environment_steps"] == [0.0, 100.0, 200.0]
        assert line["mean"] == [0.0, 0.75, 1.0]  # the second has ended at 100 steps and stays at 1
        assert curve(make_cells("base", [[0.1], [0.2]]), "success", "seconds") is None

    def test_differences_are_paired_by_seed(self):
        plain = over_seeds({"0": 0.9, "1": 0.5, "2": 0.7})
        value = difference(over_seeds({"1": 0.4, "2": 0.6, "7": 0.0}), plain)
        assert value["seeds"] == {"1": -0.1, "2": -0.1}
        assert value["low"] == value["high"] == value["mean"] == -0.1  # although the seeds differ by more
        assert difference(over_seeds({"7": 0.0}), plain) is None


class TestSummary:
    def test_figures_of_a_method(self):
        cells = make_cells("nlac", [[0.0, 0.4, 0.8], [0.0, 0.6, 1.0]]) + make_cells("grpo", [[0.0, 0.2, 0.7]], 400)
        task = summarize(cells, tasks=[TOLD])["tasks"][TOLD]
        assert task["common_budget"] == 200
        nlac, grpo = task["methods"]["nlac"], task["methods"]["grpo"]
        assert (nlac["num_seeds"], nlac["final"]["mean"], nlac["final"]["worst"]) == (2, 0.9, 0.8)
        assert nlac["final"]["seeds"] == {"0": 0.8, "1": 1.0}
        assert nlac["spent"] == {"environment_steps": 200, "generated_tokens": 6000, "seconds": 20.0}
        assert grpo["at_common_budget"]["mean"] == 0.0  # its first evaluation after the start is at 400
        assert grpo["area"]["mean"] == 0.05
        assert [stage["mean"] for stage in nlac["critic"]["future_accuracy"].values()] == [0.2, 0.3, 0.4]
        assert nlac["critic"]["refined_better_rate"]["end"] is None
        assert nlac["unseen_domain"]["after"]["mean"] == 0.3
        assert nlac["train"] is None

    def test_overshoot_of_a_budget_does_not_hide_the_last_evaluation(self):
        cells = [make_cell("nlac", seed, [0.0, 0.5], steps) for seed, steps in enumerate((801, 808))]
        for cell in cells:
            cell["budget"] = 800
        nlac = summarize(cells, tasks=[TOLD])["tasks"][TOLD]["methods"]["nlac"]
        assert nlac["at_common_budget"] == nlac["final"]

    def test_settings_are_no_ablations(self):
        curves = [[0.0, 0.5], [0.0, 0.7]]
        cells = [
            cell for name in ("nlac", "nlac_long", "nlac_plain", "nlac_blind") for cell in make_cells(name, curves)
        ]
        summary = summarize(cells, tasks=[TOLD], settings=["nlac_long"])
        ablations = summary["tasks"][TOLD]["ablations"]
        assert list(ablations) == ["nlac_blind"]
        assert ablations["nlac_blind"]["success"]["mean"] == 0.0
        assert summary["methods"][:2] == ["nlac", "nlac_long"]

    @pytest.mark.parametrize("steps, at", [(100, 200), (200, 400), (400, 400)])
    def test_ablations_are_compared_after_the_same_steps(self, steps, at):
        cells = make_cells("nlac", [[0.0, 0.9, 1.0]] * 2, 400)  # has another budget, so it is not compared
        cells += make_cells("nlac_plain", [[0.0, 0.4, 0.8]] * 2, 200)
        cells += make_cells("nlac_blind", [[0.0, 0.1, 0.2]] * 2, steps)
        effect = summarize(cells, tasks=[TOLD])["tasks"][TOLD]["ablations"]["nlac_blind"]
        ablated = {100: 0.2, 200: 0.2, 400: 0.1}[steps]
        assert (effect["steps"], effect["success"]["mean"]) == (at, pytest.approx(ablated - {200: 0.4, 400: 0.8}[at]))

    def test_ablations_with_the_budget_of_the_table_are_compared_to_it(self):
        cells = make_cells("nlac", [[0.0, 0.9, 1.0]] * 2) + make_cells("nlac_blind", [[0.0, 0.1, 0.2]] * 2)
        effect = summarize(cells, tasks=[TOLD])["tasks"][TOLD]["ablations"]["nlac_blind"]
        assert (effect["steps"], effect["success"]["mean"]) == (200, pytest.approx(-0.8))

    def test_expected_seeds_are_missed_even_where_no_method_has_them(self):
        cells = make_cells("nlac", [[0, 1]] * 2) + make_cells("grpo", [[0, 1]] * 3)
        missing = summarize(cells, tasks=[TOLD], methods=["nlac", "grpo"], seeds=range(4))["missing"]
        assert missing == [
            {"task": TOLD, "method": "nlac", "seeds": [2, 3]},
            {"task": TOLD, "method": "grpo", "seeds": [3]},
        ]

    def test_missing_cells(self):
        cells = make_cells("nlac", [[0.0, 0.5]] * 3) + make_cells("nlac_blind", [[0.0, 0.5]] * 2)
        missing = summarize(cells, tasks=[TOLD, HINTED], methods=["nlac", "grpo"])["missing"]
        assert missing == [
            {"task": TOLD, "method": "grpo", "seeds": [0, 1, 2]},
            {"task": TOLD, "method": "nlac_blind", "seeds": [2]},
            {"task": HINTED, "method": "nlac", "seeds": [0, 1, 2]},
            {"task": HINTED, "method": "grpo", "seeds": [0, 1, 2]},
        ]

    def test_ablations_of_a_task_are_expected(self):
        cells = make_cells("nlac", [[0.0, 0.5]] * 2)
        missing = summarize(cells, tasks=[TOLD, HINTED], methods=["nlac"], ablations={TOLD: ["nlac_blind"]})["missing"]
        assert {"task": TOLD, "method": "nlac_blind", "seeds": [0, 1]} in missing
        assert {"task": HINTED, "method": "nlac_blind", "seeds": [0, 1]} not in missing

    def test_seeds_with_different_budgets_are_refused(self):
        cells = [make_cell("nlac", 0, [0.0, 0.5]), make_cell("nlac", 1, [0.0, 0.5], steps=200)]
        with pytest.raises(ValueError, match=r"different budgets: 100 \(seed 0\), 200 \(seed 1\)"):
            summarize(cells, tasks=[TOLD])

    def test_seeds_with_different_settings_are_refused(self):
        cells = [make_cell("nlac", seed, [0.0, 0.5], settings={"num_futures": seed}) for seed in (1, 4)]
        with pytest.raises(ValueError, match=r"different settings: the second has {'num_futures': 4}"):
            summarize(cells, tasks=[TOLD])


class TestCosts:
    def test_the_price_of_a_step_from_which_it_pays(self):
        ours = {"environment_steps": 100, "generated_tokens": 5000, "seeds": {}}
        slower = {"environment_steps": 300, "generated_tokens": 1000, "seeds": {}}
        never = {**dict.fromkeys(costs.SPENT), "seeds": {}}
        assert costs.break_even(ours, slower) == 20.0
        assert costs.break_even(ours, {**slower, "generated_tokens": 6000}) == 0.0
        assert costs.break_even(never, slower) is None
        assert costs.break_even(ours, {**slower, "environment_steps": 100}) is None
        assert costs.break_even(slower, ours) is None
        half, most = {"0.5": slower, "0.8": never}, {"0.5": ours, "0.8": ours}
        # As far as the other one comes.
        assert costs.price_of_step(most, half) == {"level": "0.5", "price": 20.0, "is_clear": None}
        assert costs.price_of_step(half, most) == {"level": "0.8", "price": None, "is_clear": None}
        found = [(None, None), ("0.8", None), ("0.5", 0.0), ("0.8", 1234.5)]
        words = [costs.price({"level": level, "price": price, "is_clear": True}) for level, price in found]
        assert words == ["it learns too little", "never (to 0.8)", "always (to 0.5)", "above 1,234 (to 0.8)"]

    @pytest.mark.parametrize(("slower", "is_clear"), [([700, 800, 900], True), ([100, 900, 300], False)])
    def test_a_price_is_in_question_where_steps_are_not_told_apart(self, slower, is_clear):
        seeds = [{str(seed): steps for seed, steps in enumerate(of)} for of in ([200, 250, 210], slower)]
        ours, theirs = (
            {"0.5": {"environment_steps": median(of.values()), "generated_tokens": tokens, "seeds": of}}
            for of, tokens in zip(seeds, (9000, 100), strict=True)
        )
        found = costs.price_of_step(ours, theirs)
        assert found["is_clear"] is is_clear
        assert costs.price(found).endswith("(to 0.5)") and ("?" in costs.price(found)) != is_clear

    def test_costs_of_training_that_no_cell_counts_are_those_of_other_runs(self):
        """Their settings are the same, but for defaults that are said. Costs that cells do count are their own."""
        cells = make_cells("nlac", [[0.0, 1.0]] * 2)
        assert training_costs(cells, []).keys() == {"num_other_runs", "environment_steps", "gradient_steps"} | {
            "generated_tokens",
            "seconds",
        }
        counted = make_cells("nlac", [[0.0, 1.0]] * 3)
        for number, (cell, settings) in enumerate(
            zip(counted, [{"num_refinements": 1}, {}, {"num_refinements": 2}], strict=True)
        ):
            cell["settings"] = settings
            cell["points"][-1].update(prefilled_tokens=10 * number, trained_tokens=7, seconds=3)
        found = training_costs(cells, counted)
        assert (found["num_other_runs"], found["prefilled_tokens"], found["seconds"]) == (2, 5, 10)
        summary = summarize(cells, [TOLD], ["nlac"], counted=counted)
        assert "| NLAC | 100 | 1 | 3,000 | 5 | 7 | 10 | 2 |" in spent(summary["tasks"][TOLD])
        for cell in cells:
            cell["points"][-1].update(prefilled_tokens=40, trained_tokens=7)
        found = training_costs(cells, counted)
        assert (found["num_other_runs"], found["prefilled_tokens"], found["seconds"]) == (0, 40, 10)

    def test_prices_of_a_step(self):
        cells = make_cells("nlac", [[0.0, 0.5, 0.9]] * 2) + make_cells("rft", [[0.0, 0.5, 0.7]] * 2, 400)
        row = prices(summarize(cells, [TOLD], ["nlac", "rft"])["tasks"]).splitlines()[-1]
        assert row == "| Service desk (told) | – | above 3 (to 0.5) | – | – |"

    def test_costs_of_savings(self):
        cells = make_cells("nlac", [[0.0, 0.5, 0.9]] * 2) + make_cells("rft", [[0.0, 0.5, 0.9]] * 2, 400)
        tokens = {"generated/act": 100, "generated/backup": 300, "prefilled/backup": 900, "trained": 50}
        cells += [{**cell, "tokens": tokens} for cell in make_cells("nlac_frugal", [[0.0, 0.85, 0.9]] * 2)]
        told = costs.costs(cells)["tasks"][TOLD]
        frugal = told["methods"]["nlac_frugal"]
        assert frugal["role_shares"] == {"backup": 0.75, "act": 0.25} and told["methods"]["nlac"]["role_shares"] == {}
        costs_to_the_end = {"environment_steps": 200, "generated_tokens": 6000, "gradient_steps": 2, "seconds": 20}
        assert frugal["spent"] == costs_to_the_end
        # To 0.8: 200, 100 and 800 steps, with 30, 30 and 5 tokens each.
        prices = {name: of_method["rft"] for name, of_method in told["prices"].items()}
        assert prices == {
            "nlac": {"level": "0.8", "price": pytest.approx(3.3), "is_clear": None},
            "nlac_frugal": {"level": "0.8", "price": 0.0, "is_clear": None},
        }
        row = "| NLAC (frugal) | 2 | 0.90 (0.90 to 0.90) | 6,000 | 100 | 3,000 | 10 | – | – | always (to 0.8) | – |"
        assert row in costs.table(costs.costs(cells))


class TestClaims:
    def verdicts(self, cells: list[dict]) -> dict[str, dict]:
        checked = claims(summarize(cells, tasks=[TOLD, HINTED, DELAYED]))
        named = {"critic_adds": "critic on {task}", "beats_memory": "memory on {task}", "complete": "complete"}
        return {named.get(claim["claim"], "{task}").format_map(claim): claim for claim in checked}

    @pytest.mark.parametrize(
        "success, verdict",
        [(0.61, HOLDS_IN_THE_MEAN), (0.6, HOLDS_IN_THE_MEAN), (0.59, FAILS)],  # a single seed has no interval
    )
    def test_fewer_steps(self, success, verdict):
        # a fifth of 1,000 steps is 200; later points do not count, nor does the worse baseline
        cells = make_cells("nlac", [[0.0, 0.1, success, 0.9]]) + make_cells("grpo", [[0.0, 0.6, 0.6]], 500)
        claim = self.verdicts(cells + make_cells("rft", [[0.0, 0.5]], 100))[TOLD]
        assert claim["verdict"] == verdict
        the_same = {"mean": 0.6, "low": None, "high": None}
        assert claim["baseline"] == {"method": "grpo", "success": the_same, "steps": 1000, "steps_to_it": 500}
        assert claim["nlac"] == {
            "method": "nlac",
            "success": {**the_same, "mean": success},
            "steps": 200,
            "steps_to_it": 200 if success >= 0.6 else 300,
        }
        assert "GRPO, the better of GRPO and RFT, ends at 0.60 after 1,000 environment steps" in claim_sentence(claim)

    @pytest.mark.parametrize(
        "nlac, verdict, words",
        [
            ([0.8, 0.9], HOLDS_IN_THE_MEAN, "NLAC has 0.85 (0.21 to 1.00), after 100."),
            ([0.6, 0.6], HOLDS_IN_THE_MEAN, "NLAC has 0.60 (0.60 to 0.60), after 100."),
            ([0.9, 0.9], HOLDS, "NLAC has 0.90 (0.90 to 0.90), after 100."),
            ([0.4, 0.4], FAILS, "NLAC has 0.40 (0.40 to 0.40), after 100."),
        ],
    )
    def test_fewer_steps_asks_for_intervals_apart(self, nlac, verdict, words):
        cells = make_cells("nlac", [[0.0, success] for success in nlac]) + make_cells("rft", [[0.0, 0.1]] * 2)
        claim = self.verdicts(cells + make_cells("grpo", [[0.0, 0.6]] * 2, 1000))[TOLD]
        assert claim["verdict"] == verdict
        assert words in claim_sentence(claim)

    def test_of_equal_baselines_the_faster_is_the_rival(self):
        cells = make_cells("nlac", [[0.0, 0.9]]) + make_cells("grpo", [[0.0, 0.6]], 5000)
        claim = self.verdicts(cells + make_cells("rft", [[0.0, 0.6]], 200))[TOLD]
        assert (claim["baseline"]["method"], claim["verdict"]) == ("rft", FAILS)

    def test_baselines_that_learn_nothing_prove_nothing(self):
        cells = [cell for name in ("nlac", "grpo", "rft") for cell in make_cells(name, [[0.0, 0.0]])]
        assert self.verdicts(cells)[TOLD]["verdict"] == FAILS

    def test_fewer_steps_needs_both_baselines(self):
        cells = make_cells("nlac", [[0.0, 1.0]]) + make_cells("grpo", [[0.0, 0.1]], 1000)
        assert self.verdicts(cells)[TOLD]["verdict"] == UNKNOWN
        assert self.verdicts(cells)[HINTED]["verdict"] == UNKNOWN

    @pytest.mark.parametrize(
        "nlac, verdict",
        [
            ([0.8, 0.8, 0.8], HOLDS),  # hindsight has 0.6, from 0.6 to 0.6
            ([0.74, 0.8, 0.86], FACTOR_NOT_SHOWN),  # 1.33 times as much, but the ratio's interval begins at 1.10
            ([0.77, 0.77, 0.77], FAILS),  # intervals apart, but not 1.3 times as much
            ([0.6, 0.9, 1.0], FAILS),  # 1.39 times as much, but the intervals touch
        ],
    )
    def test_higher_success(self, nlac, verdict):
        cells = make_cells("nlac", [[0.0, success] for success in nlac], task=DELAYED)
        for name, success in {"grpo": 0.3, "rft": 0.4, "hindsight": 0.6}.items():
            cells += make_cells(name, [[0.0, success]] * 3, 500, task=DELAYED)
        claim = self.verdicts(cells)[DELAYED]
        assert (claim["verdict"], claim["baseline"]["method"], claim["baseline"]["steps"]) == (
            verdict,
            "hindsight",
            500,
        )
        assert claim["ratio"] == pytest.approx(sum(nlac) / 3 / 0.6, abs=1e-3)
        assert f"{claim['ratio']:.2f} times as much" in claim_sentence(claim)

    @pytest.mark.parametrize(
        "nlac, verdict",
        [([0.7, 0.7], HOLDS), ([0.6, 0.6], FAILS), ([0.6, 0.8], FAILS), ([0.5, 0.5], FAILS)],
    )
    def test_critic_adds(self, nlac, verdict):
        cells = make_cells("nlac", [[0.0, success] for success in nlac]) + make_cells("hindsight", [[0.0, 0.6]] * 2)
        verdicts = self.verdicts(cells)
        claim = verdicts[f"critic on {TOLD}"]
        assert (claim["verdict"], claim["num_seeds"]) == (verdict, 2)
        assert claim_sentence(claim).endswith("; Hindsight at 0.60 (0.60 to 0.60) after 100.")
        assert verdicts[f"critic on {HINTED}"]["verdict"] == UNKNOWN

    def test_a_memory_can_be_better(self):
        cells = make_cells("nlac", [[0.0, 0.6], [0.0, 0.62]])
        cells += make_cells("base_remembering", [[0.0, 0.9], [0.0, 0.92]])
        claim = self.verdicts(cells)[f"memory on {TOLD}"]
        assert claim["verdict"] == FAILS
        assert claim_sentence(claim).endswith("; Base model (remembering) at 0.91 (0.78 to 1.00) after 100.")

    def test_one_seed_shows_no_interval(self):
        cells = [make_cell(name, 0, [0.0, 0.5], task=DELAYED) for name in ("nlac", "grpo", "rft", "hindsight")]
        assert self.verdicts(cells)[DELAYED]["verdict"] == UNKNOWN

    def test_complete(self):
        assert self.verdicts([])["complete"]["verdict"] == UNKNOWN
        assert self.verdicts(make_cells("nlac", [[0.0, 0.5]]))["complete"]["verdict"] == FAILS
        cells = [make_cell(name, 0, [0.0, 0.5], task=task) for name in METHODS for task in (TOLD, HINTED, DELAYED)]
        assert self.verdicts(cells)["complete"]["verdict"] == HOLDS


class TestReport:
    def task(self, **curves) -> tuple[dict, list[str]]:
        cells = [cell for name, (values, steps) in curves.items() for cell in make_cells(name, values, steps)]
        return summarize(cells, tasks=[TOLD])["tasks"][TOLD], list(curves)

    def test_numbers(self):
        assert rate({"mean": 0.9, "low": 0.7, "high": 1.1}) == "0.90 (0.70 to 1.00)"
        assert gap({"mean": -0.1, "low": -0.25, "high": 0.05}) == "-0.10 (-0.25 to +0.05)"
        assert rate(None) == gap(None) == "–"

    def test_sentences_follow_from_the_figures(self):
        task, names = self.task(nlac=([[0.0, 0.6, 0.7]] * 2, 100), grpo=([[0.0, 0.2, 0.9]] * 2, 1000))
        assert winner_sentences(task, names) == [
            "Highest final success: GRPO, 0.90 (0.90 to 0.90) after 2,000 environment steps.",
            "Fewest environment steps to half of the oracle's success: NLAC, 100 (2 of 2 seeds).",
            "Fewest generated tokens to half of the oracle's success: NLAC, 3,000 (2 of 2 seeds).",
            "Fewest seconds to half of the oracle's success: NLAC, 10 (2 of 2 seeds).",
        ]
        assert choice(task, names) == (
            "GRPO: highest final success (0.90 after 2,000 environment steps); NLAC: fewest environment steps (100), "
            "fewest generated tokens (3,000), fewest seconds (10)."
        )
        assert defeats(task, names, []) == [
            "GRPO beats NLAC in final success: 0.90 (0.90 to 0.90) after 2,000 environment steps, 0.70 (0.70 to 0.70) "
            "after 200; the intervals do not overlap."
        ]

    def test_equal_methods_are_named_together(self):
        task, names = self.task(nlac=([[0.0, 0.4]] * 2, 100), rft=([[0.0, 0.4]] * 2, 100))
        assert winner_sentences(task, names) == [
            "Highest final success: NLAC, 0.40 (0.40 to 0.40) after 100 environment steps; RFT, 0.40 (0.40 to 0.40) "
            "after 100 environment steps.",
            "No method brings most of its seeds to half of the oracle's success.",
        ]
        assert choice(task, names) == "NLAC or RFT: highest final success (0.40 after 100 environment steps)."
        assert defeats(task, names, []) == []

    def test_a_cheaper_baseline_is_named(self):
        task, names = self.task(nlac=([[0.0, 0.6, 0.9]] * 2, 100), rft=([[0.0, 0.6, 0.8]] * 2, 100))
        assert defeats(task, names, []) == [
            "RFT needs as many environment steps as NLAC to half of the oracle's success: 100, 100.",
            "RFT needs fewer generated tokens than NLAC to half of the oracle's success: 500, 3,000.",
            "RFT needs as many seconds as NLAC to half of the oracle's success: 10, 10.",
        ]

    def test_overlapping_intervals_are_reported(self):
        task, names = self.task(nlac=([[0.0, 0.5], [0.0, 0.9]], 100), rft=([[0.0, 0.7], [0.0, 0.8]], 100))
        ahead, *costs = defeats(task, names, [])
        assert ahead == (
            "RFT is ahead of NLAC in final success: 0.75 (0.11 to 1.00) after 100 environment steps, 0.70 (0.00 to "
            "1.00) after 100; the intervals overlap."
        )
        assert ["fewer" in sentence for sentence in costs] == [False, True, False]

    def test_the_unseen_domain_counts_where_intervals_are_apart(self):
        task, names = self.task(nlac=([[0.0, 0.9]] * 2, 100), base=([[0.1]] * 2, 100))
        assert defeats(task, names, []) == []
        after = {"mean": 0.5, "low": 0.4, "high": 0.6}
        task["methods"]["base"]["unseen_domain"]["after"] = after
        assert [sentence.split(":")[0] for sentence in defeats(task, names, [])] == [
            "Base model beats NLAC in the unseen domain"
        ]
        after["low"] = 0.3  # NLAC's value
        assert defeats(task, names, []) == []
        task["methods"]["nlac"]["unseen_domain"]["after"] = {"mean": 0.0, "low": 0.0, "high": 0.0}
        task["methods"]["base"]["unseen_domain"]["after"] = {"mean": 0.004, "low": 0.001, "high": 0.007}
        assert defeats(task, names, []) == []  # equal in the tables

    def test_success_on_the_way_is_compared_where_budgets_differ(self):
        task, names = self.task(nlac=([[0.0, 0.6]] * 2, 100), grpo=([[0.0, 0.7, 0.5]] * 2, 100))
        assert task["common_budget"] == 100
        on_the_way = [sentence for sentence in defeats(task, names, []) if "on the way" in sentence]
        assert [sentence.split(":")[0] for sentence in on_the_way] == ["GRPO beats NLAC in success on the way"]

    def test_ablations_are_judged_by_their_interval(self):
        ends = [(-0.2, -0.1), (-0.2, 0.1), (0.1, 0.2), (None, None)]
        verdicts = [ablation_verdict({"mean": 0.0, "low": low, "high": high}) for low, high in ends]
        assert verdicts == ["worse", "not clear", "better", "not clear"]
        assert ablation_verdict({"mean": -0.15, "low": -0.2, "high": -0.1}, 0.01) == "**worse**"

    def test_differences_are_corrected_for_their_number(self):
        clear, slight, equal = [0.3, 0.31, 0.32], [0.1, 0.2, 0.12], [0.0, 0.0, 0.0]
        runs = {"a": clear, "b": slight, "c": equal}
        found = holm({name: over_seeds(dict(enumerate(of))) for name, of in runs.items()})
        plain = [0.000347, 0.0445]  # two-sided, of t = 53.7 and 4.585 with two degrees of freedom
        expected = {"a": 3 * plain[0], "b": 2 * plain[1], "c": 1.0}
        assert found == pytest.approx(expected, rel=0.01)
        assert holm({"few": over_seeds({0: 0.1, 1: 0.2}), "none": None}) == {}

    def test_comparison_of_methods(self):
        cells = make_cells("nlac", [[0.0, 0.6, 0.7], [0.0, 0.5, 0.9]])
        summary = summarize(cells, tasks=[TOLD], methods=["nlac", "grpo"])
        assert comparison(summary).splitlines() == [
            "| task | NLAC | GRPO |",
            "|---|---|---|",
            "| Service desk (told) | 0.80 (0.00 to 1.00) after 200 | – |",
        ]
        assert task_label("twenty_questions") == "Twenty questions"

    def test_committed_pages_are_those_of_the_committed_cells(self):
        results = ROOT / "benchmarks" / "results"
        pages = {name: (ROOT / "docs" / "source" / name).read_text() for name in ("results.md", "results_log.md#settings")}
        sharpened = json.loads((results / "learning_sharpening.json").read_text())
        assert render(json.loads((results / "learning.json").read_text()), sharpened) == pages
        summary = summarize_folders(results / "learning", results / "learning_search")
        assert render(summary, sharpened) == pages
        readme = (ROOT / "README.md").read_text()
        assert comparison(summary) in readme
        assert costs.benefit_and_cost(json.loads((results / "learning_costs.json").read_text())) in readme

    def test_pages(self, tmp_path):
        cells = make_cells("nlac", [[0.0, 0.6, 0.7], [0.0, 0.5, 0.9]]) + make_cells(
            "nlac_blind", [[0.0, 0.1, 0.2]] * 2
        )
        cells += make_cells("nlac_plain", [[0.0, 0.6, 0.7], [0.0, 0.5, 0.9]])
        cells += make_cells("base", [[0.1]] * 2) + make_cells("grpo", [[0.0, 0.2, 0.4]] * 2, 1000)
        summary = summarize(cells, tasks=[TOLD, HINTED], methods=["nlac", "grpo", "rft", "base"])
        tried = make_cell("grpo", 100, [0.0, 0.3], settings={"beta": 0.1})
        summary["searches"] = searches([tried], cells)
        summary["claims"] = claims(summary)
        verdicts = {"hindsight": {"differences": {"0.0": None}, "verdict": "stands"}}
        sharpened = {"tasks": {TOLD: {"verdicts": verdicts}}}
        write_pages(json.loads(json.dumps(summary)), sharpened, tmp_path)
        page = (tmp_path / "results.md").read_text()
        assert "| NLAC | 200 | 0.01 | 0.80 (0.00 to 1.00) | 0.70 | 0.70, 0.90 | 0.80 (0.00 to 1.00) |" in page
        assert "| GRPO | not reached (0 of 2) | – | – |" in page
        assert "against Hindsight: – at 0. The claim that the learned critic helps **stands**." in page
        row = "| Service desk (told) | GRPO | beta = 0.1 | 100 | 0.30 (100) |"
        assert row in (tmp_path / "results_log.md#settings").read_text()
        assert (
            "| Service desk (told) | blind | the refinement policy reads critiques of other actions | 200 | 2 "
            "| -0.60 (-1.87 to +0.67) | not clear |" in page
        )
        assert "- Service desk (told): NLAC itself has 0.80 (0.00 to 1.00) after 200 environment steps.\n" in page
        assert "- Service desk (told), RFT: seeds 0, 1\n" in page
        assert page.count(f"**{UNKNOWN}**") == 12
        for name in (TOLD, "critic", "ablations"):
            assert f"](images/learning_{name}.png)" in page
            assert {path.suffix for path in (tmp_path / "images").glob(f"learning_{name}.*")} == {".png", ".svg"}


def test_staleness_is_compared_by_seed():
    cells = make_cells("nlac_frugal", [[0.0, 0.4, 1.0], [0.0, 0.6, 1.0], [0.0, 0.8, 1.0]])
    cells += make_cells("nlac_stale_4", [[0.0, 0.4, 1.0], [0.0, 0.6, 0.8]])
    report = staleness.staleness(cells)
    stale = report["tasks"][TOLD]["nlac_stale_4"]
    assert stale["staleness"] == 4 and stale["differences"]["area"]["seeds"] == {"0": 0.0, "1": pytest.approx(-0.05)}
    last = staleness.table(report).splitlines()[-1]
    assert last.startswith("| Service desk (told) | 4 | 2 | 0.90 (0.00 to 1.00) | ") and "-0.03 (" in last


class TestSharpening:
    @staticmethod
    def decode(method: str, sampled: list[float], greedy: list[float]) -> list[dict]:
        """Make cells that were decoded at temperatures 1 and 0, the same on all instances."""
        cells = []
        for seed, successes in enumerate(zip(sampled, greedy, strict=True)):
            cell = make_cell(method, seed, [0.1, successes[0]])
            for point in cell["points"]:
                point.update(prefilled_tokens=5, trained_tokens=7)
            cell["decoded"] = [
                {"instances": name, "temperature": temperature, "min_p": 0.0, "success": success}
                for name in ("held_out", "train")
                for temperature, success in zip((1.0, 0.0), successes, strict=True)
            ]
            cells.append(cell)
        return cells

    @pytest.mark.parametrize(
        ("sampled", "greedy", "expected"),
        [
            ([0.3, 0.4, 0.35], [0.4, 0.5, 0.45], "stands"),
            ([0.3, 0.4, 0.35], [0.6, 0.55, 0.6], "is one of sharpness alone"),
            ([0.6, 0.55, 0.6], [0.6, 0.55, 0.6], "is withdrawn"),
        ],
    )
    def test_verdict(self, sampled, greedy, expected):
        ours = self.decode("nlac", [0.57, 0.61, 0.6], [0.58, 0.61, 0.6])
        report = sharpening.sharpening([*self.decode("hindsight", sampled, greedy), *ours])
        found = report["tasks"][TOLD]["verdicts"]["hindsight"]
        assert found["verdict"] == expected
        assert found["differences"]["1.0"]["mean"] == pytest.approx((1.78 - sum(sampled)) / 3, abs=1e-3)
        text = sharpening.text(report)
        assert f"**{expected}**" in text and "| NLAC | 3 |" in text
        assert "| NLAC | 100 | 1 | 3,000 | 5 | 7 | 10 |" in text

    def test_the_committed_report_is_that_of_the_committed_cells(self):
        results = ROOT / "benchmarks" / "results"
        report = sharpening.sharpening(read_cells(*sharpening.FOLDERS))
        assert report == json.loads((results / "learning_sharpening.json").read_text())
        assert sharpening.text(report) in (ROOT / "docs" / "source" / "results_log.md#knowledge-or-a-sharper-policy").read_text()

    def test_the_claim_of_the_critic_is_judged_against_hindsight_alone(self):
        cells = self.decode("nlac", [0.57, 0.61, 0.6], [0.58, 0.61, 0.6])
        cells += self.decode("self_distillation", [0.3, 0.4, 0.35], [0.6, 0.55, 0.6])
        text = sharpening.text(sharpening.sharpening(cells))
        assert "NLAC **is above it at temperature 1, and not told apart from it when both are greedy**" in text
        assert "critic helps" not in text

    def test_two_seeds_judge_nothing(self):
        cells = [*self.decode("nlac", [0.9, 0.8], [0.9, 0.8]), *self.decode("hindsight", [0.1, 0.1], [0.1, 0.1])]
        report = sharpening.sharpening(cells)
        assert report["tasks"][TOLD]["verdicts"]["hindsight"]["verdict"].startswith("is not judged yet")


class TestBaselines:
    FLAT, RISING = [0.0, 0.3, 0.5, 0.5, 0.5, 0.5], [0.0, 0.1, 0.2, 0.3, 0.5, 0.7]

    @pytest.mark.parametrize(
        ("ours", "expected"),
        [([0.9, 0.95, 1.0], "above"), ([0.45, 0.5, 0.52], "not told apart from"), ([0.1, 0.1, 0.1], "below")],
    )
    def test_verdict(self, ours, expected):
        cells = make_cells("nlac", [[0.0, success] for success in ours])
        cells += make_cells("rft_long", [self.FLAT, self.FLAT, [*self.FLAT[:-1], 0.49]])
        report = baselines.baselines(cells)
        assert report["tasks"][TOLD]["verdicts"]["rft_long"]["verdict"] == expected
        text = baselines.text(report)
        corrected = "" if expected.startswith("not") else r" \(also after correction, p [^)]+\)"
        assert re.search(rf"NLAC is \*\*{expected}\*\*{corrected} RFT \(long\)", text)
        assert "RFT (long)'s curve is flat" in text
        assert "| RFT (long) | 3 | 0.50 (0.48 to 0.51) | +0.00 (-0.01 to +0.01) | not reached (0 of 3) |" in text

    def test_verdicts_are_corrected_for_their_number(self):
        cells = make_cells("nlac", [[0.0, success] for success in (0.9, 0.95, 1.0)])
        cells += make_cells("rft_long", [[0.0, success] for success in (0.75, 0.85, 0.8)])
        alone = baselines.text(baselines.baselines(cells))
        many = [cell for name in ("grpo_long", "rft_unanchored") for cell in make_cells(name, [[0.0, 0.9]] * 3)]
        together = baselines.text(baselines.baselines([*cells, *many]))
        assert "NLAC is **above** (also after correction, p 0.035) RFT (long)" in alone
        assert "NLAC is **above** (but not after correction, p 0.11) RFT (long)" in together

    def test_a_curve_that_rises_is_not_flat(self):
        cells = [*make_cells("nlac", [[0.0, 0.9]]), *make_cells("grpo_long", [self.RISING] * 3)]
        report = baselines.baselines(cells)
        assert report["tasks"][TOLD]["arms"]["grpo_long"]["rise"]["mean"] == pytest.approx(0.1)
        assert "GRPO (long)'s curve is still rising" in baselines.text(report)
        assert "NLAC is **not judged yet" in baselines.text(report)

    @pytest.mark.parametrize("curves", [[RISING], [RISING, FLAT, FLAT], [RISING, RISING[::-1]]])
    def test_whether_a_curve_rises_is_not_told_from_one_seed_or_from_seeds_that_differ(self, curves):
        report = baselines.baselines([*make_cells("nlac", [[0.0, 0.9]]), *make_cells("grpo_long", curves)])
        assert "whether GRPO (long)'s curve still rises cannot be told" in baselines.text(report)

    def test_seeds_that_agree_by_chance_do_not_hide_that_evaluations_are_samples(self):
        cells = [*make_cells("nlac", [[0.0, 0.9]]), *make_cells("grpo_long", [self.RISING] * 3)]
        for point in [point for cell in cells for point in cell["points"]]:
            point["episode/success_rate_low"] -= 0.2
            point["episode/success_rate_high"] += 0.2
        risen = baselines.baselines(cells)["tasks"][TOLD]["arms"]["grpo_long"]["rise"]
        margin = (2 * 0.21**2 / 3) ** 0.5  # of the difference of two evaluations, in the mean of three seeds
        assert [risen["low"], risen["high"]] == pytest.approx([0.1 - margin, 0.1 + margin], abs=1e-3)
        assert baselines.slope(risen).startswith("whether")

    def test_tasks_without_a_stronger_baseline_are_left_out(self):
        assert not baselines.baselines(make_cells("nlac", [[0.0, 0.9]]))["tasks"]


class TestStored:
    def test_stored_actions_are_compared_with_the_same_seeds_of_both(self):
        cells = [*make_cells("nlac", [[0.0, 0.9]] * 4), *make_cells("hindsight", [[0.0, 0.8], [0.0, 0.7], [0.0, 0.1]])]
        cells += make_cells("nlac_stored_actions", [[0.0, 0.6], [0.0, 0.6]])
        cells += make_cells("nlac", [[0.0, 0.9]], task=DELAYED)
        report = stored.stored(cells)
        assert list(report["tasks"]) == [TOLD]
        minus = report["tasks"][TOLD]["minus"]
        assert minus["nlac"]["mean"] == pytest.approx(-0.3) and minus["hindsight"]["mean"] == pytest.approx(-0.15)
        row = "| Service desk (told) | 2 | 0.90 (0.90 to 0.90) | 0.60 (0.60 to 0.60) | 0.75 (0.11 to 1.00) | -0.30"
        assert row in stored.text(report)

    def test_the_committed_report_is_that_of_the_committed_cells(self):
        report = stored.stored(read_cells(*stored.FOLDERS))
        assert report == json.loads((ROOT / "benchmarks" / "results" / "learning_stored.json").read_text())
        assert stored.text(report) in (ROOT / "docs" / "source" / "results_log.md#knowledge-or-a-sharper-policy").read_text()


class TestEndurance:
    @pytest.mark.parametrize(("last", "verdict"), [(0.78, "holds"), (0.5, "falls")])
    def test_success_holds_or_falls(self, last, verdict):
        cells = make_cells("nlac_enduring", [[0.0, 0.8, 0.9, last]] * 3, steps=800)
        for cell in cells:
            for point in cell["points"]:
                point.update(prefilled_tokens=5, trained_tokens=7)
        report = endurance.endurance(cells)
        arm = report["tasks"][TOLD]["nlac_enduring"]
        assert arm["at_budget"]["mean"] == 0.8 and arm["highest"]["mean"] == 0.9 and arm["end"]["mean"] == last
        assert arm["change"]["mean"] == pytest.approx(last - 0.8) and arm["verdict"] == verdict
        assert arm["change_from_highest"]["mean"] == pytest.approx(last - 0.9)
        assert endurance.endurance(cells[:2])["tasks"][TOLD]["nlac_enduring"]["verdict"].startswith("not judged yet")
        text = endurance.text(report)
        names = "last within 800 steps | highest | lowest after that | after 8,000 | change | change from the highest"
        assert f"| rehearsal | seeds | {names} | success |" in text
        assert f"| samples of other instances | 3 | 0.80 (0.80 to 0.80) | 0.90 (0.90 to 0.90) | {last:.2f}" in text


def test_generalisation_is_the_success_on_desks_that_were_not_trained_on():
    cells = make_cells("nlac", [[0.0, 0.6], [0.0, 0.8]], task="service_desk_handbook")
    for cell in cells:
        cell["final"]["train"] = {"episode/success_rate": 0.9}
        for point in cell["points"]:
            point.update(prefilled_tokens=5, trained_tokens=7)
    report = generalisation.generalisation(cells)
    assert report["methods"]["nlac"]["gap"]["mean"] == pytest.approx(0.2)
    row = "| NLAC | 2 | 0.00 (0.00 to 0.00) | 0.70 (0.00 to 1.00) | 0.90 (0.90 to 0.90) | +0.20"
    assert row in generalisation.text(report) and "right verdicts on unseen desks" in generalisation.text(report)
    for cell in cells:  # as where there is no oracle
        cell["points"] = [{k: v for k, v in point.items() if "oracle" not in k} for point in cell["points"]]
    assert "right verdicts" not in generalisation.text(generalisation.generalisation(cells))


def test_game_compares_with_the_exact_solver():
    cells = make_cells("nlac", [[0.1, 0.6], [0.1, 0.8]], task="guess_the_number")
    cells += make_cells("grpo", [[0.1, 0.5], [0.1, 0.5]], task="guess_the_number")
    for cell in cells:
        for point in [*cell["points"], cell["final"]["held_out"]]:
            point.update({"prefilled_tokens": 5, "trained_tokens": 7, "episode/length": 3.5})
        if cell["method"] == "nlac":
            cell["final"]["held_out"] |= {"oracle/future_accuracy": 0.4, "oracle/refined_better_rate": 0.6}
    report = game.game(cells)
    assert report["methods"]["grpo"]["nlac_minus_it"]["mean"] == pytest.approx(0.2)
    text = game.text(report)
    assert "| Exact solver | 1.00 |" in text and "| Any number | 0.24 |" in text
    assert "| NLAC | 2 | 0.10 (0.10 to 0.10) | 0.70 (0.00 to 1.00) | 3.50 | – | 0.40 (0.40 to 0.40) | 0.60" in text
    assert "| GRPO | 2 | 0.10 (0.10 to 0.10) | 0.50 (0.50 to 0.50) | 3.50 | +0.20 (-1.07 to +1.47), 2 seeds |" in text


class TestBases:
    def cells(self, differences):
        """Make cells of two seeds from each build, where NLAC is ahead by the differences of the build."""
        cells = []
        settings = [(name, t, p) for name in ("held_out", "train") for t in (1.0, 0.0) for p in (0.0, 0.05)]
        for number, (first, second) in enumerate(differences):
            for method, rates in {"hindsight": [0.4, 0.5], "nlac": [0.4 + first, 0.5 + second]}.items():
                for cell, success in zip(make_cells(method, [[r] for r in rates], task=DELAYED), rates, strict=True):
                    cell["points"][-1].update(prefilled_tokens=5, trained_tokens=7)
                    decoded = [
                        {
                            **{"instances": name, "temperature": t, "min_p": p},
                            "success": success if (name, p) == ("held_out", 0.0) else 0.9,
                        }
                        for name, t, p in settings
                    ]
                    cells.append({**cell, "model": f"build_{number}", "decoded": decoded})
        return cells

    @pytest.mark.parametrize(
        ("differences", "said"),
        [
            ([(0.1, 0.2)] * 3, "NLAC is ahead of hindsight from every build, on these desks"),
            ([(-0.1, -0.2)] * 3, "hindsight is ahead of NLAC from every build, on these desks"),
            ([(0.1, 0.2), (0.1, 0.2), (-0.02, -0.01)], "neither is ahead of the other from every build"),
            ([(0.1, 0.2)] * 2, "not yet known: fewer than three builds"),
        ],
    )
    def test_verdicts(self, differences, said):
        report = bases.bases(self.cells(differences))
        assert bases.verdict(report["tasks"][DELAYED], 1.0) == said
        assert len(report["tasks"][DELAYED]["all_builds"]["1.0"]["seeds"]) == len(differences)
        means = [sum(of) / len(of) for of in zip(*differences, strict=True)]
        assert [*report["tasks"][DELAYED]["all_desks"]["1.0"]["seeds"].values()] == pytest.approx(means, abs=1e-4)
        text = bases.text(report)
        assert f"**{said}**" in text
        if differences[0] == (0.1, 0.2):
            assert "| build_0 | 1 | 2 | 0.60 (0.00 to 1.00) | 0.45 (0.00 to 1.00) | +0.15 (-0.49 to +0.79) |" in text

    @pytest.mark.parametrize("differences", [[(0.1, 0.2)] * 4, [(0.1, 0.2)]])
    def test_a_build_that_one_method_lacks_yet_is_not_compared(self, differences):
        cells = [cell for cell in self.cells(differences) if (cell["model"], cell["method"]) != ("build_0", "nlac")]
        report = bases.bases(cells)
        assert (report["tasks"][DELAYED]["all_builds"]["1.0"] is None) == (len(differences) == 1)
        text = bases.text(report)
        assert "| build_0 | 1 | 0 | – | 0.45 (0.00 to 1.00) | – |" in text
        assert ("ahead of hindsight" in text) == (len(differences) == 4)


def test_ways_to_a_policy_are_compared_by_seed():
    cells = make_cells("nlac", [[0.0, 0.6], [0.0, 0.5], [0.0, 0.55]])
    cells += make_cells("nlac_policy_distill", [[0.0, 0.8], [0.0, 0.71], [0.0, 0.755]])
    cells += make_cells("nlac_candidates_4", [[0.2, 0.6]]) + make_cells("rft", [[0.0, 1.0]])
    cells += make_cells("nlac_lean", [[0.0, 1.0]], steps=500)
    report = extraction.extraction(cells)
    assert list(report["tasks"][TOLD]) == ["nlac", "nlac_policy_distill", "nlac_lean", "nlac_candidates_4"]
    gaps = report["tasks"][TOLD]["nlac_policy_distill"]["minus_nlac"]
    assert gaps["final"]["mean"] == pytest.approx(0.205) and gaps["area"]["mean"] == pytest.approx(0.1025)
    text = extraction.text(report)
    assert "- NLAC (policy distill) is **above** (also after correction, p 0.0004) NLAC in final success, and " in text
    assert "| NLAC (candidates 4) | 1 | 0.60 | +0.00 | 0.40 | +0.10 |" in text
    assert "| NLAC (lean) | 1 | 1.00 | +0.40 | 0.10 | -0.20 |" in text  # the area of the first 100 of its 500 steps
    assert "| NLAC | 100 | 1 | 3,000 | – | – | 10 |" in text


class TestAgain:
    def cells(self, changes: list[float], **settings) -> tuple[list[dict], list[dict]]:
        """Return a table's cells, and newer ones whose success differs by `changes`, one for each seed."""
        old = make_cells("nlac", [[0.0, 0.5]] * len(changes))
        new = make_cells("nlac", [[0.0, 0.5 + change] for change in changes])
        return old, [{**cell, "commit": "0123456789", "settings": settings} for cell in new]

    @pytest.mark.parametrize(
        ("changes", "said", "num_same"),
        [
            ([0.1, 0.0, -0.1], again.STANDS, 1),
            ([0.1, 0.11, 0.12], "higher now", 0),
            ([-0.1, -0.11, -0.12], "lower now", 0),
            ([0.3, 0.3], again.TOO_FEW, 0),
        ],
    )
    def test_verdicts(self, changes, said, num_same):
        old, new = self.cells(changes)
        report = again.again(new, old)
        row = report["tasks"][TOLD]["nlac"]
        assert (again.verdict(row), row["num_same"]) == (said, num_same)
        text = again.text(report)
        assert f"| {num_same} | 100 | {'100' if changes[0] >= 0 else 'not reached'} | {said} |" in text
        judged = int(said != again.TOO_FEW)
        assert f"**{int(said == again.STANDS)} of {judged} rows" in text and "0123456." in text

    def test_runs_with_other_settings_are_not_compared(self):
        old, new = self.cells([0.0, 0.0, 0.0], learning_rate=1.0)
        with pytest.raises(ValueError, match=r"no cell .*'nlac', 0\) with the settings of the new one"):
            again.again(new, old)
        old, new = self.cells([0.0], bootstrap="explicit")  # the default, which the older cell does not state
        assert again.again(new, old)["tasks"][TOLD]["nlac"]["num_same"] == 1

    def test_the_committed_report_is_that_of_the_committed_cells(self):
        report = again.again(read_cells(again.AGAIN), read_cells(again.CELLS))
        assert report == json.loads((ROOT / "benchmarks" / "results" / "learning_again.json").read_text())
        assert again.text(report) in (ROOT / "docs" / "source" / "results_log.md#the-main-comparison").read_text()


def test_every_committed_cell_names_a_commit():
    folders = (ROOT / "benchmarks" / "results").glob("*/")
    nameless = [
        str(path.relative_to(ROOT))
        for folder in folders
        for path in folder.rglob("*.json")
        for cell in [json.loads(path.read_text())]
        if not re.fullmatch(r"[0-9a-f]{40}", cell.get("published") or cell.get("commit") or "")
    ]
    assert nameless == []
