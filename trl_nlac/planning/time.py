# SPDX-License-Identifier: Apache-2.0

"""The time of an iteration, by formula: tokens, divided by rates that are assumed."""

from typing import NamedTuple

from ..nlac_config import NLACConfig
from .memory import DEEPSPEED, SHARDED, Sharing
from .rates import Rates
from .shape import ModelShape


class Lengths(NamedTuple):
    """Mean number of tokens of a prompt and of an answer, and of turns of an episode."""

    prompt: float
    answer: float
    turns: float


class Phase(NamedTuple):
    """A phase of an iteration."""

    name: str  # as in the metrics `time/*`
    # tokens that are generated, read as prompts (those that no cache knows), and trained on, of all processes
    generated: float
    read: float
    trained: float
    seconds: float


def answers(options: NLACConfig) -> tuple[float, float]:
    """
    Count the answers that the roles generate for a transition: with the target weights, and with the policy's. Chains
    of thought are rewritten with `reasoning=True`; without it, only the chat template says whether there are any.
    """
    critique = 1 if options.num_futures == 1 else options.num_futures + 1
    bootstrapped = {"explicit": 2, "implicit": 1, "monte_carlo": 0}[options.bootstrap]
    target = 1 + (0 if options.single_step else bootstrapped)
    refine = (0 if options.is_in_hindsight else 1 + critique) + (not options.distills)
    if options.reasoning:
        target += 1
        refine += not options.distills
    return target, refine


def tokens_of_transition(prompt: float, answer: float, losses: int, shares: bool) -> float:
    """Tokens read to train on a transition: a trunk and a branch for each loss, or as many sequences."""
    return prompt + losses * answer if shares else losses * (prompt + answer)


def written_share(options: NLACConfig, processes: int, turns: float) -> float:
    """
    Share of the Bellman targets that are written anew. A target is used for `target_max_age` iterations, in each of
    which a process draws S of N transitions, so that it serves about 1 + (`target_max_age` - 1) S / N draws, but no
    more than there are for each new transition, which needs its first one. N is what the buffer holds halfway through
    `max_steps`, or all that fits.
    """
    if options.target_max_age == 0:
        return 1.0
    steps = options.samples_per_iteration * options.num_updates_per_generation // options.global_batch_size
    age = options.target_age(options.max_steps if options.max_steps > 0 else 10**9)
    stored, new = options.replay_buffer_size, options.episodes_per_iteration * turns / processes
    if options.max_steps > 0:
        stored = min(stored, max(options.max_steps / steps / 2 * new, 1))
    drawn = options.samples_per_iteration / processes
    return max(1 / (1 + (age - 1) * drawn / stored), min(1.0, new / drawn))


def training_flops(
    shape: ModelShape, tokens: float, length: float, checkpointing: bool, passes_without_gradient: int = 0
) -> float:
    """
    Operations of training on `tokens` in sequences of `length`. A forward pass takes 2 for each token and active
    parameter, and 4 q for each token, layer and token that it sees, `length` / 2 on average. The gradient of
    activations takes as many, and, without adapters, that of weights. Gradient checkpointing repeats the forward pass.
    """
    forward = tokens * (2 * shape.active + 2 * shape.num_layers * shape.query_size * length)
    passes = 2 + (not shape.has_adapters) + checkpointing + passes_without_gradient
    return passes * forward


def phases(
    shape: ModelShape,
    sharing: Sharing,
    options: NLACConfig,
    rates: Rates,
    lengths: Lengths,
    servers: int,
    losses: int,
    shares: bool,
) -> list[Phase]:
    """
    The phases of an iteration. Playing, targets and refinement take the time to read prompts and to generate; with
    vLLM the prompt of a transition is read once for each set of weights, and an episode once, otherwise for every
    answer. Each token of what is generated at once reads the weights. `num_updates_per_generation` repeats the
    training, `target_max_age` saves targets. `servers` is the number of GPUs of a server that generates, if there is
    one, `losses` the number of examples of a transition, and `shares` says whether these share their prefixes.
    """
    samples, episodes, gpus = options.samples_per_iteration, options.episodes_per_iteration, sharing.processes
    flops = rates.tflops * 1e12
    prompt, answer, turns = lengths

    def generating(name: str, at_once: float, rounds: float, read: float, waiting: float = 0.0) -> Phase:
        written, per_second = at_once * rounds * answer, flops * (servers or gpus)
        reading = 2 * shape.active * read / per_second / rates.reading_utilization
        passes = rounds * answer * max(1, at_once / (options.max_generation_batch_size * gpus))
        loading = passes * 2 * shape.active / rates.memory_bandwidth / 1e9
        writing = max(2 * shape.active * written / per_second / rates.writing_utilization, loading)
        return Phase(name, written, read, 0.0, reading + writing + waiting)

    of_target, of_refine = answers(options)
    waiting = turns * rates.environment_seconds
    # Prompts of an episode grow up to about twice their mean, and the last one contains those before.
    read_once = 2 / (turns + 1) if options.use_vllm else 1
    found = [generating("rollout", episodes, turns, episodes * turns * prompt * read_once, waiting)]
    written = samples * written_share(options, gpus, turns)
    for name, asked, number in (("target", written, of_target), ("refine", samples, of_refine)):
        found.append(generating(name, asked, number, asked * prompt * (1 if options.use_vllm else number)))
    syncs = 0 if shape.has_adapters else 3
    moves = options.use_vllm or sharing.kind in SHARDED
    received = syncs * 2 * shape.parameters if moves else 0
    found.append(Phase("sync", 0, 0, 0, received / rates.bandwidth / 1e9))
    updates = options.num_updates_per_generation
    trained = updates * samples * tokens_of_transition(prompt, answer, losses, shares)
    computing = training_flops(shape, trained, prompt + answer, options.gradient_checkpointing, options.has_teacher)
    computing /= flops * rates.training_utilization * gpus
    passes = updates * samples / (options.per_device_train_batch_size * gpus)
    communicating = passes * _exchanged(shape, sharing, options.gradient_accumulation_steps) / rates.bandwidth / 1e9
    found.append(Phase("train", 0, 0, trained, max(computing, communicating)))
    return found


def _exchanged(shape: ModelShape, sharing: Sharing, passes_of_step: int) -> float:
    """
    Bytes that a process receives for a forward and backward pass: sharded weights twice, and gradients, in half
    precision; otherwise the gradients of each step, twice as they are averaged.
    """
    if sharing.kind in SHARDED:
        return 4 * shape.parameters + 2 * shape.trained
    if sharing.kind in DEEPSPEED:
        return 2 * shape.trained + 2 * shape.trained / passes_of_step
    return 0 if sharing.kind == "none" else 2 * 4 * shape.trained / passes_of_step
