# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac improve`: from the logs of any agent to a better model, and a report."""

import argparse
import gc
import json
import time
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import upload_file
from transformers import AutoTokenizer
from trl import ModelConfig, get_peft_config, get_quantization_config

from ..agent.agent import NLACAgent
from ..agent.backends import present_device
from ..agent.guard import GUARD_FILE, calibrate_by_half
from ..agent.log_review import LogReview, critic_metrics, readable_rows
from ..chat.actions import ActionFormat, choose_format, parse_react
from ..chat.encoder import ChatEncoder
from ..episodes.conversations import write_json_lines
from ..episodes.pool import NO_TASK
from ..evaluation.evaluation import joint_metrics
from ..log_formats.log_files import read_logs
from ..log_formats.log_summary import describe, num_turns, split_by_task
from ..log_formats.logged import LoggedConversations
from ..nlac_config import NLACConfig
from ..options.role_options import RoleOptions
from ..prompts import NLACPrompts
from ..report.rendering import write_page
from ..report.shown_notes import read_warnings
from ..secrets import hide_secrets
from ..terminal import printable
from ..training.model import is_adapter
from ..written_files import refuse_links, replaced, write_json
from .buffer_texts import load_actions
from .errors import CommandError, one_line_errors, one_line_errors_of_files
from .options import check_model, load_environments, load_rows
from .origin import environment_options
from .parsers import improve_parser
from .train import load_prompts, make_trainer, note_run
from .train_arguments import TrainArguments
from .train_options import TrainParser


# In place of the defaults of `trl-nlac train`: an adapter, nothing but the outcome of what was logged, and shorter
# answers, so that a model that does not stop by itself has its first report within minutes on a CPU.
DEFAULTS = dict(
    use_peft=True,
    lora_target_modules=["all-linear"],
    learning_rate=1e-4,
    max_steps=200,
    max_completion_length=256,
    bootstrap="monte_carlo",
    report_to="none",
    save_strategy="no",
)
# What is printed at the end, of what the report has.
SHOWN = {
    "critic": ("readable", "brier", "auroc", "agreement", "agreement_of_last_steps"),
    "environment": ("episode/success_rate", "episode/return"),
}
REPORT, FIGURES, MODEL, LOGS = "report.html", "improve.json", "model", "logs"


