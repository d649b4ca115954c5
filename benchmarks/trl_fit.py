# SPDX-License-Identifier: Apache-2.0

"""
How much code a trainer brings: `NLACTrainer`, `GRPOTrainer` and experimental trainers of the installed TRL. Counted
are the modules of `trl_nlac` and of `trl`, with all their lines, that a fresh process has loaded once it has imported
the trainer. What a trainer imports later does not count, on either side.

python -m benchmarks.trl_fit --page docs/source/contributing_to_trl.md
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks import reporting


TRAINERS = {
    "NLACTrainer": "trl_nlac",
    "GRPOTrainer": "trl",
    "AsyncGRPOTrainer": "trl.experimental.async_grpo",
    "GOLDTrainer": "trl.experimental.gold",
    "SDFTTrainer": "trl.experimental.sdft",
    "SDPOTrainer": "trl.experimental.sdpo",
}
FRESH_PROCESS = """
import json, sys
from {module} import {trainer}
of = {{name: name.partition(".")[0] for name in sys.modules}}
print(json.dumps([(of[n], m.__file__) for n, m in sys.modules.items() if of[n] in ("trl", "trl_nlac")]))
"""


def loaded(trainer: str) -> dict[str, dict[str, int]]:
    """Count the modules and lines of each package that importing a trainer loads."""
    program = FRESH_PROCESS.format(module=TRAINERS[trainer], trainer=trainer)
    command = [sys.executable, "-c", program]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=reporting.ROOT).stdout
    counts: dict[str, dict[str, int]] = {}
    for package, file in json.loads(output.splitlines()[-1]):
        of_package = counts.setdefault(package, {"modules": 0, "lines": 0})
        of_package["modules"] += 1
        of_package["lines"] += len(Path(file).read_text().splitlines())
    return counts


def as_markdown(trainers: dict[str, dict[str, dict[str, int]]]) -> str:
    """Format the counts as a table."""
    rows = [
        [f"`{trainer}`", f"`{package}`", f"{of['modules']:,}", f"{of['lines']:,}"]
        for trainer, counts in trainers.items()
        for package, of in sorted(counts.items(), reverse=True)
    ]
    return reporting.table(["trainer", "loads of", "modules", "lines"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="Markdown file whose results are replaced")
    args = parser.parse_args()
    text = as_markdown({name: loaded(name) for name in TRAINERS})
    print(text)
    if args.page is not None:
        reporting.insert(text, args.page, "trl_fit.py")


if __name__ == "__main__":
    main()
