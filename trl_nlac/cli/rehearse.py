# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac rehearse`: let a model write a rehearsal dataset."""

import random
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from ..agent.backends import BATCH_SIZE, load_backend, present_device
from ..agent.rehearsal_dataset import chat_roles, play_transitions, write_rehearsal
from ..agent.transcripts import ChatModel, LocalChatModel
from ..episodes.logs import episodes_from_logs
from ..episodes.pool import NO_TASK
from ..method.sound_answers import ASKED_ROLES
from ..nlac_config import NLACConfig
from ..options.role_options import RoleOptions
from ..prompts import NLACPrompts
from .errors import CommandError, one_line_errors, one_line_errors_of_files
from .options import (
    add_environment_arguments,
    check_model,
    load_conversations,
    load_environments,
    load_rows,
    read_options,
)
from .parser import Parser


DESCRIPTION = """\
Let a model write the samples of a rehearsal dataset: it plays, or reads logs, and answers in every role. Answers that
can be read are kept, except refined actions that ignore their critique. Train with the same prompts and options:
--rehearsal_dataset FILE --rehearsal_ratio 0.25."""


def make_parser() -> Parser:
    parser = Parser(prog="trl-nlac rehearse", description=DESCRIPTION)
    parser.add_argument("model", help="folder of a model, repository on the Hub, or name of a model on a server")
    parser.add_argument("output", help="file to write: .jsonl or .parquet")
    parser.add_argument(
        "--backend",
        default="transformers",
        help='"transformers" (default), "vllm", or the URL of any server with OpenAI\'s chat interface (its key is in '
        "OPENAI_API_KEY)",
    )
    parser.add_argument("--prompts", help="file with prompts (default: those saved with the model, or the package's)")
    parser.add_argument("--logs", help="logged conversations to read instead of playing: a dataset, or a file")
    parser.add_argument(
        "--num_transitions", type=int, default=256, help="steps that the roles are asked about (default: 256)"
    )
    parser.add_argument("--bootstrap", default=NLACConfig.bootstrap, choices=["implicit", "explicit", "monte_carlo"])
    parser.add_argument("--num_refinements", type=int, default=NLACConfig.num_refinements)
    add_environment_arguments(parser, of_run=False)
    return parser


def run(words: list[str]) -> None:
    args = make_parser().parse_args(words)
    output = Path(args.output)
    if output.suffix not in (".jsonl", ".parquet"):
        raise CommandError(f"{args.output} must end with .jsonl or .parquet.")
    if args.num_transitions < 1:
        raise CommandError(f"--num_transitions must be at least 1, got {args.num_transitions}.")
    if bool(args.logs) == bool(args.environment_factory or args.tools):
        raise CommandError("name either an --environment_factory (or --tools) to play in, or --logs to read.")
    is_server = args.backend.startswith(("http://", "https://"))
    with one_line_errors():
        changes = read_options(args.option)
        RoleOptions.check_names(changes)
        options = RoleOptions(**changes)
    with one_line_errors_of_files(args.model):
        model = _load_server(args.model, args.backend) if is_server else _load_model(args.model, args.backend, options)
        if args.prompts or is_server:
            prompts = NLACPrompts.from_file(args.prompts) if args.prompts else NLACPrompts()
        else:
            prompts = NLACPrompts.from_pretrained(args.model)
        roles = chat_roles(model, prompts, options)
    if args.logs:
        with one_line_errors():
            episodes = episodes_from_logs(load_conversations(args.logs), roles.actions, prompts)
        transitions = [transition for episode in episodes for transition in episode.transitions]
        number = min(args.num_transitions, len(transitions))
        transitions = random.Random(args.seed).sample(transitions, number)
        torch.manual_seed(args.seed)
    else:
        rows = load_rows(args.dataset_name, args.dataset_config, args.dataset_split or "train")
        pool, rewards = load_environments(args)
        try:
            tasks = [NO_TASK] if rows is None else list(rows)
            transitions = play_transitions(roles, pool, tasks, args.num_transitions, args.seed, rewards)
        finally:
            pool.close()
    dataset = write_rehearsal(roles, transitions, args.bootstrap, args.num_refinements)
    asked = roles.take_metrics()
    numbers = Counter(row["role"] for row in dataset)  # without rows a dataset has no columns
    if not numbers:
        raise CommandError("not one answer could be read. Add worked examples to the prompts, or ask another model.")
    output.parent.mkdir(parents=True, exist_ok=True)
    dataset.to_json(output) if output.suffix == ".jsonl" else dataset.to_parquet(output)
    print(f"{output}: {len(transitions)} steps")
    table = Table("role", "samples")
    for role in (*numbers, *(role for role in ASKED_ROLES if role not in numbers)):
        table.add_row(role, str(numbers[role]))
    console = Console()
    console.print(table)
    for name, value in asked.items():
        console.print(f"{name} {value:.2f}", highlight=False)


def _load_server(name: str, url: str) -> ChatModel:
    if find_spec("openai") is None:
        raise ImportError(f"--backend {url} needs `pip install trl-nlac[openai]`.")
    from ..generation.endpoint import ChatEndpoint

    return ChatEndpoint(url, name, BATCH_SIZE)


def _load_model(name: str, backend: str, options: RoleOptions) -> ChatModel:
    check_model(name)
    device = present_device()
    return LocalChatModel(*load_backend(backend, name, options.chat_template_kwargs, device, None, False, {}))
