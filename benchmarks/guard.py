# SPDX-License-Identifier: Apache-2.0

"""
The guard on labelled logs: how many failing steps it blocks, and how many good ones by mistake. NLAC trains on a
service desk; then the base policy, the trained one and somebody who knows the rules play a third of the episodes each,
and the desk's oracle says of every step whether it is the best one. Thresholds are chosen by half of the
conversations: by their outcomes, which is what logs have, or by the oracle's labels, which is the best that thresholds
can do. The other half measures, with the oracle's labels.

python -m benchmarks.guard --json benchmarks/results/guard.json --page docs/source/agent.md

Each cell (task, seed) is kept under --runs, so that an interrupted benchmark continues where it stopped.
"""

import argparse
import json
import random
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks import reporting
from benchmarks.learning.figures.table import task_label
from benchmarks.learning.methods.settings import NLAC, acting_config
from benchmarks.learning.playing import Player
from benchmarks.learning.tasks import LearningTask, make_task
from trl_nlac import NLACTrainer
from trl_nlac.agent.guard import Guard, outcomes
from trl_nlac.environments.embedded.service_desk import format_call
from trl_nlac.episodes.recorder import replay_actions
from trl_nlac.evaluation.metrics import CriticCalibration
from trl_nlac.method.critic import judge_actions
from trl_nlac.training.model import load_model
from trl_nlac.types import Episode, Judgement


FALSE_BLOCKS = (0.01, 0.02, 0.05, 0.1, 0.2)
SHOWN = (0.05, 0.1)  # in the table
Step = tuple[Judgement | None, bool, bool]  # the judgement, whether the step fails, whether the episode failed


def expert_episode(task: LearningTask, row: dict, trainer: NLACTrainer) -> Episode:
    """Play a task with the right call."""
    environment, roles = task.environment_factory(), trainer.roles
    right = format_call(environment.world.rules[row["request"]])
    return replay_actions(environment, row, [right], roles.actions, roles.prompts)


def played_logs(task: LearningTask, trainer: NLACTrainer, num_episodes: int) -> list[Episode]:
    """Play held-out customers: a third of them with the base policy, a third with the trained one, a third rightly."""
    rows = [task.instances["held_out"].rows[i % len(task.instances["held_out"].rows)] for i in range(num_episodes)]
    random.Random(trainer.args.seed).shuffle(rows)
    base = load_model(task.model, trainer.args).to(trainer.accelerator.device)
    players = [
        Player.of_model(task, trainer.args, base, trainer.accelerator),
        Player.of_model(task, trainer.args, trainer.model.eval(), trainer.accelerator),
    ]
    size = num_episodes // 3
    of_policies = [episode for i, player in enumerate(players) for episode in player.play(rows[i * size :][:size])]
    return of_policies + [expert_episode(task, row, trainer) for row in rows[2 * size :]]


def labelled_steps(trainer: NLACTrainer, task: LearningTask, episodes: list[Episode]) -> list[list[Step]]:
    """Judge and label the steps of each conversation."""
    oracle = task.environment_factory().oracle
    transitions = [transition for episode in episodes for transition in episode.transitions]
    with trainer.roles.generator.session(trainer.model):
        judgements = judge_actions(trainer.roles, [transition.state_action for transition in transitions])
    judged = iter(zip(transitions, judgements, strict=True))
    steps = []
    for episode in episodes:
        failed = episode.score < trainer.args.success_threshold
        of_episode = [next(judged) for _ in episode.turns]
        steps.append([(j, oracle.quality(t, t.turn.action) < 1 - 1e-9, failed) for t, j in of_episode])
    return steps


