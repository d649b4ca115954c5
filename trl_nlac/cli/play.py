# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac play`: watch an agent, turn by turn."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from ..agent.agent import NLACAgent
from ..agent.agent_action import AgentAction
from ..episodes.pool import NO_TASK, EnvironmentPool
from ..episodes.recorder import EpisodeRecorder
from ..episodes.rollout import final_reward, policy_answer, reset, step
from ..episodes.text_environment import StepResult, describe_error, with_seed
from ..episodes.worker import EnvironmentWorker
from ..options.role_options import RoleOptions
from ..prompts import PROMPTS_FILE
from ..report.shown_notes import read_settings
from ..terminal import printable
from ..types import Answer, Judgement, Prompt
from .errors import CommandError, one_line_errors
from .options import load_player, load_rows, one_line_errors_of_user, read_json
from .origin import fill_from_run, run_of
from .parsers import play_parser


def run(words: list[str]) -> None:
    args = play_parser().parse_args(words)
    fill_from_run(args)
    task = read_json(args.task) if args.task else _row(args)
    if args.before:
        _take_untrained(args)
    agent, pool, rewards = load_player(args)
    with one_line_errors():
        name, keywords, schemas = pool.route(task)
    if name in pool.seeded:
        keywords = with_seed(keywords, args.seed)
    torch.manual_seed(args.seed)
    roles = agent.roles
    recorder = EpisodeRecorder(roles.actions, roles.prompts, task, schemas, roles.options.max_prompt_length)
    worker = pool.acquire(name)
    waits = not args.auto and sys.stdin.isatty()
    try:
        show = Show(Console(), waits)
        with one_line_errors_of_user("the environment failed (reset)"):
            recorder.begin(pool.finish(worker, partial(reset, keywords=keywords), "`reset`"))
        show.text("task", json.dumps(task, ensure_ascii=False, default=str), "dim")
        for message in recorder.conversations[0].prompt_messages:
            show.text(message["role"], message["content"], "dim" if message["role"] == "system" else "yellow")
        while not recorder.done:
            (turn,) = agent.act_on([recorder.prompt], args.refine, args.num_candidates, judge=True)
            show.action(recorder.num_answers + 1, turn)
            with one_line_errors_of_user("the environment failed (step)"):
                takes_answers = name in pool.takes_answers
                result = _step(pool, worker, agent, turn, recorder.prompt if takes_answers else None)
                recorder.act(turn.action, turn.text, list(turn.token_ids), result)
            show.text("observation", result.observation, "yellow")
            if recorder.done or not show.wants_next():
                break
            recorder.continue_or_end(roles.options.max_turns, roles.options.turn_limit)
        with one_line_errors_of_user("the environment failed (get_reward)"):
            reward = pool.finish(worker, final_reward, "`get_reward`")
        if rewards is not None:
            environments = [worker.environment.unwrapped]
            with one_line_errors_of_user("the environment failed (reward functions)"):
                (scored,) = pool.call(lambda: rewards.score(recorder.conversations[:1], environments), "the scoring")
            if scored.failure is not None:
                raise CommandError(f"the episode cannot be scored: {describe_error(scored.failure)}")
            reward += scored.reward
    finally:
        pool.close()
    score = recorder.episode().score + reward
    how = "terminated" if recorder.terminated else "truncated" if recorder.truncated else "stopped"
    turns = "1 turn" if recorder.num_answers == 1 else f"{recorder.num_answers} turns"
    show.text("end", f"{how} after {turns}, return {score:g}", "bold")


def _take_untrained(args) -> None:
    """Name the model that the run began with, and keep the prompts and options of the run's roles."""
    run = run_of(args.model)
    base = read_settings(run).model
    if base is None:
        raise CommandError(f"--before: {run} does not say with which model it began. Name that model in its place.")
    options = vars(RoleOptions.from_pretrained(args.model))
    args.option = [*(f"{name}={json.dumps(value)}" for name, value in options.items()), *args.option]
    saved = Path(args.model, PROMPTS_FILE)
    args.prompts = args.prompts or (str(saved) if saved.is_file() else None)
    args.model = base


def _row(args) -> dict[str, Any]:
    rows = load_rows(args.dataset_name, args.dataset_config, args.dataset_split)
    if rows is None:
        return NO_TASK
    if not 0 <= args.row < len(rows):
        raise CommandError(f"--row {args.row}: the dataset has {len(rows)} rows.")
    return rows[args.row]


def _step(
    pool: EnvironmentPool, worker: EnvironmentWorker, agent: NLACAgent, turn: AgentAction, prompt: Prompt | None
) -> StepResult:
    """Take a step. `prompt` is what was answered, for an environment that takes answers."""
    if turn.action is None:
        return StepResult(agent.roles.prompts.unreadable(agent.roles.actions.name))
    action = turn.action
    if prompt is not None:
        action = policy_answer(agent.roles.actions, Answer(prompt, turn.token_ids, turn.text, turn.action))
    return pool.finish(worker, partial(step, action=action), "`step`")


class Show:
    """Print an episode. All texts of the model and the environment are plain text, without control characters."""

    def __init__(self, console: Console, waits: bool):
        self.console = console
        self.waits = waits

    def text(self, title: str, content: str, style: str) -> None:
        self.console.print(Panel(Text(printable(content)), title=title, title_align="left", border_style=style))

    def action(self, number: int, turn: AgentAction) -> None:
        for i, (action, judged) in enumerate(turn.candidates, 1):
            score = "unreadable critique" if judged is None else f"verdict score {judged.verdict_score:+.2f}"
            self.text(f"turn {number}: candidate {i}", f"{action}\n{score}", "dim")
        for i, (action, judged) in enumerate(turn.attempts, 1):
            self.text(f"turn {number}: attempt {i}", action, "magenta")
            self.critique(judged)
        if turn.action is None:
            self.text(f"turn {number}: unreadable action", turn.text, "red")
            return
        thought = f"{turn.thought}\n\n" if turn.thought else ""
        self.text(f"turn {number}: {'refined ' if turn.attempts else ''}action", f"{thought}{turn.action}", "green")
        if turn.judgement is not None:
            self.critique(turn.judgement)

    def critique(self, judgement: Judgement) -> None:
        style = "cyan" if judgement.verdict else "red"
        self.text(f"critique, verdict score {judgement.verdict_score:+.2f}", judgement.critique, style)

    def wants_next(self) -> bool:
        return not self.waits or self.console.input("[dim]Enter: next turn, q: end [/]").strip().lower() != "q"
