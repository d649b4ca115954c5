# SPDX-License-Identifier: Apache-2.0

"""
The memory of a run, by formula. Everything is in bytes and for one process, which has a GPU of its own.

The formulas count what PyTorch holds at the worst moments of an iteration, for a decoder of attention and a gated
feed-forward block, RMS norms, and fused attention, as transformers writes them. Symbols: `M` answer tokens, `V`
vocabulary, `h` hidden size, `i` width of the feed-forward block, `q` and `k` sizes of all queries and keys, `a` bytes
of an activation, `r` bytes of a value between the layers.
"""

from dataclasses import dataclass

from .shape import ModelShape


# Bytes of the optimizer's states for each trained parameter, where these are in float32. Others are taken for AdamW.
OPTIMIZER_BYTES = {"sgd": 0, "adafactor": 0, "adamw_8bit": 2, "adamw_bnb_8bit": 2, "paged_adamw_8bit": 2}
ADAMW_BYTES = 8
# DeepSpeed's defaults, in values: gradients on their way, gathered weights, and weights updated at a time.
REDUCE_BUCKET, LIVE_PARAMETERS, SUB_GROUP = 5 * 10**8, 10**9, 10**9
LOSS_CHUNK = 256  # answer tokens of which there are logits at the same time
ENGINE_OVERHEAD = 2 * 10**9  # of vLLM, besides weights and cache: activations, CUDA graphs
ASLEEP = 10**9  # what vLLM keeps while it sleeps: CUDA graphs, communication
SHARDED = {"zero3", "fsdp2"}
DEEPSPEED = {"zero2", "zero3"}


@dataclass(frozen=True)
class Sharing:
    """How the processes of a run share the model."""

    kind: str  # `"none"` for one process, `"ddp"`, `"zero2"`, `"zero3"` or `"fsdp2"`
    processes: int
    offloads_optimizer: bool = False
    offloads_weights: bool = False


@dataclass(frozen=True)
class Precision:
    """Bytes of a value."""

    trained: float  # of a weight that is trained
    frozen: float  # of another
    activation: int  # of the results of linear layers
    residual: int  # of what flows from layer to layer
    casts: bool  # whether weights are converted to the activations' precision in every pass

    @classmethod
    def of(cls, kind: str, loaded: float, mixed: bool, has_adapters: bool) -> "Precision":
        """
        Choose the precision of a kind of [`Sharing`], where the model is loaded with so many bytes a weight (`dtype`;
        4 is the default) and trains with `bf16` or `fp16` (`mixed`). Adapters are in float32 outside of DeepSpeed.
        """
        if not mixed:
            return cls(4 if has_adapters else loaded, loaded, int(loaded), int(loaded), False)
        if kind in DEEPSPEED:  # the whole model is converted
            return cls(2, min(2, loaded), 2, 2, False)
        if kind == "fsdp2":  # gathered weights are in half precision
            return cls(4, loaded, 2, 2, False)
        return cls(4 if has_adapters else loaded, loaded, 2, int(loaded), loaded == 4)


def states(
    shape: ModelShape, sharing: Sharing, precision: Precision, optim: str, frozen_bytes: float | None = None
) -> dict[str, float]:
    """Count weights, gradients, optimizer, target and initial weights, and all frozen ones (`frozen_bytes`)."""
    kind, trained = sharing.kind, shape.trained
    frozen = precision.frozen * (shape.parameters - trained) if frozen_bytes is None else frozen_bytes
    of_weights = sharing.processes if kind in SHARDED else 1
    of_states = sharing.processes if kind in SHARDED | DEEPSPEED else 1
    moments = OPTIMIZER_BYTES.get(optim, ADAMW_BYTES) * (1 if kind in DEEPSPEED else precision.trained / 4)
    masters = 4 if kind in DEEPSPEED else 0
    return {
        "weights": (precision.trained * trained + frozen) / of_weights,
        "gradients": precision.trained * trained / of_states,
        "optimizer": (moments + masters) * trained / of_states,
        "target weights": 4 * trained / of_states,
        "initial weights": precision.trained * trained / of_states,
    }


