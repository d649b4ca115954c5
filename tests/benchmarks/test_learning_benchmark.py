# SPDX-License-Identifier: Apache-2.0

import json
import math
import re
import sys
from itertools import chain
from pathlib import Path
from statistics import mean

import pytest


pytest.importorskip("matplotlib")

from benchmarks import cells as cells_module
from benchmarks.cells import read_cells, write_cells
from benchmarks.learning.figures.__main__ import IMAGE, PAGES, ROOT, mark
from benchmarks.learning.figures.curves import (
    area,
    decoded_success,
    difference,
    final_success,
    holm,
    mean_curve,
    over_seeds,
    permutation_p,
    reach,
    success_at,
    verdict_accuracy,
)
from benchmarks.learning.figures.plots import plot
from benchmarks.learning.figures.tables import SETS, Tables, draws, gap, label, rate


TOLD = "service_desk_told"


def make_cell(
    method: str, seed: int, successes: list[float], steps: int = 100, kind: str = "table", **changes
) -> dict:
    spent = 30 if method.startswith("nlac") else 5
    points = [
        {
            **dict.fromkeys(("environment_steps", "prefilled_tokens", "trained_tokens"), i * steps),
            **{"generated_tokens": i * steps * spent, "seconds": i * steps / 10, "gradient_steps": i},
            **{"episode/success_rate": success, "oracle/verdict_yes_rate": 0.25, "oracle/verdict_no_rate": 0.75},
        }
        for i, success in enumerate(successes)
    ]
    cell = {"set": kind, "task": TOLD, "method": method, "seed": seed, "settings": {}, "oracle_success": 1.0}
    return {**cell, "points": points, "final": {"held_out": {"episode/success_rate": successes[-1]}}, **changes}


def make_cells(method: str, curves: list[list[float]], **changes) -> list[dict]:
    return [make_cell(method, seed, successes, **changes) for seed, successes in enumerate(curves)]


class TestCells:
    def test_the_file_gives_back_what_runs_wrote(self, tmp_path):
        first = make_cell("nlac", 0, [0.1, 0.2], kind="a", settings={"x": None, "y": [1.5, {"z": "ü"}]}, commit=None)
        second = {"set": "b/c", "method": "sft", "seed": 3, "success": {"sampled": 1 / 3}, "plays": False}
        write_cells("some", [first, second], tmp_path)
        assert read_cells("some", results=tmp_path) == [first, second]
        assert read_cells("some", "b", results=tmp_path) == read_cells("some", "b/c", results=tmp_path) == [second]
        assert read_cells("some", "c", results=tmp_path) == []

    def test_finished_cells_are_added(self, tmp_path, monkeypatch, capsys):
        write_cells("some", [make_cell("nlac", seed, [0.1]) for seed in (0, 1)], tmp_path)
        again, more = make_cell("nlac", 1, [0.9]), make_cell("rft", 0, [0.5])
        for cell in (again, more):
            path = tmp_path / "run" / cell["method"] / f"{cell['seed']}.json"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps({name: value for name, value in cell.items() if name != "set"}))
        words = ["some", "table", str(tmp_path / "run"), "--results", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["cells.py", *words])
        cells_module.main()
        assert read_cells("some", results=tmp_path) == [make_cell("nlac", 0, [0.1]), again, more]
        assert "2 cells" in capsys.readouterr().out

    @pytest.mark.parametrize(("name", "number"), [("learning", 906), ("real_learning", 11)])
    def test_every_published_cell_names_what_made_it(self, name, number):
        cells = read_cells(name)
        assert len(cells) >= number
        for cell in cells:
            commit = cell.get("published") or cell.get("commit") or ""
            assert re.fullmatch(r"[0-9a-f]{40}", commit), (cell["set"], cell["method"], cell["seed"])
            assert cell["command"].startswith("python -m benchmarks.") and cell["versions"]["torch"]
        if name == "learning":
            assert {cell["set"].split("/")[0] for cell in cells} == {*SETS}


