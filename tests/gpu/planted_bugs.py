# SPDX-License-Identifier: Apache-2.0

"""
Plant device bugs in a copy of the package, one by one, and see which test on the stand-in fails, and how.

python tests/gpu/planted_bugs.py [--bugs 0 3 ...] [--json benchmarks/results/planted_bugs.json]
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree


ROOT = Path(__file__).parents[2]


class Bug(NamedTuple):
    """A line of a file of the package that is right, a wrong one, and which tests to run (as `-k` of pytest)."""

    name: str
    file: str
    right: str
    wrong: str
    tests: str


BUGS = [
    Bug(
        "an index of the loss stays on the CPU",
        "method/batches.py",
        "            self.places.to(device),\n",
        "            self.places,\n",
        "training_is_that and sampled",
    ),
    Bug(
        "the losses of examples without tokens are made on the CPU",
        "method/losses.py",
        "values = torch.zeros(len(labels), device=labels.device)",
        "values = torch.zeros(len(labels))",
        "training_is_that and distill",
    ),
    Bug(
        "the blocks of the mask of trees are made on the CPU",
        "training/tree_attention.py",
        "blocks = torch.arange(len(lowest_end), device=depths.device)",
        "blocks = torch.arange(len(lowest_end))",
        "training_is_that and sampled",
    ),
    Bug(
        "the coefficients of the losses are made on the CPU",
        "nlac_trainer.py",
        "coefficients = losses.new_tensor(",
        "coefficients = torch.tensor(",
        "training_is_that and sampled",
    ),
    Bug(
        "target weights go to the default device, not to the model's",
        "method/target_weights.py",
        "shard.master.to(torch.float32",
        "shard.master.to(torch.accelerator.current_accelerator(), torch.float32",
        "training_is_that and sampled",
    ),
    Bug(
        "target weights of a checkpoint stay on the CPU",
        "method/target_weights.py",
        "            values.copy_(state[name])",
        "            self._values[name] = state[name].cpu()",
        "resumed",
    ),
    Bug(
        "the host waits for each generated token",
        "generation/transformers.py",
        "        self.largest.append(scores.amax(-1))",
        "        assert scores.isfinite().all().item()\n        self.largest.append(scores.amax(-1))",
        "traffic_of_a_generated_token and greedy",
    ),
    Bug(
        "a copy to the device for each generated token",
        "generation/transformers.py",
        "numbers = (self.numbers[self.step]",
        "numbers = (self.numbers.cpu()[self.step].to(scores.device)",
        "traffic_of_a_generated_token and sampled",
    ),
    Bug(
        "the host waits for each example of a batch",
        "nlac_trainer.py",
        "        weights = coefficients[batch.loss_ids] * batch.weights",
        "        [w.item() for w in batch.weights]\n        weights = coefficients[batch.loss_ids] * batch.weights",
        "traffic_of_a_training_step",
    ),
    Bug(
        "cumulative probabilities that full_determinism refuses",
        "generation/transformers.py",
        "return (scores.float().softmax(-1) * _WHOLE).long().cumsum(-1)",
        "return scores.float().softmax(-1).cumsum(-1) * _WHOLE",
        "full_determinism",
    ),
    Bug(
        "a model that is spread over devices is taken",
        "training/model.py",
        "    if len(devices) > 1:",
        "    if len(devices) > 9:",
        "two_devices",
    ),
]


def failing_test(folder: Path, tests: str) -> dict[str, str] | None:
    """Run tests on the stand-in with the package of a folder."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "tests/gpu/on_standin.py", "-q", "-x", "-k", tests]
    command += ["-p", "no:xdist", "-p", "no:cacheprovider", f"--junitxml={report}"]
    path = os.pathsep.join([str(folder), str(folder / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"no test ran: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    for case in ElementTree.parse(report).iter("testcase"):
        for failure in case.iter("failure"):
            return {"test": case.get("name"), "error": failure.get("message")[:300]}
    return None


def plant(bug: Bug) -> dict[str, str] | None:
    """Return the test that fails with a bug, and its error; `None` if the bug is not noticed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("trl_nlac", "tests", "benchmarks"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "results"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        file = folder / "trl_nlac" / bug.file
        text = file.read_text()
        if text.count(bug.right) != 1:
            raise ValueError(f"{bug.file} has not this line once: {bug.right}")
        file.write_text(text.replace(bug.right, bug.wrong))
        return failing_test(folder, bug.tests)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bugs", type=int, nargs="+", default=range(len(BUGS)), help="their numbers (default: all)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    caught = {}
    for bug in (BUGS[number] for number in args.bugs):
        found = plant(bug)
        caught[bug.name] = {"file": bug.file, **(found or {"test": None, "error": None})}
        print(f"{bug.name}: {f'caught by {found}' if found else 'NOT CAUGHT'}", flush=True)
    versions = {package: version(package) for package in ("torch", "transformers", "trl", "peft")}
    report = {"python": platform.python_version(), "versions": versions, "bugs": caught}
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return int(not all(bug["test"] for bug in caught.values()))


if __name__ == "__main__":
    sys.exit(main())