def set_aside(shape: ModelShape, sharing: Sharing, precision: Precision) -> float:
    """The model's own weights while target weights are in it: what the process holds of the trained ones."""
    return precision.trained * shape.trained / (sharing.processes if sharing.kind in SHARDED else 1)


def communication(shape: ModelShape, sharing: Sharing) -> float:
    """Buffers of the launcher's back end in a forward and backward pass."""
    if sharing.kind == "ddp":  # gradients are copied into buckets
        return 4 * shape.trained
    if sharing.kind == "zero2":
        return 2 * REDUCE_BUCKET
    if sharing.kind == "zero3":
        return 2 * REDUCE_BUCKET + 2 * min(LIVE_PARAMETERS, shape.parameters)
    if sharing.kind == "fsdp2":  # embeddings and head, two layers, and the gradients of one
        return 2 * (shape.parameters - shape.num_layers * shape.in_layer) + 6 * shape.in_layer
    return 0


def optimizer_step(shape: ModelShape, sharing: Sharing, optim: str) -> float:
    """What a step of the optimizer needs besides: DeepSpeed's float32 gradients, AdamW's temporary values."""
    shard = shape.trained / (sharing.processes if sharing.kind in SHARDED | DEEPSPEED else 1)
    at_once = min(shard, SUB_GROUP) if sharing.kind == "zero3" else shard
    gradients = 4 * at_once if sharing.kind in DEEPSPEED else 0
    return gradients + (4 * at_once if optim == "adamw_torch" else 0)


@dataclass(frozen=True)
class Activations:
    """What forward and backward passes hold."""

    kept: float  # until the backward pass
    head: float  # for the last norm and the head, besides the logits
    working: float  # in the layer whose backward pass is under way
    converted: float  # weights converted to half precision at the end of the forward pass, which are gone after it
    # the gradient of the embeddings at the end of the backward pass; of tied ones that of the head with it, from the
    # start of the backward pass on, and their sum.
    embeddings: float

    def peaks(self, loss_forward: float, loss_backward: float) -> dict[str, float]:
        """The largest number of bytes at the loss, and in the backward pass of the layers."""
        return {
            "loss": self.kept + self.head + max(self.converted + loss_forward, loss_backward),
            "layers": max(self.kept + self.working, self.embeddings),
        }


def layer_bytes(shape: ModelShape, precision: Precision) -> tuple[float, float]:
    """
    Bytes of a token in a layer: of what the layer keeps for its backward pass, and of what that makes on the way.

    | kept | all weights trained | adapters |
    |---|---|---|
    | two norms: input and output | 2 (4 + r) h | 8 h |
    | inputs of attention and feed-forward block | 2 a h, or 10 h where each linear layer converts its own | |
    | queries, keys, values, output; sums of the softmax | (2 q + 2 k) a + 4 heads | the same |
    | gate, activation, up and their product | 4 i a | 3 i a |
    | inputs of the adapters | | a for each, with dropout a + 1; once where adapters share it |

    The largest values made on the way are gradients of the feed-forward block, 2 i a. With adapters in float32 it is
    the widest input in float32, before and after dropout, and its gradient.
    """
    a, r, h, i = precision.activation, precision.residual, shape.hidden_size, shape.intermediate_size
    attention = a * (2 * shape.query_size + 2 * shape.key_value_size) + 4 * shape.num_heads
    if not shape.has_adapters:
        inputs = 10 * h if precision.casts else 2 * a * h
        return 2 * (4 + r) * h + inputs + attention + 4 * a * i, 2 * a * i
    converts = precision.trained > a
    inputs = shape.adapter_inputs if converts or shape.drops_inputs else min(shape.adapter_inputs, 2 * h + i)
    in_float32 = (4 + 4 * shape.drops_inputs + a) * shape.widest_adapter if converts else 0
    kept = 8 * h + attention + 3 * a * i + (a + shape.drops_inputs) * inputs
    return kept, max(2 * a * i, a * i + in_float32)