class TestStatistics:
    def test_interval_is_students(self):
        value = over_seeds({"0": 0.2, "1": 0.4, "2": 0.9})
        assert value["mean"] == 0.5 and value["worst"] == 0.2
        margin = 4.303 * math.sqrt((0.3**2 + 0.1**2 + 0.4**2) / 2) / math.sqrt(3)
        assert value["high"] - 0.5 == pytest.approx(margin, abs=1e-4)
        assert 0.5 - value["low"] == pytest.approx(margin, abs=1e-4)

    def test_single_seed_has_no_interval(self):
        value = over_seeds({"3": 0.2, "4": None})
        assert (value["mean"], value["low"], value["high"], value["seeds"]) == (0.2, None, None, {"3": 0.2})
        assert over_seeds({"3": None}) is None
        assert (rate(value), gap(value), rate(None)) == ("0.20", "+0.20", "–")

    def test_differences_are_paired_by_seed(self):
        plain = over_seeds({"0": 0.9, "1": 0.5, "2": 0.7})
        value = difference(over_seeds({"1": 0.4, "2": 0.6, "7": 0.0}), plain)
        assert value["seeds"] == {"1": -0.1, "2": -0.1}
        assert value["low"] == value["high"] == value["mean"] == -0.1  # although the seeds differ by more
        assert difference(over_seeds({"7": 0.0}), plain) is None

    def test_holm(self):
        def of(*values):
            return over_seeds(dict(enumerate(values)))

        found = holm({"clear": of(0.30, 0.31, 0.32), "weak": of(0.1, 0.3, 0.1), "few": of(0.5, 0.5), "none": None})
        alone = holm({"clear": of(0.30, 0.31, 0.32)})
        assert found.keys() == {"clear", "weak"}
        assert found["clear"] == pytest.approx(2 * alone["clear"]) and found["clear"] < 0.01 < 0.1 < found["weak"]

    def test_permutations(self):
        assert permutation_p([0.9, 0.8, 0.7], [0.1, 0.2]) == pytest.approx(1 / 10)
        assert permutation_p([0.1, 0.2], [0.9, 0.8, 0.7]) == 1.0
        assert permutation_p([0.9, 0.1], [0.5]) == pytest.approx(2 / 3)

    def test_area_is_mean_success_up_to_the_budget(self):
        cell = make_cell("nlac", 0, [0.0, 1.0, 1.0])
        assert area(cell, 200) == pytest.approx(0.75)
        assert area(cell, 50) == pytest.approx(0.25)  # cut between evaluations
        assert area(cell, 400) == pytest.approx((50 + 300) / 400)  # constant after the last evaluation
        assert area(make_cell("base", 0, [0.3]), 400) == pytest.approx(0.3)

    def test_success_at_a_cost(self):
        cell = make_cell("nlac", 0, [0.0, 0.5, 0.9])
        assert [success_at(cell, "environment_steps", at) for at in (0, 50, 100, 500)] == [0.0, 0.25, 0.5, 0.9]
        assert success_at(cell, "generated_tokens", 1500) == 0.25

    def test_balanced_accuracy_needs_both_rates(self):
        rates = {"oracle/verdict_yes_rate": 1.0, "oracle/verdict_no_rate": 0.0}
        assert verdict_accuracy(rates) == 0.5
        rates.popitem()
        assert verdict_accuracy(rates) is None

    def test_reach_is_the_median_with_infinity(self):
        fast, slow, never = [0.0, 0.6, 0.9], [0.0, 0.2, 0.5], [0.0, 0.49, 0.0]
        found = reach(make_cells("grpo", [fast, slow, never]), 0.5)
        assert (found["num_seeds"], found["environment_steps"], found["generated_tokens"]) == (2, 200, 1000)
        found = reach(make_cells("grpo", [fast, never, never]), 0.5)
        assert (found["num_seeds"], found["environment_steps"], found["seconds"]) == (1, None, None)
        delayed = make_cells("grpo", [[0.0, 0.3]], oracle_success=0.6)
        assert reach(delayed, 0.5)["environment_steps"] == 100  # a share of what an oracle has

    def test_curves_are_interpolated_on_a_common_grid(self):
        curve = mean_curve([make_cell("nlac", 0, [0.0, 1.0], 200), make_cell("nlac", 1, [0.0, 0.5, 1.0], 50)])
        assert curve["steps"] == [0.0, 100.0, 200.0]
        assert curve["mean"] == [0.0, 0.75, 1.0]  # the second has ended at 100 steps and stays at 1

    def test_greedy_success_is_that_of_held_out_tasks_with_no_token_left_out(self):
        of = {"instances": "held_out", "temperature": 0.0, "min_p": 0.0, "success": 0.7}
        others = [{**of, "min_p": 0.05, "success": 0.1}, {**of, "instances": "train", "success": 0.2}]
        cell = make_cell("nlac", 0, [0.5], decoded=[*others, of, {**of, "temperature": 1.0, "success": 0.3}])
        assert (decoded_success(cell, 0), decoded_success(cell, 1.0), decoded_success(cell, 0.5)) == (0.7, 0.3, None)

    def test_draws_of_an_environment_step(self):
        settings = {"samples_per_iteration": 128, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 8}
        assert draws(make_cells("nlac", [[0.0, 0.0, 0.5]], settings=settings)) == pytest.approx(2 * 32 / 200)
        assert draws(make_cells("rft", [[0.0, 0.5]])) is None


