# SPDX-License-Identifier: Apache-2.0

"""The arguments of `trl-nlac train` that are no options of the trainer."""

from dataclasses import dataclass, field

from ..options.documented import documented
from .parser import read_json


@documented
@dataclass
class TrainArguments:
    """
    Environment, tasks and datasets of a training run.

    Args:
        environment_factory (`list[str]`):
            Class or function of the environment, `module:Class` or `path/to/file.py:Class`; several as
            `name=module:Class`, of which the column `environment` of the tasks chooses one.
        environment_kwargs (`str` or `dict[str, Any]`, *optional*):
            Keyword arguments of the environment, as a JSON object.
        dataset_name (`str`, *optional*):
            Tasks: a dataset of the Hub, or a file (JSON, JSON lines, CSV, parquet). If `None`, the environment owns
            its data.
        dataset_config (`str`, *optional*):
            Configuration of the dataset of tasks.
        dataset_train_split (`str`, *optional*, defaults to `"train"`):
            Split to train on.
        dataset_test_split (`str`, *optional*):
            Split to evaluate on.
        eval_dataset_name (`str`, *optional*):
            Tasks for evaluation, in place of a split.
        reward_funcs (`list[str]`, *optional*):
            Functions that score episodes, `module:function`.
        tools (`list[str]`, *optional*):
            Standalone tools, `module:function`.
        prompts (`str`, *optional*):
            File with prompts. If `None`, those saved with the model, or else the defaults.
        replay_dataset (`str`, *optional*):
            Logged conversations that fill the replay buffer before training.
    """

    environment_factory: list[str] = field(default_factory=list)
    environment_kwargs: str | None = None
    dataset_name: str | None = None
    dataset_config: str | None = None
    dataset_train_split: str = "train"
    dataset_test_split: str | None = None
    eval_dataset_name: str | None = None
    reward_funcs: list[str] | None = None
    tools: list[str] | None = None
    prompts: str | None = None
    replay_dataset: str | None = None

    def __post_init__(self):
        if isinstance(self.environment_kwargs, str):
            self.environment_kwargs = read_json(self.environment_kwargs)
        for name in ("environment_factory", "reward_funcs", "tools"):
            if isinstance(vars(self)[name], str):  # a single one in YAML
                vars(self)[name] = [vars(self)[name]]
