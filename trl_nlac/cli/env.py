# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""`trl-nlac env`: print versions, for bug reports."""

from importlib.metadata import version

from trl.scripts.env import print_env

from .options import Parser


def make_parser() -> Parser:
    return Parser(prog="trl-nlac env", description="Print versions, for bug reports.")


def run(words: list[str]) -> None:
    make_parser().parse_args(words)
    print(f"- trl-nlac version: {version('trl-nlac')}", end="")
    print_env()
