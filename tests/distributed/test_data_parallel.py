# SPDX-License-Identifier: Apache-2.0

import json

import pyarrow.parquet as pq
import pytest
from helpers.launch import launch_script
from helpers.testing_utils import assert_same
from safetensors.torch import load_file


SCRIPT = """
import json
import sys
from pathlib import Path

import torch.distributed as dist
from safetensors.torch import save_file
from helpers.testing_utils import make_trainer

from trl_nlac.environments.embedded import make_environment, make_tasks

to_all, shared = dist.all_gather_object, []
dist.all_gather_object = lambda objects, own, **kwargs: (shared.append(repr(own)), to_all(objects, own, **kwargs))
output_dir = Path(sys.argv[1])
desk, tasks = make_tasks("rooms", 0)
config = dict(max_steps=3, episodes_per_iteration=4, save_strategy="steps", save_steps=2, logging_steps=1)
config |= dict(log_completions=True, num_completions_to_print=0)
arguments = dict(train_dataset=tasks, eval_dataset=tasks, environment_factory=lambda: make_environment(desk))
trainer = make_trainer(output_dir, config, **arguments)
trainer.train(resume_from_checkpoint=str(output_dir / "checkpoint-2") if len(sys.argv) > 2 else None)
metrics = trainer.evaluate()
rank = trainer.args.process_index
said = [turn.next_observation for episode in trainer.replay.episodes for turn in episode.turns]
assert shared and not any(text in own for own in shared for text in said)  # rows go to the first process alone
weights = {k: v.clone() for k, v in trainer.model.state_dict().items() if "lm_head" not in k}
save_file(weights, output_dir / f"model_{rank}")
save_file(trainer.target_weights.state_dict(), output_dir / f"target_{rank}")
save_file(trainer.initial_weights.state_dict(), output_dir / f"initial_{rank}")
if rank == 0:
    (output_dir / "metrics.json").write_text(json.dumps(metrics))
"""


JOINT_SCRIPT = """
import sys
import time

from accelerate import PartialState
from accelerate.utils import gather_object
from helpers.testing_utils import make_roles

from trl_nlac import NLACPrompts
from trl_nlac.environments import StepResult
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rewards import EpisodeRewards
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.generation.generator import Completion
from trl_nlac.generation.joint import JointGenerator, TensorParallelGenerator
from trl_nlac.method.backup import bellman_targets
from trl_nlac.method.critic import critiques, verdict_scores

rank = PartialState(cpu=True).process_index
roles = make_roles([], max_turns=9)


class Model:
    '''Must be asked for as much by all processes, as one whose weights are sharded.'''

    def generate(self, prompts, sampling, seeds, bar):
        counts = gather_object([(len(prompts), sampling.max_tokens)])
        assert len(set(counts)) == 1 and len(seeds) == len(prompts), counts
        return [self.answer(roles.chat.tokenizer.decode(prompt)) for prompt in prompts]

    def answer(self, text):
        if text.rstrip().endswith("Future:"):
            said = "late lose\\nOptimality: No"
        elif text.rstrip().endswith("Instead,"):
            said = "late"
        else:
            action = f"take {text.split('win ')[1].split('<')[0]}"
            said = "Future: late lose\\nOptimality: No" if "?" in text else action
        return Completion(roles.chat.completion(said), True)

    def score(self, prompts, completions):
        assert len(set(gather_object([len(prompts)]))) == 1
        return [-float(len(completion)) for completion in completions]


class Engine(Model):
    '''Must be asked for everything by all processes, as one that they share by tensor parallelism.'''

    def generate(self, prompts, sampling, seeds, bar):
        assert gather_object([prompts]) == [prompts] * 2 and len(seeds) == len(prompts)
        return super().generate(prompts, sampling, seeds, bar)

    def score(self, prompts, completions):
        return [-float(len(completion)) for completion in completions]


class Counting:
    def reset(self, name, turns):
        self.name, self.left = name, turns
        if name == "14":
            raise ConnectionError
        return f"win {name}"

    def step(self, action):
        assert action == f"take {self.name}", (action, self.name)  # its own answer, not another's
        self.left -= 1
        time.sleep(0.02 * rank)
        return StepResult(f"late {self.left}", 1.0, terminated=not self.left)


roles.generator = {"sharded": JointGenerator(Model()), "shared": TensorParallelGenerator(Engine())}[sys.argv[1]]
tasks = [{"name": f"{rank}{i}", "turns": 1 + (i + 3 * rank) % 7} for i in range([3, 8][rank])]
rewards = EpisodeRewards([lambda environments, **kwargs: [0.0] * len(environments)])
for options in ({}, {"rewards": rewards}):
    pool = EnvironmentPool(Counting, max_instances=2)
    episodes = play_episodes(pool, tasks, roles, **options)
    for task, episode in zip(tasks, episodes):
        if task["name"] == "14":
            assert episode.failure
        else:
            assert episode.failure is None and episode.score == task["turns"], episode
transitions = [transition for episode in episodes for transition in episode.transitions] * rank
targets = bellman_targets(roles, transitions, ["implicit", "explicit"][0])
judged = critiques(roles, [transition.state_action for transition in transitions])
assert all(answer.parsed.optimal is False for answer in targets + judged)
assert len(verdict_scores(roles, judged)) == len(judged) == len(transitions)
roles.prompts = NLACPrompts()  # which show forms: critiques are begun, and go on after a bare "No"
judged = critiques(roles, [transition.state_action for transition in transitions])
assert all(answer.parsed.advice.startswith("Instead,") for answer in judged) and len(judged) == len(transitions)
print(f"done {rank} {len(transitions)}\\n", end="", flush=True)
"""


