# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac plan`: memory and time of a run, before it is started."""

import argparse
import json
import re
import shlex

from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, PreTrainedConfig
from trl import ModelConfig, get_peft_config

from ..generation.engine import allowed_rank
from ..method.context import context_length
from ..nlac_config import NLACConfig
from ..options.generation_options import GenerationOptions
from ..planning.memory import Sharing
from ..planning.rates import Rates
from ..planning.run_plan import HIGHEST_RANK, Machines, Plan, as_text
from ..planning.shape import ModelShape, model_shape
from ..private_names import load_config_from_file
from ..training.model import adapter_config
from .errors import CommandError, one_line_errors, one_line_errors_of_files
from .options import check_model
from .packaged import find_yaml
from .parsers import plan_parser
from .train_options import TrainParser


LOADED = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
NF4_BYTES, INT8_BYTES = 0.5 + 4 / 64, 1.0  # of a quantized weight, with its scale for each block of 64
MOMENTS = {"loss": "loss", "layers": "backward", "step": "optimizer", "generation": "generation"}
MEANINGS = {  # of the rows of both tables
    "weights": "the model",
    "gradients": "of the trained weights",
    "optimizer": "its state",
    "target weights": "the slow copy that predicts futures",
    "initial weights": "those that write targets and refined actions",
    "communication": "buffers between GPUs",
    "engine": "vLLM, with weights and cache",
    "activations": "what the forward pass keeps",
    "layer": "what the backward pass computes in a layer",
    "loss": "logits and their gradients",
    "step": "temporary values of the optimizer",
    "cache": "keys and values of what is generated at once",
    "prompts": "the first pass over prompts that are answered at once",
    "weights set aside": "the model's own, while others are in it",
    "gathered weights": "whole, in half precision, to generate",
    "prefix cache": "keys and values kept between answers",
    "rollout": "the policy plays",
    "target": "what the critic should have said",
    "refine": "critiques and better actions",
    "sync": "weights go to what generates",
    "train": "passes of both losses",
}
WIDTH = 110  # columns of what is printed


def run(words: list[str]) -> None:
    args, others = plan_parser().parse_known_args(words)
    plan, names = make_plan(args, others)
    found = ({}, plan) if plan.fits else plan.fitting
    changes, fitting = found or ({}, plan)
    words = [w for name, value in changes.items() if name not in names for w in (f"--{name}", str(value))]
    lines = launch_lines(fitting, names | {name: changes[name] for name in names & changes.keys()}, [*others, *words])
    if args.json:
        print(json.dumps(as_json(plan, fitting, lines if found else []), indent=2))
        return
    show(plan)
    if found is None:
        print("No change of these, and no two, fit. Take adapters (--use_peft True), a smaller model or more memory.")
        return
    if changes:
        print(f"With {as_text(changes)} it fits; {fitting.margin / 1e9:.1f} GB are left.")
        for text in fitting.warnings:
            print(f"Mind: {text}")
    hours = "unknown (give --max_steps, or --num_tasks)" if fitting.hours is None else f"{fitting.hours:,.2f}"
    print("Start it with:", *lines, sep="\n  ")
    print(f"Hours of this whole run: {hours}")


def make_plan(args: argparse.Namespace, words: list[str]) -> tuple[Plan, dict[str, str]]:
    """Make the plan. Return it with the names of its (base) model and of its configuration of Accelerate."""
    count, memory = _gpus("--gpus", args.gpus)
    server_count, server_memory = _gpus("--server_gpus", args.server_gpus) if args.server_gpus else (0, 0.0)
    machines = Machines(count, memory, args.nodes, server_count, server_memory, args.reserve * 1e9)
    processes = count * args.nodes
    if processes < 1 or machines.reserve < 0:
        raise CommandError(
            f"--gpus {args.gpus} --nodes {args.nodes} --reserve {args.reserve}: there is no GPU to use."
        )
    rates = Rates(**{name: vars(args)[name] for name in vars(Rates())})
    for name, value in vars(rates).items():
        if value is not None and (value < 0 or value == 0 and name != "environment_seconds"):
            raise CommandError(f"--{name} {value:g} must be above 0.")
    _, model_args, options = TrainParser(planned(processes)).read(words)
    name = model_args.model_name_or_path
    if not name:
        raise CommandError("--model_name_or_path is missing: name the model.")
    shape, config, base = _shape(name, model_args, options.trust_remote_code)
    launch = args.accelerate_config
    if launch is None:
        launch = "single_gpu" if processes == 1 else "multi_gpu" if shape.has_adapters else "zero3"
    dtype = (options.model_init_kwargs or {}).get("dtype", model_args.dtype)
    dtype = config.dtype if dtype == "auto" else dtype
    frozen_bytes = None
    if model_args.load_in_4bit or model_args.load_in_8bit:
        each = NF4_BYTES if model_args.load_in_4bit else INT8_BYTES
        frozen_bytes = each * shape.quantizable + 2 * (shape.parameters - shape.trained - shape.quantizable)
    plan = Plan(
        shape,
        machines,
        _sharing(launch, processes),
        options,
        rates,
        loaded=LOADED[str(dtype or "float32").removeprefix("torch.")],
        context=context_length(config) or (options.max_prompt_length or 0) + options.max_completion_length,
        frozen_bytes=frozen_bytes,
        attention=model_args.attn_implementation,
    )
    return plan, {"model": base, "accelerate_config": launch}


