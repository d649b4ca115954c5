# SPDX-License-Identifier: Apache-2.0

"""Samples of the roles on *other* instances of the embedded tasks, for whatever learns them by imitation."""

import json
import random
from dataclasses import replace

from datasets import Dataset

from benchmarks.tiny_models.guess_the_number_dialogues import GuessTheNumberFamily
from benchmarks.tiny_models.relay_dialogues import RelayFamily
from benchmarks.tiny_models.rooms_dialogues import RoomsFamily
from benchmarks.tiny_models.service_desk_dialogues import ServiceDeskFamily
from benchmarks.tiny_models.support_desk_dialogues import SupportDeskFamily
from trl_nlac.environments.embedded import COMPACT_PROMPTS, SUPPORT_PROMPTS


# One sentence per role, as at the support desk: the base model of Guess The Number was trained on these.
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
    "relay": RelayFamily,
}


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
    `"service_desk"`, `"support_desk"`, `"guess_the_number"` or `"relay"`; `family_kwargs` are arguments of its family,
    such as the `variant` of [`ServiceDeskFamily`].

    Backup and refinement samples can use the names of the instance to be learned, with random rules: they teach the
    model to copy and to follow advice, and leak nothing. The other roles use known instances, for which they are true.
    Where there is none, in Guess The Number, there are samples of these two roles alone. With
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