def run(words: list[str]) -> None:
    start = time.perf_counter()
    args, others = _read_words(words)
    output = Path(args.output_dir)
    if (output / FIGURES).exists():
        raise CommandError(f"--output_dir {output} has the results of another run: name another folder.")
    refuse_links(output)
    parser = TrainParser()
    of_machine = {} if torch.accelerator.is_available() else {"use_cpu": True, "bf16": False}
    parser.set_defaults_with_config(**DEFAULTS, **of_machine)
    script_args, model_args, options = parser.read([*others, "--output_dir", str(output / MODEL)])
    _refuse_unread(script_args, options)
    model = model_args.model_name_or_path
    if not model:
        raise CommandError("--model_name_or_path is missing: name the model to improve.")
    with one_line_errors_of_files(f"--model_name_or_path {model}"):
        check_model(model, model_args.model_revision)
        if model_args.use_peft and is_adapter(model):
            print(f"{model} is an adapter, which is trained further.")
            model_args.use_peft = False
    prompts = load_prompts(script_args, model_args)
    if not args.only_report:  # an adapter that cannot be made is found before the first report
        with one_line_errors("--use_peft True: "):
            get_peft_config(model_args)
    with one_line_errors():
        found = read_logs(args.logs, lambda path: load_actions(_model_of(path, model))[0], args.outcome)
    actions = _choose_actions(model, model_args, options, found)
    base = _load_agent(model, model_args, options, prompts)
    options.max_prompt_length = base.options.max_prompt_length  # which the model's context can have lowered
    found.rows, problems = readable_rows(found.rows, actions, prompts, options.max_prompt_length)
    for problem in problems:
        found.refuse(problem)
    _say_what_was_read(found, args.logs, options.success_threshold)
    if len(found.rows) < 2:
        raise CommandError(f"{', '.join(args.logs)}: fewer than two conversations can be read.")
    training, held_out, is_by_task = split_by_task(found.rows, args.held_out_share, options.seed)
    print(f"Actions are read and trained as {options.action_format!r} (--action_format).")
    kind = "of other tasks" if is_by_task else "of the same task, the only one"
    print(f"{len(training)} conversations to train on; {len(held_out)} held out, {kind}.", flush=True)
    for logs, rows in (("held_out", held_out), ("training", training)):
        with replaced(output / LOGS / f"{logs}.jsonl") as written:
            write_json_lines(rows, written)
    report = {
        "files": args.logs,
        "format": found.format,
        "model": model,
        "logs": describe(found.rows, options.success_threshold),
        "unreadable": dict(found.unreadable.most_common()),
        "notes": dict(found.notes.most_common()),
        "held_out": _describe_held_out(held_out, is_by_task, options.success_threshold),
        "after": None,
        "guard": None,
        "warnings": [],
        "seconds": {},
    }
    review = LogReview(found.rows, held_out, args.num_critiques, options.seed)
    report["before"], _ = _review(base, review, args, script_args, options)
    report["seconds"]["first_report"] = time.perf_counter() - start
    _write(output, report)
    print(f"{report['seconds']['first_report']:.0f} s: first report in {output / REPORT}", flush=True)
    if args.only_report:
        return
    del base
    _free_memory()
    files = output / LOGS / "training.jsonl"
    try:
        report["seconds"]["training"], repository = _train(script_args, model_args, options, parser.unsupported, files)
    except Exception as error:
        report["warnings"] = [f"Training failed: {printable(str(error))}"]
        _write(output, report)
        raise
    _free_memory()
    trained = _load_agent(str(output / MODEL), model_args, options, prompts)
    report["after"], judged = _review(trained, review, args, script_args, options)
    report["warnings"] = list(read_warnings(output / MODEL))
    report["guard"] = _calibrate(judged, options.success_threshold, output / MODEL)
    report["seconds"]["all"] = time.perf_counter() - start
    _write(output, report)
    for part, names in SHOWN.items():
        before, after = report["before"][part] or {}, report["after"][part] or {}
        for name in names:
            if name in before and name in after:
                print(f"{name}: {before[name]:.3f} before, {after[name]:.3f} after")
    if repository is not None and report["guard"] is not None:
        _push_guard(output / MODEL, repository, options)
    print(f"{report['seconds']['all']:.0f} s: report in {output / REPORT}, model in {output / MODEL}")


