# SPDX-License-Identifier: Apache-2.0

"""
The first hours of a user, from a fresh clone or a fresh wheel: install, demo, own environment, train, Ctrl-C, resume,
move the folder, evaluate, play, report, compare.

python -m benchmarks.user_hours --source clone
python -m benchmarks.user_hours --source wheel

Files and commands are those of docs/source/quickstart.md; a command that is not printed there or on another page ends
the walk. What is added to a command makes it small: the embedded model in place of one of the Hub, a CPU, few steps. A
table has each step with its seconds. The first step that fails ends the walk, and its output is shown.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from benchmarks import reporting


ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "source"
SMALL = [
    "--model_name_or_path",
    "trl_nlac/tiny_model",
    "--use_cpu",
    "--bf16",
    "False",
    "--max_completion_length",
    "16",
]
SMALL += ["--prompts", "trl_nlac/tiny_model/nlac_prompts.json", "--action_format", "text", "--num_eval_episodes", "2"]
SMALL += ["--samples_per_iteration", "8", "--per_device_train_batch_size", "4", "--max_turns", "2"]
SMALL += ["--num_eval_critiques", "2", "--logging_steps", "1"]
ENVIRONMENT = ["--environment_factory", "guess.py:GuessTheNumber"]


class StepFailed(Exception):
    """A step did not do what the pages say."""


def shown_files(page: Path) -> dict[str, str]:
    """Return the files that a page shows: blocks whose first line is a comment with a name."""
    texts = re.findall(r"^```(?:python|yaml)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return {name[1]: text for text in texts if (name := re.match(r"# ([\w.]+)\n", text))}


def printed(command: str) -> list[str]:
    """Return the words of a command. Raises [`StepFailed`] if no page prints it."""
    pages = [ROOT / "README.md", *DOCS.glob("*.md")]
    if not any(re.search(rf"^{re.escape(command)}(\s|$)", page.read_text(), re.MULTILINE) for page in pages):
        raise StepFailed(f"No page prints this command: {command}")
    return shlex.split(command)


class Walk:
    """
    Takes one step after the other in a folder.

    Args:
        folder (`Path`):
            Where the user works.
        python (`Path`):
            The user's interpreter, in the virtual environment of the walk.
    """

    def __init__(self, folder: Path, python: Path):
        self.folder, self.python, self.steps = folder, python, []
        self.variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self.variables |= {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}

    def take(self, name: str, words: list[str], code: int = 0, says: str = "", stops_at: str = "") -> str:
        """
        Run a command and return its output.

        Args:
            name (`str`):
                Name of the step.
            words (`list[str]`):
                The command.
            code (`int`, *optional*, defaults to `0`):
                Exit code that it must have.
            says (`str`, *optional*):
                Pattern that its output must contain.
            stops_at (`str`, *optional*):
                File, below the folder, at whose appearance Ctrl-C is sent.

        Raises:
            StepFailed: If it did something else. The message has the end of its output.
        """
        start, log = time.perf_counter(), self.folder / "_walk.log"
        with open(log, "w") as output:
            process = subprocess.Popen(
                words,
                cwd=self.folder,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A shell that is not interactive lets what it starts in the background ignore Ctrl-C.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
            while stops_at and process.poll() is None:
                if (self.folder / stops_at).exists():
                    process.send_signal(signal.SIGINT)
                    break
                time.sleep(0.1)
            process.wait()
        text = log.read_text(errors="replace")
        seconds = round(time.perf_counter() - start, 1)
        self.steps.append({"step": name, "seconds": seconds, "warnings": text.count("Warning:")})
        print(f"{seconds:7.1f} s  {name}", flush=True)
        if process.returncode != code or not re.search(says, text):
            wanted = f"exit code {code}" + (f" and “{says}”" if says else "")
            raise StepFailed(f"{shlex.join(words)}\nexit code {process.returncode}, wanted: {wanted}\n{text[-3000:]}")
        return text


def install(folder: Path, source: str, borrow: bool) -> Path:
    """
    Make a virtual environment, and install a fresh clone or wheel into it. Returns its interpreter.

    With `borrow`, it uses the packages of the running interpreter in place of downloading them.
    """
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    environment = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", environment], **quiet)
    python = environment / "bin" / "python"
    if borrow:
        paths = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout.strip()
        # A line of code, so that the walk's own packages come first, and no editable install of the other is seen.
        subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools"], **quiet)  # too old
        (Path(paths) / "borrowed.pth").write_text(f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})\n")
    clone = folder / "trl-nlac"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], **quiet)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-deps", "--no-build-isolation"] if borrow else []
    if source == "clone":
        subprocess.run([*pip, "-e", clone], **quiet)
    else:
        subprocess.run([*pip[:2], "pip", "wheel", *pip[4:], "--no-deps", "-w", folder / "dist", clone], **quiet)
        [wheel] = (folder / "dist").glob("trl_nlac-*.whl")
        subprocess.run([*pip, wheel], **quiet)
        shutil.rmtree(clone)
    return python


def first_hours(walk: Walk, source: str) -> None:
    """Take all steps after the installation."""
    folder = walk.folder
    walk.take("what was installed", ["trl-nlac", "--version"], says=r"\d+\.\d+")
    walk.take("the environment, for a bug report", ["trl-nlac", "env"], says="trl")
    if source == "clone":
        script = folder / "trl-nlac" / "examples" / "scripts" / "nlac_quickstart.py"
        demo = ["python", str(script), "--output_dir", "runs/quickstart", "--max_steps", "4", "--eval_steps", "2"]
        walk.take(
            "the demo", [*demo, "--num_eval_episodes", "2", "--num_eval_critiques", "8"], says="What was learned"
        )
        run = "runs/quickstart"
    else:
        words = printed("trl-nlac train --config cpu")
        walk.take("the small recipe", [*words, "--max_steps", "4"], says="What was learned")
        run = "runs/cpu"
    walk.take("its report", ["trl-nlac", "report", run], says="report.html")
    words = printed("trl-nlac play runs/quickstart --refine 1 --trust_remote_code")
    walk.take("watch the agent", [run if word == "runs/quickstart" else word for word in words] + ["--auto"])

    for name, text in shown_files(DOCS / "quickstart.md").items():
        (folder / name).write_text(text)
    tasks = re.search(r"```python\n(from datasets import Dataset\n.*?)```", (DOCS / "quickstart.md").read_text(), re.S)
    walk.take("write tasks", ["python", "-c", tasks[1]])
    train = [*printed("trl-nlac train --config run.yaml"), *SMALL]
    walk.take("train in one's own environment", [*train, "--max_steps", "2"], says="What was learned")

    stopped = [*train, "--output_dir", "runs/stopped", "--max_steps", "2000", "--save_strategy", "no"]
    said = walk.take("Ctrl-C", stopped, 130, r"Stopped at step [\d,]+ of 2,000", "runs/stopped/training_log.jsonl")
    at = int(re.search(r"Stopped at step ([\d,]+) of", said)[1].replace(",", ""))
    resume = [*stopped, "--max_steps", str(at + 2), "--resume_from_checkpoint", "last"]
    walk.take("resume", resume, says="What was learned")

    shutil.move(folder / "runs" / "stopped", folder / "moved")
    words = printed("trl-nlac evaluate runs/guess --environment_factory guess.py:GuessTheNumber --num_episodes 4")
    walk.take("evaluate the folder that was moved", ["moved" if word == "runs/guess" else word for word in words])
    words = printed("trl-nlac play runs/guess --environment_factory guess.py:GuessTheNumber --row 3 --refine 1")
    walk.take("play", [*words, "--auto"])
    walk.take("report", printed("trl-nlac report runs/guess"), says="report.html")
    walk.take("compare", ["trl-nlac", "report", "runs/guess", "moved", "--output", "comparison.html"])
    if not (folder / "comparison.html").exists():
        raise StepFailed("There is no comparison.html.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", choices=["clone", "wheel"], default="clone")
    parser.add_argument("--folder", type=Path, help="where to work; by default a folder that is deleted in the end")
    parser.add_argument(
        "--borrow", action="store_true", help="use the packages of this interpreter: nothing to download"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = (args.folder or Path(made)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        walk = Walk(folder, install(folder, args.source, args.borrow))
        print(f"{time.perf_counter() - start:7.1f} s  install from a fresh {args.source}", flush=True)
        try:
            first_hours(walk, args.source)
        except StepFailed as error:
            sys.exit(f"This step failed: {error}")
    report = {
        "command": f"python -m benchmarks.user_hours --source {args.source}",
        **reporting.setting("torch", "trl", "transformers"),
        "steps": walk.steps,
    }
    reporting.write(report, args.json)


if __name__ == "__main__":
    main()
