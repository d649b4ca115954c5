# SPDX-License-Identifier: Apache-2.0

"""Sampling with transformers."""

import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from tqdm.auto import tqdm
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.generation import GenerationMode

from ..options.generation_options import PREFIX_CACHE_MEMORY
from ..shards import is_zero3, kept_gathered, uncounted_passes
from ..terminal import shown
from .generator import Completion, Sampling
from .prefix_cache import PrefixCache, Reading, can_be_continued
from .reader import Reader


logger = logging.getLogger(__name__)

_WHOLE = 2**40  # of a probability of 1


@dataclass(eq=False)
class TransformersGenerator:
    """
    Sample with [`~transformers.GenerationMixin.generate`]: batches of similar length, at most `batch_size`, left
    padding, key/value cache. Up to `prefix_cache_memory` GiB of what the model has read are kept until the end of a
    session, so that it reads a prefix once; if it `keeps_prefixes` (of a model that is not trained), until the weights
    are other ones. Where the generator `gathers`, each process holds the whole model during a session. Otherwise
    sharded weights stay sharded, each forward pass gathers them, and processes must generate together, see
    [`~generation.joint.JointGenerator`]. With `gradient_checkpointing_kwargs` gradient checkpointing is enabled again
    after a session.
    """

    is_concurrent = False
    max_model_length = math.inf

    accelerator: Accelerator | None
    tokenizer: PreTrainedTokenizerBase
    eos_token_ids: list[int]
    batch_size: int
    gradient_checkpointing_kwargs: dict[str, Any] | None = None
    gathers: bool = True
    prefix_cache_memory: float = PREFIX_CACHE_MEMORY
    keeps_prefixes: bool = False

    def __post_init__(self):
        if self.accelerator is not None:
            # TRL reads and sets this under the name that transformers deprecated, and so do we: the other is too new.
            deprecated = r"`(is_gradient_checkpointing|gradient_checkpointing_(en|dis)able)` is deprecated"
            warnings.filterwarnings("ignore", deprecated, FutureWarning)
        self._model: nn.Module | None = None
        self._reader: Reader | None = None  # with the session's weights
        self._kept: tuple[list[Any], PrefixCache | None] | None = None  # with the mark of the weights that read
        self._num_tokens = self._num_read = 0  # since metrics were last taken
        self._has_warned = False

    @contextmanager
    def session(self, model: nn.Module) -> Iterator[None]:
        training = model.training
        if self.accelerator is None:
            unwrapping = nullcontext(model)
        else:
            from ..private_names import unwrap_model_for_generation  # which an agent does without

            unwrapping = unwrap_model_for_generation(model, self.accelerator, self.gathers)
        with unwrapping as unwrapped, self._gathering(unwrapped), self._uncounted(model):
            outer = self._model, self._reader  # of a session in which this one is
            self._model = unwrapped.eval()
            self._reader = Reader(unwrapped, self.tokenizer, self._prefix_cache(), reads_ahead=self.gathers)
            try:
                yield
            except BaseException:
                self._kept = None  # it may have ended in the middle of a change
                raise
            finally:
                self._model, self._reader = outer
                unwrapped.train(training)
        if unwrapped.is_gradient_checkpointing:  # TRL enables it without these
            kwargs = dict(self.gradient_checkpointing_kwargs or {})
            # As transformers' Trainer: these two are about layers, the rest about recomputing one.
            of_layers = {name: kwargs.pop(name) for name in ("every_n_layers", "offload") if name in kwargs}
            unwrapped.gradient_checkpointing_enable(kwargs or None, **of_layers)

    def _prefix_cache(self) -> PrefixCache | None:
        """Return the cache of earlier sessions, if it is kept and of these weights, or else a new one."""
        if not self.keeps_prefixes:
            return self._new_prefix_cache()
        mark = weights_mark(self._model)
        if self._kept is None or self._kept[0] != mark:
            self._kept = mark, self._new_prefix_cache()
        return self._kept[1]

    def _gathering(self, model: nn.Module) -> AbstractContextManager:
        """Return a context that gathers what FSDP2 shards. TRL's gathers what ZeRO-3 shards."""
        if self.accelerator is None or not self.accelerator.is_fsdp2 or not self.gathers:
            return nullcontext()
        plugin = self.accelerator.state.fsdp_plugin
        precision = plugin.mixed_precision_policy
        dtype = None if precision is None else precision.param_dtype
        return kept_gathered(model, bool(plugin.reshard_after_forward), dtype)

    def _uncounted(self, model: nn.Module) -> AbstractContextManager:
        """Return a context in which passes through what TRL gathers need no other process."""
        is_alone = self.accelerator is None or not self.gathers
        if is_alone or not is_zero3(self.accelerator.state.deepspeed_plugin):
            return nullcontext()
        return uncounted_passes(model)

    def _new_prefix_cache(self) -> PrefixCache | None:
        if not self.prefix_cache_memory:
            return None
        if can_be_continued(self._model):
            return PrefixCache(int(self.prefix_cache_memory * 2**30))
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                f"What {self._model.config.model_type} has read of a prompt cannot be continued for another one, so "
                "every prompt is read whole."
            )
        return None

    def any_process(self, wants: bool) -> bool:
        return wants

    def generate(
        self, prompts: list[list[int]], sampling: Sampling, seeds: list[int], bar: tqdm | None = None
    ) -> list[Completion]:
        completions: dict[int, Completion] = {}
        for chunk in self._chunks(prompts):
            answers = self._generate([prompts[i] for i in chunk], sampling, [seeds[i] for i in chunk])
            completions.update(zip(chunk, answers, strict=True))
            if bar is not None:
                bar.update(len(chunk))
        return [completions[i] for i in range(len(prompts))]

    def _chunks(self, prompts: list[list[int]]) -> Iterator[list[int]]:
        """Group the indices of prompts into batches of similar length."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        for start in range(0, len(order), self.batch_size):
            yield order[start : start + self.batch_size]

    @torch.no_grad()
    def _generate(self, prompts: list[list[int]], sampling: Sampling, seeds: list[int]) -> list[Completion]:
        finite = _FiniteScores()
        sampler = _sampler(sampling, seeds, self._model.device) if sampling.temperature > 0 else []
        processors = LogitsProcessorList([finite, *sampler])
        others = {name: value for name, value in sampling.generation_kwargs.items() if name not in _WARPERS}
        unknown = sorted(others.keys() - vars(GenerationConfig()).keys())
        if unknown:
            raise ValueError(f"transformers has no option {unknown[0]!r} of generation")
        generation_config = GenerationConfig(
            max_new_tokens=sampling.max_tokens,
            do_sample=False,  # the processors leave one token to choose
            repetition_penalty=sampling.repetition_penalty,
            pad_token_id=self.tokenizer.pad_token_id,
            bos_token_id=self.tokenizer.bos_token_id,
            eos_token_id=self.eos_token_ids,
            disable_compile=True,
            return_dict_in_generate=False,
            **others,
        )
        with _named_options(self._model):
            takes_cache = _takes_cache(generation_config, self._model.generation_config)
        reader = self._reader if takes_cache else Reader(self._model, self.tokenizer)
        readings = [Reading(prompt) for prompt in prompts]
        inputs = reader.begin(readings)
        with _named_options(self._model):
            output = self._model.generate(
                **inputs,
                generation_config=generation_config,
                logits_processor=processors,
                synced_gpus=not self.gathers,
            )
        finite.check()
        completions = []
        for reading, token_ids in zip(readings, output[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
            end = next((i for i, token_id in enumerate(token_ids, 1) if token_id in self.eos_token_ids), None)
            answer = token_ids[:end]
            completions.append(Completion(answer, end is not None, max(0, len(reading.token_ids) - reading.num_read)))
            self._count(reading)
            reading.token_ids = reading.token_ids + answer
        reader.end(readings, inputs)
        return completions

    def take_metrics(self) -> dict[str, float]:
        """Return the share of prompt tokens that were not read again: 0 where some were read twice."""
        tokens, read = self._num_tokens, self._num_read
        self._num_tokens = self._num_read = 0
        return {"generation/prefix_hit_rate": max(0.0, 1 - read / tokens)} if tokens else {}

    @torch.no_grad()
    def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        scores: dict[int, float] = {}
        for chunk in self._chunks(prompts):
            readings = [Reading(prompts[i] + completions[i][:-1], max(1, len(completions[i]))) for i in chunk]
            logits = self._reader.read(readings)  # (B, P, V)
            for reading in readings:
                self._count(reading)
            asked = [
                (row, logits.shape[1] - len(completions[i]) + t, token_id)
                for row, i in enumerate(chunk)
                for t, token_id in enumerate(completions[i])
            ]
            rows, places, token_ids = torch.tensor(asked, dtype=torch.long).reshape(-1, 3).T.contiguous()  # (N,) each
            logps = logits[rows, places].float().log_softmax(-1)  # (N, V)
            chosen = logps.gather(1, token_ids[:, None].to(logps.device))[:, 0]  # (N,)
            chosen = chosen.cpu().double()  # in this order: MPS has no doubles
            sums = chosen.new_zeros(len(chunk)).index_add(0, rows, chosen)  # (B,)
            scores.update(zip(chunk, sums.tolist(), strict=True))
        return [scores[i] for i in range(len(prompts))]

    def _count(self, reading: Reading) -> None:
        self._num_tokens += len(reading.token_ids)
        self._num_read += reading.num_read


@torch.no_grad()
def weights_mark(model: nn.Module) -> list[Any]:
    """
    Return what is other after weights or adapters were changed: the number of changes of each parameter that torch
    counts, and the sum of its first values, which shows other changes.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.device.type != "meta"]
    sums = [parameter.data.flatten()[:256].float().sum().to(model.device) for parameter in parameters]
    peft = sys.modules.get("peft.tuners.tuners_utils")  # loaded if there is an adapter, whichever class the model has
    layers = [layer for layer in model.modules() if peft and isinstance(layer, peft.BaseTunerLayer)]
    adapters = [(*layer.active_adapters, layer.disable_adapters, *layer.merged_adapters) for layer in layers]
    places = [(parameter.data_ptr(), parameter._version) for parameter in parameters]
    return [adapters, places, torch.stack(sums).tolist()]


