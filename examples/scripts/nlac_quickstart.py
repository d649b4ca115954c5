# SPDX-License-Identifier: Apache-2.0

# /// script
# dependencies = ["trl-nlac[report]"]
# ///
"""
Train an embedded tiny chat model on a world that it has never seen, on a CPU, in a few minutes.

python examples/scripts/nlac_quickstart.py
python examples/scripts/nlac_quickstart.py --world rooms --world_seed 3 --output_dir runs/rooms

The support desk, in English, has 4,096 actions per turn, one of which is right; before training the model finds it in
fewer than one of fifty episodes. The service desk is the same with single words in place of sentences; the learning
benchmark plays it. The rooms have four doors; there the model wins about one episode in six. A run prints success and
the critic's accuracy before and after training, and saves `learning_curve.png`, `results.json` and the model.

The model of the support desk knows plain text alone. In the other worlds the model can also think before it acts or
call tools (`--action_format react` or `tool_call`). Then most tokens of an action are its thought or the syntax of the
call. Nothing corrects a badly sampled thought, and the policy would learn it, so refinement is greedy and unlikely
tokens are not sampled.

The rest is the default configuration, but for a larger learning rate, because the model is tiny, and shorter prompts
and answers, because it can read only 512 tokens.
"""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
from rich.console import Console
from rich.table import Table
from rich.text import Text
from trl import TrlParser

from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.cli.origin import note_origin, origin_flags
from trl_nlac.cli.train import find_checkpoint
from trl_nlac.environments.embedded import (
    COMPACT_PROMPTS,
    SUPPORT_MODEL,
    SUPPORT_PROMPTS,
    TINY_MODEL,
    make_environment,
    make_tasks,
)
from trl_nlac.records.sample_panel import marked
from trl_nlac.report.highlights import Highlight, find_highlights
from trl_nlac.report.run_files import read_episodes
from trl_nlac.terminal import printable


matplotlib.use("Agg")

# Every option can be changed on the command line.
SETTINGS = dict(
    output_dir="runs/quickstart",
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    report_to="none",
    log_completions=True,
    num_completions_to_print=0,
    audit_samples=8,
    save_strategy="no",
    eval_strategy="steps",
    eval_on_start=True,
    learning_rate=1e-3,
    max_generation_batch_size=512,
    action_format="text",
    max_prompt_length=448,  # of the 512 tokens that the model can read, 64 are for the answer
    max_completion_length=64,
)
DESK_SETTINGS = dict(max_steps=600, max_turns=2, num_eval_episodes=48, eval_steps=60, logging_steps=60)
WORLD_SETTINGS = {
    "support_desk": DESK_SETTINGS,
    "service_desk": DESK_SETTINGS,
    "rooms": dict(max_steps=900, max_turns=4, num_eval_episodes=24, eval_steps=100, logging_steps=100),
}


@dataclass
class QuickstartArguments:
    """
    Arguments of this script, in addition to those of [`NLACConfig`].

    Args:
        world (`str`, *optional*, defaults to `"support_desk"`):
            Embedded task: `"support_desk"`, `"service_desk"` or `"rooms"`.
        world_seed (`int`, *optional*, defaults to `0`):
            Seed of the task's instance.
    """

    world: str = field(default="support_desk", metadata={"help": "Embedded task.", "choices": list(WORLD_SETTINGS)})
    world_seed: int = field(default=0, metadata={"help": "Seed of the task's instance."})


def plot_learning_curve(evaluations: list[dict], title: str, path: Path) -> None:
    """Plot success of the sampled policy and accuracy of the critic against environment steps."""
    from matplotlib import pyplot as plt

    steps = [evaluation["eval_environment/steps"] for evaluation in evaluations]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), sharex=True)
    left.plot(steps, [e["eval_episode/success_rate"] for e in evaluations], color="#1b6ca8", marker="o", ms=3)
    left.fill_between(
        steps,
        [e["eval_episode/success_rate_low"] for e in evaluations],
        [e["eval_episode/success_rate_high"] for e in evaluations],
        color="#1b6ca8",
        alpha=0.2,
        label="95 % interval",
    )
    left.set(ylabel="success of the sampled policy", title=title)
    left.legend(loc="upper left", frameon=False)
    names = {
        "future_accuracy": "future right",
        "verdict_yes_rate": '"Yes" where best',
        "verdict_no_rate": '"No" where not',
    }
    for name, label in names.items():
        right.plot(steps, [e[f"eval_oracle/{name}"] for e in evaluations], marker="o", ms=3, label=label)
    right.set(ylabel="share of critiques", title="The critic compared with the oracle")
    right.legend(loc="center left", frameon=False)
    for axes in (left, right):
        axes.set(xlabel="environment steps", ylim=(-0.02, 1.02))
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def print_table(before: dict, after: dict) -> None:
    table = Table("", "before", "after", title="What was learned")
    interval = (
        "{eval_episode/success_rate:.2f} ({eval_episode/success_rate_low:.2f} to {eval_episode/success_rate_high:.2f})"
    )
    table.add_row("success (95 % interval)", *[interval.format(**evaluation) for evaluation in (before, after)])
    for name, label in {
        "oracle/future_accuracy": "critic: future right",
        "oracle/verdict_yes_rate": 'critic: "Yes" where the action is best',
        "oracle/verdict_no_rate": 'critic: "No" where it is not',
    }.items():
        table.add_row(label, *[f"{evaluation[f'eval_{name}']:.2f}" for evaluation in (before, after)])
    table.add_row("environment steps", "0", str(after["eval_environment/steps"]))
    Console().print(table)


