# SPDX-License-Identifier: Apache-2.0

"""
Whether a model can play the roles as it is: how many answers of each can be read (form), and how many of these mean
something (meaning), with the default prompts, without and with worked examples, about the same logged steps.

    python -m benchmarks.formats.run --json benchmarks/results/formats.json

No answer with meaning repeats eight words of a prompt or of a worked example. A critique's advice does not begin with
the criticised action. A Bellman target repeats half of the words that were observed, and if the task ended, its
verdict agrees with the score. A refined action differs from the action, and has what its critique told it to do.
"""

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import reporting
from benchmarks.real_model import real_model_path
from trl_nlac import NLACPrompts
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tokenizer import ending_token_ids
from trl_nlac.episodes.logs import episodes_from_logs, logs_dataset
from trl_nlac.evaluation.health import backup_fidelity
from trl_nlac.evaluation.metrics import wilson_interval
from trl_nlac.generation.transformers import TransformersGenerator
from trl_nlac.method.backup import bellman_targets
from trl_nlac.method.critic import critiques
from trl_nlac.method.refinement import ask_refined
from trl_nlac.method.roles import Roles
from trl_nlac.options.role_options import RoleOptions
from trl_nlac.prompts import WORKED_EXAMPLES, parse_critique
from trl_nlac.types import Answer, Transition


CONVERSATIONS = Path(__file__).parent / "conversations.json"
TOLD = "Future: It goes on as before and nothing is won.\nOptimality: No. {advice}"
ROLES = ("policy", "critic", "backup", "refine")
VERSIONS = {"raw": NLACPrompts(), "examples": NLACPrompts(examples=WORKED_EXAMPLES)}  # prompts to compare, by name
SETTINGS = {"max_completion_length": 128, "seed": 0}


def ask_roles(roles: Roles, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ask every role about every step of conversations in the format of `roles`. Returns a record for each answer."""
    episodes = episodes_from_logs(logs_dataset(rows), roles.actions, roles.prompts)
    transitions = [transition for episode in episodes for transition in episode.transitions]
    kinds = [row["kind"] for row, episode in zip(rows, episodes, strict=True) for _ in episode.turns]
    advised = [step for row in rows for step in row["advice"]]
    state_actions = [transition.state_action for transition in transitions]
    told = []
    for prompt, step in zip(state_actions, advised, strict=True):
        text = TOLD.format(advice=step["advice"])
        told.append(Answer(prompt, tuple(roles.chat.completion(text)), text, parse_critique(text)))
    answers = {
        "policy": roles.act([transition.state for transition in transitions]),
        "critic": critiques(roles, state_actions),
        "backup": bellman_targets(roles, transitions, "explicit"),
        "refine": ask_refined(roles, state_actions, told),
    }
    return [
        {
            "kind": f"{kind}, {roles.actions.name}",
            "role": role,
            "text": answer.text,
            "readable": answer.parsed is not None,
            "faults": faults(roles, role, answer, transition, step["action_has"]),
        }
        for role, given in answers.items()
        for kind, answer, transition, step in zip(kinds, given, transitions, advised, strict=True)
    ]


def faults(roles: Roles, role: str, answer: Answer, transition: Transition, action_has: str) -> list[str]:
    """Name what is wrong with the meaning of an answer that can be read."""
    if answer.parsed is None:
        return []
    action, found = transition.turn.action, {"echo": roles.prompts.repeated_in([answer.text])[0]}
    if role == "critic":
        begins = re.split(r"\b(?:instead|rather|not|because)\b", answer.parsed.advice or "")[0]
        found["advises the action"] = bool(_words(action)) and _words(action) in _words(begins)
    elif role == "backup":
        found["not what was observed"] = backup_fidelity(transition, answer.parsed) < 0.5
        succeeded = transition.episode.score >= roles.options.success_threshold
        found["against the score"] = transition.terminated and answer.parsed.optimal != succeeded
    elif role == "refine":
        found["unchanged"] = answer.parsed == action
        found["not as advised"] = action_has.lower() not in answer.parsed.lower()
    return [name for name, is_so in found.items() if is_so]


def _words(text: str) -> str:
    return f" {' '.join(re.findall(r'[a-z0-9_]+', text.lower()))} ".replace("  ", "")


def rates(answers: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Compute the share of each role's answers that can be read, and that can be read and mean something."""
    measured = {}
    for role in ROLES:
        of_role = [answer for answer in answers if answer["role"] == role]
        form = sum(answer["readable"] for answer in of_role)
        meaning = sum(answer["readable"] and not answer["faults"] for answer in of_role)
        measured[role] = {"number": len(of_role), "form": form / len(of_role), "meaning": meaning / len(of_role)}
    return measured


def table(report: dict[str, Any]) -> str:
    """Write form and meaning by model, prompts and role."""
    rows = []
    for model, of_model in report["models"].items():
        for name, answers in of_model.items():
            cells = []
            for measured in rates(answers).values():
                low, high = wilson_interval(measured["form"] * measured["number"], measured["number"])
                cells.append(f"{measured['form']:.2f} ({low:.2f} to {high:.2f}), {measured['meaning']:.2f}")
            rows.append([model, name, *cells])
    number = measured["number"]
    return (
        f"Share of {number} answers of each role that can be read (95 % interval), and that can be read and mean "
        f"something:\n\n{reporting.table(['model', 'prompts', *ROLES], rows)}"
    )


def measure(prompts: NLACPrompts, generator: TransformersGenerator) -> list[dict[str, Any]]:
    """Ask about all conversations, those of each format of actions together."""
    by_format = defaultdict(list)
    for row in json.loads(CONVERSATIONS.read_text()):
        by_format[row["action_format"]].append(row)
    answers = []
    for action_format, rows in by_format.items():
        chat = ChatEncoder(generator.tokenizer)
        if action_format == "tool_call" and not chat.calls_tools:
            action_format = "react"
        torch.manual_seed(SETTINGS["seed"])
        length = SETTINGS["max_completion_length"]
        options = RoleOptions(action_format=action_format, max_completion_length=length, max_format_retries=0)
        answers += ask_roles(Roles(generator, chat, prompts, options, shows_progress=True), rows)
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(real_model_path()), help="Model, and its adapter if it has one.")
    parser.add_argument("--json", type=Path, help="File for the answers; those of other models are kept.")
    parser.add_argument("--page", type=Path, help="Markdown file in which to replace the results.")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
    endings = ending_token_ids(tokenizer, ChatEncoder(tokenizer).stop_ids, model.generation_config)
    generator = TransformersGenerator(None, tokenizer, endings, batch_size=16)
    report = {
        **reporting.setting("torch", "transformers", "trl", device=str(model.device), threads=torch.get_num_threads()),
        "settings": SETTINGS,
        "models": {},
    }
    if args.json is not None and args.json.exists():
        report["models"] = json.loads(args.json.read_text())["models"]
    of_model = report["models"].setdefault(Path(args.model).name, {})
    for name, prompts in VERSIONS.items():
        with generator.session(model):
            of_model[name] = measure(prompts, generator)
        reporting.write(report, args.json)
        print(name, rates(of_model[name]), flush=True)
    if args.page is not None:
        reporting.insert(table(report), args.page, "formats/run.py")


if __name__ == "__main__":
    main()