def _read_words(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Read this command's own arguments; the others are those of training."""
    parser = improve_parser()
    count = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    if count == 0:
        parser.parse_args([word for word in words if word in ("-h", "--help")])  # prints the help, or:
    args, others = parser.parse_known_args(words)
    if any(word.partition("=")[0] == "--accelerate_config" for word in others):
        raise CommandError("--accelerate_config starts several processes, and improve trains in one.")
    # A value of an option of training must not be taken for a log.
    args.logs = words[:count]
    if not 0 < args.held_out_share < 1:
        raise CommandError(f"--held_out_share must be between 0 and 1, got {args.held_out_share}.")
    for name in ("num_critiques", "num_findings", "num_tasks"):
        if vars(args)[name] < 1:
            raise CommandError(f"--{name} must be at least 1, got {vars(args)[name]}.")
    return args, others


def _refuse_unread(script_args: TrainArguments, options: NLACConfig) -> None:
    """Refuse options of training that mean nothing here."""
    if script_args.replay_dataset:
        raise CommandError(
            f"--replay_dataset {script_args.replay_dataset}: the logs are named first, without an option."
        )
    if options.resume_from_checkpoint:
        raise CommandError(
            f"--resume_from_checkpoint {options.resume_from_checkpoint}: to train on, give the folder of the model to "
            "`trl-nlac train` as --model_name_or_path, with --replay_dataset for the file of logs beside it and an "
            "--output_dir of its own."
        )
    if options.world_size > 1:
        raise CommandError(
            "improve trains in one process. Use --only_report, and train on the file of logs that it writes with "
            "`trl-nlac train --replay_dataset`."
        )


def _model_of(path: Path, model: str) -> str:
    """The model whose tokens a buffer has: the checkpoint that it lies in, or else the one to train."""
    folders = [folder for folder in path.parents if (folder / "tokenizer_config.json").is_file()]
    return str(folders[0]) if folders else model


def _choose_actions(
    model: str, model_args: ModelConfig, options: NLACConfig, found: LoggedConversations
) -> ActionFormat:
    """Choose the format of actions: that of the options, or else the one in which most of the logs are written."""
    with one_line_errors_of_files(f"--model_name_or_path {model}"):
        tokenizer = AutoTokenizer.from_pretrained(
            model, revision=model_args.model_revision, trust_remote_code=options.trust_remote_code
        )
        chat = ChatEncoder(tokenizer, options.chat_template_kwargs)
    if options.action_format is None:
        said = [message for row in found.rows for message in row["messages"] if message["role"] == "assistant"]
        texts = [message["content"] for message in said if message["content"] or not message.get("tool_calls")]
        num_calls = sum(bool(message.get("tool_calls")) for message in said)
        if num_calls and chat.calls_tools:
            options.action_format = "tool_call"
        elif num_calls or (texts and 2 * sum(parse_react(text) is not None for text in texts) >= len(texts)):
            options.action_format = "react"
        else:
            options.action_format = "text"
    return ActionFormat(chat, choose_format(options.action_format, chat, tools=[]), options.keep_history)


def _say_what_was_read(found: LoggedConversations, names: list[str], success_threshold: float) -> None:
    print(f"{', '.join(map(printable, names))}: {found.format}")
    described = describe(found.rows, success_threshold)
    outcomes, unreadable = described["outcomes"], found.unreadable.total()
    print(
        f"{len(found.rows)} conversations of {described['tasks']} tasks, {outcomes['successes']} successes and "
        f"{outcomes['failures']} failures; {unreadable} cannot be read."
    )
    if found.rows and not (outcomes["successes"] and outcomes["failures"]):
        print(
            f"All are {'successes' if outcomes['successes'] else 'failures'}: a conversation succeeds from an outcome "
            f"of {success_threshold:g} on (--success_threshold), and theirs are {outcomes['smallest']:g} to "
            f"{outcomes['largest']:g}."
        )
    for counts in (found.unreadable, found.notes):
        for reason, count in counts.most_common():
            print(f"  {count} times: {printable(reason)}")


def _describe_held_out(rows: list[dict[str, Any]], is_by_task: bool, success_threshold: float) -> dict[str, Any]:
    described, steps = describe(rows, success_threshold), Counter()
    for row in rows:
        steps[row["reward"] >= success_threshold] += num_turns(row)
    return {
        **{name: described[name] for name in ("conversations", "tasks", "outcomes")},
        "is_by_task": is_by_task,
        "best_guess": max(steps.values()) / steps.total(),
    }


def _load_agent(model: str, model_args: ModelConfig, options: NLACConfig, prompts: NLACPrompts) -> NLACAgent:
    """Load the agent of a model as it is trained: quantized, for example, where it would not fit otherwise."""
    of_roles = {option.name: vars(options)[option.name] for option in fields(RoleOptions)}
    is_base = model == model_args.model_name_or_path
    loading = {"dtype": model_args.dtype or "auto", "attn_implementation": model_args.attn_implementation}
    if (quantization_config := get_quantization_config(model_args)) is not None:
        device = "cpu" if options.use_cpu else present_device()
        loading |= {"quantization_config": quantization_config, "device_map": {"": device}}
    with one_line_errors_of_files(model):
        return NLACAgent.from_pretrained(
            model,
            prompts=prompts,
            device="cpu" if options.use_cpu else None,
            revision=model_args.model_revision if is_base else None,
            trust_remote_code=options.trust_remote_code,
            backend_kwargs=loading,
            **of_roles,
        )


def _review(
    agent: NLACAgent, review: LogReview, args: argparse.Namespace, script_args: TrainArguments, options: NLACConfig
) -> tuple[dict[str, Any], list]:
    """Measure the critic, let it find what went wrong, and play, if there is an environment."""
    torch.manual_seed(options.seed)
    judged = review.judge_held_out(agent)
    findings, num_judged = review.find(agent, args.num_findings)
    result = {
        "critic": critic_metrics(judged, options.success_threshold),
        "judged_steps": num_judged,
        "findings": [asdict(finding) for finding in findings],
        "environment": None,
    }
    if script_args.environment_factory or script_args.tools:
        result["environment"] = _play(agent, args, script_args, options)
    return result, judged


def _play(
    agent: NLACAgent, args: argparse.Namespace, script_args: TrainArguments, options: NLACConfig
) -> dict[str, float]:
    if script_args.eval_dataset_name:
        rows = load_rows(script_args.eval_dataset_name)
    else:
        split = script_args.dataset_test_split or script_args.dataset_train_split
        rows = load_rows(script_args.dataset_name, script_args.dataset_config, split)
    tasks = [NO_TASK] * args.num_tasks if rows is None else list(rows)[: args.num_tasks]
    pool, rewards = load_environments(
        argparse.Namespace(
            environment_factory=script_args.environment_factory,
            environment_kwargs=json.dumps(script_args.environment_kwargs or {}),
            tools=script_args.tools,
            reward_funcs=script_args.reward_funcs,
            reward_weights=options.reward_weights,
            **environment_options(options),
        )
    )
    try:
        evaluation = agent.evaluate(
            pool, tasks, options.num_eval_episodes, num_critiques=0, seed=options.seed, rewards=rewards
        )
        found = joint_metrics(evaluation)
        return {name: value for name, value in found.items() if name.startswith(("episode/", "environment/"))}
    finally:
        pool.close()


def _train(
    script_args: TrainArguments,
    model_args: ModelConfig,
    options: NLACConfig,
    unsupported: CommandError | None,
    logs: Path,
) -> tuple[float, str | None]:
    """Train on the logs alone; return the seconds, and the repository on the Hub that the model was pushed to."""
    alone = TrainArguments(prompts=script_args.prompts, replay_dataset=str(logs))
    trainer = make_trainer(alone, model_args, options, unsupported)
    start = time.perf_counter()
    trainer.train()
    trainer.save_model()
    if options.push_to_hub:
        trainer.push_to_hub()
    note_run(script_args, options)  # where `trl-nlac evaluate` finds the environment
    return time.perf_counter() - start, trainer.hub_model_id


def _free_memory() -> None:
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def _calibrate(judged: list, success_threshold: float, model: Path) -> dict[str, Any] | None:
    """Store a guard with the model; `None` where the held-out logs have no successes, or no failures."""
    try:
        guard, measured, number = calibrate_by_half(
            [(i, judgement, episode.score < success_threshold) for i, _, judgement, episode in judged]
        )
    except ValueError as error:
        print(f"No guard: {error}")
        return None
    guard.save_pretrained(model)
    thresholds = {"block_below": guard.block_below, "pass_above": guard.pass_above}
    return {**thresholds, "measured": measured, "steps": number}


def _push_guard(model: Path, repository: str, options: NLACConfig) -> None:
    """Add the guard to the model on the Hub, which was pushed before it could be measured."""
    upload_file(
        path_or_fileobj=model / GUARD_FILE,
        path_in_repo=GUARD_FILE,
        repo_id=repository,
        token=options.hub_token,
        revision=options.hub_revision,
        commit_message="Guard",
    )


def _write(output: Path, report: dict[str, Any]) -> None:
    report = hide_secrets(report)
    write_json(output / FIGURES, report)
    write_page(output / REPORT, "improvement.html.jinja", ("page.css",), (), {}, report=report)
