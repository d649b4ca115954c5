# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac serve`: offer an agent through OpenAI's interfaces, and as a guard of others."""

import argparse
import os
import threading

from ..agent.guard import Guard
from ..agent.pilot import REFUSE, name_intervention, refuse_unproven
from .errors import CommandError, one_line_errors, one_line_errors_of_files
from .options import check_model, load_agent
from .parsers import KEY_VARIABLE, serve_parser


def run(words: list[str]) -> None:
    args = serve_parser().parse_args(words)
    try:
        from ..agent.serving import MAX_NUMBER, ServedAgent
        from ..gateway.server import Server
    except ImportError as error:
        raise CommandError(f"serving needs aiohttp: `pip install trl-nlac[gateway]` ({error}).") from error
    for name, least in (("refine", 0), ("num_candidates", 1)):
        if not least <= vars(args)[name] <= MAX_NUMBER:
            raise CommandError(f"--{name} must be from {least} to {MAX_NUMBER}, got {vars(args)[name]}.")
    with one_line_errors_of_files(args.model):
        check_model(args.model)
    agent = load_agent(args, brings_tools=True)
    with one_line_errors_of_files(args.model):
        guard = Guard.from_pretrained(args.model)
    _refuse_unproven(args, guard)
    try:
        server = Server(args.port)
    except (OSError, OverflowError) as error:
        raise CommandError(f"--port {args.port}: {error}") from error
    given = os.environ.get(KEY_VARIABLE)
    key = server.open(ServedAgent(agent, guard, args.refine, args.num_candidates, args.refuse), given or None)
    print(f"{args.model} at {server.base_url}", flush=True)
    print(f"Key: {f'the value of {KEY_VARIABLE}' if given else key}", flush=True)
    calibrated = f"calibrated by {guard.num_actions} actions" if guard.num_actions else "not calibrated"
    blocks = "blocks" if args.refuse else "would block (--refuse)"
    thresholds = f"{blocks} below {guard.block_below:.2f}, passes above {guard.pass_above:.2f}"
    print(f"Guard ({calibrated}): {thresholds}", flush=True)
    threading.Event().wait()


def _refuse_unproven(args: argparse.Namespace, guard: Guard) -> None:
    """Refuse what changes or blocks actions where no pilot enables it."""
    improvement = name_intervention(args.refine, args.num_candidates)
    asked = [REFUSE] if args.refuse else []
    asked += [improvement] if improvement != REFUSE else []
    for intervention in asked if not args.without_pilot else []:
        with one_line_errors(f"{intervention}: "):
            refuse_unproven(args.model, intervention, guard)
