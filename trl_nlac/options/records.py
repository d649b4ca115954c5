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

"""Options of the trainer's configuration that tell what a run writes down."""

from dataclasses import dataclass, field

from trl.trainer.base_config import _BaseConfig


@dataclass
class RecordOptions(_BaseConfig):
    r"""
    Options of [`NLACConfig`] for what a run writes down besides its metrics. `trl-nlac report` makes a page of it.

    Parameters:
        log_completions (`bool`, *optional*, defaults to `False`):
            Whether all episodes that were played, in evaluation too, are written to parquet files in the folder
            `completions` of `output_dir` with each log, and those of training printed and sent to `wandb` and `trackio`.
        num_completions_to_print (`int`, *optional*):
            Number of episodes to print with each log; `0` for none. If `None`, all.
        log_unique_prompts (`bool`, *optional*, defaults to `False`):
            Whether only one episode of each first observation is sent to `wandb` and `trackio`.
        log_completions_hub_repo (`str`, *optional*):
            Dataset on the Hub to which the folder `completions` is uploaded during training. Needs
            `log_completions=True`.
        audit_samples (`int`, *optional*, defaults to `0`):
            Number of training samples of each iteration, on each process, of which the audit trail keeps a row: the
            transition, its critique now, Bellman target, refined action, losses and priority. One critique more is
            generated for each; what is trained on stays the same.
        audit_total_limit (`int`, *optional*, defaults to `100000`):
            Number of rows of the audit trail of each process. Beyond it, the oldest files are deleted. If `None`, no limit.
    """

    log_completions: bool = field(
        default=False,
        metadata={"help": "Whether episodes are written to parquet files, printed, and sent to wandb and trackio."},
    )
    num_completions_to_print: int | None = field(
        default=None, metadata={"help": "Number of episodes to print with each log; 0 for none. If None, all."}
    )
    log_unique_prompts: bool = field(
        default=False,
        metadata={"help": "Whether only one episode of each first observation is sent to wandb and trackio."},
    )
    log_completions_hub_repo: str | None = field(
        default=None, metadata={"help": "Dataset on the Hub to which the episodes are uploaded during training."}
    )
    audit_samples: int = field(
        default=0,
        metadata={"help": "Number of training samples of each iteration and process that the audit trail tells of."},
    )
    audit_total_limit: int | None = field(
        default=100_000, metadata={"help": "Number of rows of the audit trail of each process. If None, no limit."}
    )