def _takes_cache(config: GenerationConfig, defaults: GenerationConfig) -> bool:
    """Whether tokens are generated one by one, with a cache that can be given."""
    config = deepcopy(config)
    config.update(**defaults.to_dict(), defaults_only=True)
    is_plain = config.get_generation_mode() == GenerationMode.GREEDY_SEARCH
    return is_plain and config.use_cache is not False and config.cache_implementation in (None, "hybrid")


class _FiniteScores(LogitsProcessor):
    """Note whether the model's scores are finite, without waiting for the device at every token."""

    def __init__(self):
        self.largest: list[torch.Tensor] = []  # of each token, (B,)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.largest.append(scores.amax(-1))  # NaN if any score is; a model can forbid tokens by minus infinity
        return scores

    def check(self) -> None:
        """Raise a `RuntimeError` if they were not."""
        if not torch.stack(self.largest).isfinite().all():
            raise RuntimeError(
                "The model's scores of tokens are not finite: its weights are corrupted. Resume from an earlier "
                "checkpoint, with a lower `learning_rate` or `max_grad_norm`, or in float32 or bfloat16."
            )


def _cumulative_probabilities(scores: torch.Tensor) -> torch.Tensor:
    """Sum probabilities of scores as whole numbers, (B, V): sums of floats depend on their order on a GPU."""
    return (scores.float().softmax(-1) * _WHOLE).long().cumsum(-1)


