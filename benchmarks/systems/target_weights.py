# SPDX-License-Identifier: Apache-2.0

"""
One update of the target weights against TRL's `SyncRefModelCallback.sync_target_model` of the same model under
DeepSpeed ZeRO-3, with two processes (bfloat16, with float32 masters): its time, and the share of the gap between
policy and target that 1,000 updates close.

python -m benchmarks.systems.target_weights --json benchmarks/results/target_weights.json
"""

import argparse
import json
import os
import time
from collections.abc import Callable
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


UPDATE_RATE, REPETITIONS, NUM_UPDATES = 0.005, 10, 1000
SIZES = {  # about 38 million parameters, and half a million for the 1,000 updates
    "large": dict(hidden_size=512, intermediate_size=1536, num_hidden_layers=8, vocab_size=16_000),
    "small": dict(hidden_size=128, intermediate_size=384, num_hidden_layers=2, vocab_size=1_000),
}


def make_model(size: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=8, num_key_value_heads=4, **SIZES[size]))


def seconds_of(update: Callable[[], None]) -> float:
    """Return the median seconds of an update in the slowest process."""
    update()  # warm up
    seconds = []
    for _ in range(REPETITIONS):
        dist.barrier()
        start = time.perf_counter()
        update()
        seconds.append(time.perf_counter() - start)
    seconds = torch.tensor(seconds)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return median(seconds.tolist())


def measure() -> dict:
    """Measure in one of the two processes."""
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
    ours, trl = TargetWeights(engine, UPDATE_RATE), prepare_deepspeed(make_model("large"), accelerator)
    result = {
        "seconds": seconds_of(lambda: ours.update(engine)),
        "trl_seconds": seconds_of(lambda: SyncRefModelCallback.sync_target_model(engine.module, trl, UPDATE_RATE)),
    }

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
    for _ in range(NUM_UPDATES):
        ours.update(engine)
        SyncRefModelCallback.sync_target_model(engine.module, trl, UPDATE_RATE)
        for average, parameter in zip(exact, engine.module.parameters(), strict=True):
            average.lerp_(safe_get_full_fp32_param(parameter), UPDATE_RATE)
    after = gaps()
    result["gap_closed"] = {name: round(1 - after[name] / before[name], 4) for name in before}
    return result


def main():
    parser = reporting.parser(__doc__)
    parser.add_argument("--in_process", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_process:
        result = measure()
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps(result), flush=True)
        return
    variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "DS_ACCELERATOR": "cpu"}
    of_two = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    found = reporting.alone("benchmarks.systems.target_weights", "--in_process", launcher=of_two, **variables)
    report = {**reporting.setting("torch", "transformers", "trl", "deepspeed"), **found}
    print(json.dumps(report, indent=2))
    reporting.write(report, args.json)


if __name__ == "__main__":
    main()
