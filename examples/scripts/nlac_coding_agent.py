# SPDX-License-Identifier: Apache-2.0

# /// script
# dependencies = ["trl-nlac[gateway,peft]"]
# ///
r"""
Train the model of a coding agent, which stays as it is: Qwen Code, pi or opencode. Each task is a folder with a note,
and the agent is asked for the word in it. Put your own folders and a check of their tests in the place of `run_agent`.

npm install -g @qwen-code/qwen-code@0.24 @mariozechner/pi-coding-agent@0.73 opencode-ai@1.18

Their system prompts are long: a full run needs one GPU with 80 GB for LoRA adapters.

accelerate launch examples/scripts/nlac_coding_agent.py --agent opencode \
    --use_peft --dtype bfloat16 --learning_rate 1e-5 --max_turns 8 --environment_timeout 300 \
    --per_device_train_batch_size 1 --episodes_per_iteration 16 --max_steps 500 --output_dir runs/coding_agent \
    --max_prompt_length 24576 --max_completion_length 1024 --use_vllm true --vllm_max_model_length 32768

A test run on a CPU, with the package's tiny model, which learns nothing here:

python examples/scripts/nlac_coding_agent.py --agent pi \
    --model_name_or_path trl_nlac/tiny_model --use_cpu --bf16 False --num_tasks 4 --max_prompt_length 131072 \
    --max_steps 2 --max_turns 2 --max_completion_length 32

The agents can run commands with your rights: start this in a container.
"""

import asyncio
import json
import os
import random
import signal
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import ModelConfig, TrlParser, get_peft_config

from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.cli.train import find_checkpoint
from trl_nlac.environments import AgentEnvironment


QUESTION = "Read the file note.txt and answer with the word in it."
COMMANDS = {
    "qwen": ["qwen", "--yolo", "--auth-type", "openai", "--model", "policy"],
    "pi": ["pi", "--offline", "--no-session", "--provider", "nlac", "--model", "policy", "--print"],
    "opencode": ["opencode", "run", "--auto", "--model", "nlac/policy"],
}


def config_files(base_url: str, api_key: str) -> dict[str, Any]:
    """The configuration files of the agents, below the home folder. Qwen Code reads `OPENAI_*`, too."""
    pi = {"baseUrl": base_url, "apiKey": api_key, "api": "openai-completions", "models": [{"id": "policy"}]}
    opencode = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": base_url, "apiKey": api_key},
        "models": {"policy": {}, "small": {}},
    }
    return {
        # After an answer it would ask the policy what to remember, which is no part of the task.
        ".qwen/settings.json": {"memory": {"enableManagedAutoMemory": False}},
        ".pi/agent/models.json": {"providers": {"nlac": pi}},
        # The small model writes titles. It has another name than the policy, so that these are not trained on.
        ".config/opencode/opencode.json": {"small_model": "nlac/small", "provider": {"nlac": opencode}},
    }


async def run_agent(task: dict[str, Any], base_url: str, api_key: str) -> float:
    """Let a coding agent read a file, and return whether it answers with the word."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        folder = Path(home, "work")
        folder.mkdir()
        Path(folder, "note.txt").write_text(f"The word is {task['word']}.\n")
        for name, content in config_files(base_url, api_key).items():
            Path(home, name).parent.mkdir(parents=True, exist_ok=True)
            Path(home, name).write_text(json.dumps(content))
        variables = {"HOME": home, "PWD": str(folder), "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": api_key}
        for name in ("CONFIG", "DATA", "CACHE", "STATE"):
            variables[f"XDG_{name}_HOME"] = f"{home}/.{name.lower()}"
        process = await asyncio.create_subprocess_exec(
            *COMMANDS[task["agent"]],
            QUESTION,
            cwd=folder,
            env={**os.environ, **variables},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            output, _ = await process.communicate()
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:  # all that it started has ended
                pass
    return float(task["word"] in output.decode(errors="replace"))


@dataclass
class CodingAgentArguments:
    """
    Arguments of this script, in addition to those of [`NLACConfig`] and [`~trl.ModelConfig`].

    Args:
        agent (`str`, *optional*, defaults to `"opencode"`):
            `"qwen"`, `"pi"` or `"opencode"`.
        num_tasks (`int`, *optional*, defaults to `500`):
            Number of folders.
    """

    agent: str = field(default="opencode", metadata={"choices": list(COMMANDS), "help": "qwen, pi or opencode."})
    num_tasks: int = field(default=500, metadata={"help": "Number of folders."})


def make_tasks(agent: str, number: int) -> Dataset:
    """Make one row for each folder."""
    rng = random.Random(0)
    return Dataset.from_list([{"agent": agent, "word": f"w{rng.randrange(10**6):06}"} for _ in range(number)])


def main():
    parser = TrlParser((CodingAgentArguments, NLACConfig, ModelConfig))
    parser.set_defaults(model_name_or_path="Qwen/Qwen3-4B-Instruct-2507", output_dir="runs/coding_agent")
    script_args, training_args, model_args = parser.parse_args_and_config()
    training_args.model_init_kwargs = {"dtype": model_args.dtype, **(training_args.model_init_kwargs or {})}
    trainer = NLACTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        train_dataset=make_tasks(script_args.agent, script_args.num_tasks),
        environment_factory=AgentEnvironment(run_agent),
        peft_config=get_peft_config(model_args),
    )
    trainer.train(resume_from_checkpoint=find_checkpoint(training_args))
    trainer.save_model()


if __name__ == "__main__":
    main()
