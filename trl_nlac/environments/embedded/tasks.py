# SPDX-License-Identifier: Apache-2.0

"""The embedded tasks and the tiny chat model that was built for them."""

import json
import random
from dataclasses import replace
from pathlib import Path

from datasets import Dataset

from ...episodes.text_environment import TextEnvironment
from ...prompts import NLACPrompts
from .dialogues import RoleDialogue
from .guess_the_number_dialogues import GuessTheNumberFamily
from .relay import RelayHouse
from .rooms import RoomsEnvironment, RoomsWorld
from .rooms_dialogues import RoomsFamily
from .service_desk import ServiceDesk, ServiceDeskEnvironment
from .service_desk_dialogues import ServiceDeskFamily
from .support_desk import SupportDesk, SupportDeskEnvironment
from .support_desk_dialogues import SupportDeskFamily


TINY_MODEL = str(Path(__file__).parents[2] / "tiny_model")
SUPPORT_MODEL = str(Path(__file__).parents[2] / "support_model")  # knows support desks alone, in English

# One word per role: the tiny model was trained on these, and CPU runs stay short.
COMPACT_PROMPTS = NLACPrompts(
    policy="{action_format}",
    format_text="",
    format_react="Think.",
    format_tool_call="",
    critique="Critique?",
    future="Future:",
    evaluation="{futures} Critique?",
    successor="{next_observation} Scenario?",
    backup="Summary?",
    backup_terminated="{next_observation} Score {score} Summary?",
    backup_future="Summary? Future:",
    backup_future_terminated="{next_observation} Score {score} Summary? Future:",
    observed_end="",  # the observations of the embedded worlds contain the end
    refine="Revise?",
)
# One sentence per role: the model of the support desk was trained on these.
SUPPORT_PROMPTS = NLACPrompts(
    policy="{action_format}",
    format_text="",
    critique="How will this end, and was it the best call?",
    future="How will this end?",
    successor="{next_observation} How will this end?",
    backup="So was it the best call?",
    backup_terminated="{next_observation} The score is {score}. So was it the best call?",
    observed_end="",
    refine="Which call is best?",
)
# The same for the base model of Guess The Number in the benchmarks.
GUESS_THE_NUMBER_PROMPTS = replace(
    SUPPORT_PROMPTS,
    critique="How will this end, and was it the best guess?",
    backup="So was it the best guess?",
    backup_terminated="{next_observation} The score is {score}. So was it the best guess?",
    refine="Which guess is best?",
)

# Of worlds that have their own.
PROMPTS = {"support_desk": SUPPORT_PROMPTS, "guess_the_number": GUESS_THE_NUMBER_PROMPTS}
FAMILIES = {
    "rooms": RoomsFamily,
    "service_desk": ServiceDeskFamily,
    "support_desk": SupportDeskFamily,
    "guess_the_number": GuessTheNumberFamily,
}

Family = RoomsFamily | ServiceDeskFamily | SupportDeskFamily | GuessTheNumberFamily
World = RoomsWorld | ServiceDesk | SupportDesk


def make_tasks(world: str, seed: int, variant: str = "told") -> tuple[World, Dataset]:
    """
    Make an instance of an embedded task that no embedded model has seen, and a dataset with one row for each start.
    The world is `"rooms"`, `"relay"` (a house of floors, with a row for each room), `"service_desk"`, whose `variant`
    is one of `service_desk.VARIANTS`, or `"support_desk"`.
    """
    if world == "rooms":
        instance = RoomsWorld.from_seed(seed)
        return instance, Dataset.from_dict({"start": instance.rooms})
    if world == "relay":
        instance = RelayHouse.from_seed(seed)
        floors = range(1, instance.horizon + 1)
        return instance, Dataset.from_list([task for floor in floors for task in instance.tasks(floor)])
    if world == "service_desk":
        instance = ServiceDesk.from_seed(seed, variant=variant)
        return instance, Dataset.from_dict({"request": instance.requests})
    if world == "support_desk":
        instance = SupportDesk.from_seed(seed)
        return instance, Dataset.from_dict({"request": instance.requests})
    raise ValueError(f"`world` must be 'rooms', 'relay', 'service_desk' or 'support_desk', got {world!r}.")


def make_environment(instance: World, action_format: str = "text") -> TextEnvironment:
    """
    Make an environment that plays `instance`.

    Raises:
        ValueError: If the world is a support desk, whose calls are plain text, and the actions are to be tool calls.
    """
    if isinstance(instance, SupportDesk):
        if action_format == "tool_call":
            raise ValueError("`action_format` must be 'text' or 'react' at the support desk, got 'tool_call'.")
        return SupportDeskEnvironment(instance)
    environment = RoomsEnvironment if isinstance(instance, RoomsWorld) else ServiceDeskEnvironment
    return environment(instance, shows_tools=action_format == "tool_call")


def demo_environment(world: str = "service_desk", seed: int = 0, action_format: str = "text") -> TextEnvironment:
    """Make an environment of an embedded task by its name, for the command line; see [`make_tasks`]."""
    return make_environment(make_tasks(world, seed)[0], action_format)


def draw_dialogue(rng: random.Random, families: list[Family], role: str) -> RoleDialogue:
    """Draw a dialogue of one of the families; half of them come from known instances."""
    return rng.choice(families).dialogue(rng, role, rng.random() < 0.5)


def make_role_samples(
    world: str,
    size: int = 4096,
    seed: int = 0,
    action_format: str = "text",
    several_futures: bool = False,
    **family_kwargs,
) -> Dataset:
    """
    Make supervised samples of all roles on *other* instances of a task, to teach a model its roles: rows with the
    conversational columns `prompt` and `completion`, and `tools` for tool calls. The world is `"rooms"`,
    `"service_desk"`, `"support_desk"` or `"guess_the_number"`; `family_kwargs` are arguments of its family, such as
    the `variant` of [`ServiceDeskFamily`].

    Backup and refinement samples can use the names of the instance to be learned, with random rules: they teach the
    model to copy and to follow advice, and leak nothing. The other roles use known instances, for which they are true.
    Where there is none, in Guess The Number and with handbooks, there are samples of these two roles alone. With
    `several_futures` there are samples of the roles that weigh several (`num_futures` above 1), too, in the rooms and
    at the service desk.
    """
    rng = random.Random(f"rehearsal {world} {seed}")
    family = FAMILIES[world](**family_kwargs)
    prompts = PROMPTS.get(world, COMPACT_PROMPTS)
    of_any_instance, of_known = ["backup", "refine"], ["policy", "critique", "critique", "successor"]
    if several_futures:
        of_any_instance, of_known = [*of_any_instance, "backup_future", "evaluation"], [*of_known, "future", "future"]
    rows = []
    while len(rows) < size:
        is_of_any = rng.random() < 0.75 or family.known is None
        role = rng.choice(of_any_instance if is_of_any else of_known)
        known = role in of_known or rng.random() < 0.5
        dialogue = family.dialogue(rng, role, known)
        messages, completion = dialogue.messages(role, prompts, action_format, rng.random() < 0.5)
        tools = [dialogue.tool] if action_format == "tool_call" else []
        rows.append({"prompt": messages, "completion": [completion], "tools": json.dumps(tools)})
    return Dataset.from_list(rows)