UNPLAYABLE_SCRIPT = """
import sys
from pathlib import Path

from datasets import Dataset
from helpers.testing_utils import Countdown, make_trainer

# The first task of the second process cannot be played, however often it is tried.
tasks = Dataset.from_dict({"start": [2] * 8, "fails_at": [None, "reset"] + [None] * 6})
config = {"max_steps": 1, "episodes_per_iteration": 2, "shuffle_dataset": False}
trainer = make_trainer(Path(sys.argv[1]), config, train_dataset=tasks, environment_factory=Countdown)
trainer.train()
print(f"{list(trainer.player.failures.failed)[:2]} {len(trainer.replay) > 0}\\n", end="", flush=True)
"""


@pytest.mark.slow
def test_two_processes(tmp_path):
    launch_script(tmp_path, SCRIPT, str(tmp_path))
    for kind in ("model", "target", "initial"):
        assert_same(load_file(tmp_path / f"{kind}_0"), load_file(tmp_path / f"{kind}_1"))
    ranks = [tmp_path / "checkpoint-2" / "nlac" / f"rank_0000{rank}" for rank in (0, 1)]
    episodes = [pq.read_table(rank / "episodes.parquet").to_pylist() for rank in ranks]
    assert [len(rows) for rows in episodes] == [4, 4]  # 2 iterations of 4 episodes, half of them each
    assert episodes[0] != episodes[1]
    rows = pq.read_table(tmp_path / "completions" / "completions_00001.parquet").to_pylist()
    assert [row["process"] for row in rows] == [0, 0, 1, 1]
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert 0 <= metrics["eval_episode/success_rate_low"] <= metrics["eval_episode/success_rate"]

    for kind in ("model", "target", "initial"):
        (tmp_path / f"{kind}_0").rename(tmp_path / f"{kind}_whole")
    launch_script(tmp_path, SCRIPT, str(tmp_path), "resume")
    for kind in ("model", "target", "initial"):
        assert_same(load_file(tmp_path / f"{kind}_0"), load_file(tmp_path / f"{kind}_whole"))


@pytest.mark.parametrize("what", ["sharded", "shared"])
def test_processes_that_generate_together_may_play_differently(tmp_path, what):
    output = launch_script(tmp_path, JOINT_SCRIPT, what)
    assert "done 0 0" in output and "done 1 31" in output


def test_a_task_that_cannot_be_played_holds_up_no_process(tmp_path):
    assert launch_script(tmp_path, UNPLAYABLE_SCRIPT, str(tmp_path / "run")).count("[False, True] True") == 2
