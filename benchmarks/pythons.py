# SPDX-License-Identifier: Apache-2.0

"""
Install the package with each version of Python, in a new virtual environment: the demo in small, and tests.

python -m benchmarks.pythons 3.10 3.11 3.12 3.13 --json benchmarks/results/pythons.json

An argument is an interpreter, or a version that `pythonX.Y` starts. Everything is installed anew, as `make` does it.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks import reporting


ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "transformers", "trl", "datasets", "accelerate", "peft")
DEMO = ["--max_steps", "4", "--eval_steps", "4", "--num_eval_episodes", "4", "--num_eval_critiques", "8"]
TESTS = [
    "tests/test_nlac_config.py",
    "tests/test_nlac_trainer.py",
    "tests/test_types.py",
    "tests/chat",
    "tests/replay",
    "tests/method",
    "tests/training",
    "tests/cli",
]
VERSIONS = "import json, sys; from benchmarks import reporting; print(json.dumps(reporting.setting(*sys.argv[1:])))"


def timed(command: list[str]) -> tuple[int, float, str]:
    """Run a command in the repository's root; returns its exit code, its seconds and what it wrote."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    start = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.returncode, round(time.perf_counter() - start, 1), done.stdout


def try_python(interpreter: str, folder: Path) -> dict:
    """Install, import, train and test with one interpreter, up to the first step that fails."""
    venv = folder / "venv"
    python = str(venv / "bin" / "python")
    steps = {
        "install": ["make", f"PYTHON={interpreter}", f"VENV={venv}", f"{venv}/.dev"],
        "versions": [python, "-c", VERSIONS, *PACKAGES],
        "demo": [python, "examples/scripts/nlac_quickstart.py", "--output_dir", str(folder / "demo"), *DEMO],
        "tests": [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
    }
    found: dict = {"seconds": {}}
    for name, command in steps.items():
        code, seconds, printed = timed(command)
        found["seconds"][name] = seconds
        if name == "versions" and not code:
            setting = json.loads(printed.splitlines()[-1])
            found["versions"] = {"python": setting["python"], **setting["versions"]}
        if name == "tests":
            counts = re.findall(r"(\d+) (passed|failed|skipped)", printed)
            found["tests"] = {kind: int(number) for number, kind in counts}
        if code:
            return {**found, "failed": name, "output": printed[-2000:]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    pythons = {}
    for name in args.pythons:
        interpreter = f"python{name}" if re.fullmatch(r"\d+\.\d+", name) else name
        with tempfile.TemporaryDirectory() as folder:
            pythons[name] = try_python(interpreter, Path(folder))
        print(name, json.dumps(pythons[name]), flush=True)
    reporting.write({**reporting.setting(), "pythons": pythons}, args.json)


if __name__ == "__main__":
    main()
