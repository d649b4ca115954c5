# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac buffer`: inspect, export and import replay buffers."""

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from ..chat.actions import ActionFormat, choose_format
from ..chat.encoder import ChatEncoder
from ..episodes.conversations import conversation, dataset_of, write_json_lines
from ..episodes.logs import episodes_from_logs
from ..options.role_options import RoleOptions
from ..prompts import NLACPrompts
from ..replay.files import read_episodes
from ..replay.prioritized_replay import PrioritizedReplay
from ..types import Episode
from .errors import CommandError, one_line_errors, one_line_errors_of_files
from .options import check_model, load_conversations
from .parser import Parser


def make_parser() -> Parser:
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


def run(words: list[str]) -> None:
    args = make_parser().parse_args(words)
    {"stats": _stats, "export": _export, "import": _import}[args.action](args)


def _stats(args: argparse.Namespace) -> None:
    with one_line_errors():
        items = [item for path in _files(args.buffer) for item in read_episodes(path)]
    _print_counts(args.buffer, [item.episode for item in items], args.success_threshold)
    if items:
        priorities = np.concatenate([item.priorities for item in items])
        low, middle, high = np.quantile(priorities, [0.05, 0.5, 0.95])
        print(
            f"priorities: mean {priorities.mean():.4g}, 5 % below {low:.4g}, half below {middle:.4g}, 95 % below "
            f"{high:.4g}"
        )


def _export(args: argparse.Namespace) -> None:
    output = Path(args.output)
    if output.suffix not in (".jsonl", ".parquet"):
        raise CommandError(f"{args.output} must end with .jsonl or .parquet.")
    paths = _files(args.buffer)
    actions, _ = load_actions(args.model or args.buffer)
    with one_line_errors():
        episodes = (item.episode for path in paths for item in read_episodes(path))
        rows = [conversation(episode, actions) for episode in episodes]
        output.parent.mkdir(parents=True, exist_ok=True)
        if output.suffix == ".jsonl":
            write_json_lines(rows, output)
        else:
            dataset_of(rows).to_parquet(output)
    print(f"{len(rows)} episodes written to {output}")


def _import(args: argparse.Namespace) -> None:
    if not args.check and not args.output:
        raise CommandError("add --output FOLDER, or --check to count only.")
    given = {} if args.max_prompt_length is None else {"max_prompt_length": args.max_prompt_length}
    actions, options = load_actions(args.model, **given)
    rows = load_conversations(args.conversations, split=args.split)
    with one_line_errors():
        prompts = NLACPrompts.from_pretrained(args.model)
        episodes = episodes_from_logs(rows, actions, prompts, max_prompt_length=options.max_prompt_length)
    _print_counts(args.conversations, episodes, success_threshold=1.0)
    if not args.check:
        replay = PrioritizedReplay(max(1, sum(len(episode.turns) for episode in episodes)))
        replay.add(episodes)
        replay.save(args.output)
        print(f"written to {args.output}")


def _files(folder: str) -> list[Path]:
    """List the files of the buffers of all processes."""
    if not Path(folder).is_dir():
        raise CommandError(f"there is no folder {folder}.")
    paths = [Path(folder, "episodes.parquet"), *sorted(Path(folder).glob("nlac/rank_*/episodes.parquet"))]
    paths = [path for path in paths if path.is_file()]
    if not paths:
        raise CommandError(
            f"{folder} has no replay buffer: it has neither episodes.parquet nor nlac/rank_*/episodes.parquet."
        )
    return paths


def load_actions(model: str, **options) -> tuple[ActionFormat, RoleOptions]:
    """Load the format of a model's actions, and its options, with `options` in place of those that were saved."""
    if not Path(model).is_dir():  # a folder needs a tokenizer alone
        with one_line_errors(f"--model {model}: "):
            check_model(model)
    with one_line_errors_of_files(model):
        options = RoleOptions.from_pretrained(model, **options)
        chat = ChatEncoder(AutoTokenizer.from_pretrained(model, trust_remote_code=False), options.chat_template_kwargs)
        name = choose_format(options.action_format, chat, tools=[])
        return ActionFormat(chat, name, options.keep_history), options


def _print_counts(name: str, episodes: list[Episode], success_threshold: float) -> None:
    table = Table("", "number", title=name)
    scores = [episode.score for episode in episodes]
    counts = {
        "episodes": len(episodes),
        "successes": sum(score >= success_threshold for score in scores),
        "cut (truncated)": sum(episode.truncated for episode in episodes),
        "with a failed environment": sum(episode.failure is not None for episode in episodes),
        "from logs": sum(episode.is_log for episode in episodes),
        "transitions": sum(len(episode.turns) for episode in episodes),
        "tokens": sum(len(episode.token_ids) for episode in episodes),
    }
    for label, number in counts.items():
        table.add_row(label, f"{number:,}")
    if scores:
        table.add_row("mean return", f"{sum(scores) / len(scores):.3f}")
    Console().print(table)