def planned(processes: int) -> type[NLACConfig]:
    """Make the configuration of one of several processes, on whatever machine the plan is made."""

    class PlannedConfig(NLACConfig):
        world_size = processes

        def __post_init__(self):
            fp16, bf16 = self.fp16, self.bf16 is None or self.bf16
            self.fp16, self.bf16, self.use_cpu = False, False, True
            super().__post_init__()
            self.fp16, self.bf16 = fp16, bf16 and not fp16

    return PlannedConfig


def _gpus(option: str, text: str) -> tuple[int, float]:
    match = re.fullmatch(r"(\d+)x(\d+(?:\.\d+)?)GB", text)
    if match is None or not int(match[1]) or not float(match[2]):
        raise CommandError(f"{option} {text} must be written as 8x80GB: GPUs of a node, and the memory of each.")
    return int(match[1]), float(match[2]) * 1e9


def _shape(name: str, model_args: ModelConfig, trust_remote_code: bool) -> tuple[ModelShape, PreTrainedConfig, str]:
    """Return the shape of a model, its configuration, and its name without an adapter."""
    with one_line_errors_of_files(f"--model_name_or_path {name}"):
        base, revision, adapter = name, model_args.model_revision, get_peft_config(model_args)
        check_model(name, revision)
        saved = adapter_config(name, revision)
        if saved is not None:
            if adapter is not None:
                raise ValueError("it is an adapter, and --use_peft would add another. Leave it out.")
            saved.inference_mode = False  # it is trained further
            base, revision, adapter = saved.base_model_name_or_path, saved.revision, saved
        config = AutoConfig.from_pretrained(base, revision=revision, trust_remote_code=trust_remote_code)
        return model_shape(config, adapter, trust_remote_code), config, base


def _sharing(name: str, processes: int) -> Sharing:
    path = find_yaml("--accelerate_config", "accelerate_configs", name)
    with one_line_errors(f"--accelerate_config {name}: "):
        config = load_config_from_file(path)
    kind = config.distributed_type.value
    if kind == "DEEPSPEED":
        deepspeed = config.deepspeed_config
        if "zero_stage" not in deepspeed:
            raise CommandError(f"--accelerate_config {name}: it has no zero_stage, which the plan needs.")
        offloads = [deepspeed.get(f"offload_{what}_device", "none") != "none" for what in ("optimizer", "param")]
        return Sharing("zero3" if deepspeed["zero_stage"] == 3 else "zero2", processes, *offloads)
    kinds = {"NO": "none", "MULTI_GPU": "ddp", "MULTI_CPU": "ddp", "FSDP": "fsdp2"}
    if kind not in kinds:
        raise CommandError(f"--accelerate_config {name}: the distributed_type {kind} cannot be planned.")
    if kinds[kind] == "none" and processes > 1:
        raise CommandError(f"--accelerate_config {name} starts one process, and there are {processes} GPUs.")
    return Sharing(kinds[kind], processes)


def launch_lines(plan: Plan, names: dict[str, str], words: list[str]) -> list[str]:
    """Return the lines that start the server, if any, and the run. What only the user knows is a variable."""
    lines, of_server, options, processes = [], "", plan.options, plan.sharing.processes
    if options.use_vllm and options.vllm_mode == "server" and plan.machines.server_gpus:
        command = ["vllm", "serve", names["model"], "--tensor-parallel-size", str(plan.tensor_parallel)]
        if options.vllm_max_model_length:
            command += ["--max-model-len", str(options.vllm_max_model_length)]
        command += ["--max-num-seqs", str(options.max_generation_batch_size * processes)]
        variable = "VLLM_SERVER_DEV_MODE=1"
        if plan.shape.has_adapters:
            variable = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
            rank = allowed_rank(min(plan.shape.adapter_rank, HIGHEST_RANK))  # more is a problem of the plan
            command += ["--enable-lora", "--max-loras", "3", "--max-lora-rank", str(rank)]
        elif options.vllm_server_weights_dir is None:
            command += ["--weight-transfer-config", '{"backend": "nccl"}']
        lines.append(f"{variable} {shlex.join(command)}")
        if options.vllm_server_base_url is None and options.vllm_server_host == GenerationOptions.vllm_server_host:
            of_server += " --vllm_server_host $ADDRESS_OF_SERVER"
        if plan.shape.has_adapters and options.vllm_server_weights_dir is None:
            of_server += " --vllm_server_weights_dir $FOLDER_THAT_BOTH_SEE"
    command = ["trl-nlac", "train", "--accelerate_config", names["accelerate_config"]]
    if processes > 1:
        command += ["--num_processes", str(processes)]
    line = shlex.join(command)
    if plan.machines.nodes > 1:
        line += f" --num_machines {plan.machines.nodes} --machine_rank $RANK_OF_THIS_NODE"
        line += " --main_process_ip $ADDRESS_OF_NODE_0 --main_process_port 29500"
    return [*lines, f"{line} {shlex.join(words)}".strip() + of_server]


