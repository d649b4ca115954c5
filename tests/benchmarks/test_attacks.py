# SPDX-License-Identifier: Apache-2.0

from pathlib import Path

from benchmarks import attacks


def test_the_table_is_that_of_the_results():
    reports = attacks.read_reports()
    assert (
        reports.keys() >= {"kills", "chaos"}
        and attacks.table(reports) in (Path(__file__).parents[2] / "docs" / "SECURITY.md").read_text()
    )
    changed = reports["chaos"] | {"problems": [{"number": 1}]}
    assert attacks.table(reports | {"chaos": changed}) != attacks.table(reports)
