# SPDX-License-Identifier: Apache-2.0

"""Replay buffers from texts, and back: what of `trl-nlac buffer` needs a tokenizer."""

import argparse
from pathlib import Path

from transformers import AutoTokenizer

from ..chat.actions import ActionFormat, choose_format
from ..chat.encoder import ChatEncoder
from ..episodes.conversations import conversation, dataset_of, write_json_lines
from ..episodes.logs import episodes_from_logs
from ..options.role_options import RoleOptions
from ..prompts import NLACPrompts
from ..replay.files import read_episodes
from ..replay.prioritized_replay import PrioritizedReplay
from ..written_files import replaced
from .buffer_stats import files_of, print_counts
from .errors import CommandError, one_line_errors, one_line_errors_of_files
from .options import check_model, load_conversations, silence_libraries


def export_buffer(args: argparse.Namespace) -> None:
    """Write the episodes of a buffer as conversations."""
    silence_libraries()
    output = Path(args.output)
    if output.suffix not in (".jsonl", ".parquet"):
        raise CommandError(f"{args.output} must end with .jsonl or .parquet.")
    paths = files_of(args.buffer)
    actions, _ = load_actions(args.model or args.buffer)
    with one_line_errors():
        episodes = (item.episode for path in paths for item in read_episodes(path))
        rows = [conversation(episode, actions) for episode in episodes]
        with replaced(output) as written:
            write_json_lines(rows, written) if output.suffix == ".jsonl" else dataset_of(rows).to_parquet(written)
    print(f"{len(rows)} episodes written to {output}")


def import_buffer(args: argparse.Namespace) -> None:
    """Read conversations into a buffer, or count them."""
    silence_libraries()
    if not args.check and not args.output:
        raise CommandError("add --output FOLDER, or --check to count only.")
    given = {} if args.max_prompt_length is None else {"max_prompt_length": args.max_prompt_length}
    actions, options = load_actions(args.model, **given)
    rows = load_conversations(args.conversations, split=args.split)
    with one_line_errors():
        prompts = NLACPrompts.from_pretrained(args.model)
        episodes = episodes_from_logs(rows, actions, prompts, max_prompt_length=options.max_prompt_length)
    print_counts(args.conversations, episodes, success_threshold=1.0)
    if not args.check:
        replay = PrioritizedReplay(max(1, sum(len(episode.turns) for episode in episodes)))
        replay.add(episodes)
        replay.save(args.output)
        print(f"written to {args.output}")


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
