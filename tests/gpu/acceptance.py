# SPDX-License-Identifier: Apache-2.0

"""
The acceptance run for a machine with a GPU: stages that stand alone, each in its own process, and a table of what they
found.

python tests/gpu/acceptance.py [--stages device training ...] [--json gpu.json] [--table gpu.md]

Only Python is needed here. A stage whose packages are not installed is left out, and the table says so. Without a GPU
the stages run on the CPU, in small, as far as they can.
"""

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BASE = ("torch", "transformers", "accelerate")
TRAINS = (*BASE, "trl", "datasets", "pyarrow")
VLLM = (*BASE, "trl", "datasets", "peft", "vllm")


class Stage(NamedTuple):
    """Packages, the file in `stages` (by default the name) and its argument, and how Accelerate launches it."""

    needs: tuple[str, ...]
    script: str | None = None
    kind: str | None = None
    launch: str | None = None


# In the order in which they run: what proves most first. An engine of vLLM takes a process of its own.
STAGES = {
    "device": Stage(BASE),
    "training": Stage(BASE),
    "default": Stage(TRAINS, "short", "full"),
    "lora": Stage((*TRAINS, "peft"), "short", "lora"),
    "zero3": Stage((*TRAINS, "deepspeed"), "short", "zero3", "zero3.yaml"),
    "fsdp2": Stage(TRAINS, "short", "fsdp2", "fsdp2.yaml"),
    "flex": Stage(BASE),
    "learning": Stage(TRAINS),
    "memory": Stage(BASE),
    "engine": Stage(VLLM, "engine", "full"),
    "engine-asleep": Stage(VLLM, "engine", "full_asleep"),
    "engine-lora": Stage(VLLM, "engine", "lora"),
    "engine-lora-asleep": Stage(VLLM, "engine", "lora_asleep"),
    "server": Stage(VLLM, "engine", "server"),
}
KEPT = 8000  # characters of what a stage said last: launchers add much to its error
VERSIONS = (*BASE, "trl", "datasets", "peft", "deepspeed", "vllm")


# Prints the versions of what an interpreter has.
ASK = """
import json
from importlib.metadata import distributions

names = {found.metadata["Name"] or "": found.version for found in distributions()}
print(json.dumps({name.lower().removesuffix("-cpu"): version for name, version in names.items()}))
"""


def versions_of(python: str) -> dict[str, str]:
    """Return the versions of the packages that an interpreter has."""
    command = [python, "-c", ASK]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)


def gpus() -> list[str]:
    """Name the GPUs, as `nvidia-smi` does."""
    try:
        command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return []


def run_whole(command: list[str], environment: dict[str, str], limit: float) -> tuple[int | None, str, str]:
    """
    Run a command; returns its status, output and errors. After `limit` seconds the status is `None`: it is ended with
    all that it has started, also in sessions of their own, as launchers do.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)
        status = None
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if status is None:
                import psutil  # comes with Accelerate

                started = [*psutil.Process(process.pid).children(recursive=True), process]
                for each in started:
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
                psutil.wait_procs(started[:-1], timeout=10)  # their memory is free only then
                process.wait()
        output.seek(0)
        errors.seek(0)
        return status, output.read(), errors.read()


def run_stage(name: str, python: str, device: str, small: bool, limit: float) -> dict:
    """Run a stage; returns how it ended, its seconds, and what it found or why there is nothing."""
    versions = versions_of(python)
    missing = [package for package in STAGES[name].needs if package not in versions]
    if missing:
        return {"result": "left out", "seconds": 0.0, "reason": f"not installed: {', '.join(missing)}"}
    _, script, kind, launch = STAGES[name]
    command = [python]
    if launch and device == "cuda":
        config = str(ROOT / "trl_nlac" / "accelerate_configs" / launch)
        command += ["-m", "accelerate.commands.launch", "--num_processes", "1", "--config_file", config]
        command += ["--main_process_port", "0"]  # a free one
    command += [str(HERE / "stages" / f"{script or name}.py"), *filter(None, [kind])]
    command += ["--device", device, *["--small"] * small]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    start = time.perf_counter()
    status, output, errors = run_whole(command, {**os.environ, "PYTHONPATH": path}, limit)
    seconds = time.perf_counter() - start
    if status != 0:
        reason = (errors or output).strip()[-KEPT:]
        late = f"\nnot ready after {limit:.0f} seconds" if status is None else ""
        return {"result": "failed", "seconds": seconds, "reason": reason + late}
    used = {package: versions[package] for package in VERSIONS if package in versions}
    result = json.loads([line for line in output.splitlines() if line.startswith('{"')][-1])
    if "left out" in result:
        return {"result": "left out", "seconds": seconds, "reason": result["left out"]}
    return {"result": "passed", "seconds": seconds, "found": result["found"], "versions": used}


def table(report: dict) -> str:
    """Write a report as a table in Markdown."""
    where = ", ".join(report["gpus"] or [report["device"]])
    versions: dict[str, None] = {}  # in their order
    for stage in report["stages"].values():
        versions.update(dict.fromkeys(f"{name} {number}" for name, number in stage.get("versions", {}).items()))
    lines = [f"{where}; {', '.join(versions)}", "", "| stage | result | seconds | found |", "|---|---|---|---|"]
    for name, stage in report["stages"].items():
        found = stage.get("found", {})
        said = "; ".join(f"{key}: {_short(value)}" for key, value in found.items())
        reason = stage.get("reason", "").strip()
        # A launcher writes its own error after that of its process.
        first = re.search(r"^(?:\[rank0\]: )?([\w.]+(?:Error|Exception|Interrupt)\b.*)", reason, re.MULTILINE)
        shown = (first[1] if first else (reason.splitlines() or [""])[-1]).replace("|", "\\|")
        lines.append(f"| {name} | {stage['result']} | {stage['seconds']:.0f} | {said or shown} |")
    return "\n".join(lines) + "\n"


def _short(value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--device", help="default: cuda where nvidia-smi finds a GPU, else cpu with --small")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--limit", type=float, default=900, help="seconds of a stage at most (default: 900)")
    parser.add_argument(
        "--total", type=float, default=math.inf, help="seconds of all: a stage has 2/3 of what is left"
    )
    parser.add_argument("--vllm_python", default=sys.executable, help="Python of the stages with vLLM")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    args = parser.parse_args(words)
    if args.device is None:
        args.device, args.small = ("cuda", args.small) if gpus() else ("cpu", True)
    end = time.perf_counter() + args.total
    report = {"device": args.device, "gpus": gpus(), "python": platform.python_version(), "stages": {}}
    for name in args.stages:
        python = args.vllm_python if "vllm" in STAGES[name].needs else sys.executable
        limit = min(args.limit, (end - time.perf_counter()) * 2 / 3)
        if limit > 10:
            stage = run_stage(name, python, args.device, args.small, limit)
        else:
            stage = {"result": "left out", "seconds": 0.0, "reason": "no time was left"}
        report["stages"][name] = stage
        said = stage.get("reason") or json.dumps(stage["found"])
        print(f"{name}: {stage['result']} in {stage['seconds']:.0f} s\n{said}", flush=True)
        # After each stage, so that the machine can be taken away at any time.
        if args.json is not None:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(report, indent=2) + "\n")
        if args.table is not None:
            args.table.parent.mkdir(parents=True, exist_ok=True)
            args.table.write_text(table(report))
    print(table(report))
    return int(any(stage["result"] == "failed" for stage in report["stages"].values()))


if __name__ == "__main__":
    sys.exit(main())
