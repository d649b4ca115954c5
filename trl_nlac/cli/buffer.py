# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac buffer`: inspect, export and import replay buffers."""

from .buffer_stats import print_stats
from .parsers import buffer_parser


def run(words: list[str]) -> None:
    args = buffer_parser().parse_args(words)
    if args.action == "stats":
        print_stats(args)
        return
    from .buffer_texts import export_buffer, import_buffer  # slow: texts need a tokenizer

    {"export": export_buffer, "import": import_buffer}[args.action](args)
