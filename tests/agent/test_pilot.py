# SPDX-License-Identifier: Apache-2.0

import json
import random
import shutil
import socket
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from helpers.testing_utils import DESK, Answering, ScriptedGenerator
from transformers import AutoTokenizer

from trl_nlac import NLACAgent
from trl_nlac.agent.guard import Guard
from trl_nlac.agent.pilot import (
    PILOT_FILE,
    Pilot,
    PilotSide,
    digest_of_weights,
    play_pilot,
    read_pilots,
    refuse_unproven,
)
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.cli.main import main
from trl_nlac.environments import StepResult
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.evaluation.shares import paired_interval
from trl_nlac.options.role_options import RoleOptions


SIDE = PilotSide(0, 0, 1.0, 1.0, 0.1)
HELPS, MISLEADS, PRAISES, OBJECTS = {"bad"}, {"good"}, set(), {"good", "bad"}  # the actions that a critic objects to


class Scripted(ScriptedGenerator):
    """
    A policy whose action is good as often as bad, by its seed; a critic that objects to some actions; and a refinement
    policy that chooses the other action.
    """

    def __init__(self, objects_to: set[str]):
        super().__init__(ChatEncoder(AutoTokenizer.from_pretrained(TINY_MODEL)), "")
        self.objects_to = objects_to

    def generate(self, prompts, sampling, seeds, bar=None):
        completions = []
        for prompt, seed in zip(prompts, seeds, strict=True):
            text = self.chat.decode(prompt)
            if "Revise?" in text:
                self.answers = "bad" if "good" in text else "good"
            elif "Critique?" in text:
                self.answers = f"Future: open unknown\nOptimality: {'No' if self.objects(text) else 'Yes'}"
            else:
                self.answers = "good" if random.Random(seed).random() < 0.5 else "bad"
            completions += super().generate([prompt], sampling, [seed])
        return completions

    def score(self, prompts, completions):
        said = [
            ("yes" in self.chat.decode(c).lower(), self.chat.decode(p))
            for p, c in zip(prompts, completions, strict=True)
        ]
        return [(-2.0 if self.objects(text) else 2.0) * is_yes for is_yes, text in said]

    def objects(self, text: str) -> bool:
        return any(action in text for action in self.objects_to)


def judge(action: str) -> StepResult:
    return StepResult("done", reward=float(action == "good"), terminated=True)


def play(folder, objects_to, environment=None, tasks=({},) * 40, **options) -> Pilot:
    generator, roles = Scripted(objects_to), RoleOptions(action_format="text", max_completion_length=48)
    pool = EnvironmentPool(environment or (lambda: Answering(judge)))
    try:
        agent = NLACAgent(generator, generator.chat, roles, COMPACT_PROMPTS)
        return play_pilot(agent, pool, list(tasks), str(folder), "Answering", **options)
    finally:
        pool.close()


def make_pilot(gained: int, lost: int, num_tasks: int = 50, **values) -> Pilot:
    pilot = Pilot("--refine 1", "model", "", "world", 0.0, 0, num_tasks, gained, lost, SIDE, SIDE)
    return replace(pilot, **values)


class TestVerdicts:
    @pytest.mark.parametrize("options", [{}, {"refine": 1}, {"num_candidates": 3}], ids=str)
    def test_a_critic_that_helps(self, tmp_path, options):
        pilot = play(tmp_path, HELPS, **options)
        assert pilot.verdict == "enable" and "it helps: success changes by +0." in pilot.reason
        assert pilot.lost == 0 < pilot.gained == pilot.guarded.successes - pilot.plain.successes
        assert pilot.plain.calls_per_task == 1 < pilot.guarded.calls_per_task
        assert 0 < pilot.plain.tokens_per_task < pilot.guarded.tokens_per_task and pilot.guarded.seconds_per_step > 0

    @pytest.mark.parametrize("options", [{}, {"refine": 1}, {"num_candidates": 3}], ids=str)
    def test_a_critic_that_misleads(self, tmp_path, options):
        pilot = play(tmp_path, MISLEADS, **options)
        assert pilot.verdict == "do not enable" and "it harms: success changes by -0." in pilot.reason
        assert pilot.gained == 0 < pilot.lost

    def test_a_critic_that_objects_to_everything(self, tmp_path):
        """After three refusals the next action is taken: another, as good by chance."""
        pilot = play(tmp_path, OBJECTS)
        assert pilot.verdict == "do not enable" and pilot.gained > 0 < pilot.lost
        assert pilot.guarded.calls_per_task > 1 + 3  # and critiques; greedy ones of the same action are one call

    def test_the_threshold_is_the_guard_s(self, tmp_path):
        Guard(block_below=-3.0, pass_above=0.0, num_actions=9).save_pretrained(tmp_path)
        pilot = play(tmp_path, HELPS)
        assert pilot.block_below == -3.0 and (pilot.gained, pilot.lost) == (0, 0)


