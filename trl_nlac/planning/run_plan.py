# SPDX-License-Identifier: Apache-2.0

"""A plan: does a run fit its machines, how long does an iteration take, and what could be changed."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..nlac_config import NLACConfig
from ..options.generation_options import PREFIX_CACHE_MEMORY
from .memory import (
    ASLEEP,
    DEEPSPEED,
    ENGINE_OVERHEAD,
    OPTIMIZER_BYTES,
    SHARDED,
    Precision,
    Sharing,
    activations,
    cache_tokens,
    communication,
    engine_weights,
    generation_bytes,
    loss_bytes,
    optimizer_step,
    set_aside,
    states,
)
from .rates import Rates
from .shape import ModelShape
from .time import Lengths, Phase, phases, tokens_of_transition


SERVER_UTILIZATION = 0.9  # share of the memory that `vllm serve` takes by default
HIGHEST_RANK = 512  # of adapters that vLLM serves


@dataclass(frozen=True)
class Machines:
    """Where a run trains."""

    gpus: int  # of a node
    memory: float  # bytes of a GPU
    nodes: int = 1
    server_gpus: int = 0  # of the vLLM server
    server_memory: float = 0.0  # bytes of each of them
    # bytes of a GPU that are not planned: CUDA's context, NCCL, and what the allocator cannot use
    reserve: float = 2e9


@dataclass(frozen=True)
class Plan:
    """The plan of a run."""

    shape: ModelShape
    machines: Machines
    sharing: Sharing
    options: NLACConfig
    rates: Rates
    loaded: float  # bytes of a weight as the model is loaded
    context: int  # tokens that the model can read
    frozen_bytes: float | None = None  # bytes of all frozen weights, where they are quantized
    attention: str | None = None  # `attn_implementation`; only with the default, or `"sdpa"`, are prefixes shared

    # Sizes

    @property
    def precision(self) -> Precision:
        is_half = self.options.bf16 or self.options.fp16
        return Precision.of(self.sharing.kind, self.loaded, is_half, self.shape.has_adapters)

    @property
    def shares_prefixes(self) -> bool:
        return self.attention in (None, "sdpa")

    @property
    def num_losses(self) -> int:
        """Examples of a transition."""
        return max(1, bool(self.options.critic_loss_coef) + bool(self.options.policy_loss_coef))

    @property
    def longest(self) -> tuple[int, int]:
        """Most tokens of a prompt and of an answer of any role."""
        of_roles = (sampling.get("max_tokens") or 0 for sampling in (self.options.role_sampling or {}).values())
        answer = max(self.options.max_completion_length, *of_roles, 0)
        return min(self.options.max_prompt_length or self.context, self.context - answer), answer

    @property
    def batch_tokens(self) -> int:
        """Most tokens that the model reads in a pass."""
        prompt, answer = self.longest
        tokens = tokens_of_transition(prompt, answer, self.num_losses, self.shares_prefixes)
        whole = self.options.per_device_train_batch_size * tokens
        limit = self.options.max_tokens_per_batch
        return whole if limit is None else min(whole, max(limit, prompt + answer))  # an example is not divided

    @property
    def lengths(self) -> Lengths:
        """Mean lengths, half of the longest unless they are given."""
        (prompt, answer), turns, given = self.longest, self.options.max_turns, self.rates
        return Lengths(given.prompt_tokens or prompt / 2, given.answer_tokens or answer / 2, given.turns or turns / 2)

    @property
    def assumed(self) -> list[str]:
        """What the figures rest on and the run may do otherwise, in sentences."""
        rates, (prompt, answer) = self.rates, self.longest
        found = [
            f"memory for prompts of {prompt:,} and answers of {answer:,} tokens, the longest, in a decoder with fused "
            "attention and gated feed-forward blocks"
        ]
        if self.shares_prefixes:
            found.append("the model reads trees of samples that share a prefix (a warning at the start says if not)")
        if self.options.optim not in OPTIMIZER_BYTES and not self.options.optim.startswith("adamw"):
            found.append(f"`optim={self.options.optim}` has two states, as AdamW")
        if self.options.use_vllm:
            found.append(f"vLLM takes {ENGINE_OVERHEAD / 1e9:g} GB beside weights and cache")
        return [
            *found,
            "prompts, answers and episodes are half as long as allowed on average, unless their lengths are given",
            f"a GPU computes {rates.tflops:g} * 10^12 operations a second, of which it uses "
            f"{rates.training_utilization:.0%} in training, {rates.reading_utilization:.0%} in reading and "
            f"{rates.writing_utilization:.0%} in writing",
            f"a GPU reads {rates.memory_bandwidth:,g} GB of its memory a second, and receives {rates.bandwidth:g} GB",
            f"a step of an environment takes {rates.environment_seconds:g} s",
        ]

    # Memory

    @cached_property
    def memory(self) -> dict[str, dict[str, float]]:
        """Bytes at the worst moments: loss, layers backwards, optimizer's step, and while the roles generate."""
        options, shape, sharing, precision = self.options, self.shape, self.sharing, self.precision
        held = {name: size for name, size in self._states.items() if name not in self._on_host}
        asleep = {"engine": ASLEEP if options.vllm_enable_sleep_mode else self._engine} if self._engine else {}
        answer_tokens = options.per_device_train_batch_size * self.num_losses * self.longest[1]
        taught = options.per_device_train_batch_size * options.has_teacher * self.longest[1]
        answer_tokens, taught = min(answer_tokens, self.batch_tokens), min(taught, self.batch_tokens)
        passing = activations(shape, precision, self.batch_tokens, int(answer_tokens), options.gradient_checkpointing)
        peaks = passing.peaks(*loss_bytes(shape, precision, int(answer_tokens), taught))
        training = {**held, "communication": communication(shape, sharing), **asleep}
        generating = dict(held)
        if sharing.kind not in DEEPSPEED:  # whose gradients have a buffer
            generating.pop("gradients", None)
        return {
            "loss": {**training, "activations": passing.kept, "loss": peaks["loss"] - passing.kept},
            "layers": {**training, "activations": passing.kept, "layer": peaks["layers"] - passing.kept},
            "step": {**held, "step": optimizer_step(shape, sharing, options.optim), **asleep},
            "generation": {
                **generating,
                "weights set aside": set_aside(shape, sharing, precision),
                **self._generation,
            },
        }

    @property
    def host(self) -> dict[str, float]:
        """Bytes of a process in CPU memory."""
        asleep = {}
        if self._engine and self.options.vllm_enable_sleep_mode and self.shape.has_adapters:
            asleep = {"engine": engine_weights(self.shape, self.frozen_bytes, self.options.vllm_tensor_parallel_size)}
        return {**{name: size for name, size in self._states.items() if name in self._on_host}, **asleep}

    @property
    def peak(self) -> float:
        return max(sum(parts.values()) for parts in self.memory.values())

    @property
    def margin(self) -> float:
        """Bytes of a GPU that are left at the worst moment."""
        return self.machines.memory - self.machines.reserve - self.peak

    @cached_property
    def _states(self) -> dict[str, float]:
        return states(self.shape, self.sharing, self.precision, self.options.optim, self.frozen_bytes)

    @property
    def _on_host(self) -> set[str]:
        of_training = {"optimizer", "gradients", "target weights", "initial weights"}
        names = of_training if self.sharing.offloads_optimizer else set()
        return names | ({"weights"} if self.sharing.offloads_weights else set())

    @property
    def _engine(self) -> float:
        """Bytes that a colocated engine takes while it generates."""
        colocated = self.options.use_vllm and self.options.vllm_mode == "colocate"
        return self.options.vllm_gpu_memory_utilization * self.machines.memory if colocated else 0

    @property
    def _generation(self) -> dict[str, float]:
        if self.options.use_vllm:
            gathered = {} if self.shape.has_adapters else {"gathered weights": 2 * self.shape.largest}
            return {**gathered, **({"engine": self._engine} if self._engine else {})}
        whole = self.sharing.kind in SHARDED and self.options.ds3_gather_for_generation or self.precision.casts
        gathered = {"gathered weights": 2 * self.shape.parameters} if whole else {}
        kept = {"prefix cache": PREFIX_CACHE_MEMORY * 2**30}
        return {**gathered, **kept, **generation_bytes(self.shape, self.sequences, *self.longest)}

    # Generation

    @property
    def sequences(self) -> int:
        """Most sequences that a process generates at once in training: for its samples, or to play its episodes."""
        options, processes = self.options, self.sharing.processes
        answers = options.num_futures * (options.samples_per_iteration // processes)
        return min(options.max_generation_batch_size, max(answers, options.episodes_per_iteration // processes))

    @property
    def tensor_parallel(self) -> int:
        """Number of GPUs that share an engine: of a server all, as far as its attention heads can be divided."""
        if self.options.vllm_mode == "colocate":
            return self.options.vllm_tensor_parallel_size
        return max(filter(self._divides_heads, range(1, self.machines.server_gpus + 1)), default=1)

    def _divides_heads(self, number: int) -> bool:
        heads = self.shape.num_heads
        of_keys = heads * self.shape.key_value_size // self.shape.query_size
        return heads % number == 0 and (of_keys % number == 0 or number % of_keys == 0)

    @property
    def cache_tokens(self) -> int | None:
        """Tokens in the cache of a vLLM engine, if there is one."""
        if not self.options.use_vllm:
            return None
        budget = self._engine or SERVER_UTILIZATION * self.machines.server_memory
        weights = engine_weights(self.shape, self.frozen_bytes, self.tensor_parallel)
        return cache_tokens(self.shape, budget, weights, self.tensor_parallel)

    @property
    def asked_tokens(self) -> float:
        """Tokens of all sequences that an engine has at once, of mean length."""
        processes = self.sharing.processes if self.options.vllm_mode == "server" else self.tensor_parallel
        number = min(self.options.max_generation_batch_size, self.sequences * processes)
        return number * (self.lengths.prompt + self.lengths.answer)

    # Results

    @property
    def iteration(self) -> list[Phase]:
        used = self.tensor_parallel if self.options.use_vllm and self.options.vllm_mode == "server" else 0
        sizes = (self.lengths, used, self.num_losses, self.shares_prefixes)
        return phases(self.shape, self.sharing, self.options, self.rates, *sizes)

    @property
    def problems(self) -> list[str]:
        """What does not fit, and what the run would refuse."""
        found = self._refused
        for name, parts in self.memory.items():
            excess = sum(parts.values()) + self.machines.reserve - self.machines.memory
            if excess > 0:
                part = max(parts, key=parts.get)
                moment = "backward" if name == "layers" else name
                found.append(f"{moment}: {excess / 1e9:.1f} GB too much; {part} takes {parts[part] / 1e9:.1f} GB.")
        if self.options.use_vllm and self.options.vllm_mode == "server" and not self.machines.server_gpus:
            found.append("vllm_mode: server: no server is described. Add --server_gpus.")
        elif not self._starts:
            found.append(
                f"vLLM does not start: its cache holds {self.cache_tokens:,} tokens, and a sequence can have "
                f"{self._model_length:,} (vllm_max_model_length)."
            )
        return found

    @property
    def _refused(self) -> list[str]:
        """What the run refuses of vLLM's options."""
        options, found = self.options, []
        if not options.use_vllm:
            return found
        if self.shape.has_adapters and self.sharing.kind == "fsdp2":
            found.append(
                "--accelerate_config fsdp2 with adapters and use_vllm: vLLM loads whole adapters, and FSDP2 shards "
                "them. Take multi_gpu or zero3."
            )
        if self.shape.adapter_rank > HIGHEST_RANK:
            found.append(f"lora_r: {self.shape.adapter_rank}: vLLM serves ranks of at most {HIGHEST_RANK}. Lower it.")
        size, processes = options.vllm_tensor_parallel_size, self.sharing.processes
        if options.vllm_mode == "colocate" and not (processes % size == 0 and self._divides_heads(size)):
            allowed = [n for n in range(1, processes + 1) if processes % n == 0 and self._divides_heads(n)]
            found.append(
                f"vllm_tensor_parallel_size: {size} must divide the {processes} processes and the attention heads. "
                f"Take {' or '.join(map(str, allowed))}."
            )
        return found

    @property
    def warnings(self) -> list[str]:
        """What fits and is slow, or cuts."""
        found = []
        if self.cache_tokens is not None and 0 < self.cache_tokens < self.asked_tokens:
            found.append(
                f"vLLM's cache holds {self.cache_tokens:,} tokens, and a batch asks for {self.asked_tokens:,.0f}: "
                "prompts are read again. Raise vllm_gpu_memory_utilization"
                + (", with vllm_enable_sleep_mode." if self._engine else ".")
            )
        if self.options.use_vllm and self._model_length < sum(self.longest):
            found.append(
                f"vllm_max_model_length is {self._model_length:,}, and a prompt with its answer can have "
                f"{sum(self.longest):,} tokens: longer ones get no answer."
            )
        return found

    @property
    def fits(self) -> bool:
        return not self.problems

    @property
    def fitting(self) -> tuple[dict[str, Any], "Plan"] | None:
        """The first change that fits, or pair of changes, with its plan."""
        singles = list(self.changes())
        pairs = (
            ({**changes, **more}, pair)
            for changes, plan in singles
            for more, pair in plan.changes()
            if not more.keys() & changes.keys()
        )
        return next((change for change in (*singles, *pairs) if change[1].fits), None)

    @property
    def hours(self) -> float | None:
        """Hours of the whole run; `None` where neither `max_steps` nor the number of tasks is known."""
        options, tasks = self.options, self.rates.num_tasks
        if options.max_steps > 0:
            iterations = options.max_steps * options.global_batch_size
            iterations /= options.samples_per_iteration * options.num_updates_per_generation
        elif tasks:
            iterations = options.num_train_epochs * tasks / options.episodes_per_iteration
        else:
            return None
        return iterations * sum(phase.seconds for phase in self.iteration) / 3600

    @property
    def _model_length(self) -> int:
        return self.options.vllm_max_model_length or self.context

    @property
    def _starts(self) -> bool:
        """Whether the cache of a vLLM engine, if there is one, holds the longest sequence."""
        return self.cache_tokens is None or self.cache_tokens >= self._model_length

    def with_options(self, **changes: Any) -> "Plan":
        """Plan with other options."""
        options = copy.copy(self.options)
        vars(options).update(changes)
        return replace(self, options=options)

    def _started(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Add a shorter `vllm_max_model_length` to changes with which vLLM would not start, if there is one."""
        plan, longest = self.with_options(**changes), sum(self.longest)
        is_shorter = not plan._starts and longest < plan._model_length
        return {**changes, "vllm_max_model_length": longest} if is_shorter else changes

    def changes(self) -> Iterator[tuple[dict[str, Any], "Plan"]]:
        """Yield options that lower a peak, each with its plan, in the order in which to try them."""
        shorter = self._started({})
        if shorter:
            yield shorter, self.with_options(**shorter)
            if self.with_options(**shorter).fits:
                return
        options, batch = self.options, self.options.per_device_train_batch_size
        found: list[dict[str, Any]] = []
        if not options.gradient_checkpointing:
            found.append({"gradient_checkpointing": True})
        if batch > 1:
            steps = batch * options.gradient_accumulation_steps
            found.append({"per_device_train_batch_size": 1, "gradient_accumulation_steps": steps})
            if options.max_tokens_per_batch is None:
                found.append({"max_tokens_per_batch": sum(self.longest)})
        if self._engine:
            sleeps = {} if options.vllm_enable_sleep_mode else {"vllm_enable_sleep_mode": True}
            found += [sleeps] if sleeps else []
            found += [{**sleeps, "vllm_gpu_memory_utilization": share / 10} for share in range(2, 9)]
        elif not options.use_vllm:
            sizes = (2**n for n in range(6, -1, -1) if 2**n < self.sequences)
            found += [{"max_generation_batch_size": size} for size in sizes]
        found += [{"max_prompt_length": 2**n} for n in (12, 11) if 2**n < self.longest[0]]
        if not options.use_vllm:
            shared = {"use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": True}
            found += [{**shared, "vllm_gpu_memory_utilization": share / 10} for share in range(4, 8)]
        for changes in map(self._started, found):
            yield changes, self.with_options(**changes)
        if self.sharing.kind in ("ddp", "zero2"):
            yield {"accelerate_config": "zero3"}, replace(self, sharing=replace(self.sharing, kind="zero3"))
        if self.loaded == 4 and self.shape.has_adapters:
            yield {"dtype": "bfloat16"}, replace(self, loaded=2)


def as_text(changes: dict[str, Any]) -> str:
    """Write changed options as in a file of a run."""
    return ", ".join(f"{name}: {value}" for name, value in changes.items())
