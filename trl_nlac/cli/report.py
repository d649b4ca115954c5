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

"""`trl-nlac report`: a page about a run."""

from .options import Parser, one_line_errors


def run(words: list[str]) -> None:
    parser = Parser(prog="trl-nlac report", description="Make one HTML page about a run, which needs no network.")
    parser.add_argument("run", help="folder of the run (its `output_dir`)")
    parser.add_argument("--output", help="file to write (default: report.html in the run's folder)")
    args = parser.parse_args(words)
    from ..report import write_report

    with one_line_errors():
        path = write_report(args.run, args.output)
    print(f"Open {path}")
