# SPDX-License-Identifier: Apache-2.0

"""
Every table and the picture of the result pages, from the cells in benchmarks/results: a few seconds.

python -m benchmarks.learning.figures

It replaces what is between the marks of the pages below. `--all` prints all cells.
"""

import argparse
from pathlib import Path

from benchmarks import reporting
from benchmarks.cells import read_cells
from benchmarks.learning.figures.plots import plot
from benchmarks.learning.figures.tables import Tables


ROOT = Path(__file__).parents[3]
DOCS = Path("docs/source")
IMAGE = DOCS / "images" / "learning.png"
# Pages, and the tables between their marks: methods of `Tables`.
PAGES = {
    Path("README.md"): ("front",),
    DOCS / "results.md": ("replay", "default"),
    DOCS / "results_tables.md": (
        *("screen", "twenty_times", "critic", "references"),
        *("equal_replay", "relay", "handbook"),
    ),
}


def mark(table: str) -> str:
    """Return what the mark of a table names."""
    return f"learning/figures: {table}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="print the tables that no page has room for")
    args = parser.parse_args()
    tables = Tables(read_cells("learning"), read_cells("real_learning"))
    if args.all:
        print(tables.appendix())
        return
    for page, names in PAGES.items():
        for name in names:
            reporting.insert(getattr(tables, name)(), ROOT / page, mark(name))
    plot(tables, ROOT / IMAGE)


if __name__ == "__main__":
    main()