class TestFailures:
    TASKS = [{"number": i} for i in range(12)]

    def environment(self, *sides: int):
        """Make an environment that fails at four tasks on some sides: without the guard (0), with it (1)."""
        played = Counter()

        class Fails:
            def reset(self, number):
                self.fails = number < 4 and played[number] in sides
                played[number] += 1
                return "begin"

            def step(self, action):
                return StepResult("done", reward="none") if self.fails else judge(action)

        return Fails

    def test_a_failed_episode_is_counted_against_the_intervention(self, tmp_path):
        clean = play(tmp_path, PRAISES, self.environment(), self.TASKS)
        for side in range(2):
            pilot = play(tmp_path, PRAISES, self.environment(side), self.TASKS)
            assert (pilot.plain.failed, pilot.guarded.failed) in ((4, 0), (0, 4)) and pilot.num_tasks == 12
            assert pilot.gained == 0 < pilot.lost <= 4 and "4 episodes failed" in pilot.reason
        assert (clean.gained, clean.lost, clean.plain.failed) == (0, 0, 0) and "failed" not in clean.reason
        assert clean.verdict == "do not enable" and "no gain is seen: success changes by +0.00 (-0." in clean.reason
        assert clean.plain.successes == clean.guarded.successes > 0

    def test_those_that_fail_on_both_sides_change_nothing(self, tmp_path):
        pilot = play(tmp_path, PRAISES, self.environment(0, 1), self.TASKS)
        assert (pilot.plain.failed, pilot.guarded.failed, pilot.gained, pilot.lost) == (4, 4, 0, 0)

    def test_nothing_could_be_played(self, tmp_path):
        with pytest.raises(ValueError, match="not one of 2 episodes could be played"):
            play(tmp_path, HELPS, self.environment(0, 1), self.TASKS[:2])


class TestIntervals:
    @pytest.mark.parametrize("difference, changed", [(0.0, 0.02), (0.0, 0.1), (0.0, 0.3), (0.2, 0.3), (-0.1, 0.4)])
    def test_it_covers_the_truth(self, difference, changed):
        """What has no effect is enabled by chance in at most 2.5 %, whatever the share of tasks that end otherwise."""
        shares = [(changed + difference) / 2, (changed - difference) / 2, 1 - changed]
        counts = np.random.default_rng(0).multinomial(60, shares, size=4000)
        intervals = [paired_interval(gained, lost, 60) for gained, lost, _ in counts.tolist()]
        assert np.mean([low <= difference <= high for low, high in intervals]) > 0.94
        assert np.mean([low > difference for low, _ in intervals]) < 0.03

    def test_how_many_more_are_needed(self):
        pilot = make_pilot(gained=4, lost=1)
        assert pilot.verdict == "do not enable"
        needed = pilot.num_tasks_needed
        assert f"about {needed - 50} more are needed" in pilot.reason
        assert paired_interval(0.08 * needed, 0.02 * needed, needed)[0] > 0
        assert paired_interval(0.08 * (needed - 1), 0.02 * (needed - 1), needed - 1)[0] <= 0


class TestFiles:
    def test_each_intervention_has_its_last_pilot(self, tmp_path):
        first, refusing = make_pilot(9, 0), make_pilot(0, 9, intervention="--refuse")
        for pilot in (first, refusing, make_pilot(1, 1)):
            pilot.save_pretrained(tmp_path)
        assert read_pilots(str(tmp_path)) == {"--refine 1": make_pilot(1, 1), "--refuse": refusing}
        rows = json.loads((tmp_path / PILOT_FILE).read_text())
        assert rows["--refuse"]["verdict"] == "do not enable" and "it harms" in rows["--refuse"]["reason"]
        assert rows["--refuse"]["environment"] == "world"

    @pytest.mark.parametrize(
        "written",
        [
            *("", "[]", "[" * 10_000, '{"--refine 1": {"verdict": "enable"}}', '{"a": 1}'),
            *({"num_tasks": 0}, {"gained": 60}, {"lost": -1}, {"plain": 3}, {"seed": "x"}),
        ],
    )
    def test_what_has_no_pilots(self, tmp_path, written):
        make_pilot(9, 0).save_pretrained(tmp_path)
        if isinstance(written, dict):
            rows = json.loads((tmp_path / PILOT_FILE).read_text())
            written = json.dumps({"--refine 1": rows["--refine 1"] | written})
        (tmp_path / PILOT_FILE).write_text(written)
        with pytest.raises(ValueError, match="has no results of pilots .* Remove it, and play them again"):
            read_pilots(str(tmp_path))

    def test_a_verdict_is_that_of_the_counts(self, tmp_path):
        """Not what somebody wrote there."""
        make_pilot(0, 9, weights=digest_of_weights(tmp_path)).save_pretrained(tmp_path)
        path = tmp_path / PILOT_FILE
        path.write_text(path.read_text().replace("do not enable", "enable"))
        with pytest.raises(ValueError, match="do not enable"):
            refuse_unproven(str(tmp_path), "--refine 1", Guard())


