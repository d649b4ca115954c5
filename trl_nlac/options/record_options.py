# SPDX-License-Identifier: Apache-2.0

"""What a run writes down in addition to its metrics, and into which folder."""

from dataclasses import dataclass

from .checks import check_at_least, check_types
from .documented import documented


@documented
@dataclass
class RecordOptions:
    r"""
    Options of [`NLACConfig`] for what a run writes down in addition to its metrics, and into which folder. `trl-nlac
    report` shows it.

    Parameters:
        > Parameters that control records

        overwrite_output_dir (`bool`, *optional*, defaults to `False`):
            Whether a new run in a folder that has a run or a model already moves its files into a folder of
            `_superseded`, checkpoints and model included, in place of being refused. Nothing is deleted. No effect on
            a run that is resumed.
        log_completions (`bool`, *optional*, defaults to `False`):
            Whether all episodes, those of evaluations too, are written to parquet files in the folder `completions` of
            `output_dir` with each log, and those of training are printed and sent to `wandb` and `trackio`. If not,
            four of each iteration and those of an evaluation that the critic judges are written to `_episodes`, which
            is not uploaded.
        num_completions_to_print (`int`, *optional*):
            Number of episodes to print with each log; `0` for none. If `None`, all.
        audit_samples (`int`, *optional*, defaults to `4`):
            Number of training samples of each iteration, on each process, that get a row in the audit trail: the
            transition, its critique now, Bellman target, refined action, losses and priority. Each costs one more
            critique and changes nothing in training. With each log `wandb` and `trackio` get the newest as a table.

    Raises:
        ValueError: If a value is out of range; the message names the option.
    """

    overwrite_output_dir: bool = False
    log_completions: bool = False
    num_completions_to_print: int | None = None
    audit_samples: int = 4

    def __post_init__(self):
        check_types(self)
        check_at_least(self, 0, "num_completions_to_print", "audit_samples")
