# SPDX-License-Identifier: Apache-2.0

"""How the roles generate, and when they have succeeded. Saved next to a model, so that an agent does the same."""

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..secrets import hide_secrets
from ..terminal import shown
from ..written_files import write_json
from .checks import as_float, as_whole, check, check_between, check_choices, check_types, is_json
from .documented import documented


ROLES_FILE = "nlac_roles.json"
ROLES = ("policy", "successor", "backup", "critic", "refine", "correction", "evaluation")
ACTION_FORMATS = ["react", "text", "tool_call"]
# Settings of single roles where `role_sampling` has none. A backup copies the observation, and what it samples wrongly
# the critic learns. Where outcomes are luck in part, a critic as unsure as they are teaches the policy to guess: its
# most likely critique is a vote of what it has seen. A small model does a third of what it is told at temperature 1,
# and half of it at 0.5; what the refinement policy leaves out is never tried.
_GREEDY = {"temperature": 0.0}
ROLE_DEFAULTS = {"backup": _GREEDY, "critic": _GREEDY, "refine": {"temperature": 0.5, "min_p": 0.0}}
MAX_TOKENS = 10**6  # of an answer
# Settings of one role, with the range of each, within which the scores of tokens stay finite.
_SETTINGS = {
    "max_tokens": (lambda value: 1 <= value <= MAX_TOKENS, f"between 1 and {MAX_TOKENS:,}"),
    "temperature": (lambda value: value == 0 or 0.001 <= value <= 1000, "0, or between 0.001 and 1,000"),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "top_k": (lambda value: value >= 0, "not negative"),
    "min_p": (lambda value: 0 <= value <= 1, "between 0 and 1"),
    "repetition_penalty": (lambda value: 0.01 <= value <= 100, "between 0.01 and 100"),
}
# General options that are settings of all roles under other names.
_GENERAL = {"max_completion_length": "max_tokens"}
# What `generation_kwargs` cannot set, as each answer has its own or there is an option, and what to do instead.
_SET_ELSEWHERE = {
    **{name: f"use `{name}` or `role_sampling`" for name in _SETTINGS},
    **dict.fromkeys(("max_tokens", "max_new_tokens", "max_length"), "use `max_completion_length` or `role_sampling`"),
    "do_sample": "use `temperature`, where 0 is greedy",
    "seed": "use `seed`, from which each answer has its own",
    "structured_outputs": "use `vllm_structured_outputs_regex`",
    **dict.fromkeys(("stop_token_ids", "eos_token_id"), "use the tokenizer's `eos_token`"),
    **dict.fromkeys(("n", "num_return_sequences"), "leave it out: a prompt has one answer"),
    **dict.fromkeys(("detokenize", "logprobs", "prompt_logprobs"), "leave it out: answers are read as tokens"),
}


