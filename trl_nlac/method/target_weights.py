# SPDX-License-Identifier: Apache-2.0

"""Other weights for the roles, without a second model: a slow average of the trained ones, and the initial ones."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from accelerate.logging import get_logger
from torch import nn
from transformers import TrainerCallback

from ..shards import LocalShard, Place, forget_gathered, local_shards


logger = get_logger(__name__)


class KeptWeights:
    """
    Values of the trainable weights, kept beside the model and swapped into it to generate. Each process keeps its own
    shard of the weights that the optimizer updates (under DeepSpeed those of its float32 masters), beside the masters,
    which DeepSpeed and FSDP2 can hold in CPU memory. With LoRA only the adapter is trained and kept. Without a model
    they are taken with [`~KeptWeights.start`].
    """

    def __init__(self, model: nn.Module | None = None):
        self.places: dict[str, Place] = {}  # values of each parameter that this process keeps
        self._values: dict[str, torch.Tensor] = {}
        if model is not None:
            self.start(model)

    @torch.no_grad()
    def start(self, model: nn.Module) -> None:
        """Take the weights of `model`, unless those of the same shards are kept; once it is sharded, if it will be."""
        shards = local_shards(model)
        places = {name: shard.place for name, shard in shards.items()}
        if places == self.places:
            return
        self.places = places
        self._values = {name: self._taken(shard) for name, shard in shards.items()}

    def _taken(self, shard: LocalShard) -> torch.Tensor:
        """Copy the values of a shard as the model computes with them."""
        return shard.master.to(shard.live.dtype, copy=True)

    @contextmanager
    def swapped_into(self, model: nn.Module) -> Iterator[None]:
        """
        Make `model` compute with these weights. Its own weights are restored bit for bit, even after an exception.

        With sharded weights, all processes must enter together, and can gather weights only inside.
        """
        pairs = self._pairs(model)
        with torch.no_grad():
            own = [shard.live.clone() for shard, _ in pairs]
        try:
            with torch.no_grad():
                for shard, values in pairs:
                    shard.write(values)
            forget_gathered(model)
            yield
        finally:
            with torch.no_grad():  # no communication: if this process failed, the others do not take part
                for (shard, _), values in zip(pairs, own, strict=True):
                    shard.live.copy_(values)
            forget_gathered(model)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return this process's shards; whole parameters if nothing is sharded."""
        return dict(self._values)

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """
        Load a state of [`~KeptWeights.state_dict`].

        Raises:
            ValueError: If `state` belongs to other parameters, or to other shards of them.
        """
        shapes = {name: values.shape for name, values in self._values.items()}
        if shapes != {name: values.shape for name, values in state.items()}:
            names = [*shapes.keys() - state.keys(), *state.keys() - shapes.keys(), *shapes]
            raise ValueError(f"The saved weights do not fit the model, for example `{min(names)}`.")
        for name, values in self._values.items():
            values.copy_(state[name])

    def _pairs(self, model: nn.Module) -> list[tuple[LocalShard, torch.Tensor]]:
        return [(shard, self._values[name]) for name, shard in local_shards(model).items()]


class InitialWeights(KeptWeights):
    """
    The weights with which a run began, in the precision in which the model computes. They write Bellman targets from
    what was observed, and refine actions as critiques say, which no loss trains and training would unlearn.
    """


