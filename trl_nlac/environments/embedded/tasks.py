# SPDX-License-Identifier: Apache-2.0

"""The embedded tasks and the tiny chat model that was built for them."""

from pathlib import Path

from datasets import Dataset

from ...episodes.text_environment import TextEnvironment
from ...prompts import NLACPrompts
from .rooms import RoomsEnvironment, RoomsWorld
from .service_desk import ServiceDesk, ServiceDeskEnvironment
from .support_desk import SupportDesk, SupportDeskEnvironment


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

World = RoomsWorld | ServiceDesk | SupportDesk


def make_tasks(world: str, seed: int, variant: str = "told") -> tuple[World, Dataset]:
    """
    Make an instance of an embedded task that no embedded model has seen, and a dataset with one row for each start.
    The world is `"rooms"`, `"service_desk"`, whose `variant` is one of `service_desk.VARIANTS`, or `"support_desk"`.
    """
    if world == "rooms":
        instance = RoomsWorld.from_seed(seed)
        return instance, Dataset.from_dict({"start": instance.rooms})
    if world not in ("service_desk", "support_desk"):
        raise ValueError(f"`world` must be 'rooms', 'service_desk' or 'support_desk', got {world!r}.")
    instance = SupportDesk.from_seed(seed) if world == "support_desk" else ServiceDesk.from_seed(seed, variant=variant)
    return instance, Dataset.from_dict({"request": instance.requests})


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
