# SPDX-License-Identifier: Apache-2.0

"""Play episodes: the policy acts, the environments answer."""

import logging
import math
import queue
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from tqdm.auto import tqdm

from ..chat.actions import ActionFormat
from ..event_loop import DaemonThreads, finish
from ..method.randomness import seeded
from ..method.roles import Roles
from ..terminal import printable, printable_traceback
from ..types import Answer, Episode, Prompt
from .pool import CLOSING_INTERVAL, EnvironmentPool
from .recorder import (
    EpisodeRecorder,
    MalformedResult,
    Recorder,
    checked_opening,
    checked_reward,
    checked_step,
    replay_actions,
)
from .rewards import EpisodeRewards
from .text_environment import (
    EnvironmentFailure,
    Opening,
    PolicyAnswer,
    StepResult,
    TextEnvironment,
    describe_error,
    with_seed,
)
from .worker import EnvironmentWorker


logger = logging.getLogger(__name__)

STOPPING_INTERVAL = 0.5  # s, after which a rollout that others can stop looks whether they did
Act = Callable[[list[Prompt], list[int]], list[Answer]]


def play_episodes(
    pool: EnvironmentPool,
    tasks: list[dict[str, Any]],
    roles: Roles,
    act: Act | None = None,
    rewards: EpisodeRewards | None = None,
    seed: int | None = None,
    stopping: threading.Event | None = None,
) -> list[Episode]:
    """
    Play one episode of each task (algorithm 1, lines 3 to 6), and return them in the order of the tasks. Environments
    step at the same time, each in its thread. An engine or server answers each episode as soon as it waits for an
    action; with transformers the episodes that wait are answered in one batch. An episode ends after `max_turns` as
    `turn_limit` says, and a history is cut at `max_prompt_length`. One whose environment failed ends with its last
    clean turn. One that consisted of several conversations has the others as its `segments`, see
    [`~types.all_conversations`].

    `act` answers states, given as prompts and seeds, in place of the policy. Reward functions see the environments, so
    an instance is kept for its episode until they have scored it, and no more episodes than instances are played
    before. Another thread sets `stopping` to give the episodes up.

    The samples of an episode depend on torch's random state at the start and on its place in `tasks`, not on the speed
    of the others. What environments do to that state is undone at the end. With a `seed` it is not used, but left to
    other threads. Raise an `InterruptedError` if the episodes were given up. Raise a `ValueError` if a task names an
    environment that does not exist, or two episodes would share an instance.
    """
    seeding = nullcontext()
    if seed is None:
        seed = int(torch.randint(2**62, ()))
        seeding = _random_numbers_of(seed)
    games = []
    for i, task in enumerate(tasks):
        name, keywords, tool_schemas = pool.route(task)
        rng = random.Random(f"{seed} {i}")
        if name in pool.seeded:
            keywords = with_seed(keywords, rng.getrandbits(31))
        recorder = EpisodeRecorder(roles.actions, roles.prompts, task, tool_schemas, roles.options.max_prompt_length)
        games.append(_Game(i, name, keywords, recorder, rng))
    size = len(games) if rewards is None or pool.max_instances is None else pool.max_instances
    waves = [games[i : i + size] for i in range(0, len(games), max(1, size))]
    with seeding, roles.progress("rollout", len(games), "episode") as bar:
        while roles.generator.any_process(bool(waves)):
            wave = waves.pop(0) if waves else []
            _Rollout(pool, roles, act or roles.act, rewards is not None, bar, stopping).play(wave)
            if rewards is not None:
                _score(pool, wave, rewards)
    roles.tally.note("environment/num_shortened", [float(game.recorder.num_shortened) for game in games])
    return [game.recorder.episode() for game in games]


