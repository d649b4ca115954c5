# SPDX-License-Identifier: Apache-2.0

"""What a plan assumes of machines and tasks."""

from dataclasses import dataclass, field


def _rate(default: float | None, help: str) -> float | None:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Rates:
    """What is assumed of machines and tasks. By default, an H100 in bfloat16, and half of the lengths allowed."""

    tflops: float = _rate(989.0, "10^12 operations that a GPU computes in a second at most")
    training_utilization: float = _rate(0.4, "share of them in training")
    reading_utilization: float = _rate(0.4, "share of them when prompts are read")
    writing_utilization: float = _rate(0.05, "share of them when tokens are generated")
    memory_bandwidth: float = _rate(3350.0, "GB that a GPU reads of its memory in a second")
    bandwidth: float = _rate(50.0, "GB that a GPU receives from others in a second")
    environment_seconds: float = _rate(0.0, "seconds of an environment's step")
    prompt_tokens: float | None = _rate(None, "mean tokens of a prompt")
    answer_tokens: float | None = _rate(None, "mean tokens of an answer")
    turns: float | None = _rate(None, "mean turns of an episode")
    num_tasks: float | None = _rate(None, "number of tasks, for the hours of a run by epochs")
