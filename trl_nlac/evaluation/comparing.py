# SPDX-License-Identifier: Apache-2.0

"""Evaluations that are compared with one another: to keep the best model, to stop early, to lower the rate."""

from accelerate.logging import get_logger
from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import EarlyStoppingCallback, Trainer
from transformers.optimization import GreedyLR

from .metrics import eval_name, why_not_comparable


logger = get_logger(__name__)


class ComparedEvaluations(Trainer):
    """Leaves evaluations that were hardly played out of comparisons: neither the best, nor a use of patience."""

    _is_compared = True  # the last evaluation, with others

    def _evaluate(self, trial, ignore_keys_for_eval, skip_scheduler=False) -> dict[str, float]:
        stopping = [c for c in self.callback_handler.callbacks if isinstance(c, EarlyStoppingCallback)]
        patience, stops = [c.early_stopping_patience_counter for c in stopping], self.control.should_training_stop
        metrics = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler=True)
        best, most = self.args.metric_for_best_model, self.args.max_environment_failure_rate
        reason = None if best is None else why_not_comparable(metrics, best, most)
        if reason is not None:
            logger.warning(f"The evaluation at step {self.state.global_step} is not compared with others: {reason}.")
        self._is_compared = reason is None
        if not self._is_compared:
            for callback, counter in zip(stopping, patience, strict=True):
                callback.early_stopping_patience_counter, self.control.should_training_stop = counter, stops
        elif isinstance(self.lr_scheduler, ReduceLROnPlateau | GreedyLR) and not skip_scheduler:
            self.lr_scheduler.step(metrics[eval_name(best)])
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial) -> bool:
        return self._is_compared and super()._determine_best_metric(metrics, trial)
