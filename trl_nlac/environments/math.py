# SPDX-License-Identifier: Apache-2.0

"""Math problems: one answer, verified by math-verify."""

import importlib.util
import inspect
import json
import queue
import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

from datasets import Dataset, concatenate_datasets, load_dataset

from ..episodes.text_environment import StepResult, TextEnvironment


INSTRUCTION = r"Put the final answer in \boxed{}."


def boxed_answer(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` of a text; `None` if there is none, or if it is not closed."""
    boxes = list(re.finditer(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*", text))
    if not boxes:
        return None
    rest = text[boxes[-1].end() :]
    if not rest.startswith("{"):  # TeX also boxes what follows without braces
        return re.match(r"[^\s$]*", rest)[0].rstrip(".,") or None
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", rest):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)  # an escaped brace is an ordinary character
        if depth == 0:
            return rest[1 : brace.start()].strip() or None
    return None


def _serve(timeout: int) -> None:
    """Run in a child process of [`AnswerVerifier`]: read lines of `[gold, answer]`, write whether they are equal."""
    import sys

    sys.path[:] = [path for path in sys.path if path]  # do not import from the folder that the trainer runs in
    import json
    import logging
    import signal

    from math_verify import LatexExtractionConfig, parse, verify

    config = LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)
    replies, sys.stdout = sys.stdout, sys.stderr  # keep other output away from the replies
    logging.disable(logging.WARNING)  # warnings about the missing timeouts
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the parent
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for line in sys.stdin:
        signal.alarm(timeout)  # kills the process even in a computation that Python cannot interrupt
        gold, answer = (
            parse(rf"\boxed{{{text}}}", [config], extraction_mode="first_match", parsing_timeout=None)
            for text in json.loads(line)
        )
        equal = verify(gold, answer, timeout_seconds=None)
        signal.alarm(0)
        print(json.dumps(equal), file=replies, flush=True)


class AnswerVerifier:
    r"""
    Compares answers with math-verify, in child processes with a time limit.

    math-verify's own timeouts are signals, which work only in the main thread, and environments run in other threads;
    so they are disabled. A limit is still needed: an answer like `\boxed{9^{9^{9^{9}}}}` is computed forever and holds
    Python's lock, so that in a thread it would stop the whole trainer. Needs a POSIX system.

    Args:
        timeout (`int`, *optional*, defaults to `5`):
            Seconds for one comparison. An answer that takes longer is wrong.
        num_processes (`int`, *optional*, defaults to `4`):
            Maximum number of child processes. They start when they are needed and end with the parent.

    Raises:
        ImportError: If the package math-verify is not installed.
    """

    def __init__(self, timeout: int = 5, num_processes: int = 4):
        if importlib.util.find_spec("math_verify") is None:
            raise ImportError("`MathEnvironment` needs the package math-verify: `pip install trl-nlac[math]`.")
        self._command = [sys.executable, "-c", f"{inspect.getsource(_serve)}\n_serve({timeout})"]
        self._num_processes = num_processes
        self._idle: queue.LifoQueue[subprocess.Popen | None] = queue.LifoQueue()
        for _ in range(num_processes):
            self._idle.put(None)

    def __call__(self, gold: str, answer: str) -> bool:
        """
        Whether the LaTeX of `answer` equals that of `gold`; `False` if either cannot be read. Can be called from any
        thread.

        Raises:
            RuntimeError, OSError: If the child process ended for another reason than the time limit.
        """
        process, kept = self._idle.get(), None
        try:
            if process is None:
                pipe = subprocess.PIPE
                process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8")
            print(json.dumps([gold, answer]), file=process.stdin, flush=True)
            reply = process.stdout.readline()
            if reply:
                kept = process
                return json.loads(reply)
            process.communicate()
            if process.returncode == -signal.SIGALRM:
                return False
            raise RuntimeError(f"The process that verifies answers ended with exit status {process.returncode}.")
        finally:
            self._idle.put(kept)

    def close(self) -> None:
        """End the child processes. The next comparison starts a new one."""
        for process in [self._idle.get() for _ in range(self._num_processes)]:
            if process is not None:
                process.communicate()
            self._idle.put(None)


_shared_verifier = cache(AnswerVerifier)  # of all environments


class MathEnvironment(TextEnvironment):
    r"""
    Asks for the solution of one math problem (paper, section 6.1); use it with `NLACConfig(single_step=True,
    max_turns=1)`. `reset(problem=..., answer=...)` states the problem; `answer` is the reference in LaTeX, without a
    box.

    The only action is the whole solution. Its reward is 1 if its last `\boxed{}` equals the reference, and 0 if it
    does not, cannot be read or is missing.

    Args:
        verifier ([`AnswerVerifier`], *optional*):
            Compares answers. If `None`, one that all environments share.

    Raises:
        ImportError: If the package math-verify is not installed.
    """

    def __init__(self, verifier: AnswerVerifier | None = None):
        self._verifier = _shared_verifier() if verifier is None else verifier
        self._gold = ""

    def reset(self, problem: str, answer: str, **task) -> str:
        """
        Return the problem and the instruction to put the answer in a box.

        Raises:
            ValueError: If math-verify cannot read the reference answer, so that no answer could be right.
        """
        if not self._verifier(answer, answer):
            raise ValueError(f"math-verify cannot read the reference answer {answer!r}. Correct it, or drop the task.")
        self._gold = answer
        return f"{problem}\n\n{INSTRUCTION}"

    def step(self, action: str) -> StepResult:
        answer = boxed_answer(action)
        if answer is None:
            return StepResult(r"There is no answer in \boxed{}.", terminated=True)
        right = self._verifier(self._gold, answer)
        return StepResult("Right." if right else "Wrong.", reward=float(right), terminated=True)


def make_tasks(
    name: str = "DigitalLearningGmbH/MATH-lighteval", num_eval_problems: int = 500, eval_level: str = "Level 5"
) -> tuple[Dataset, Dataset]:
    """
    Return problems for training and for evaluation, without those that have no answer. By default they are those of
    the paper (section 6.1): 500 of the highest level of MATH for evaluation, the other 12,000 for training.

    Args:
        name (`str`, *optional*, defaults to `"DigitalLearningGmbH/MATH-lighteval"`):
            Dataset on the Hub, or path of a JSONL file, with the columns `problem` and `answer`, or `problem` and a
            `solution` with the answer in `\\boxed{}`.
        num_eval_problems (`int`, *optional*, defaults to `500`):
            Number of evaluation problems, drawn from the split `test`, or from `train` if it is the only one.
        eval_level (`str`, *optional*, defaults to `"Level 5"`):
            Value of the column `level` of evaluation problems, if the dataset has this column.

    Returns:
        `tuple[Dataset, Dataset]`: with the columns `problem` and `answer`.

    Raises:
        ValueError: If there are no answers, or fewer problems than `num_eval_problems`.
    """
    splits = load_dataset("json", data_files=name) if Path(name).is_file() else load_dataset(name)
    source = splits["test" if "test" in splits else "train"].shuffle(seed=0)
    if not {"answer", "solution"} & set(source.column_names):
        raise ValueError(f"{name} has neither a column `answer` nor `solution`, only {source.column_names}.")
    rows = list(range(len(source)))
    if "level" in source.column_names:
        rows = [row for row, level in enumerate(source["level"]) if level == eval_level]
    if len(rows) < num_eval_problems:
        raise ValueError(
            f"`num_eval_problems` is {num_eval_problems}, but {name} has {len(rows)} problems to draw them from. "
            "Lower `num_eval_problems`."
        )
    held_out = set(rows[:num_eval_problems])
    train = [source.select([row for row in range(len(source)) if row not in held_out])]
    if "test" in splits:
        train.append(splits["train"])
    tasks = []
    for dataset in (concatenate_datasets(train), source.select(sorted(held_out))):
        dataset = dataset.map(_to_task, remove_columns=dataset.column_names)
        tasks.append(dataset.filter(lambda task: task["answer"] is not None))
    return tasks[0], tasks[1]


def _to_task(row: dict) -> dict:
    """Return the problem and the answer of a row; the answer can be in the box of a solution."""
    answer = boxed_answer(row.get("solution") or "") if row.get("answer") is None else str(row["answer"])
    return {"problem": row["problem"], "answer": answer}
