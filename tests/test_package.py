# SPDX-License-Identifier: Apache-2.0

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import trl_nlac


ROOT = Path(__file__).parent.parent


def test_public_names():
    assert set(trl_nlac.__all__) <= set(dir(trl_nlac))
    for name in trl_nlac.__all__:
        assert vars(trl_nlac).get(name, getattr(trl_nlac, name)).__name__ == name
    assert trl_nlac.__version__ == version("trl-nlac")
    with pytest.raises(AttributeError, match="'trl_nlac' has no attribute 'NLACTrainr'"):
        trl_nlac.NLACTrainr  # noqa: B018


def test_the_wheel_has_every_file_that_the_package_reads():
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["trl_nlac"]
    package = ROOT / "trl_nlac"
    shipped = {path for pattern in listed for path in package.glob(pattern)}
    others = [path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert others and set(others) <= shipped


def outside(**variables: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("distributions")
    ignored = shutil.ignore_patterns(".*", "runs", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder / "source", ignore=ignored)
    shutil.copy(ROOT / ".dockerignore", folder / "source")
    code = "import setuptools.build_meta as b; print(b.build_wheel('..')); print(b.build_sdist('..'))"
    subprocess.run([sys.executable, "-c", code], cwd=folder / "source", check=True, capture_output=True, env=outside())
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


class TestDistributions:
    def test_the_wheel_starts(self, built, tmp_path):
        with zipfile.ZipFile(built["wheel"]) as wheel:
            wheel.extractall(tmp_path)
            assert not [name for name in wheel.namelist() if name.startswith(("tests/", "benchmarks/", "examples/"))]
        code = (
            "import trl_nlac, sys; from trl_nlac.cli.main import main; print(trl_nlac.__file__); main(['--version'])"
        )
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True, env=outside()
        )
        assert run.stdout.splitlines()[0] == str(tmp_path / "trl_nlac" / "__init__.py")
        assert (tmp_path / "trl_nlac" / "tiny_model" / "model.safetensors").stat().st_size > 1e6
        assert (tmp_path / "trl_nlac" / "recipes" / "cpu.yaml").exists()

    @pytest.mark.slow
    def test_tests_of_the_sdist_run(self, built, tmp_path):
        with tarfile.open(built["sdist"]) as sdist:
            sdist.extractall(tmp_path, filter="data")
        [folder] = tmp_path.iterdir()
        chosen = ["tests/test_private_names.py", "tests/method/test_losses.py", "tests/test_imports.py"]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *chosen]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=outside(PYTHONPATH=str(folder)))
        assert run.returncode == 0, run.stdout + run.stderr
