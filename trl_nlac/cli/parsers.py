# SPDX-License-Identifier: Apache-2.0

"""The arguments of the commands. Nothing slow is imported, so that help and mistakes are shown at once."""

import argparse
from dataclasses import MISSING, Field, fields
from typing import get_args, get_origin

from ..options.environment_options import EnvironmentOptions
from ..options.generation_options import GenerationOptions
from ..options.role_options import RoleOptions
from ..options.training_options import TrainingOptions
from ..planning.rates import Rates
from .parser import Parser, read_value
from .train_arguments import TrainArguments


KEY_VARIABLE = "NLAC_API_KEY"
# Options that `trl-nlac train --help` shows, beside those of `TrainArguments`. `--help_all` shows the others.
_SHOWN = (
    *("max_turns", "max_prompt_length", "max_completion_length", "temperature", "action_format"),
    *("episodes_per_iteration", "samples_per_iteration", "num_updates_per_generation", "target_update_rate"),
    *("use_vllm", "num_eval_episodes"),
)
_KINDS = {bool: "[TRUE|FALSE]", int: "INTEGER", float: "NUMBER"}
OF_TRAIN = {
    "prog": "trl-nlac train",
    "usage": "trl-nlac train --config run.yaml [--name value ...]",
    "description": "Train an agent. Options come from a YAML file and from the command line, which overrides it.",
}
DESCRIPTION = """\
Try one iteration of a run in a folder of its own, which is removed, and say whether the run can learn: whether the
roles keep to their formats, targets tell what was observed, and refined actions do as their critiques say and succeed
as often as the policy's. It also says how long an iteration takes. All options of `trl-nlac train` are options here,
too."""


def init_parser() -> Parser:
    parser = Parser(
        prog="trl-nlac init",
        description="Write an environment, tasks and a recipe, which run as they are, and print the commands.",
    )
    parser.add_argument("folder", nargs="?", default="my-task", help="folder to write into (default: my-task)")
    return parser