@documented
@dataclass
class RoleOptions:
    r"""
    Options of [`NLACConfig`] that a trained agent keeps: how its roles act and generate.

    Parameters:
        > Parameters that control acting

        action_format (`str`, *optional*):
            Format of an action: `"react"` (`Thought:` and `Action:`, the paper), `"tool_call"` (calls of the
            environment's tools, as the chat template writes them) or `"text"` (the whole answer is the action). If
            `None`, `"tool_call"` where the environment has tools and the chat template supports them; elsewhere
            `"text"` for an agent as it is and for prompts that reward functions score, and otherwise `"react"`. The
            choice is logged, and saved with the model.
        single_step (`bool`, *optional*, defaults to `False`):
            Whether a task is one action, as in mathematics. The critic then judges its correctness and predicts no
            future. Needs `max_turns=1`.
        max_turns (`int`, *optional*, defaults to `20`):
            Number of actions after which an episode ends.
        turn_limit (`str`, *optional*, defaults to `"truncate"`):
            Whether an episode that `max_turns` ends was cut (`"truncate"`), or has ended with its score so far
            (`"terminate"`). With `"truncate"` the backup gets no score, and predicts how the episode would have gone
            on. With `"terminate"` it gets the score so far, for tasks in which running out of turns is a failure.
        success_threshold (`float`, *optional*, defaults to `1.0`):
            Score from which an episode counts as a success.
        num_futures (`int`, *optional*, defaults to `1`):
            Number k of futures that a critique weighs (equation 3). With 1, future and verdict are one answer, and the
            critic is trained on both. With more, the critic is trained on the future alone, and the verdict on all of
            them is a separate answer.
        reasoning (`bool`, *optional*):
            Whether the chain of thought of a Bellman target or a refined action is rewritten before training, so that
            it uses nothing that the training prompt does not show (appendix A.2). If `None`, whenever the chat
            template marks a chain of thought and the answer has one.
        keep_history (`bool`, *optional*, defaults to `True`):
            Whether a state holds all earlier actions and observations. If `False`, it is the last observation alone,
            after the messages that came before the first one. Set it where an observation says all that matters: a
            board, a page, a report of the whole state. Then prompts are short, and what was learned of a state holds
            however it was reached, so that bootstrapping can join pieces of different episodes. What only the first
            observation says is forgotten: put the task into messages before it.
        max_prompt_length (`int` or `None`, *optional*, defaults to `8192`):
            Maximum number of tokens of a prompt, in every role. A longer history is cut in the middle: the system
            message, the task and the newest turns stay, and a sentence marks the cut. The prompts of critic, backup
            and refinement add an action, an observation and answers of the roles to a state, so they are cut earlier;
            one that is too long even so is counted and not answered. A single observation is shortened to half of the
            limit, before anything sees it; a mark says how much is left out. `None` for no limit. Where the context of
            the model, or of vLLM, has no room for it beside an answer, it is lowered, with a warning.

        > Parameters that control sampling

        max_completion_length (`int`, *optional*, defaults to `512`):
            Maximum number of tokens of an answer. Longer ones are counted and not trained on.
        temperature (`float`, *optional*, defaults to `1.0`):
            Sampling temperature of all roles; `0` is greedy.
        top_p (`float`, *optional*, defaults to `1.0`):
            Cumulative probability of the tokens to consider. `1.0` considers all.
        top_k (`int`, *optional*, defaults to `0`):
            Number of the most likely tokens to consider. `0` considers all.
        min_p (`float`, *optional*, defaults to `0.05`):
            Smallest probability of a token, relative to the most likely one. `0` leaves out none (the paper).
        repetition_penalty (`float`, *optional*, defaults to `1.0`):
            Penalty for tokens that occurred already. `1.0` is none.
        role_sampling (`str`, `dict[str, dict[str, float]]`, *optional*):
            Settings of single roles in place of the general ones, as `{"backup": {"temperature": 0.0}, "critic":
            {"max_tokens": 256}}`. Roles are `policy`, `successor`, `backup`, `critic`, `refine`, `correction` and
            `evaluation` (the policy in evaluation, which starts from the settings of `policy`). Settings are
            `max_tokens`, `temperature`, `top_p`, `top_k`, `min_p` and `repetition_penalty`. Unless set here, the
            temperatures of `backup` and `critic` are 0, that of `refine` is 0.5, and its `min_p` is 0.
        generation_kwargs (`str`, `dict[str, Any]`, *optional*):
            Additional keyword arguments of [`~transformers.GenerationConfig`], or of vLLM's `SamplingParams`. What has
            an option, as `temperature`, or is set for each answer, as `seed` and `max_tokens`, is refused.
        chat_template_kwargs (`str`, `dict[str, Any]`, *optional*):
            Additional keyword arguments of the chat template.
        max_format_retries (`int`, *optional*, defaults to `1`):
            How often a target, critique or refined action that breaks its format is sampled again before it is
            dropped.

    Raises:
        ValueError: If a value is out of range; the message names the option.
    """

    action_format: str | None = field(default=None, metadata={"choices": ACTION_FORMATS})
    single_step: bool = False
    max_turns: int = 20
    turn_limit: str = field(default="truncate", metadata={"choices": ["truncate", "terminate"]})
    success_threshold: float = 1.0
    num_futures: int = 1
    reasoning: bool | None = None
    keep_history: bool = True
    max_prompt_length: int | None = 8192
    max_completion_length: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = 0.05
    repetition_penalty: float = 1.0
    role_sampling: dict[str, Any] | str | None = None
    generation_kwargs: dict[str, Any] | str | None = None
    chat_template_kwargs: dict[str, Any] | str | None = None
    max_format_retries: int = 1

    def __post_init__(self):
        check_types(self)
        check_choices(self, "action_format", "turn_limit")
        check_between(self, 1, 10**9, "max_prompt_length")
        check_between(self, 1, 100_000, "max_turns")
        check_between(self, 1, 1000, "num_futures")
        check_between(self, 0, 1000, "max_format_retries")
        for name in ("max_completion_length", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
            value, (is_valid, requirement) = vars(self)[name], _SETTINGS[_GENERAL.get(name, name)]
            if value is not None or name != "min_p":
                check(self, name, is_valid(value), requirement)
        for name in ("generation_kwargs", "chat_template_kwargs"):
            check(self, name, is_json(vars(self)[name]), "what JSON can hold, because it is saved with the model")
        kwargs = self.generation_kwargs or {}
        if refused := [f"{name!r} ({_SET_ELSEWHERE[name]})" for name in kwargs if name in _SET_ELSEWHERE]:
            raise ValueError(f"`generation_kwargs` cannot set {', '.join(refused)}, got {shown(kwargs)}.")
        if self.role_sampling is not None:
            self.role_sampling = _checked_role_sampling(self.role_sampling)
        if self.single_step and self.max_turns != 1:
            raise ValueError(f"`single_step=True` means tasks of one action: set `max_turns=1`, got {self.max_turns}.")
        if self.single_step and self.num_futures > 1:
            raise ValueError(
                f"`single_step=True` predicts no future: leave `num_futures` at 1, got {self.num_futures}."
            )

    @classmethod
    def from_pretrained(cls, model: str, revision: str | None = None, **changes) -> "RoleOptions":
        """
        Load the options saved with a model; the defaults if there are none.

        Args:
            model (`str`):
                Folder, or repository on the Hub.
            revision (`str`, *optional*):
                Branch, tag or commit on the Hub.
            **changes:
                Options in place of those that were saved.

        Raises:
            ValueError: If there is no such option, a value is out of range, or the file is damaged.
        """
        from transformers.utils import cached_file  # slow, and the options alone are in every help

        path = cached_file(model, ROLES_FILE, revision=revision, _raise_exceptions_for_missing_entries=False)
        saved = {} if path is None else _read(Path(path))
        cls.check_names(changes)
        cls.check_names(saved, f" of {path}")
        return cls(**{**saved, **changes})

    @classmethod
    def check_names(cls, options: dict[str, Any], where: str = "") -> None:
        """Raise a `ValueError` if one of `options`, whose place `where` says, is none of the roles."""
        names = [option.name for option in fields(cls)]
        unknown = sorted(options.keys() - set(names))
        if unknown:
            raise ValueError(f"`{unknown[0]}`{where} is not an option of the roles. Options are: {', '.join(names)}.")

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the options next to a model, for [`RoleOptions.from_pretrained`]."""
        options = hide_secrets({option.name: vars(self)[option.name] for option in fields(RoleOptions)})
        write_json(Path(directory, ROLES_FILE), options)


def _checked_role_sampling(role_sampling: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings of roles as Python's own numbers, whole ones as floats where these are meant."""
    checked: dict[str, dict[str, Any]] = {}
    for role, settings in role_sampling.items():
        if role not in ROLES:
            raise ValueError(f"`role_sampling` names the role {shown(role)}. Roles are: {', '.join(ROLES)}.")
        if not isinstance(settings, dict):
            raise ValueError(f"`role_sampling[{role!r}]` must be a dict of settings, got {shown(settings)}.")
        checked[role] = {}
        for name, value in settings.items():
            if name not in _SETTINGS:
                raise ValueError(
                    f"`role_sampling[{role!r}]` has the setting {shown(name)}. Settings are: {', '.join(_SETTINGS)}."
                )
            is_valid, requirement = _SETTINGS[name]
            number = as_whole(value) if name in ("max_tokens", "top_k") else as_float(value)
            if number is None or not is_valid(number):
                raise ValueError(f"`role_sampling[{role!r}][{name!r}]` must be {requirement}, got {shown(value)}.")
            checked[role][name] = number
    return checked


def _read(path: Path) -> dict[str, Any]:
    try:
        saved = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}.") from error
    if not isinstance(saved, dict):
        raise ValueError(f"{path} is damaged: it is no JSON object of options.")
    return saved
