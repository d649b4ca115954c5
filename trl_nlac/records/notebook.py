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

"""The table of a run in a notebook: six columns in place of one for each metric."""

from typing import Any

from IPython.display import HTML, display
from transformers.utils.notebook import NotebookProgressCallback, NotebookTrainingTracker, text_to_html_table

from .log import find_evaluations


_SHOWN = {"Success": "episode/success_rate", "Reward": "episode/return", "Turns": "episode/length"}
_OF_TRAINING = {**_SHOWN, "Critic loss": "critic/loss"}
_OF_EVALUATION = {**_SHOWN, "Brier": "critic/brier"}


class NotebookTableCallback(NotebookProgressCallback):
    """
    Show step, loss, success, reward, turns, and the Brier score of evaluations; without evaluations, the critic's loss
    in training. Several evaluation datasets have a column of success each, and no others.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        self.training_tracker = NotebookTrainingTracker(state.max_steps, ["Step", "Loss"])

    def on_log(self, args, state, control, logs=None, **kwargs):
        if args.eval_strategy == "no" and "loss" in logs and self.training_tracker is not None:
            figures = _figures(logs, _OF_TRAINING)
            self.training_tracker.write_line({"Step": state.global_step, "Loss": logs["loss"], **figures})

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        losses = (log["loss"] for log in reversed(state.log_history) if "loss" in log)
        line = {"Step": state.global_step, "Loss": next(losses, "No log")}
        for dataset, (found,) in find_evaluations([{**(metrics or {}), "step": state.global_step}]).items():
            if dataset:
                line[f"Success: {dataset}"] = found.get("episode/success_rate", "No log")
            else:
                line.update(_figures(found, _OF_EVALUATION))
        if self.training_tracker is None:
            display(HTML(text_to_html_table([list(line.keys()), list(line.values())])))
        else:
            self.training_tracker.write_line(line)
            self.training_tracker.remove_child()
            self._force_next_update = True  # an evaluation takes longer than a step
        self.prediction_bar = None


def _figures(metrics: dict[str, Any], shown: dict[str, str]) -> dict[str, Any]:
    return {column: metrics.get(name, "No log") for column, name in shown.items()}