class TargetWeights(KeptWeights):
    """
    Exponential moving average of the trainable weights, theta_bar of algorithm 1. It is kept in float32, because
    bfloat16 would round away the small updates of a slow average. An update needs no communication.

    Args:
        model (`nn.Module`, *optional*):
            Model whose trainable parameters are averaged. If `None`, the average begins with [`~KeptWeights.start`].
        update_rate (`float`, *optional*, defaults to `0.002`):
            Tau, the weight of the model after each sample that it was trained on.

    Attributes:
        num_updates (`int`):
            Number of updates so far, which is the version of theta_bar.
        num_samples (`int`):
            Number of samples in them.
    """

    def __init__(self, model: nn.Module | None = None, update_rate: float = 0.002):
        super().__init__(model)
        self.update_rate = update_rate
        self.num_updates = self.num_samples = 0

    def _taken(self, shard: LocalShard) -> torch.Tensor:
        return shard.master.to(torch.float32, copy=True)

    @torch.no_grad()
    def update(self, model: nn.Module, num_samples: int = 1) -> None:
        """
        theta_bar <- tau theta + (1 - tau) theta_bar, once for each sample of a gradient step (algorithm 1, line 10).
        With tau = 1 it is a copy.

        Args:
            model (`nn.Module`):
                The model after the step.
            num_samples (`int`, *optional*, defaults to `1`):
                Number of samples of the step, over all processes.
        """
        self.num_updates += 1
        self.num_samples += num_samples
        rate = 1 - self.initial_share(num_samples)
        for shard, average in self._pairs(model):
            average.lerp_(_like(average, shard.master), rate)

    def initial_share(self, num_samples: int) -> float:
        """Return the weight that theta_bar gives to what it was before so many samples."""
        return (1 - self.update_rate) ** num_samples

    def lag(self, num_samples: int) -> float:
        """Return how many samples before, in the mean, the weights in theta_bar were the trained ones."""
        return (1 - self.initial_share(num_samples)) * (1 / self.update_rate - 1)

    @torch.no_grad()
    def distance(self, model: nn.Module) -> float:
        """
        Return `||theta - theta_bar|| / ||theta_bar||` over all shards; relative to theta where theta_bar is 0, as that
        of an adapter can be that begins as nothing. Must be called by all processes.
        """
        squares = [
            torch.stack([(_like(average, shard.master) - average).square().sum(), average.square().sum()])
            for shard, average in self._pairs(model)
            if shard.place.is_counted
        ]
        sums = [torch.stack(squares).sum(0).tolist() if squares else (0.0, 0.0)]
        if dist.is_initialized():
            sums *= dist.get_world_size()
            dist.all_gather_object(sums, sums[0])  # the backend cannot reduce shards on every device
        gap, size = (sum(parts) for parts in zip(*sums, strict=True))
        return (gap / (size or gap or 1.0)) ** 0.5


def _like(average: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Move `values` to the device of `average`, in float32."""
    return values.to(average.device, torch.float32)


MAX_INITIAL_SHARE = 0.05  # of the initial weights in the target weights at the end of a run


class WeightsCallback(TrainerCallback):
    """Takes the initial weights when training begins, and updates the target weights after steps (line 10)."""

    def __init__(self, initial_weights: InitialWeights, target_weights: TargetWeights):
        self.initial_weights = initial_weights
        self.target_weights = target_weights

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        for weights in (self.initial_weights, self.target_weights):
            weights.start(model)  # the model is sharded by now
        num_samples = state.max_steps * args.global_batch_size
        share = self.target_weights.initial_share(num_samples)
        if share > MAX_INITIAL_SHARE:
            logger.warning(
                f"`target_update_rate={args.target_update_rate}` is slow for a run of {num_samples:,} samples: the "
                f"initial weights still make up {share:.0%} of the target weights at its end. Raise it to "
                f"{1 - MAX_INITIAL_SHARE ** (1 / num_samples):.2g} or more, or train longer."
            )
        bootstraps = args.critic_loss_coef and args.bootstrap != "monte_carlo"
        num_iterations, age = -(-state.max_steps // args.updates_per_iteration), args.target_age(state.max_steps)
        if bootstraps and age > 1 and args.max_turns > 1 and args.max_turns * age > num_iterations:
            logger.warning(
                f"`target_max_age={age}` is long for a run of {num_iterations:,} iterations: a success can need "
                f"{args.max_turns * age:,} to reach the first of `max_turns={args.max_turns}` steps. Set it to "
                f"{max(1, num_iterations // args.max_turns)}, or train longer."
            )

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.target_weights.update(model, args.global_batch_size)