class _TopP(TopPLogitsWarper):
    """transformers' `top_p`, with sums that `full_determinism` takes."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        ordered, places = scores.sort()
        removed = _cumulative_probabilities(ordered) <= int((1 - self.top_p) * _WHOLE)  # (B, V), least probable first
        removed[:, -self.min_tokens_to_keep :] = False
        return scores.masked_fill(removed.scatter(1, places, removed), self.filter_value)


class _OnHost(LogitsProcessor):
    """A processor that sums floats: with `full_determinism` on the CPU, at the price of a copy for each token."""

    def __init__(self, processor: LogitsProcessor):
        self.processor = processor

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not torch.are_deterministic_algorithms_enabled():
            return self.processor(input_ids, scores)
        return self.processor(input_ids.cpu(), scores.cpu()).to(scores.device)


_NO_OPTIONS = ("bos_token_id", "eos_token_id", "pad_token_id", "transformers_version")  # of what a model saves
_WARPERS: dict[str, Callable[[Any], LogitsProcessor]] = {  # in the order of transformers
    "temperature": TemperatureLogitsWarper,
    "top_h": lambda top_h: _OnHost(TopHLogitsWarper(top_h)),
    "top_k": TopKLogitsWarper,
    "top_p": _TopP,
    "min_p": MinPLogitsWarper,
    "typical_p": lambda typical_p: _OnHost(TypicalLogitsWarper(typical_p)),
    "epsilon_cutoff": EpsilonLogitsWarper,
    "eta_cutoff": EtaLogitsWarper,
}


class _SeededChoice(LogitsProcessor):
    """
    Choose a token for each row by the row's own random numbers, `max_tokens` times at most, so that it depends on
    nothing else in the batch: the first token at which the cumulative probability exceeds the number.
    """

    def __init__(self, seeds: list[int], max_tokens: int, device: torch.device):
        rows = [torch.rand(max_tokens, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        numbers = torch.stack(rows, dim=1).clamp(max=1 - 1e-6)  # (step, B)
        self.numbers = numbers.to(device)  # in one copy for all tokens
        self.step = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        cumulative = _cumulative_probabilities(scores)  # (B, V)
        numbers = (self.numbers[self.step][:, None] * cumulative[:, -1:]).long()
        self.step += 1
        # The last one where the scores are not finite: that is noticed once all tokens are there.
        choice = torch.searchsorted(cumulative, numbers, right=True).clamp(max=scores.shape[-1] - 1)  # (B, 1)
        return torch.full_like(scores, -torch.inf).scatter(1, choice, 0.0)


@contextmanager
def _named_options(model: PreTrainedModel) -> Iterator[None]:
    """Name the options of a model's own generation_config.json in the `ValueError` that transformers raises."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        own = model.generation_config.to_diff_dict()
        others = {name: own[name] for name in own if name not in _NO_OPTIONS}
        if not others:
            raise
        raise ValueError(
            f"{model.name_or_path} cannot generate ({type(error).__name__}: {error}). Its generation_config.json has "
            f"{shown(others)}: leave out what is wrong."
        ) from error


def _sampler(sampling: Sampling, seeds: list[int], device: torch.device) -> list[LogitsProcessor]:
    """List the processors that turn logits into a sampled token."""
    options = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or None,
        "top_p": sampling.top_p if sampling.top_p < 1 else None,
        "min_p": sampling.min_p,
        **sampling.generation_kwargs,
    }
    warpers = [warper(options[name]) for name, warper in _WARPERS.items() if options.get(name) is not None]
    return [*warpers, _SeededChoice(seeds, sampling.max_tokens, device)]