class TestTables:
    def row(self, table: str, name: str) -> dict[str, str]:
        head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        [found] = [dict(zip(head, row, strict=True)) for row in rows if name in row]
        return found

    def test_rows_are_compared_with_nlac(self):
        cells = make_cells("nlac", [[0.0, 0.9, 0.9]] * 3)
        cells += make_cells("rft", [[0.0, 0.4], [0.0, 0.5], [0.0, 0.45]], steps=1000)
        table = Tables(cells).of_set("table")
        found = self.row(table, "RFT")
        assert (found["seeds"], found["steps"], found["success"]) == ("3", "1,000", "0.45 (0.33 to 0.57)")
        assert found["difference"].startswith("-0.45 (-0.57 to -0.33) *")
        assert found["area, difference"].startswith("-0.63")  # over the 200 steps of the smaller budget
        assert self.row(table, "NLAC")["difference"] == "–"
        assert (found["steps to 0.8"], self.row(table, "NLAC")["steps to 0.8"]) == ("– (0 of 3)", "100 (3 of 3)")

    def test_ablations_are_compared_with_the_same_budget(self):
        cells = make_cells("nlac", [[0.0, 1.0]] * 3) + make_cells("nlac_plain", [[0.0, 0.6]] * 3)
        cells += make_cells("nlac_blind", [[0.0, 0.1], [0.0, 0.2], [0.0, 0.0]])
        assert self.row(Tables(cells).of_set("table"), "NLAC (blind)")["difference"].startswith("-0.50")
        without = Tables([cell for cell in cells if cell["method"] != "nlac_plain"])
        assert self.row(without.of_set("table"), "NLAC (blind)")["difference"].startswith("-0.90")

    @pytest.mark.parametrize(
        ("kind", "method", "expected"),
        [
            ("again", "nlac", "-0.10"),  # minus the same in the table
            ("bases/build_1", "nlac", "+0.30"),  # minus hindsight of the same build
            ("savings", "nlac_keeps_best", "-0.10"),  # minus the table's NLAC
            ("extraction", "nlac_policy_distill", "-0.30"),  # minus the closest NLAC in code
            ("search/noisy_a", "rft", ""),
        ],
    )
    def test_what_sets_are_compared_with(self, kind, method, expected):
        cells = [*make_cells("nlac", [[0.0, 0.7]]), *make_cells("nlac", [[0.0, 0.9]], kind="sharpening")]
        cells += make_cells("hindsight", [[0.0, 0.3]], kind="bases/build_1")
        cells += make_cells(method, [[0.0, 0.6]], kind=kind)
        name = label(method) + (f" [{kind.split('/')[1]}]" if "/" in kind else "")
        table = Tables(cells).of_set(kind.split("/")[0])
        assert self.row(table, name).get("difference", "") == expected

    def test_stars(self):
        cells = make_cells("nlac", [[0.9], [0.9], [0.9]])
        cells += make_cells("hindsight", [[0.500], [0.501], [0.502]]) + make_cells("rft", [[0.85], [0.8], [0.75]])
        cells += make_cells("grpo", [[0.9], [0.95], [0.85]])
        table = Tables(cells).of_set("table")
        found = [self.row(table, name)["difference"] for name in ("Hindsight", "RFT", "GRPO")]
        ends = [re.search(r"\)( \*+)?$", text)[1] for text in found]
        assert ends[0] == " **" and ends[2] is None
        few = Tables(cells).corrected
        assert ends[1] == (" **" if few[("table", TOLD, "rft"), "success"] < 0.05 else None)

    def test_the_picture(self, tmp_path):
        path = tmp_path / "curves.png"
        plot(Tables(make_cells("nlac", [[0.0, 0.9]] * 2) + make_cells("base", [[0.1]])), path)
        assert path.stat().st_size > 5000


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Tables(read_cells("learning"), read_cells("real_learning"))


