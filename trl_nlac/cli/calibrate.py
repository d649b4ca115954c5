# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac calibrate`: choose the thresholds of an agent's guard by logged outcomes."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..agent.guard import calibrate_by_half
from ..agent.log_review import episodes_of, judge_steps
from .errors import CommandError, one_line_errors
from .options import load_agent, load_conversations
from .parsers import calibrate_parser


def run(words: list[str]) -> None:
    args = calibrate_parser().parse_args(words)
    for name in ("max_false_blocks", "max_false_passes"):
        if not 0 <= vars(args)[name] < 1:
            raise CommandError(f"--{name} must be a share from 0 to below 1, got {vars(args)[name]}.")
    if not Path(args.model).is_dir():
        raise CommandError(f"{args.model} is no folder, in which the thresholds are stored.")
    logs = load_conversations(args.logs)
    agent = load_agent(args)
    with one_line_errors(f"{args.logs}: "):
        episodes = episodes_of(agent, logs)
    judgements = judge_steps(agent, [transition for episode in episodes for transition in episode.transitions])
    numbers = [i for i, episode in enumerate(episodes) for _ in episode.turns]
    failures = [episodes[i].score < agent.options.success_threshold for i in numbers]
    with one_line_errors(f"{args.logs}: "):
        guard, measured, number = calibrate_by_half(
            list(zip(numbers, judgements, failures, strict=True)), args.max_false_blocks, args.max_false_passes
        )
    guard.save_pretrained(args.model)
    print(f"{args.model}: blocks below {guard.block_below:.3f}, passes above {guard.pass_above:.3f}")
    print(f"Chosen by {guard.num_actions} actions, measured on {number} of other conversations:")
    table = Table("metric", "value")
    for name, value in measured.items():
        table.add_row(name, f"{value:.3f}")
    Console().print(table)