def activations(
    shape: ModelShape, precision: Precision, tokens: int, answer_tokens: int, checkpointing: bool
) -> Activations:
    """Bytes of both passes over `tokens`. With `checkpointing` a layer keeps its input, r h, and is computed again."""
    kept, made = layer_bytes(shape, precision)
    of_embeddings = 0 if shape.has_adapters else precision.trained * shape.vocab_size * shape.hidden_size
    embeddings = of_embeddings * (3 if shape.is_tied else 1)
    of_gradient = _weight_gradient(shape, precision, shape.intermediate_size)
    h, layers = shape.hidden_size, shape.num_layers
    head = tokens * (4 + precision.residual) * h + answer_tokens * precision.activation * h
    looked_up = 0 if shape.is_tied else shape.vocab_size * h  # embeddings are not converted
    converted = 2 * (shape.parameters - looked_up) if precision.casts else 0
    working = tokens * made + of_gradient + (of_embeddings if shape.is_tied else 0)
    if not checkpointing:
        return Activations(tokens * layers * kept + converted, head, working, 0, embeddings)
    working += tokens * kept + (2 * shape.in_layer if precision.casts else 0)
    converted = 0 if shape.has_adapters else converted  # frozen weights are converted for each use
    return Activations(tokens * layers * precision.residual * h, head, working, converted, embeddings)


def loss_bytes(
    shape: ModelShape, precision: Precision, answer_tokens: int, taught_tokens: int = 0
) -> tuple[float, float]:
    """
    Bytes of the loss in the forward and in the backward pass. There are logits of a chunk of answer tokens alone:
    those of the head, in float32, and their log-probabilities; then these, their gradient and that of the logits. Each
    chunk has a gradient of the head's weight, which is added to that of the chunks before it, in half precision where
    weights are converted; a frozen head is converted for each chunk. Tokens that learn by a distribution of the
    initial weights (`NLACConfig.has_teacher`) need its hidden states, a copy of a trained head, and in a chunk four
    times its logits in float32.
    """
    a, chunk = precision.activation, min(LOSS_CHUNK, answer_tokens) * shape.vocab_size
    are_added = answer_tokens > LOSS_CHUNK and not precision.casts
    gradients = _weight_gradient(shape, precision, shape.vocab_size) * (2 if are_added else 1)
    converted = 2 * shape.vocab_size * shape.hidden_size if precision.casts and shape.has_adapters else 0
    teacher = 0.0
    if taught_tokens:
        trained = 0 if shape.has_adapters else precision.trained * shape.vocab_size * shape.hidden_size
        teacher = a * taught_tokens * shape.hidden_size + trained + 4 * 4 * chunk
    return (a + 8) * chunk + converted + teacher, 12 * chunk + gradients + converted + teacher


def _weight_gradient(shape: ModelShape, precision: Precision, width: int) -> float:
    """The gradient of a weight, before it is added to the others."""
    return 0 if shape.has_adapters else (precision.trained + 2 * precision.casts) * width * shape.hidden_size


def generation_bytes(shape: ModelShape, sequences: int, prompt_tokens: int, answer_tokens: int) -> dict[str, float]:
    """
    What transformers needs to generate for `sequences` at once, in half precision: the key/value cache, of which a
    layer is copied when it grows; the first pass over the prompts, with the feed-forward block of a layer and, since
    prompts are padded, a mask of prompt x prompt (1 byte, and 2 as the attention adds it); four times the logits.
    """
    length = prompt_tokens + answer_tokens
    first_pass = prompt_tokens * 2 * (3 * shape.hidden_size + 3 * shape.intermediate_size) + 3 * prompt_tokens**2
    return {
        "cache": sequences * length * shape.cache_bytes * (1 + 1 / shape.num_layers),
        "prompts": sequences * (first_pass + 16 * shape.vocab_size),
    }


def engine_weights(shape: ModelShape, frozen_bytes: float | None, tensor_parallel: int) -> float:
    """Weights of vLLM in each of the processes that share an engine: 2 bytes a parameter, less if quantized."""
    return (2 * shape.parameters if frozen_bytes is None else frozen_bytes + 2 * shape.trained) / tensor_parallel


def cache_tokens(shape: ModelShape, budget: float, weights: float, tensor_parallel: int) -> int:
    """Tokens that the key/value cache of vLLM holds, where it can use `budget` bytes of each GPU."""
    return max(0, int((budget - weights - ENGINE_OVERHEAD) * tensor_parallel / shape.cache_bytes))
