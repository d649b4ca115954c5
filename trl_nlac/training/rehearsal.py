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

"""Supervised samples of the roles, mixed into the batches so that the model does not forget a role."""

import json

import numpy as np
from accelerate.logging import get_logger
from datasets import Dataset

from ..chat.encoder import ChatEncoder
from ..types import Prompt, TrainingExample


logger = get_logger(__name__)


class Rehearsal:
    """
    Draw rehearsal samples.

    Args:
        dataset ([`~datasets.Dataset`], *optional*):
            With the conversational columns `prompt` and `completion` (one assistant message), and optionally `tools`
            (JSON schemas, as a list or in JSON).
        ratio (`float`):
            Number of samples relative to the transitions of a batch.
        chat ([`~chat.encoder.ChatEncoder`]):
            Encodes the samples.
        seed (`int`):
            Seed of the draws.

    Raises:
        ValueError: If there is a ratio without a dataset, or a dataset without one of the columns.
    """

    def __init__(self, dataset: Dataset | None, ratio: float, chat: ChatEncoder, seed: int):
        if ratio and not dataset:
            raise ValueError(f"`rehearsal_ratio={ratio}` needs a `rehearsal_dataset` with at least one row.")
        self.ratio = ratio
        self.rng = np.random.default_rng(seed)
        self._examples: list[TrainingExample] = []
        if not ratio:
            if dataset:
                logger.warning("`rehearsal_dataset` is not used, because `rehearsal_ratio` is 0.")
            return
        missing = {"prompt", "completion"} - set(dataset.column_names)
        if missing:
            raise ValueError(
                f"`rehearsal_dataset` has no column `{min(missing)}`; its columns are {dataset.column_names}."
            )
        for row in dataset:
            tools = row.get("tools")
            token_ids = chat.start(row["prompt"], json.loads(tools) if isinstance(tools, str) else tools)
            prompt = Prompt.of([*token_ids, *chat.prefill])
            completion = tuple(chat.completion(row["completion"][0]))
            self._examples.append(TrainingExample("rehearsal", prompt, completion))

    def draw(self, num_transitions: int) -> list[TrainingExample]:
        """Draw the samples for a batch of so many transitions."""
        number = round(self.ratio * num_transitions)
        return [self._examples[i] for i in self.rng.integers(len(self._examples), size=number)] if number else []
