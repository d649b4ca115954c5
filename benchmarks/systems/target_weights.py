# SPDX-License-Identifier: Apache-2.0

"""
One update of the target weights against TRL's `SyncRefModelCallback.sync_target_model` of the same model: time and
memory, in one process (float32 weights) and under DeepSpeed ZeRO-3 with two (bfloat16, with float32 masters); and the
share of the gap between policy and target that 1,000 updates close in bf16 training. Bytes are those that PyTorch
allocates for the second copy of the weights, and in addition during an update.

python -m benchmarks.systems.target_weights --json benchmarks/results/target_weights.json
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from itertools import accumulate
from statistics import median

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin
from transformers import LlamaConfig, LlamaForCausalLM
from trl.models.utils import prepare_deepspeed
from trl.trainer.callbacks import SyncRefModelCallback

from benchmarks import reporting
from trl_nlac import TargetWeights


UPDATE_RATE = 0.005
SIZES = {  # about 38 million parameters, and half a million for the 1,000 updates
    "large": dict(hidden_size=512, intermediate_size=1536, num_hidden_layers=8, vocab_size=16_000),
    "small": dict(hidden_size=128, intermediate_size=384, num_hidden_layers=2, vocab_size=1_000),
}


def make_model(size: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=8, num_key_value_heads=4, **SIZES[size]))


def num_allocated(function: Callable[[], object]) -> tuple[object, int, int]:
    """Return the result of `function`, the bytes that stay allocated, and the most that were allocated by the call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = function()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    totals = list(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))
    return result, (totals or [0])[-1], max(totals, default=0)


def measure(make: Callable[[], object], update: Callable[[object], None], repetitions: int) -> dict[str, float]:
    """Measure the seconds of an update in the slowest process, and the bytes of the copy and of an update."""
    copy, copy_bytes, _ = num_allocated(make)
    update(copy)  # warm up
    _, _, update_bytes = num_allocated(lambda: update(copy))
    seconds = []
    for _ in range(repetitions):
        if dist.is_initialized():
            dist.barrier()
        start = time.perf_counter()
        update(copy)
        seconds.append(time.perf_counter() - start)
    if dist.is_initialized():
        seconds = torch.tensor(seconds)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        seconds = seconds.tolist()
    return {"seconds": median(seconds), "copy_bytes": copy_bytes, "update_bytes": update_bytes}


def compare(make_ours, update_ours, make_trl, update_trl, shard_size: int, repetitions: int) -> dict:
    ours = measure(make_ours, update_ours, repetitions)
    trl = measure(make_trl, update_trl, repetitions)
    for row in (ours, trl):
        row["bytes_per_parameter"] = round((row["copy_bytes"] + row["update_bytes"]) / shard_size, 3)
    return {
        "parameters_of_shard": shard_size,
        "ours": ours,
        "trl": trl,
        "speedup_over_trl": round(trl["seconds"] / ours["seconds"], 2),
    }


def one_process(repetitions: int) -> dict:
    Accelerator(cpu=True)  # TRL asks its state for DeepSpeed
    model = make_model("large")

    def make_trl():
        return make_model("large").requires_grad_(False)

    return compare(
        lambda: TargetWeights(model, UPDATE_RATE),
        lambda target: target.update(model),
        make_trl,
        lambda target: SyncRefModelCallback.sync_target_model(model, target, UPDATE_RATE),
        sum(parameter.numel() for parameter in model.parameters()),
        repetitions,
    )


def zero3(repetitions: int, num_updates: int) -> dict:
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param

    deepspeed.init_distributed("gloo")
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3},
        "zero_allow_untested_optimizer": True,
    }
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config))
    assert accelerator.distributed_type == "DEEPSPEED"

    def make_engine(size: str):
        model = make_model(size)
        return deepspeed.initialize(
            model=model, config=config, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4)
        )[0]

    engine = make_engine("large")
    result = compare(
        lambda: TargetWeights(engine, UPDATE_RATE),
        lambda target: target.update(engine),
        lambda: prepare_deepspeed(make_model("large"), accelerator),
        lambda target: SyncRefModelCallback.sync_target_model(engine.module, target, UPDATE_RATE),
        sum(parameter.ds_tensor.numel() for parameter in engine.module.parameters()),
        repetitions,
    )

    # Distances to the policy: of both, and of an average in float32 arithmetic.
    engine = make_engine("small")
    ours, trl = TargetWeights(engine, UPDATE_RATE), prepare_deepspeed(make_model("small"), accelerator)
    exact = [safe_get_full_fp32_param(parameter).clone() for parameter in engine.module.parameters()]
    torch.manual_seed(dist.get_rank())
    for _ in range(10):
        token_ids = torch.randint(SIZES["small"]["vocab_size"], (1, 64))
        engine.backward(engine(input_ids=token_ids, labels=token_ids).loss)
        engine.step()

    def gaps() -> dict[str, float]:
        masters = [safe_get_full_fp32_param(parameter) for parameter in engine.module.parameters()]
        parameters = [*engine.module.parameters(), *trl.module.parameters()]
        with deepspeed.zero.GatheredParameters(parameters):
            policy, target = ([p.detach().float() for p in e.module.parameters()] for e in (engine, trl))
            norms = [
                torch.cat([(a - b).flatten() for a, b in zip(*pair, strict=True)]).norm().item()
                for pair in ((masters, exact), (policy, target))
            ]
        return {"bf16": ours.distance(engine), "float32": norms[0], "trl": norms[1]}

    before = gaps()
    for _ in range(num_updates):
        ours.update(engine)
        SyncRefModelCallback.sync_target_model(engine.module, trl, UPDATE_RATE)
        for average, parameter in zip(exact, engine.module.parameters(), strict=True):
            average.lerp_(safe_get_full_fp32_param(parameter), UPDATE_RATE)
    after = gaps()
    result["gap_closed"] = {name: round(1 - after[name] / before[name], 4) for name in before}
    return result


def main():
    parser = reporting.parser(__doc__)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--num_updates", type=int, default=1000)
    parser.add_argument("--kind", choices=["one_process", "zero3"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.kind:
        numbers = (args.repetitions,) if args.kind == "one_process" else (args.repetitions, args.num_updates)
        result = {"one_process": one_process, "zero3": zero3}[args.kind](*numbers)
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps(result), flush=True)
        return
    options = reporting.same_options(args, "repetitions", "num_updates")
    variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "DS_ACCELERATOR": "cpu"}
    of_two = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    one, two = (
        reporting.alone("benchmarks.systems.target_weights", "--kind", kind, *options, launcher=launcher, **variables)
        for kind, launcher in (("one_process", ()), ("zero3", of_two))
    )
    report = {
        **reporting.setting("torch", "transformers", "trl", "deepspeed"),
        "zero3_speedup_over_trl": two["speedup_over_trl"],
        "extra_bytes_per_parameter": max(row["ours"]["bytes_per_parameter"] for row in (one, two)),
        **{f"gap_closed_{name}": share for name, share in two["gap_closed"].items()},
        "one_process": one,
        "zero3_two_processes": two,
    }
    print(json.dumps(report, indent=2))
    reporting.write(report, args.json)


if __name__ == "__main__":
    main()