def as_json(plan: Plan, fitting: Plan, lines: list[str]) -> dict:
    """Everything that the command prints, with bytes in GB (10^9), and `lines` for a plan that fits."""
    gb = 1e9
    return {
        "fits": plan.fits,
        "margin_gb": plan.margin / gb,
        "problems": plan.problems,
        "warnings": plan.warnings,
        "assumed": plan.assumed,
        "memory_gb": {
            moment: {name: size / gb for name, size in parts.items()} for moment, parts in plan.memory.items()
        },
        "host_gb": {name: size / gb for name, size in plan.host.items()},
        "activations_gb": {
            name: other.memory["layers"]["activations"] / gb for name, other in _checkpointing(plan).items()
        },
        "parameters": plan.shape.parameters,
        "trained_parameters": plan.shape.trained,
        "tokens_of_a_pass": plan.batch_tokens,
        "cache_tokens": plan.cache_tokens,
        "asked_tokens": plan.asked_tokens if plan.options.use_vllm else None,
        "iteration": [phase._asdict() for phase in plan.iteration],
        "longest_phase": max(plan.iteration, key=lambda phase: phase.seconds).name,
        "hours": plan.hours,
        "launch": lines,
        "launch_hours": fitting.hours if lines else None,
    }


def _checkpointing(plan: Plan) -> dict[str, Plan]:
    return {
        "with gradient checkpointing": plan.with_options(gradient_checkpointing=True),
        "without": plan.with_options(gradient_checkpointing=False),
    }


def show(plan: Plan) -> None:
    """Print the plan."""
    console = Console(width=WIDTH, highlight=False, markup=False)
    console.print(_memory_table(plan))
    kept = _checkpointing(plan)
    sizes = ", ".join(f"{other.memory['layers']['activations'] / 1e9:.1f} GB {name}" for name, other in kept.items())
    lines_of_text = [f"A pass has up to {plan.batch_tokens:,} tokens; their activations are {sizes}."]
    if plan.host:
        parts = ", ".join(f"{name} {size / 1e9:.1f} GB" for name, size in plan.host.items())
        lines_of_text.append(f"In CPU memory, for each process: {parts}.")
    lines_of_text += [f"Does not fit: {text}" for text in plan.problems] + [f"Mind: {text}" for text in plan.warnings]
    print(*lines_of_text, sep="\n")
    number, lengths = plan.options.episodes_per_iteration, plan.lengths
    episodes = "1 episode" if number == 1 else f"{number:,} episodes"
    print(
        f"An iteration: {plan.options.samples_per_iteration:,} transitions, {episodes} of {lengths.turns:g} turns, "
        f"prompts of {lengths.prompt:g} tokens, answers of {lengths.answer:g}."
    )
    console.print(_time_table(plan))
    print("Assumed (of GPUs an H100; options of `trl-nlac plan --help` change it):", *plan.assumed, sep="\n  ")


def _memory_table(plan: Plan) -> Table:
    machines = plan.machines
    table = Table(title="Memory of a GPU at the worst moments of an iteration")
    table.add_column(f"GB, of {machines.memory / 1e9:g}")
    for moment in plan.memory:
        table.add_column(MOMENTS[moment], justify="right")
    names = list(dict.fromkeys(name for parts in plan.memory.values() for name in parts))
    for name in names:
        sizes = [parts.get(name) for parts in plan.memory.values()]
        table.add_row(f"{name}: {MEANINGS[name]}", *("" if size is None else f"{size / 1e9:.1f}" for size in sizes))
    table.add_section()
    sums = [sum(parts.values()) for parts in plan.memory.values()]
    table.add_row("sum", *(f"{size / 1e9:.1f}" for size in sums))
    left = [machines.memory - machines.reserve - size for size in sums]
    table.add_row(f"left, besides {machines.reserve / 1e9:g} for CUDA itself", *(f"{size / 1e9:.1f}" for size in left))
    table.add_row("fits", *("yes" if size >= 0 else "no" for size in left))
    return table


def _time_table(plan: Plan) -> Table:
    table = Table(title="Time of an iteration (read: prompts that no cache holds)")
    for name in ("phase", "tokens generated", "tokens read", "tokens trained", "seconds"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    phases = plan.iteration
    longest = max(phases, key=lambda phase: phase.seconds)
    for phase in phases:
        numbers = [f"{number:,.0f}" if number else "" for number in phase[1:4]]
        mark = " (longest)" if phase is longest else ""
        table.add_row(f"{phase.name}: {MEANINGS[phase.name]}{mark}", *numbers, f"{phase.seconds:,.0f}")
    table.add_section()
    table.add_row("sum", "", "", "", f"{sum(phase.seconds for phase in phases):,.0f}")
    return table
