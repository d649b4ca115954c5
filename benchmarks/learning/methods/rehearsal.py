# SPDX-License-Identifier: Apache-2.0

"""Supervised samples of the roles among those of a baseline, which holds it near the base model."""

import json

import numpy as np
from datasets import Dataset

from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.types import Prompt, TrainingExample


class Rehearsal:
    """Draws `ratio` conversational samples for each of a batch; none without a dataset or a ratio."""

    def __init__(self, dataset: Dataset | None, ratio: float, chat: ChatEncoder, seed: int):
        self.ratio = ratio
        self.rng = np.random.default_rng(seed)
        self.owed = 0.0  # samples that the batches so far had too little
        self.examples = []
        for row in dataset if dataset and ratio else []:
            tools = row.get("tools")
            token_ids = chat.start(row["prompt"], json.loads(tools) if isinstance(tools, str) else tools)
            completion = tuple(chat.completion(row["completion"][0]))
            self.examples.append(TrainingExample("policy", Prompt.of([*token_ids, *chat.prefill]), completion))

    def draw(self, num_samples: int) -> list[TrainingExample]:
        """Draw the samples for a batch; a fraction of one is carried over to the next batch."""
        if not self.examples:
            return []
        self.owed += self.ratio * num_samples
        number = int(self.owed + 1e-6)
        self.owed -= number
        return [self.examples[i] for i in self.rng.integers(len(self.examples), size=number)] if number else []
