# SPDX-License-Identifier: Apache-2.0

"""Results of τ-bench and of τ²-bench."""

from collections.abc import Iterable, Iterator
from typing import Any

from ..types import Message
from .logged import LoggedConversations, UnreadableError, find_outcome, read_outcome


_CUT = ("max_steps", "timeout")  # why τ²-bench ended a simulation that could have continued
_BROKEN = ("error", "infrastructure", "invalid")  # in the names of other reasons


def is_result(value: Any) -> bool:
    """Whether a value is a run of τ-bench."""
    return isinstance(value, dict) and "traj" in value


def is_results(value: Any) -> bool:
    """Whether a value is the results of τ²-bench."""
    return isinstance(value, dict) and isinstance(value.get("simulations"), list)


def read_results(values: Iterable[Any], outcome: str | None, found: LoggedConversations) -> None:
    """Read runs of τ-bench: `task_id`, `reward`, `traj` and `info`. One that an error ended has no outcome."""
    for value in found.shallow(values):
        try:
            if not is_result(value):
                raise UnreadableError("it is no run of τ-bench")
            info = value.get("info")
            if isinstance(info, dict) and info.get("error"):
                raise UnreadableError("an error ended the run, so its reward of 0 is none")
            found.add(
                {
                    "messages": value["traj"],
                    "reward": find_outcome(value, outcome),
                    "task": {"task_index": value.get("task_id")},
                }
            )
        except ValueError as error:
            found.refuse(error)


def read_simulations(values: Iterable[Any], outcome: str | None, found: LoggedConversations) -> None:
    """
    Read results of τ²-bench: its `simulations`, with the policy of the domain as the system's message. What the user
    did with tools of their own, which the agent does not see, is left out. Arguments as in [`read_results`].
    """
    for value in values:
        if not is_results(value):
            found.refuse("it is no result of τ²-bench")
            continue
        policy = _policy(value.get("info"))
        for simulation in found.shallow(value["simulations"]):
            try:
                found.add(_simulation(simulation, policy, outcome))
            except ValueError as error:
                found.refuse(error)


def _simulation(simulation: Any, policy: list[Message], outcome: str | None) -> dict:
    if not isinstance(simulation, dict) or not isinstance(simulation.get("messages"), list):
        raise UnreadableError("a simulation has no messages")
    reason = str(simulation.get("termination_reason"))
    if any(word in reason for word in _BROKEN):
        raise UnreadableError(f"the simulation ended with {reason}, so it has no outcome")
    rewards = simulation.get("reward_info")
    reward = rewards.get("reward") if isinstance(rewards, dict) else None
    return {
        "messages": [*policy, *_seen(simulation["messages"])],
        "reward": read_outcome(reward) if outcome is None else find_outcome(simulation, outcome),
        "terminated": reason not in _CUT,
        "task": {"task_id": simulation.get("task_id")},
    }


def _seen(messages: list[Any]) -> Iterator[Any]:
    """Yield what the agent sees: not calls and results of the user's tools. The `id` of a result is its call's."""
    for message in messages:
        if isinstance(message, dict):
            is_users_call = message.get("role") == "user" and message.get("tool_calls")
            if is_users_call or message.get("requestor") == "user":
                continue
            if message.get("role") == "tool":
                message = {"content": "", **message, "tool_call_id": message.get("id")}
        yield message


def _policy(info: Any) -> list[Message]:
    environment = info.get("environment_info") if isinstance(info, dict) else None
    policy = environment.get("policy") if isinstance(environment, dict) else None
    return [{"role": "system", "content": policy}] if isinstance(policy, str) and policy else []
