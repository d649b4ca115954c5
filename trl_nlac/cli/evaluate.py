# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac evaluate`: measure how often a saved agent succeeds."""

from rich.console import Console
from rich.table import Table

from ..episodes.pool import NO_TASK
from ..evaluation.evaluation import joint_metrics
from ..written_files import write_json
from .errors import CommandError
from .options import load_player, load_rows
from .origin import fill_from_run
from .parsers import evaluate_parser


def run(words: list[str]) -> None:
    args = evaluate_parser().parse_args(words)
    if args.num_episodes < 1:
        raise CommandError(f"--num_episodes must be at least 1, got {args.num_episodes}.")
    if args.max_tasks is not None and args.max_tasks < 1:
        raise CommandError(f"--max_tasks must be at least 1, got {args.max_tasks}.")
    fill_from_run(args)
    rows = load_rows(args.dataset_name, args.dataset_config, args.dataset_split)
    rows = [NO_TASK] if rows is None else list(rows)[: args.max_tasks]
    agent, pool, rewards = load_player(args)
    try:
        evaluation = agent.evaluate(
            pool,
            rows,
            args.num_episodes,
            args.num_critiques,
            seed=args.seed,
            refine=args.refine,
            num_candidates=args.num_candidates,
            rewards=rewards,
        )
        metrics = joint_metrics(evaluation)
        if not evaluation.outcomes:
            raise CommandError(
                f"not one of {len(rows) * args.num_episodes} episodes could be played and scored. The last failure:\n"
                f"{pool.last_failure or 'none'}"
            )
    finally:
        pool.close()
    # Not the table's title, which would be wrapped to the table's width.
    print(f"{args.model}: {len(rows)} tasks, {args.num_episodes} episodes each")
    table = Table("metric", "value")
    for name, value in metrics.items():
        if not name.startswith("environment/") or value:
            table.add_row(name, f"{value:.3f}")
    Console().print(table)
    if args.json:
        write_json(args.json, metrics)