def curve(steps: list[list[Step]], seed: int) -> dict:
    """Choose thresholds by one half, and measure them on the other."""
    order = list(range(len(steps)))
    random.Random(seed).shuffle(order)
    choosing = [step for i in order[::2] for step in steps[i] if step[0] is not None]
    measuring = [step for i in order[1::2] for step in steps[i]]
    scores, fails = [step[0].verdict_score for step in choosing], [step[1] for step in choosing]
    report = {
        "steps": {"choosing": len(choosing), "measuring": len(measuring)},
        "failing_share": sum(fails_ for _, fails_, _ in measuring) / len(measuring),
        "readable": sum(judgement is not None for judgement, _, _ in measuring) / len(measuring),
        "calibration": CriticCalibration(keep_in_memory=True).compute(
            scores=scores, successes=[float(not failing) for failing in fails]
        ),
    }
    for chosen_by, failures in {"outcomes": [step[2] for step in choosing], "labels": fails}.items():
        points = []
        for share in FALSE_BLOCKS:
            guard = Guard.calibrated(scores, failures, share, 0.05)
            always = replace(guard, pass_above=guard.block_below)  # never abstains
            measured = [
                outcomes([one.decide(step[0]) for step in measuring], [step[1] for step in measuring])
                for one in (guard, always)
            ]
            points.append({"max_false_blocks": share, "abstains": measured[0], "always_decides": measured[1]})
        report[f"chosen_by_{chosen_by}"] = points
    return report


def run_seed(name: str, seed: int, max_steps: int, num_episodes: int) -> dict:
    task = make_task(name, seed)
    with tempfile.TemporaryDirectory() as folder:
        args = replace(acting_config(task, folder, seed), **NLAC, max_steps=max_steps, logging_steps=100)
        trainer = NLACTrainer(model=task.model, args=args, **task.trainer_arguments)
        trainer.train()
        episodes = played_logs(task, trainer, num_episodes)
        return curve(labelled_steps(trainer, task, episodes), seed)


def table(tasks: dict[str, dict[str, dict]]) -> str:
    """Format what thresholds that were chosen by outcomes do, with and without abstaining."""
    names = ["desk", "seed", "AUROC", "good steps that may be blocked", "blocked good steps", "blocked failing steps"]
    names += ["abstained", "blocked good steps of those decided", "blocked failing steps of those decided"]

    def row(task: str, seed: str, auroc: float, point: dict) -> list[str]:
        always, abstains = point["always_decides"], point["abstains"]
        values = [auroc, point["max_false_blocks"], always["false_blocks"], always["recall"]]
        values += [abstains[name] for name in ("abstained", "false_blocks_of_decided", "recall_of_decided")]
        return [task_label(task), seed, *(f"{value:.2f}" for value in values)]

    cells = [(task, seed, cell) for task, seeds in tasks.items() for seed, cell in seeds.items()]
    rows = [
        row(task, seed, cell["calibration"]["auroc"], point)
        for task, seed, cell in cells
        for point in cell["chosen_by_outcomes"]
        if point["max_false_blocks"] in SHOWN
    ]
    return reporting.table(names, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["service_desk_told", "service_desk_noisy"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--max_steps", type=int, default=400, help="gradient steps of training")
    parser.add_argument("--num_episodes", type=int, default=256, help="logged episodes")
    parser.add_argument("--runs", type=Path, default=Path("runs/guard"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, help="Markdown file whose results are replaced by the table")
    args = parser.parse_args()

    def cell(task: str, seed: int) -> dict:
        path = args.runs / f"{task}_{seed}_{args.max_steps}_{args.num_episodes}.json"
        return reporting.kept(path, lambda: run_seed(task, seed, args.max_steps, args.num_episodes))

    cells = {task: {str(seed): cell(task, seed) for seed in args.seeds} for task in args.tasks}
    setting = reporting.setting("torch", "transformers", "trl")
    report = {"max_steps": args.max_steps, "num_episodes": args.num_episodes, "tasks": cells, **setting}
    print(json.dumps(report, indent=2))
    reporting.write(report, args.json)
    if args.page:
        reporting.insert(table(cells), args.page, "guard.py")


if __name__ == "__main__":
    main()
