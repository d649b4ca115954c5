# SPDX-License-Identifier: Apache-2.0

import json
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import datasets
import psutil
import pytest
from helpers.scripts import run_script

import trl_nlac.environments.math
from trl_nlac.environments.math import AnswerVerifier, MathEnvironment, boxed_answer, make_tasks


pytest.importorskip("math_verify")


@pytest.fixture(scope="module")
def verifier():
    verifier = AnswerVerifier(timeout=5, num_processes=2)
    yield verifier
    verifier.close()


def solve(verifier: AnswerVerifier, answer: str, action: str) -> float:
    environment = MathEnvironment(verifier)
    observation = environment.reset(problem="What is it?", answer=answer, level="Level 5")
    assert observation == "What is it?\n\nPut the final answer in \\boxed{}."
    result = environment.step(action)
    assert result.terminated and not result.truncated
    return result.reward


@pytest.mark.parametrize(
    ("answer", "boxed"),
    [
        ("5", "5"),
        (r"\frac{1}{2}", "0.5"),
        (r"\frac12", r"\dfrac{2}{4}"),
        ("1,000", "1000"),
        ("10", "4 + 6"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
        ("x^2 + 2x + 1", "(x+1)^2"),
        ("x = 5", "5"),
        (r"90^\circ", "90"),
        (r"\$12", "12"),
        (r"(3, \infty)", r"\left(3, \infty\right)"),
        (r"\{1, 2\}", r"\{2, 1\}"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        (r"\text{Evelyn}", "Evelyn"),
        (r"\text{(C)}", "C"),
    ],
)
def test_equivalent_forms(verifier, answer, boxed):
    assert solve(verifier, answer, rf"Some thoughts.\n\nSo it is $\boxed{{{boxed}}}$.") == 1


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("5", r"\boxed{6}"),
        ("5", "The answer is 5."),
        ("5", r"$\boxed{5"),
        ("5", r"\boxed{}"),
        ("5", r"\boxed{\frac{1}}"),
        ("5", r"\boxed{}{}\frac}"),
        ("5", r"\boxed{I do not know}"),
        ("5", r"First \boxed{5}, no: \boxed{6}"),
        ("5", r"\boxed{1, 2, 3, 4, 5}"),
        (r"\text{Evelyn}", r"\boxed{Briana}"),
        ("5", ""),
    ],
)
def test_wrong_or_unreadable_answers(verifier, answer, action):
    assert solve(verifier, answer, action) == 0


@pytest.mark.parametrize("answer", ["", "}{"])
def test_reference_that_cannot_be_read_is_a_failure(verifier, answer):
    with pytest.raises(ValueError, match="cannot read the reference answer"):
        MathEnvironment(verifier).reset(problem="What is it?", answer=answer)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{\boxed{5}}", "5"),
        (r"so $\boxed 2$.", "2"),
        (r"\fbox{3}", "3"),
        (r"\boxed{ \text{a {b} c} } and {more}", r"\text{a {b} c}"),
        (r"\boxedtext{1}", None),
    ],
)
def test_boxed_answer(text, answer):
    assert boxed_answer(text) == answer


def test_worker_threads(verifier):
    def play(i: int) -> float:
        assert threading.current_thread() is not threading.main_thread()
        return solve(verifier, str(i), rf"\boxed{{{i // 2 * 2}}}")

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(play, range(16))) == [1.0, 0.0] * 8


def test_answer_that_is_computed_forever_is_wrong_and_stops_nobody():
    verifier = AnswerVerifier(timeout=3, num_processes=1)
    environment = MathEnvironment(verifier)
    environment.reset(problem="What is it?", answer="5")
    beats, done = [], threading.Event()

    def beat():
        while not done.wait(0.05):
            beats.append(time.monotonic())

    heart = threading.Thread(target=beat)
    heart.start()
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(environment.step, r"\boxed{9^{9^{9^{9}}}}").result().reward == 0
    done.set()
    heart.join()
    assert len(beats) > 5  # other threads continued
    assert environment.step(r"\boxed{5}").reward == 1  # with a new process
    verifier.close()


