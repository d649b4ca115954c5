# SPDX-License-Identifier: Apache-2.0

"""The command line: `trl-nlac <command>`."""

import argparse
import importlib
import signal
import sys
from dataclasses import fields
from difflib import get_close_matches
from importlib.metadata import version

from ..options.role_options import RoleOptions
from ..secrets import hide_in_text
from ..terminal import printable, printable_traceback, printed_warnings
from ..training.stopping import closing_on_sigterm
from . import parsers
from .errors import CommandError, in_flags, known_errors
from .train_arguments import TrainArguments


COMMANDS = {
    "init": "write an environment, tasks and a recipe to begin with",
    "train": "train an agent in an environment",
    "plan": "does a run fit the machines, and how long does an iteration take",
    "preflight": "try one iteration of a run, and say whether it can learn",
    "evaluate": "play a saved agent and measure how often it succeeds",
    "play": "watch an agent act, criticise and refine, turn by turn",
    "serve": "offer an agent through OpenAI's interfaces, and as a guard",
    "calibrate": "choose the thresholds of an agent's guard by logged outcomes",
    "improve": "from the logs of any agent to a better model, and a report",
    "report": "make a page about a run",
    "buffer": "inspect, export and import replay buffers",
    "env": "print versions, for bug reports",
}

MAX_MESSAGE = 4000  # characters of an error: it can quote what others wrote


PARSERS = {name: vars(parsers)[f"{name}_parser"] for name in COMMANDS}
TAKES_TRAINING = ("train", "plan", "preflight", "improve")  # the options of a training, too
LIGHT = ("init", "report", "buffer", "env")  # no model is loaded


def main(argv: list[str] | None = None) -> int:
    """Run a command. Return 0; 2 after an error of the user; 1 after another; 130 after Ctrl-C, 143 after SIGTERM."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="trl-nlac",
        description="Natural Language Actor-Critic: train LLM agents with a critic in natural language.",
        usage="trl-nlac COMMAND ...",
        epilog="`trl-nlac COMMAND --help` shows the options of a command. `--debug` adds the tracebacks of errors.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_argument_group("commands")
    for name, description in COMMANDS.items():
        commands.add_argument(name, nargs="?", help=description, default=argparse.SUPPRESS)
    parser.add_argument("--version", action="store_true", help="print the version")
    if not argv or argv[0] in ("-h", "--help"):
        parser.print_help()
        return 0
    if argv[0] == "--version":
        print(version("trl-nlac"))
        return 0
    name, *rest = argv
    if name not in COMMANDS:
        close = get_close_matches(name, COMMANDS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else f" Commands are: {', '.join(COMMANDS)}."
        print(f"trl-nlac: error: there is no command {printable(name)!r}.{hint}", file=sys.stderr)
        return 2
    rest, shows_traceback = _take_debug(rest)
    try:
        if name != "train" or {"-h", "--help"} & set(rest):
            parser = PARSERS[name]()
            (parser.parse_known_args if name in TAKES_TRAINING else parser.parse_args)(rest)
        # Imported here: help and mistakes need none of the libraries, which take seconds.
        command = importlib.import_module(f".{name}", __package__)
        if name not in ("train", *LIGHT):
            importlib.import_module(".options", __package__).silence_libraries()
        with closing_on_sigterm(), printed_warnings(), known_errors():
            command.run(rest)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except CommandError as error:
        if shows_traceback:
            print(printable_traceback(error), file=sys.stderr)
        message = printable(hide_in_text(str(error))).replace("\n", " ")
        message = in_flags(message, _flags(name)) if "`" in message else message
        message = message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]} [...]"
        print(f"trl-nlac {name}: error: {message}", file=sys.stderr)
        return 2
    except Exception as error:
        print(printable_traceback(error), file=sys.stderr)
        return 1
    return 0


def _flags(name: str) -> dict[str, str]:
    """Return how the options of a command are written before their values."""
    if name in TAKES_TRAINING:
        from ..nlac_config import NLACConfig  # slow

        return {option.name: f"--{option.name} " for of in (NLACConfig, TrainArguments) for option in fields(of)}
    own = {flag.removeprefix("--"): f"{flag} " for flag in PARSERS[name]().flags()}
    of_roles = {option.name: f"--option {option.name}=" for option in fields(RoleOptions) if "option" in own}
    return of_roles | own


def _take_debug(words: list[str]) -> tuple[list[str], bool]:
    """Take `--debug` out of the words of a command, except where it is transformers' option, which has a value."""
    values = ("underflow_overflow", "tpu_metrics_debug")
    following = [*words[1:], ""]
    found = [i for i, word in enumerate(words) if word == "--debug" and not following[i].startswith(values)]
    return [word for i, word in enumerate(words) if i not in found], bool(found)