def print_story(run: Path) -> None:
    """Print the same task before and after training, and what the critic said of a sample that was trained on."""
    episodes = read_episodes(run).shown
    highlights = _by_title(episodes)
    if not {"Before", "After"} <= highlights.keys():
        return
    table = Table("before", "after", title="The same task")
    table.add_row(*[_told(episodes[highlights[title].episode]) for title in ("Before", "After")])
    console = Console(markup=False, highlight=False)
    console.print(table)
    task = episodes[highlights["Before"].episode]["prompt"]
    of_task = [episode for episode in episodes if episode["prompt"] == task]
    for told, chosen in ((of_task, _by_title(of_task)), (episodes, highlights)):
        if refined := chosen.get("A refinement that helped"):
            sample = told[refined.episode]["turns"][refined.turn]["samples"][refined.sample]
            attempt, action = printable(sample["attempt"]), printable(sample["refined_action"])
            console.print(f"What the agent learned from, at step {sample['step']:,}:", style="bold")
            console.print(f"it would do: {attempt}", f"critic: {printable(sample['attempt_critique'])}", sep="\n")
            console.print(Text("it learns to do: ").append_text(marked(attempt, action)))
            console.print(refined.why)
            return


def _by_title(episodes: list[dict]) -> dict[str, Highlight]:
    return {highlight.title: highlight for highlight in find_highlights(episodes, None)}


def _told(episode: dict) -> Text:
    lines = [episode["prompt"]]
    for turn in episode["turns"]:
        lines += [f"> {turn.get('action', turn.get('text', ''))}", turn.get("next_observation", "")]
    return Text(printable("\n".join(lines)))


def main():
    # The defaults of other options depend on these two, from the command line or the file of `--config`.
    first = TrlParser((QuickstartArguments,), add_help=False)
    first.add_argument("--action_format", default=SETTINGS["action_format"])
    script_args, chosen, _ = first.parse_args_and_config(return_remaining_strings=True)
    world, action_format = script_args.world, chosen.action_format
    if world not in WORLD_SETTINGS:
        first.error(f"there is no `--world {world}`: choose one of {', '.join(WORLD_SETTINGS)}")
    if world == "support_desk" and action_format != "text":
        first.error(
            f"the model of the support desk knows plain text alone: with `--action_format {action_format}` set "
            "`--world service_desk` or `--world rooms`"
        )
    settings = {**SETTINGS, **WORLD_SETTINGS[world]}
    if action_format != "text":
        settings.update(role_sampling={"refine": {"temperature": 0.0}}, top_k=16)
    parser = TrlParser((QuickstartArguments, NLACConfig))
    parser.set_defaults(**settings)
    script_args, training_args = parser.parse_args_and_config()
    instance, tasks = make_tasks(world, script_args.world_seed)
    in_english = world == "support_desk"
    trainer = NLACTrainer(
        model=SUPPORT_MODEL if in_english else TINY_MODEL,
        args=training_args,
        train_dataset=tasks,
        eval_dataset=tasks,
        environment_factory=lambda: make_environment(instance, training_args.action_format),
        prompts=SUPPORT_PROMPTS if in_english else COMPACT_PROMPTS,
    )
    start = time.perf_counter()
    trainer.train(resume_from_checkpoint=find_checkpoint(training_args))
    seconds = time.perf_counter() - start
    trainer.save_model()
    if not trainer.is_world_process_zero():
        return

    output_dir = Path(training_args.output_dir)
    evaluations = [log for log in trainer.state.log_history if "eval_episode/success_rate" in log]
    results = {
        "world": world,
        "world_seed": script_args.world_seed,
        "seconds": round(seconds, 1),
        "before": evaluations[0],
        "after": evaluations[-1],
        "evaluations": evaluations,
    }
    (output_dir / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    title = f"{world.replace('_', ' ')} {script_args.world_seed}: NLAC"
    plot_learning_curve(evaluations, title, output_dir / "learning_curve.png")
    tasks.to_json(output_dir / "tasks.jsonl")
    keywords = {"world": world, "seed": script_args.world_seed, "action_format": training_args.action_format}
    environment = "trl_nlac.environments.embedded:demo_environment"
    note_origin(output_dir, [environment], keywords, str(output_dir / "tasks.jsonl"), options=training_args)
    print_table(evaluations[0], evaluations[-1])
    print_story(output_dir)
    print(f"""
Trained for {seconds:.0f} s. {output_dir} has the model, learning_curve.png, results.json and the records of the run.

    # in the clone, if `make demo` made its virtual environment
    source .venv/bin/activate
    # a page with curves, and episodes with their critiques and targets
    trl-nlac report {output_dir}
    # watch the agent play; with --before, the model that was not trained yet
    trl-nlac play {output_dir} --refine 1 --before {origin_flags(output_dir)}

Your own environment is a class with `reset(**task)` and `step(action)`:

    trainer = NLACTrainer(
        model="Qwen/Qwen2.5-7B-Instruct",
        args=NLACConfig(output_dir="my-agent", per_device_train_batch_size=1, max_generation_batch_size=16),
        train_dataset=tasks,                  # one row per task; its columns are the arguments of reset()
        environment_factory=MyEnvironment,
    )
    trainer.train()

On 8 GPUs with 80 GB:

    accelerate launch --config_file trl_nlac/accelerate_configs/zero3.yaml my_script.py
""")


if __name__ == "__main__":
    main()