def replay(pool: EnvironmentPool, roles: Roles, task: dict[str, Any], action_texts: list[str]) -> Episode | None:
    """Record the episode of given actions in an instance of the pool; `None` if that failed, which is logged."""
    name, keywords, tool_schemas = pool.route(task)
    keywords = with_seed(keywords, 0) if name in pool.seeded else keywords
    try:
        with pool.lend(name) as worker:
            instance = _Lent(pool, worker, keywords, tool_schemas)
            return replay_actions(instance, task, action_texts, roles.actions, roles.prompts)
    except (Exception, SystemExit) as error:
        pool.last_failure = printable_traceback(error)
        logger.warning("An environment failed at given actions: %s", printable(describe_error(error)))
        return None


def check_prompt_length(pool: EnvironmentPool, roles: Roles) -> None:
    """Raise a `ValueError` unless at least an empty task fits into a prompt of the policy."""
    limit = roles.options.max_prompt_length
    Recorder(roles.actions, roles.prompts, {}, pool.example.tool_schemas, limit).begin("")


class _Lent(TextEnvironment):
    """An instance of a pool with a task. Its methods run in its own thread, within the time limit."""

    def __init__(
        self,
        pool: EnvironmentPool,
        worker: EnvironmentWorker,
        keywords: dict[str, Any],
        tool_schemas: list[dict[str, Any]],
    ):
        self.tool_schemas = tool_schemas
        self._finish = partial(pool.finish, worker)
        self._keywords = keywords

    def reset(self, **task) -> Opening:
        return self._finish(partial(reset, keywords=self._keywords), "`reset`")

    def step(self, action: str) -> StepResult:
        return self._finish(partial(step, action=action), "`step`")


