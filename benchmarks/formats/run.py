# SPDX-License-Identifier: Apache-2.0

"""
How many answers of a model can be read: every role, with and without worked examples. Both are asked about the same
logged conversations, with the same seeds, so that a role does not depend on how well the roles before it do.

    python -m benchmarks.formats.run --json benchmarks/results/formats.json
"""

import argparse
import json
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.real_model import real_model_path
from benchmarks.reporting import setting, write
from trl_nlac import NLACPrompts
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tokenizer import ending_token_ids
from trl_nlac.episodes.logs import episodes_from_logs
from trl_nlac.evaluation.metrics import wilson_interval
from trl_nlac.generation.transformers import TransformersGenerator
from trl_nlac.method.backup import bellman_targets
from trl_nlac.method.critic import critiques
from trl_nlac.method.refinement import ask_refined
from trl_nlac.method.roles import Roles
from trl_nlac.options.role_options import RoleOptions
from trl_nlac.prompts import WORKED_EXAMPLES, parse_critique
from trl_nlac.types import Answer


HERE = Path(__file__).parent
VERSIONS = {"current": NLACPrompts(), "current_with_examples": NLACPrompts(examples=WORKED_EXAMPLES)}
CRITIQUE = "Future: It goes on as before and nothing is won.\nOptimality: No. Do what was left out before."


def ask_roles(roles: Roles) -> dict[str, list[Answer]]:
    """Ask every role about every step of the conversations, by role."""
    logs = Dataset.from_list(json.loads((HERE / "conversations.json").read_text()))
    episodes = episodes_from_logs(logs, roles.actions, roles.prompts)
    transitions = [transition for episode in episodes for transition in episode.transitions]
    state_actions = [transition.state_action for transition in transitions]
    completion = tuple(roles.chat.completion(CRITIQUE))
    judged = [Answer(prompt, completion, CRITIQUE, parse_critique(CRITIQUE)) for prompt in state_actions]
    return {
        "policy": roles.act([transition.state for transition in transitions]),
        "critique": critiques(roles, state_actions),
        "backup": bellman_targets(roles, transitions, "monte_carlo"),
        "refine": ask_refined(roles, state_actions, judged),
    }


def measure(generator: TransformersGenerator, prompts: NLACPrompts, options: RoleOptions, seed: int) -> dict:
    """Measure the format rate of every role, with the answers that were given."""
    roles = Roles(generator, ChatEncoder(generator.tokenizer), prompts, options, shows_progress=True)
    torch.manual_seed(seed)
    measured = {}
    for role, answers in ask_roles(roles).items():
        readable = sum(answer.parsed is not None for answer in answers)
        low, high = wilson_interval(readable, len(answers))
        texts = [answer.text for answer in answers]
        measured[role] = {"format_rate": readable / len(answers), "low": low, "high": high, "answers": texts}
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(real_model_path()), help="Model, and its adapter if it has one.")
    parser.add_argument("--versions", nargs="+", default=list(VERSIONS), choices=list(VERSIONS))
    parser.add_argument("--max_completion_length", type=int, default=128)
    parser.add_argument("--min_p", type=float, default=0.05)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="File for the results; versions that it has already are kept.")
    args = parser.parse_args()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
    endings = ending_token_ids(tokenizer, ChatEncoder(tokenizer).stop_ids, model.generation_config)
    generator = TransformersGenerator(None, tokenizer, endings, args.batch_size)
    options = RoleOptions(
        max_completion_length=args.max_completion_length, min_p=args.min_p, max_format_retries=0, action_format="react"
    )
    report = {
        **setting("torch", "transformers", "trl", device=str(model.device), threads=torch.get_num_threads()),
        "settings": {name: getattr(args, name) for name in ("max_completion_length", "min_p", "seed")},
        "model": Path(args.model).name,
        "versions": {},
    }
    if args.json is not None and args.json.exists():
        report["versions"] = json.loads(args.json.read_text())["versions"]
    for name in args.versions:
        with generator.session(model):
            report["versions"][name] = measure(generator, VERSIONS[name], options, args.seed)
        write(report, args.json)
        rates = {role: round(values["format_rate"], 2) for role, values in report["versions"][name].items()}
        print(name, rates, flush=True)


if __name__ == "__main__":
    main()
