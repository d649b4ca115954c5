# SPDX-License-Identifier: Apache-2.0

"""Cards and uploads for the Hub."""

import dataclasses
import json
import os
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import DatasetCard, EvalResult, ModelCard, ModelCardData, create_repo
from huggingface_hub.constants import ENDPOINT
from transformers import is_wandb_available

from ..episodes.conversations import to_dataset
from ..nlac_config import NLACConfig
from ..options.record_options import RecordOptions
from ..private_names import (
    _BaseConfig,
    _BaseTrainer,
    get_comet_experiment_url,
    get_config_model_id,
    get_trackio_space_url,
)
from ..secrets import hide_in_text, hide_secrets
from .log import first_and_last


CITATION = """\
@article{hong2025nlac,
    title   = {{Natural Language Actor-Critic: Scalable Off-Policy Learning in Language Space}},
    author  = {Joey Hong and Kang Liu and Zhan Ling and Jiecao Chen and Sergey Levine},
    year    = 2025,
    journal = {arXiv preprint arXiv:2512.04601}
}"""
TEMPLATES = Path(__file__).parent / "templates"
# Options of `TrainingArguments` that a card lists.
_OPTIMIZATION = (
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "max_grad_norm",
    "max_steps",
    "num_train_epochs",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "bf16",
    "seed",
)


def tracker_links() -> dict[str, str]:
    """Return the addresses of the run under way in the trackers that have one, by their names, as TRL's cards do."""
    links = {"Trackio": get_trackio_space_url(), "Comet": get_comet_experiment_url()}
    if is_wandb_available():
        import wandb

        links["Weights & Biases"] = None if wandb.run is None else wandb.run.url
    return {name: link for name, link in links.items() if link is not None}


def _changed_options(args: NLACConfig) -> dict[str, Any]:
    """List the options of the method and of optimization that were set to something else than the defaults."""
    listed = {option.name for option in dataclasses.fields(NLACConfig)} - args.filled_in
    listed -= {option.name for options in (_BaseConfig, RecordOptions) for option in dataclasses.fields(options)}
    changed = {}
    for option in dataclasses.fields(args):
        value = vars(args)[option.name]
        if option.name in (*listed, *_OPTIMIZATION) and value != option.default:
            changed[option.name] = value.value if isinstance(value, Enum) else value
    return hide_secrets(changed)


def _render(template: str, **values: Any) -> str:
    """Render a template of this package."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), trim_blocks=True, keep_trailing_newline=True, autoescape=False
    )
    return environment.get_template(template).render(**values)


class PublishedTrainer(_BaseTrainer):
    """Writes the card of a model that an environment trained, and uploads what it was trained on."""

    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | list[str] | None = None
    ) -> None:
        """
        Write the model card, `README.md`, into the output folder, as [`push_to_hub`] and every checkpoint do.

        Args:
            model_name (`str`, *optional*):
                Name of the model. If `None`, that of its repository or folder.
            dataset_name (`str`, *optional*):
                Dataset of the tasks on the Hub.
            tags (`str` or `list[str]`, *optional*):
                Tags in addition to `trl` and `nlac`.
        """
        if not self.is_world_process_zero():
            return
        args, environment, newest = self.args, self.environments.name, self.replay.newest(1)
        repo_id = self.hub_model_id or Path(args.output_dir).name
        model_name = model_name or Path(repo_id).name
        base_model = get_config_model_id(self.model.config)
        base_model = None if not base_model or Path(base_model).is_dir() else base_model
        tags = [*self._tag_names, *([tags] if isinstance(tags, str) else tags or [])]
        trackers, evaluations = tracker_links(), first_and_last(self.state.log_history)
        # The tags that TRL gives to a card; one of Trackio that the model had is of another run.
        tags = [tag for tag in dict.fromkeys(["generated_from_trainer", *tags]) if not tag.startswith("trackio:")]
        tags += ["hf_jobs"] if "JOB_ID" in os.environ else []
        tags += [f"trackio:{trackers['Trackio']}"] if "Trackio" in trackers else []
        rates = {dataset: round(log["episode/success_rate"], 4) for dataset, _, log in evaluations}
        kind = ("reinforcement-learning", environment, environment, "success_rate")
        results = [EvalResult(*kind, rate, dataset_split=dataset or None) for dataset, rate in rates.items()]
        data = ModelCardData(
            base_model=base_model,
            datasets=dataset_name,
            library_name="transformers",
            model_name=model_name,
            tags=tags,
            eval_results=results or None,
        )
        card = _render(
            "model_card.md.jinja",
            card_data=data.to_yaml(),
            model_name=model_name,
            repo_id=repo_id,
            base_model=base_model,
            environment=environment,
            dataset_name=dataset_name,
            num_tasks="the environment's own" if self.train_dataset is None else f"{len(self.train_dataset):,}",
            example=json.dumps(hide_in_text(newest[0].first_observation if newest else "..."), ensure_ascii=False),
            evaluations=evaluations,
            num_environment_steps=f"{self.num_environment_steps:,}",
            num_optimizer_steps=f"{self.state.global_step:,}",
            max_turns=args.max_turns,
            success_threshold=f"{args.success_threshold:g}",
            options=_changed_options(args),
            trackers=trackers,
            versions={name: version(name) for name in ("trl-nlac", "trl", "transformers", "torch", "datasets")},
            citation=CITATION,
        )
        ModelCard(card).save(Path(args.output_dir, "README.md"))

    def push_replay_to_hub(self, repo_id: str, private: bool | None = None, token: str | None = None) -> str:
        """
        Upload the episodes of this process's replay buffer as a dataset of conversations with a card.

        Args:
            repo_id (`str`):
                Name of the dataset on the Hub.
            private (`bool`, *optional*):
                Whether a new repository is private. If `None`, the organisation's default.
            token (`str`, *optional*):
                Token of the Hub. If `None`, that of the login.

        Returns:
            `str`: address of the dataset.

        Raises:
            ValueError: If the buffer is empty.
        """
        if not len(self.replay):
            raise ValueError(f"The replay buffer is empty: there is nothing to upload to {repo_id!r}.")
        dataset = to_dataset(self.replay.episodes, self.roles.actions)
        # With its namespace, which only some of the calls below would find out.
        repo_id = create_repo(repo_id, private=private, token=token, repo_type="dataset", exist_ok=True).repo_id
        dataset.push_to_hub(repo_id, private=private, token=token)
        data = DatasetCard.load(repo_id, token=token).data  # the upload wrote there where the files are
        data.pretty_name, data.tags = repo_id.split("/")[-1], ["trl", "nlac", "trl-logs", "conversational"]
        card = _render(
            "episodes_card.md.jinja", card_data=data.to_yaml(), repo_id=repo_id, num_episodes=f"{len(dataset):,}"
        )
        DatasetCard(card).push_to_hub(repo_id, repo_type="dataset", token=token)
        return f"{ENDPOINT}/datasets/{repo_id}"
