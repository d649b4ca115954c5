# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac calibrate`: choose the thresholds of an agent's guard by logged outcomes, and try what it changes."""

import argparse
from dataclasses import fields
from itertools import cycle, islice
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..agent.agent import NLACAgent
from ..agent.guard import calibrate_by_half
from ..agent.log_review import episodes_of, judge_steps
from ..agent.pilot import PILOT_FILE, PilotSide, play_pilot, read_pilots
from ..episodes.pool import NO_TASK, EnvironmentPool
from ..episodes.rewards import EpisodeRewards
from ..secrets import hide_secrets
from .errors import CommandError, one_line_errors
from .options import load_agent, load_conversations, load_player, load_rows
from .origin import fill_from_run
from .parser import read_json
from .parsers import calibrate_parser


def run(words: list[str]) -> None:
    args = calibrate_parser().parse_args(words)
    _check(args)
    if args.pilot is None:
        _calibrate(args, load_agent(args))
        return
    fill_from_run(args)
    agent, pool, rewards = load_player(args)
    try:
        if args.logs is not None:
            _calibrate(args, agent)
        _play_pilot(args, agent, pool, rewards)
    finally:
        pool.close()


def _check(args: argparse.Namespace) -> None:
    for name in ("max_false_blocks", "max_false_passes"):
        if not 0 <= vars(args)[name] < 1:
            raise CommandError(f"--{name} must be a share from 0 to below 1, got {vars(args)[name]}.")
    if not Path(args.model).is_dir():
        raise CommandError(f"{args.model} is no folder, in which the thresholds are stored.")
    if args.pilot is None:
        if args.logs is None:
            raise CommandError("name logged conversations to calibrate by, or --pilot with a number of tasks to play.")
        for name, default in (("environment_factory", None), ("tools", None), ("refine", 0), ("num_candidates", 1)):
            if vars(args)[name] != default:
                raise CommandError(f"--{name} is for a pilot: add --pilot with a number of tasks to play.")
        return
    for name, least in (("pilot", 1), ("refine", 0), ("num_candidates", 1)):
        if vars(args)[name] < least:
            raise CommandError(f"--{name} must be at least {least}, got {vars(args)[name]}.")
    read_pilots(args.model)  # a broken file is found before anything takes long


def _calibrate(args: argparse.Namespace, agent: NLACAgent) -> None:
    logs = load_conversations(args.logs)
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


def _play_pilot(
    args: argparse.Namespace, agent: NLACAgent, pool: EnvironmentPool, rewards: EpisodeRewards | None
) -> None:
    rows = load_rows(args.dataset_name, args.dataset_config, args.dataset_split)
    tasks = list(islice(cycle([NO_TASK] if rows is None else rows), args.pilot))
    names = [Path(name).name for name in [*(args.environment_factory or []), *(args.tools or [])]]
    kwargs = hide_secrets(read_json(args.environment_kwargs or "{}"))
    environment = " ".join([*names, *(f"{name}={value!r}" for name, value in kwargs.items())])
    improved = (args.refine, args.num_candidates)
    pilot = play_pilot(agent, pool, tasks, args.model, environment, *improved, args.seed, rewards=rewards)
    pilot.save_pretrained(args.model)
    print(f"Pilot of {pilot.intervention}: {pilot.num_tasks} tasks of {environment}, in {PILOT_FILE}")
    table = Table("", "without", "with")
    for field in fields(PilotSide):
        values = (vars(side)[field.name] for side in (pilot.plain, pilot.guarded))
        table.add_row(field.name, *(f"{value:.3f}" if field.type is float else str(value) for value in values))
    Console().print(table)
    print(f"{pilot.gained} tasks are won by it alone, {pilot.lost} without it alone.")
    print(f"{pilot.verdict}: {pilot.reason}")