def test_process_that_dies_is_a_failure():
    earlier = psutil.Process().children()
    verifier = AnswerVerifier(num_processes=1)
    assert verifier("5", "5")
    (process,) = set(psutil.Process().children()) - set(earlier)
    process.kill()
    process.wait()
    with pytest.raises((RuntimeError, OSError)):
        verifier("5", "5")
    assert verifier("5", "5")
    verifier.close()


def test_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(ImportError, match=r"pip install trl-nlac\[math\]"):
        AnswerVerifier()


def test_module_named_math_shadows_nothing(verifier):
    assert sys.modules["math"].pi > 3 and sys.modules["math"] is not trl_nlac.environments.math
    folder = Path(trl_nlac.environments.math.__file__).parent  # not even if the trainer runs there
    finished = subprocess.run(verifier._command, cwd=folder, input='["0.5", "1/2"]\n', capture_output=True, text=True)
    assert finished.returncode == 0 and finished.stdout == "true\n", finished.stderr


class TestTasks:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    @staticmethod
    def write(path: Path, first: int, number: int) -> None:
        sums = range(first, number)
        rows = [{"problem": f"{i} + 1", "answer": f"{i + 1}", "level": f"Level {4 + i % 2}"} for i in sums]
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(map(json.dumps, rows)))

    def test_no_problem_is_for_training_and_for_evaluation(self, tmp_path):
        self.write(tmp_path / "sums.jsonl", 0, 40)
        splits = [make_tasks(str(tmp_path / "sums.jsonl"), num_eval_problems=5) for _ in range(2)]
        train, evaluated = splits[0]
        assert {*train["problem"], *evaluated["problem"]} == {f"{i} + 1" for i in range(40)}
        assert len(train) == 35 and len(evaluated) == 5
        assert all(int(problem.split()[0]) % 2 for problem in evaluated["problem"])
        assert evaluated["problem"] == splits[1][1]["problem"]
        assert all(row["answer"] == str(int(row["problem"].split()[0]) + 1) for row in evaluated)

    def test_what_is_left_of_the_test_split_is_for_training(self, tmp_path):
        self.write(tmp_path / "sums" / "train.jsonl", 0, 8)
        self.write(tmp_path / "sums" / "test.jsonl", 8, 20)
        train, evaluated = make_tasks(str(tmp_path / "sums"), num_eval_problems=2)
        assert len(train) == 8 + 10 and len(evaluated) == 2
        assert all(int(problem.split()[0]) >= 8 for problem in evaluated["problem"])

    def test_too_few_problems(self, tmp_path):
        self.write(tmp_path / "sums.jsonl", 0, 8)
        with pytest.raises(ValueError, match="`num_eval_problems` is 5, but .* has 4 problems to draw them from"):
            make_tasks(str(tmp_path / "sums.jsonl"), num_eval_problems=5)


def test_example_script(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    rows = [
        {"problem": f"{i} + 1", "solution": rf"It is $\boxed{{{i + 1}}}$.", "level": f"Level {4 + i % 2}"}
        for i in range(8)
    ]
    rows[0]["solution"] = "I do not know."  # will be dropped
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = f"""--output_dir {tmp_path} --report_to none
        --model_name_or_path trl_nlac/tiny_model --prompts trl_nlac/tiny_model/nlac_prompts.json --use_cpu --bf16 False
        --dataset {tmp_path}/sums.jsonl --num_eval_problems 3 --max_completion_length 16
        --per_device_train_batch_size 2 --max_steps 2 --save_strategy no"""
    output = run_script("examples/scripts/nlac_math.py", *arguments.split())
    assert re.search(r"The model solves \d+% of 3 problems that it was not trained on", output)
