# SPDX-License-Identifier: Apache-2.0

"""
The cells of the benchmarks that train: one run (task, method, seed) each, in one Parquet file for each benchmark.

A run writes each cell as JSON below runs/. This adds a folder of finished cells to the file of a benchmark:

python -m benchmarks.cells learning table runs/learning_cells
"""

import argparse
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


RESULTS = Path(__file__).parent / "results"
# Columns with plain values. All others hold JSON, or null where a cell lacks the key.
KEYS = ("set", "task", "method", "seed")


def read_cells(name: str, *sets: str, results: Path = RESULTS) -> list[dict[str, Any]]:
    """
    Read the cells of a benchmark as the runs wrote them, with their `set`: all, or those of some sets and of the sets
    below them (`"search"`: all of `"search/..."`).
    """
    rows = pq.read_table(results / f"{name}.parquet").to_pylist()
    wanted = [row for row in rows if not sets or row["set"] in sets or row["set"].split("/")[0] in sets]
    return [
        {key: value if key in KEYS else json.loads(value) for key, value in row.items() if value is not None}
        for row in wanted
    ]


def write_cells(name: str, cells: list[dict[str, Any]], results: Path = RESULTS) -> None:
    """Write all cells of a benchmark. A later cell takes the place of an earlier one of the same run."""
    last = {tuple(cell.get(key) for key in KEYS): cell for cell in cells}
    names = dict.fromkeys([*KEYS, *(key for cell in last.values() for key in cell)])
    rows = [
        {key: cell[key] if key in KEYS else json.dumps(cell[key]) for key in cell}
        for _, cell in sorted(last.items(), key=lambda item: tuple(map(str, item[0])))
    ]
    types = [(key, pa.int64() if key == "seed" else pa.string()) for key in names]
    table = pa.Table.from_pylist(rows, schema=pa.schema(types))
    pq.write_table(table, results / f"{name}.parquet", compression="zstd", compression_level=19)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="the benchmark: learning or real_learning")
    parser.add_argument("set", help="the set that the cells belong to")
    parser.add_argument("folder", type=Path, help="folder of the cells, at any depth")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the file")
    args = parser.parse_args()
    paths = sorted(args.folder.rglob("*.json"))
    new = [{"set": args.set, **json.loads(path.read_text())} for path in paths]
    write_cells(args.name, [*read_cells(args.name, results=args.results), *new], args.results)
    print(f"{len(new)} cells are in {args.results / args.name}.parquet")


if __name__ == "__main__":
    main()