class TestPages:
    @pytest.mark.parametrize(("page", "name"), [(page, name) for page, names in PAGES.items() for name in names])
    def test_pages_are_those_of_the_cells(self, tables, page, name):
        text = (ROOT / page).read_text()
        start = f"<!-- results of benchmarks/{mark(name)} -->\n"
        assert text.count(start) == 1
        assert text.split(start)[1].split("\n<!-- end of results -->")[0] == getattr(tables, name)()

    def test_the_picture_is_shown(self):
        assert (
            f"({(ROOT / IMAGE).relative_to(ROOT / 'docs' / 'source')})"
            in (ROOT / "docs/source/results.md").read_text()
        )
        assert (ROOT / IMAGE).exists()

    def test_claims_hold_in_the_cells(self, tables):
        screen, log = ((ROOT / "docs" / "source" / f"{name}.md").read_text() for name in ("results", "results_log"))
        for desk in ("told", "noisy", "delayed"):
            task, sets = f"service_desk_{desk}", ("table", "again", "sharpening")
            ours = [final_success(cell) for kind in sets for cell in tables.of(task, "nlac", kind)]
            for method in ("rft_long", "grpo_long"):
                assert min(ours) > max(map(final_success, tables.of(task, method, "baselines")))
        noisy = [final_success(cell) for kind in sets for cell in tables.of("service_desk_noisy", "nlac", kind)]
        assert f"{len(noisy)} runs of NLAC have {min(noisy):.2f} to {max(noisy):.2f}" in " ".join(screen.split())
        rows = [of for (run, name), of in tables.differences.items() if run[0] == "again" and name == "success"]
        judged = [of for of in rows if len(of["seeds"]) >= 3]
        assert len(judged) == 9 and all(of["low"] <= 0 <= of["high"] for of in judged)
        relay = {run[1:]: list(map(final_success, of)) for run, of in tables.runs.items() if run[0] == "relay"}
        ours = relay.pop(("relay_desk", "nlac"))
        assert set(ours) == {1.0} and f"NLAC {', '.join(['1.00'] * len(ours))}" in " ".join(log.split())
        assert len(relay) >= 6 and set(chain(*relay.values())) == {0.0}
        refined = tables.of("guess_the_number", "base_refined", "game")
        played = [
            of for run, of in tables.runs.items() if run[0] == "game" and run[2] not in ("taught", "base_refined")
        ]
        assert mean(map(final_success, refined)) > max(final_success(cell) for of in played for cell in of)
        lost = [
            final_success(cell) < 0.2
            for name in ("nlac", "nlac_unsharpened")
            for cell in tables.of("guess_the_number", name, "game")
        ]
        assert (sum(lost), len(lost)) == (4, 8)

    def test_results_are_small(self):
        folder = ROOT / "benchmarks" / "results"
        assert sum(path.stat().st_size for path in folder.rglob("*")) < 2e6 and not any(
            map(Path.is_dir, folder.iterdir())
        )