def train_parser() -> Parser:
    """Make the parser that shows a dozen options. [`~train_options.TrainParser`] reads them all."""
    parser = Parser(**OF_TRAIN)
    add_train_arguments(parser)
    parser.add_argument("--help_all", action="store_true", help="show all options, including those of transformers")
    tasks = parser.add_argument_group("model and tasks")
    tasks.add_argument("--model_name_or_path", metavar="VALUE", help="Model to train: a folder, or one on the Hub.")
    for option in fields(TrainArguments):
        _add_option(tasks, option)
    shown = parser.add_argument_group("options; --help_all shows the others")
    shown.add_argument("--output_dir", metavar="VALUE", help="Folder of the run.")
    options = {
        option.name: option for part in (RoleOptions, TrainingOptions, GenerationOptions) for option in fields(part)
    }
    for name in _SHOWN:
        _add_option(shown, options[name])
    return parser


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a training beside its options."""
    parser.add_argument("--config", metavar="FILE", help="YAML file of options, or the name of a recipe")
    parser.add_argument(
        "--accelerate_config",
        metavar="FILE",
        help="start the processes of this configuration of Accelerate, a YAML file or a name such as zero3; other "
        "options of `accelerate launch` (--num_processes, --machine_rank and so on) can be added",
    )


def _add_option(group: argparse._ArgumentGroup, option: Field) -> None:
    """Add an option of a dataclass, for its help."""
    types = [option.type, *get_args(option.type)]
    kind = next((name for of, name in _KINDS.items() if of in types), "VALUE")
    several = " ..." if list in map(get_origin, types) else ""
    default = "" if option.default in (None, MISSING) else f" (default: {option.default})"
    group.add_argument(f"--{option.name}", metavar=f"{kind}{several}", help=f"{option.metadata['help']}{default}")


def plan_parser() -> Parser:
    parser = Parser(
        prog="trl-nlac plan",
        usage="trl-nlac plan --config run.yaml --gpus 8x80GB [--name value ...]",
        description="Plan a run: does it fit the machines, and how long does an iteration take? Only the model's "
        "config.json is read. All options of `trl-nlac train` are options here, too.",
    )
    parser.add_argument("--gpus", required=True, metavar="8x80GB", help="GPUs of a node, and the memory of each")
    parser.add_argument("--nodes", type=int, default=1, help="number of nodes (default: 1)")
    parser.add_argument("--server_gpus", metavar="8x80GB", help="GPUs of the vLLM server (vllm_mode: server)")
    parser.add_argument(
        "--accelerate_config",
        metavar="FILE",
        help="configuration of Accelerate, a YAML file or a name (default: single_gpu for one GPU; for several "
        "multi_gpu with adapters, and zero3 without)",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--reserve", type=float, default=2.0, help="GB of each GPU that are not planned (default: 2)")
    rates = parser.add_argument_group("rates that are assumed")
    for rate in fields(Rates):
        shown = "half of what the options allow" if rate.default is None else f"{rate.default:g}"
        shown = "unknown" if rate.name == "num_tasks" else shown
        description = f"{rate.metadata['help']} (default: {shown})"
        rates.add_argument(f"--{rate.name}", type=float, default=rate.default, help=description)
    return parser


def preflight_parser() -> Parser:
    usage = "trl-nlac preflight --config run.yaml [--name value ...]"
    parser = Parser(prog="trl-nlac preflight", usage=usage, description=DESCRIPTION)
    parser.add_argument(
        "--num_episodes",
        type=int,
        default=64,
        help="episodes that the policy plays first, and again with each action refined (default: 64; 0: none)",
    )
    parser.add_argument(
        "--expected_success", type=float, help="success rate of the base model that was measured elsewhere"
    )
    parser.add_argument("--json", metavar="FILE", help="also write checks and metrics to this file")
    return parser


def evaluate_parser() -> Parser:
    parser = Parser(prog="trl-nlac evaluate", description="Play a saved agent and measure how often it succeeds.")
    add_agent_arguments(parser)
    parser.add_argument("--num_episodes", type=int, default=1, help="episodes of each task (default: 1)")
    parser.add_argument("--max_tasks", type=int, help="number of tasks (default: all)")
    parser.add_argument("--num_critiques", type=int, default=64, help="actions that the critic judges (default: 64)")
    parser.add_argument("--json", metavar="FILE", help="also write the metrics to this file")
    return parser


def play_parser() -> Parser:
    parser = Parser(
        prog="trl-nlac play",
        description="Watch an agent act, criticise and refine. Enter continues, q and Enter ends.",
    )
    add_agent_arguments(parser)
    parser.add_argument("--task", metavar="JSON", help="keyword arguments of reset, in place of a dataset's row")
    parser.add_argument("--row", type=int, default=0, help="row of the dataset (default: 0)")
    parser.add_argument("--auto", action="store_true", help="do not wait for Enter")
    parser.add_argument("--before", action="store_true", help="play the model as it was before this run trained it")
    return parser


def serve_parser() -> Parser:
    parser = Parser(
        prog="trl-nlac serve",
        description="Offer an agent through OpenAI's interfaces on this machine, until Ctrl-C. The key is the value "
        f"of {KEY_VARIABLE}, or a new one, which is printed.",
    )
    add_model_arguments(parser)
    add_improvement_arguments(parser)
    parser.add_argument("--refuse", action="store_true", help="let the guard block actions; otherwise it abstains")
    parser.add_argument(
        "--without_pilot",
        action="store_true",
        help="refine, choose among candidates or refuse although no pilot of `trl-nlac calibrate` enables it",
    )
    parser.add_argument("--port", type=int, default=8000, help="port on 127.0.0.1; 0 for a free one (default: 8000)")
    add_role_options(parser)
    return parser


def calibrate_parser() -> Parser:
    parser = Parser(
        prog="trl-nlac calibrate",
        description="Choose by logged conversations below which verdict score `trl-nlac serve` blocks an action, and "
        "above which it passes, and store both with the model. Half of the conversations choose, the others measure. "
        "A pilot then plays tasks with and without an intervention, and says whether `trl-nlac serve` should have it: "
        "that of the guard, whose blocked actions are chosen again, or --refine or --num_candidates.",
    )
    add_agent_arguments(parser)
    parser.add_argument(
        "logs",
        nargs="?",
        help="logged conversations with rewards, as for replay_dataset: a file, or a dataset; with --pilot they can "
        "be left out, for the thresholds that are stored",
    )
    for name, actions in (("blocks", "successes that may be blocked"), ("passes", "failures that may pass")):
        description = f"largest share of the actions of {actions} (default: 0.05)"
        parser.add_argument(f"--max_false_{name}", type=float, default=0.05, help=description)
    parser.add_argument("--pilot", type=int, metavar="TASKS", help="play so many tasks with and without intervention")
    return parser


def improve_parser() -> Parser:
    parser = Parser(
        prog="trl-nlac improve",
        usage="trl-nlac improve LOGS ... --model_name_or_path MODEL [--name value ...]",
        description="Read the logs of any agent, say what they hold and where things went wrong, train a model on "
        "them, and measure on held-out logs what that changed. All options of `trl-nlac train` are options here, too; "
        "an --environment_factory is played in before and after, not trained in.",
    )
    parser.add_argument(
        "logs",
        nargs="+",
        metavar="LOGS",
        help="files or folders: OpenAI chat logs, results of τ-bench, OpenTelemetry spans, or what trl_nlac writes",
    )
    parser.add_argument("--output_dir", default="improved", help="folder for all that is written (default: improved)")
    parser.add_argument(
        "--outcome",
        metavar="NAME",
        help="where the logs have their outcome: a column (a.b leads into a), an attribute, or an evaluation's name "
        "(default: where their format has it, or reward, score, outcome, success, passed or resolved)",
    )
    parser.add_argument(
        "--held_out_share", type=float, default=0.2, help="share of the conversations to hold out (default: 0.2)"
    )
    parser.add_argument(
        "--num_critiques",
        type=int,
        default=64,
        help="steps that the critic judges for the measurement, and again for its findings (default: 64)",
    )
    parser.add_argument("--num_findings", type=int, default=20, help="findings in the report (default: 20)")
    parser.add_argument(
        "--num_tasks", type=int, default=64, help="tasks to play, with an --environment_factory (default: 64)"
    )
    parser.add_argument("--only_report", action="store_true", help="do not train")
    return parser


def report_parser() -> Parser:
    parser = Parser(
        prog="trl-nlac report",
        description="Make one HTML page about a run, or one that compares several. It needs no network.",
    )
    parser.add_argument("runs", nargs="+", metavar="run", help="folder of a run (its `output_dir`)")
    parser.add_argument(
        "--output",
        help="file to write (default: report.html in the run's folder; of several runs, comparison.html here)",
    )
    parser.add_argument(
        "--follow", action="store_true", help="write the page again after each log, until training has ended or Ctrl-C"
    )
    return parser


def buffer_parser() -> Parser:
    parser = Parser(prog="trl-nlac buffer", description="Inspect, export and import replay buffers.")
    actions = parser.add_subparsers(dest="action", required=True, parser_class=Parser, metavar="ACTION")
    stats = actions.add_parser("stats", help="count the content of a buffer")
    stats.add_argument("buffer", help="folder of a checkpoint, or of a buffer with episodes.parquet")
    stats.add_argument("--success_threshold", type=float, default=1.0, help="score of a success (default: 1)")
    export = actions.add_parser("export", help="write a buffer as conversations, for training on logs")
    export.add_argument("buffer", help="folder of a checkpoint, or of a buffer with episodes.parquet")
    export.add_argument("output", help="file to write: .jsonl or .parquet")
    export.add_argument("--model", help="model of the tokenizer (default: the checkpoint)")
    imports = actions.add_parser("import", help="read conversations into a buffer, or check them")
    imports.add_argument("conversations", help="dataset of the Hub, or file, with the columns messages and reward")
    imports.add_argument("--split", default="train", help="split of a dataset of the Hub (default: train)")
    imports.add_argument("--model", required=True, help="model of the tokenizer")
    imports.add_argument(
        "--max_prompt_length",
        type=int,
        help="maximum number of tokens of a prompt, to which a longer history is cut (default: the model's option)",
    )
    imports.add_argument("--output", help="folder of the buffer to write")
    imports.add_argument("--check", action="store_true", help="only count the content")
    return parser


def env_parser() -> Parser:
    return Parser(prog="trl-nlac env", description="Print versions, for bug reports.")


def add_model_arguments(parser: Parser) -> None:
    """Add the arguments for a saved agent."""
    parser.add_argument("model", help="folder of a run or a model, or a repository on the Hub")
    parser.add_argument(
        "--backend",
        default="transformers",
        help='"transformers" (default), "vllm", or the URL of the model\'s server: http://localhost:8000/v1',
    )
    parser.add_argument("--prompts", help="file with prompts in place of those saved with the model")
    parser.add_argument(
        "--trust_remote_code",
        action="store_true",
        help="run code that comes with the model, and what the run's folder names as environment, tools and rewards",
    )


def add_role_options(parser: Parser) -> None:
    """Add the argument for the options of the roles, see [`read_options`]."""
    parser.add_argument(
        "--option", nargs="+", default=[], metavar="NAME=VALUE", help="options of the roles, such as temperature=0.7"
    )


def add_improvement_arguments(parser: Parser) -> None:
    """Add the arguments for improving actions without training."""
    parser.add_argument("--refine", type=int, default=0, help="rounds of refinement of each action (default: 0)")
    parser.add_argument(
        "--num_candidates", type=int, default=1, help="actions among which the critic chooses (default: 1)"
    )


def add_agent_arguments(parser: Parser) -> None:
    """Add the arguments for agent and environment, for commands that play a saved agent."""
    add_model_arguments(parser)
    add_improvement_arguments(parser)
    parser.add_argument(
        "--environment_factory",
        nargs="+",
        metavar="MODULE:CLASS",
        help="class or function of the environment; the run's own only with --trust_remote_code",
    )
    parser.add_argument("--environment_kwargs", metavar="JSON", help="its keyword arguments, as a JSON object")
    parser.add_argument("--tools", nargs="+", metavar="MODULE:FUNCTION", help="standalone tools")
    parser.add_argument(
        "--reward_funcs", nargs="+", metavar="MODULE:FUNCTION", help="functions that score episodes, as in training"
    )
    parser.add_argument("--reward_weights", nargs="+", type=float, help="their weights (default: 1 each)")
    default = " Default: that of the run, if it names the environment."
    for option in fields(EnvironmentOptions):  # left out where they are not given, so that those of a run are taken
        parser.add_argument(
            f"--{option.name}", type=read_value, default=argparse.SUPPRESS, help=option.metadata["help"] + default
        )
    parser.add_argument("--dataset_name", help="tasks: a dataset of the Hub, or a file (default: those of the run)")
    parser.add_argument("--dataset_config", help="configuration of the dataset")
    parser.add_argument(
        "--dataset_split", help='split of the dataset (default: "test", if the run had one, or "train")'
    )
    parser.add_argument("--seed", type=int, default=0)
    add_role_options(parser)
