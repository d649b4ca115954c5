# SPDX-License-Identifier: Apache-2.0

"""The tasks of the learning benchmark: instances to train on, and instances to evaluate on."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import Dataset

from benchmarks.learning.guess_the_number import REFERENCES, GuessTheNumberEnvironment
from benchmarks.learning.relay_desk import RelayDesk, RelayDeskEnvironment
from benchmarks.tiny_models.guess_the_number_dialogues import MAX_ACTIONS
from benchmarks.tiny_models.samples import GUESS_THE_NUMBER_PROMPTS, make_role_samples
from trl_nlac import NLACPrompts
from trl_nlac.environments import ServiceDesk, ServiceDeskEnvironment, StepResult, TextEnvironment
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL, make_environment, make_tasks
from trl_nlac.environments.embedded.names import CUSTOMERS, HELD_OUT_CUSTOMERS
from trl_nlac.environments.embedded.service_desk import format_call


if TYPE_CHECKING:
    from peft import PeftConfig


# Built by benchmarks/tiny_models/build.py; each has a README.md. That of the relay desk is not in the repository.
BASE_MODEL = str(Path(__file__).parent / "base_model")
BASE_MODELS = {variant: f"{BASE_MODEL}_{variant}" for variant in ("noisy", "delayed", "guess_the_number", "relay")}


BUILD_OF_RELAY = (
    f"cp -r {BASE_MODEL} {BASE_MODELS['relay']} && python -m benchmarks.tiny_models.build --output_dir "
    f"{BASE_MODELS['relay']} --first_step 14000 --max_steps 16000 --learning_rate 6e-3 --families relay "
    "--action_formats text --roles policy critique successor backup backup backup refine refine refine"
)


@dataclass(frozen=True)
class Instances:
    """Instances of a task, for evaluation: one row for each episode."""

    environment_factory: Callable[[], TextEnvironment]
    rows: Dataset


@dataclass(frozen=True)
class LearningTask:
    """
    A task on which methods are compared: an environment and rows to train on; and instances to evaluate on,
    `"held_out"` for the learning curve, the others at the end, with `final_episodes` of each row. `rehearsal` has
    supervised samples of the roles on other instances, `group` is the column of the rows by which baselines balance
    their batches, and `oracle_success` that of a policy with perfect knowledge.
    """

    name: str
    environment_factory: Callable[[], TextEnvironment]
    rows: Dataset
    instances: dict[str, Instances]
    model: str
    prompts: NLACPrompts
    rehearsal: Dataset | None
    max_turns: int
    oracle_success: float = 1.0
    group: str = ""
    action_format: str = "text"
    keep_history: bool = True
    peft_config: "PeftConfig | None" = None
    final_episodes: int = 4

    @property
    def unseen(self) -> list[str]:
        """Names of the instances that are also evaluated before training."""
        return [name for name in self.instances if name == "unseen_domain"]

    @property
    def trainer_arguments(self) -> dict[str, Any]:
        """Arguments of an NLAC trainer, without the model and its adapter."""
        return {"train_dataset": self.rows, "environment_factory": self.environment_factory, "prompts": self.prompts}


def service_desk(variant: str, seed: int) -> LearningTask:
    """Make a desk of the variant, with some customers held out. Another desk is the unseen domain."""
    desk, unseen = (ServiceDesk.from_seed(number, variant=variant) for number in (seed, 1000 + seed))
    at_desk, elsewhere = (partial(ServiceDeskEnvironment, world) for world in (desk, unseen))

    def rows(desk: ServiceDesk, customers: list[str]) -> Dataset:
        return Dataset.from_list([{"request": r, "customer": c} for r in desk.requests for c in customers])

    return LearningTask(
        name=f"service_desk_{variant}",
        environment_factory=at_desk,
        rows=rows(desk, CUSTOMERS),
        instances={
            "held_out": Instances(at_desk, rows(desk, HELD_OUT_CUSTOMERS)),
            "train": Instances(at_desk, rows(desk, CUSTOMERS)),
            "unseen_domain": Instances(elsewhere, rows(unseen, HELD_OUT_CUSTOMERS)),
        },
        model=BASE_MODELS.get(variant, BASE_MODEL),
        prompts=COMPACT_PROMPTS,
        rehearsal=make_role_samples(
            "service_desk",
            variant="told" if variant == "noisy" else variant,
            customers=True,
            several_futures=variant == "noisy",
        ),
        max_turns=desk.attempts,
        oracle_success=1 - desk.late_rate if desk.follow_ups else 1.0,
        group="request",
    )


class HandbookEnvironment(TextEnvironment):
    """
    A service desk of each task's own, whose rules stand in the first observation, the handbook: what is right at one
    desk is wrong at another, and can be read at both. `reset(desk=...)` takes the seed of the desk.
    """

    def reset(self, desk: int, request: str, customer: str = "", **task) -> str:
        world = ServiceDesk.from_seed(desk)
        self._environment, self.right_call = ServiceDeskEnvironment(world), format_call(world.rules[request])
        handbook = " ".join(f"{kind} {' '.join(rule)}." for kind, rule in world.rules.items())
        return f"{handbook} {self._environment.reset(request, customer)}"

    def step(self, action: str) -> StepResult:
        return self._environment.step(action)


def handbook_rows(
    rng: random.Random,
    desks: Iterable[int],
    customers: list[str],
    num_requests: int | None = None,
    world_of: Callable[[int], ServiceDesk] = ServiceDesk.from_seed,
) -> Dataset:
    """Return a row for each kind of request, or the first of them, of each desk."""
    return Dataset.from_list(
        [
            {"desk": desk, "request": request, "customer": rng.choice(customers)}
            for desk in desks
            for request in world_of(desk).requests[:num_requests]
        ]
    )


def handbook(seed: int) -> LearningTask:
    """Make 200 desks with handbooks to train on, and 50 others to evaluate on."""
    rng, first = random.Random(f"handbooks {seed}"), 10_000 * (seed + 1)
    train = handbook_rows(rng, range(first, first + 200), CUSTOMERS)
    held_out = handbook_rows(rng, range(first + 200, first + 250), CUSTOMERS)
    return LearningTask(
        name=HANDBOOK,
        environment_factory=HandbookEnvironment,
        rows=train,
        instances={
            "held_out": Instances(HandbookEnvironment, held_out),
            "train": Instances(HandbookEnvironment, train.select(range(len(held_out)))),
        },
        model=BASE_MODEL,
        prompts=COMPACT_PROMPTS,
        rehearsal=make_role_samples("service_desk", variant="told", customers=True),
        max_turns=2,
    )


def rooms(seed: int) -> LearningTask:
    """Make a house, with all of its starts to train on. Another house is the unseen domain."""
    (house, rows), (unseen, unseen_rows) = make_tasks("rooms", seed), make_tasks("rooms", 1000 + seed)
    return LearningTask(
        name="rooms",
        environment_factory=lambda: make_environment(house),
        rows=rows,
        instances={
            # All starts of a house are trained on, so there are none to hold out.
            "held_out": Instances(lambda: make_environment(house), Dataset.from_list(list(rows) * 16)),
            "unseen_domain": Instances(lambda: make_environment(unseen), Dataset.from_list(list(unseen_rows) * 16)),
        },
        model=TINY_MODEL,
        prompts=COMPACT_PROMPTS,
        rehearsal=make_role_samples("rooms"),
        max_turns=house.horizon,
        group="start",
    )


def relay_desk(seed: int, pieces_win: bool = False) -> LearningTask:
    """
    Make a relay desk, with pieces of its ways to train on, which are successes of their own with `pieces_win`, and the
    whole way and its ends as instances.
    """
    if not Path(BASE_MODELS["relay"]).exists():
        raise FileNotFoundError(f"The relay desk has a base model of its own, built in minutes: {BUILD_OF_RELAY}")
    desk = RelayDesk.from_seed(seed)
    whole = partial(RelayDeskEnvironment, desk, whole=True)
    starts = {
        f"floor_{i}": Dataset.from_list([{"request": alive}] * 64) for i, (alive, _) in enumerate(desk.floors, 1)
    }
    return LearningTask(
        name=RELAY_PIECES if pieces_win else RELAY_DESK,
        environment_factory=partial(RelayDeskEnvironment, desk, pieces_win=pieces_win),
        rows=Dataset.from_list([{"request": request} for floor in desk.floors for request in floor]),
        instances={
            "held_out": Instances(whole, starts.popitem()[1]),
            **{n: Instances(whole, r) for n, r in starts.items()},
        },
        model=BASE_MODELS["relay"],
        prompts=COMPACT_PROMPTS,
        rehearsal=make_role_samples("relay"),
        max_turns=len(desk.floors),
        group="request",
        keep_history=False,
    )


def guess_the_number(seed: int) -> LearningTask:
    """Make games to train on, and others to evaluate on."""
    first = 10_000 * (seed + 1)
    train, held_out = (Dataset.from_dict({"seed": seeds}) for seeds in (range(first, first + 2000), range(120)))
    return LearningTask(
        name=GUESS_THE_NUMBER,
        environment_factory=GuessTheNumberEnvironment,
        rows=train,
        instances={"held_out": Instances(GuessTheNumberEnvironment, held_out)},
        model=BASE_MODELS[GUESS_THE_NUMBER],
        prompts=GUESS_THE_NUMBER_PROMPTS,
        rehearsal=make_role_samples("guess_the_number"),
        max_turns=MAX_ACTIONS,
        oracle_success=REFERENCES["exact solver"],
    )


HANDBOOK, GUESS_THE_NUMBER = "service_desk_handbook", "guess_the_number"
RELAY_DESK, RELAY_PIECES = "relay_desk", "relay_pieces"
OUTSIDE_THE_TABLE = {
    HANDBOOK: handbook,
    GUESS_THE_NUMBER: guess_the_number,
    RELAY_DESK: relay_desk,
    RELAY_PIECES: partial(relay_desk, pieces_win=True),
}
TASKS = ("service_desk_told", "service_desk_hinted", "service_desk_noisy", "service_desk_delayed", "rooms")


def make_task(name: str, seed: int) -> LearningTask:
    """Make the task `name`, one of `TASKS` or `OUTSIDE_THE_TABLE`, with the instance of `seed`."""
    if name in OUTSIDE_THE_TABLE:
        return OUTSIDE_THE_TABLE[name](seed)
    return rooms(seed) if name == "rooms" else service_desk(name.removeprefix("service_desk_"), seed)