@contextmanager
def _random_numbers_of(seed: int) -> Iterator[None]:
    """Seed torch for the environments, which may draw from it or seed it again, and restore its state afterwards."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)
        yield


@dataclass(eq=False)
class _Game:
    """An episode under way."""

    index: int
    name: str
    keywords: dict[str, Any]
    recorder: EpisodeRecorder
    rng: random.Random
    worker: EnvironmentWorker | None = None
    job: str = ""  # of the environment: "reset", "step" or "reward"; "act" of the policy
    future: Future | None = None
    deadline: float = math.inf
    waited_for: set[Any] = field(default_factory=set)  # what blocked the environment's event loop
    answer: Answer | None = None  # the policy's last answer


@dataclass(eq=False)
class _Rollout:
    """
    Take games through reset, actions and final reward. A game is pending until an instance is free for it, then
    alternately busy, while its environment works, and waiting for an action.

    If the generator is concurrent, no game waits: each asks for its action at once, in a thread of its own, and is
    busy until it gets it. Otherwise waiting games are answered in one batch when no other game is busy, or when they
    have waited for as long as the last generation took: waiting for a fuller batch then costs at most what it can
    save.
    """

    pool: EnvironmentPool
    roles: Roles
    act: Act
    keeps_instances: bool
    bar: tqdm
    stopping: threading.Event | None

    def __post_init__(self):
        self.patience = 1.0  # s
        self.pending: deque[_Game] = deque()
        self.busy: set[_Game] = set()
        self.waiting: list[_Game] = []
        self.finished: queue.SimpleQueue[_Game] = queue.SimpleQueue()  # jobs, in the order of their ends
        self.threads = DaemonThreads()

    def play(self, games: list[_Game]) -> None:
        self.pending.extend(games)
        try:
            while self.roles.generator.any_process(bool(self.pending or self.busy or self.waiting)):
                self._wait()
                self._answer()
        except BaseException:
            for game in games:
                if game.worker is not None:
                    self.pool.discard(game.worker, hangs=game in self.busy and game.job != "act")
            raise

    def _wait(self) -> None:
        """Wait for the environments until there are enough states to answer."""
        self._start()
        patience_ends = math.inf
        while self.busy or (self.pending and not self.waiting):  # pending ones can wait for an instance that closes
            now = time.monotonic()
            if self.waiting:
                patience_ends = min(patience_ends, now + self.patience)
            until = min([patience_ends, *(game.deadline for game in self.busy)])
            longest = CLOSING_INTERVAL if self.pending else threading.TIMEOUT_MAX
            if self.stopping is not None:
                longest = min(longest, STOPPING_INTERVAL)
                if self.stopping.is_set():
                    raise InterruptedError("Playing was given up.")
            try:
                game = self.finished.get(timeout=min(max(0.0, until - now), longest))
            except queue.Empty:
                if time.monotonic() >= patience_ends:
                    return
                self._expire()
            else:
                if game in self.busy:  # and not discarded before
                    self.busy.remove(game)
                    self._advance(game)
            self._start()

    def _start(self) -> None:
        while self.pending:
            game = self.pending[0]
            game.worker = self.pool.acquire(game.name)
            if game.worker is None:
                return
            self.pending.popleft()
            self._submit(game, "reset", partial(reset, keywords=game.keywords))

    def _answer(self) -> None:
        """Play one turn of all games that wait."""
        games, self.waiting = sorted(self.waiting, key=lambda game: game.index), []
        start = time.monotonic()
        answers = self.act([game.recorder.prompt for game in games], [game.rng.getrandbits(62) for game in games])
        if games:
            self.patience = time.monotonic() - start
        for game, answer in zip(games, answers, strict=True):
            self._step(game, answer)

    def _ask(self, game: _Game) -> None:
        """Let a game wait for its action, or ask for it at once."""
        if not self.roles.generator.is_concurrent:
            self.waiting.append(game)
            return
        game.deadline = math.inf
        self._await(game, "act", self.threads.submit(self._act, game.recorder.prompt, game.rng.getrandbits(62)))

    def _act(self, prompt: Prompt, seed: int) -> Answer:
        with seeded(seed):
            (answer,) = self.act([prompt], [seed])
        return answer

    def _step(self, game: _Game, answer: Answer) -> None:
        game.answer = answer
        if answer.parsed is None:
            self._record(game, StepResult(self.roles.prompts.unreadable(self.roles.actions.name)))
        else:
            action = answer.parsed
            if game.name in self.pool.takes_answers:
                action = policy_answer(self.roles.actions, answer)
            self._submit(game, "step", partial(step, action=action))

    def _submit(self, game: _Game, job: str, call: Callable[[TextEnvironment], Any]) -> None:
        timeout = self.pool.timeout
        game.deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._await(game, job, game.worker.submit(call))

    def _await(self, game: _Game, job: str, future: Future) -> None:
        game.job, game.future = job, future
        self.busy.add(game)
        future.add_done_callback(lambda _: self.finished.put(game))

    def _advance(self, game: _Game) -> None:
        """Continue a game whose job is finished."""
        if game.job == "act":
            self._step(game, game.future.result())
            return
        if game.job == "reset":
            self.pool.check_own(game.worker)
        error = game.future.exception()  # no error of a user's environment ends the run
        if error is None and game.job == "reset":
            try:
                game.recorder.begin(game.future.result())
            except Exception as unusable:
                error = unusable
        if error is not None:
            self._fail(game, error.kind if isinstance(error, MalformedResult) else game.job, error)
        elif game.job == "reset":
            self._ask(game)
        elif game.job == "step":
            self._record(game, game.future.result())
        else:
            game.recorder.add_reward(game.future.result())
            self.bar.update()
            if not self.keeps_instances:
                self.pool.release(game.worker)
                game.worker = None

    def _record(self, game: _Game, result: StepResult) -> None:
        """Record a turn, then continue or end the game."""
        recorder, answer = game.recorder, game.answer
        try:
            recorder.act(answer.parsed, answer.text, list(answer.token_ids), result)
            if not recorder.done:
                recorder.continue_or_end(self.roles.options.max_turns, self.roles.options.turn_limit)
        except Exception as unusable:
            self._fail(game, unusable.kind if isinstance(unusable, MalformedResult) else "step", unusable)
            return
        if recorder.done:
            self._submit(game, "reward", final_reward)
        else:
            self._ask(game)

    def _expire(self) -> None:
        """Discard the environments that take too long. Wait once for each that blocks the event loop of others."""
        now = time.monotonic()
        for game in [game for game in self.busy if game.deadline <= now and not game.future.done()]:
            blocker = game.worker.blocker
            if blocker not in (None, game.worker, *game.waited_for):
                game.waited_for.add(blocker)
                game.deadline = time.monotonic() + self.pool.timeout
                continue
            self.busy.remove(game)
            error = TimeoutError(f"{game.job} took longer than `environment_timeout={self.pool.timeout}` seconds")
            self._fail(game, "timeout", error)

    def _fail(self, game: _Game, kind: str, error: BaseException) -> None:
        self.bar.update()
        game.recorder.fail(kind, error)
        self.pool.discard(game.worker, hangs=kind == "timeout")
        game.worker = None
        self.pool.last_failure = printable_traceback(error)
        logger.warning("An environment failed, its episode is truncated there: %s", printable(game.recorder.failure))


def _score(pool: EnvironmentPool, games: list[_Game], rewards: EpisodeRewards) -> None:
    """Add the rewards of the reward functions to the last turns, and release the instances."""
    scored = [game for game in games if game.worker is not None]
    if not scored:
        return
    environments = [game.worker.environment.unwrapped for game in scored]
    kind = "reward"
    try:
        scores = pool.call(
            lambda: rewards.score([game.recorder.conversations[0] for game in scored], environments),
            "the scoring by reward functions",
        )
    except (EnvironmentFailure, TimeoutError) as error:
        kind = "reward" if isinstance(error, EnvironmentFailure) else "timeout"
        for game in scored:
            game.recorder.fail(kind, error)
        pool.last_failure = printable_traceback(error)
    else:
        for game, score in zip(scored, scores, strict=True):
            game.recorder.extra = score.notes
            if score.failure is None:
                game.recorder.add_reward(score.reward)
            else:
                game.recorder.fail("reward", score.failure)
                pool.last_failure = printable_traceback(score.failure)
    failures = Counter(game.recorder.failure for game in scored if game.recorder.failure is not None)
    for failure, number in failures.items():
        logger.warning("%d episodes got no reward, and are truncated: %s", number, printable(failure))
    for game in scored:
        if kind == "timeout":  # the functions still have the instances
            pool.discard(game.worker)
        else:
            pool.release(game.worker)


def policy_answer(actions: ActionFormat, answer: Answer) -> PolicyAnswer:
    """Make what an environment gets of a readable answer that wants more than the action."""
    content = answer.parsed
    if actions.calls_tools:
        message = actions.message(answer.parsed, answer.text, list(answer.token_ids))
        content = message["content"] if message.get("tool_calls") else content
    return PolicyAnswer(answer.parsed, content, answer.prompt.num_tokens, len(answer.token_ids))


def reset(environment: TextEnvironment, keywords: dict[str, Any]) -> Opening:
    """
    Call `reset` with copies of its keywords, check what it returns, and copy that. As [`step`] and [`final_reward`],
    it runs in the thread of the environment, so that nothing that the environment returns can harm another one. Raise
    [`MalformedResult`] if it is neither text nor messages nor an [`~environments.Opening`].
    """
    return checked_opening(finish(environment.reset(**deepcopy(keywords))))


def step(environment: TextEnvironment, action: str | PolicyAnswer) -> StepResult:
    """Call `step`, and check what it returns: it may raise [`MalformedResult`]."""
    return checked_step(finish(environment.step(action)))


def final_reward(environment: TextEnvironment) -> float:
    """Call `final_reward`, and check what it returns: it may raise [`MalformedResult`]."""
    return checked_reward(finish(environment.final_reward()))