class TestServing:
    @pytest.fixture
    def folder(self, tmp_path):
        shutil.copytree(TINY_MODEL, tmp_path / "model")
        return tmp_path / "model"

    @pytest.fixture
    def serve(self, folder, capsys):
        """Serve at a port that is in use, and return the error: that of the port if nothing else is wrong."""

        def run(*words: str) -> str:
            with socket.create_server(("127.0.0.1", 0)) as busy:
                assert main(["serve", str(folder), "--port", str(busy.getsockname()[1]), *words]) == 2
            return capsys.readouterr().err

        return run

    def test_without_a_pilot(self, folder, serve):
        message = serve("--refine", "1")
        assert "--refine 1: no pilot says that this helps" in message
        assert f"trl-nlac calibrate {folder} --pilot 100 --refine 1" in message and "--without_pilot" in message
        assert "--refuse: no pilot" in serve("--refuse")
        assert "--num_candidates 2: no pilot" in serve("--num_candidates", "2")
        assert "--port" in serve() and "--port" in serve("--refine", "1", "--refuse", "--without_pilot")

    def test_with_one(self, folder, serve):
        weights = digest_of_weights(folder)
        make_pilot(9, 0, weights=weights).save_pretrained(folder)
        assert "--port" in serve("--refine", "1")
        assert "--refine 2: no pilot" in serve("--refine", "2")
        make_pilot(3, 1, weights=weights).save_pretrained(folder)
        message = serve("--refine", "1")
        assert '--refine 1: the pilot says "do not enable": a gain cannot be told from chance' in message
        assert "--port" in serve("--refine", "1", "--without_pilot")

    def test_of_another_threshold(self, folder, serve):
        pilot = make_pilot(9, 0, intervention="--refuse", weights=digest_of_weights(folder))
        pilot.save_pretrained(folder)
        assert "--port" in serve("--refuse")
        Guard(block_below=-1.0).save_pretrained(folder)
        message = serve("--refuse")
        assert "--refuse: the pilot refused below a score of 0.000, and the guard does below -1.000" in message

    def test_of_other_weights(self, folder, serve):
        make_pilot(9, 0, weights="0" * 64).save_pretrained(folder)
        assert "--refine 1: the pilot in nlac_pilot.json was played with other weights" in serve("--refine", "1")


class TestCommand:
    @pytest.fixture
    def words(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        shutil.copytree(TINY_MODEL, "model")
        (tmp_path / "tasks.jsonl").write_text("".join(json.dumps({"request": one}) + "\n" for one in DESK.requests))
        world = ["--environment_factory", "trl_nlac.environments.embedded:demo_environment"]
        world += ["--environment_kwargs", '{"seed": 0}']
        options = ["--option", "action_format=text", "max_turns=2", "max_completion_length=32"]
        return ["calibrate", "model", *world, "--dataset_name", "tasks.jsonl", *options]

    @pytest.mark.parametrize("improved", [[], ["--refine", "1"]])
    def test_a_pilot(self, words, improved, capsys):
        assert main([*words, "--pilot", "6", *improved, "--seed", "3"]) == 0
        name = " ".join(improved) or "--refuse"
        (pilot,) = read_pilots("model").values()
        assert (pilot.intervention, pilot.num_tasks, pilot.seed) == (name, 6, 3)
        assert pilot.environment == "trl_nlac.environments.embedded:demo_environment seed=0" and pilot.model == "model"
        printed = capsys.readouterr().out
        assert f"Pilot of {name}: 6 tasks" in printed and f"\n{pilot.verdict}: {pilot.reason[:20]}" in printed
        assert "tokens_per_task" in printed

    @pytest.mark.parametrize(
        "given, message",
        [
            (["--pilot", "0"], "--pilot must be at least 1, got 0."),
            ([], "name logged conversations to calibrate by, or --pilot"),
            (["--pilot", "2", "--refine", "-1"], "--refine must be at least 0, got -1."),
            (["logs.jsonl", "--environment_factory", "x:Y"], "--environment_factory is for a pilot: add --pilot"),
            (["logs.jsonl", "--max_false_blocks", "1"], "--max_false_blocks must be a share"),
            (["logs.jsonl", "--max_false_passes", "-0.1"], "--max_false_passes must be a share"),
        ],
    )
    def test_wrong_arguments(self, words, given, message, capsys):
        assert main([*(words[:2] if "logs.jsonl" in given else words), *given]) == 2
        assert message in capsys.readouterr().err

    def test_a_broken_file_is_found_before_playing(self, words, capsys, tmp_path):
        (tmp_path / "model" / PILOT_FILE).write_text("{")
        assert main([*words, "--pilot", "6"]) == 2
        assert "has no results of pilots" in capsys.readouterr().err
