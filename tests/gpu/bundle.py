# SPDX-License-Identifier: Apache-2.0

"""
Packs what a machine with one GPU, torch, transformers, accelerate and peft lacks for the acceptance run without a
network: wheels, and of this repository what the stages need.

python tests/gpu/bundle.py [--python 3.12] [--folder build/gpu_bundle]

There: `bash gpu_bundle/run.sh`. On a CPU, to try it: `STAGE_ARGS="--device cpu --small" bash gpu_bundle/run.sh`.
"""

import argparse
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path


ROOT = Path(__file__).parents[2]
TREE = ("trl_nlac", "tests/gpu", "tests/helpers", "benchmarks/tiny_run.py", "pyproject.toml")
PACKAGES = {
    "wheels": (
        "trl", "datasets", "evaluate", "dill", "multiprocess", "xxhash", "pydantic", "pydantic_core", "peft",
        "annotated_types", "typing_inspection", "filelock", "cloudpickle", "rich", "markdown_it_py", "mdurl",
        "pygments",
    ),
    "deepspeed": ("hjson", "msgpack", "py_cpuinfo", "einops", "ninja"),  # what its one stage has beside all others
}  # fmt: skip
SOURCE = "deepspeed"  # has no wheel
LIMIT = 64 << 20  # bytes that can be brought
RUN = """
# In ten minutes at most, with all files but those of $OUT in this folder.
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export OUT="$(realpath "${OUT:-$here}")" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export XDG_CACHE_HOME="$here/cache" HF_HOME="$here/cache/hf" TRITON_CACHE_DIR="$here/cache/triton"
export TORCHINDUCTOR_CACHE_DIR="$here/cache/inductor"
cd "$here"
for part in wheels deepspeed; do
    python3 -m pip install -q --no-index --no-deps --no-cache-dir --upgrade --target site/$part $part/*.whl
done
go() {
    python3 tests/gpu/acceptance.py --limit ${LIMIT:-170} --total $((570 - SECONDS)) --json "$OUT/$1.json" \\
        --stages "${@:2}" $STAGE_ARGS
}
export PYTHONPATH="$here/site/wheels"
go gpu device training  # which measures time, alone
{ LIMIT=250 go gpu_learning learning; PYTHONPATH="$PYTHONPATH:$here/site/deepspeed" go gpu_zero3 zero3; } &
go gpu_rest default lora fsdp2 memory flex
wait
"""


def copy_tree(folder: Path) -> None:
    """Copy what the stages need, and the script that runs them."""
    for name in TREE:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, target)
    version = distribution("trl-nlac").version  # which the package asks for when it is imported
    (folder / "trl_nlac.egg-info").mkdir()
    (folder / "trl_nlac.egg-info" / "PKG-INFO").write_text(f"Name: trl-nlac\nVersion: {version}\n")
    (folder / "run.sh").write_text(f"# {'SPDX'}-License-Identifier: Apache-2.0\n{RUN}")


def add_wheels(folder: Path, python: str) -> None:
    """Download the installed versions of packages, for Linux and a version of Python."""
    folder.mkdir(parents=True)
    wanted = [f"{name}=={distribution(name).version}" for name in PACKAGES[folder.name]]
    platforms = [f"--platform=manylinux{name}_x86_64" for name in ("2014", "_2_17", "_2_28")]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
    command += ["--only-binary=:all:", f"--python-version={python}", *platforms, "-d", str(folder), *wanted]
    subprocess.run(command, check=True)
    if folder.name != SOURCE:
        return
    installed = distribution(SOURCE)
    with zipfile.ZipFile(
        folder / f"{SOURCE}-{installed.version}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED
    ) as wheel:
        for file in installed.files:
            if file.parts[0] != ".." and file.suffix != ".pyc":
                wheel.write(installed.locate_file(file), str(file))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="version of Python of the machine (default: 3.12)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu_bundle")
    args = parser.parse_args()
    shutil.rmtree(args.folder, ignore_errors=True)
    copy_tree(args.folder)
    for part in PACKAGES:
        add_wheels(args.folder / part, args.python)
    sizes = {
        part: sum(file.stat().st_size for file in (args.folder / part).rglob("*") if file.is_file())
        for part in (*PACKAGES, ".")
    }
    print(f"{args.folder}: " + ", ".join(f"{part} {size / 2**20:.1f} MiB" for part, size in sizes.items()))
    return int(sizes["."] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
