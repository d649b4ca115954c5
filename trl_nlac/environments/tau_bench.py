# SPDX-License-Identifier: Apache-2.0

"""Customer service of the tau_bench package: tools, a company policy, and a customer played by a language model."""

from typing import Any

from datasets import Dataset

from ..chat.tool_calls import parse_tool_call
from ..episodes.text_environment import Message, StepResult, TextEnvironment


RESPOND_TOOL = {
    "type": "function",
    "function": {
        "name": "respond",
        "description": "Say something to the user and read the answer.",
        "parameters": {
            "type": "object",
            "properties": {"content": {"type": "string", "description": "What to say."}},
            "required": ["content"],
        },
    },
}


class TauBenchEnvironment(TextEnvironment):
    """
    Plays the tasks of [τ-bench](https://github.com/sierra-research/tau-bench):
    `pip install git+https://github.com/sierra-research/tau-bench`.

    `reset(task_index=...)` gives the company's policy as the system message and the first message of the user, who is
    played by a language model. An action calls one of the company's tools, `{"name": ..., "arguments": {...}}`, or is
    a message to the user, either plain or as `{"name": "respond", "arguments": {"content": ...}}`. The task ends when
    the user ends the conversation or is transferred to a human. The reward is 1 if the database is then in the right
    state and the user has got the required information, and 0 otherwise.

    Unknown tools and wrong arguments become observations. If the user's model fails, so does the environment: the
    error is raised. Each instance has its own database and user, so instances can play in different threads.

    Args:
        env_name (`str`, *optional*, defaults to `"retail"`):
            Company: `"retail"` or `"airline"`.
        task_split (`str`, *optional*, defaults to `"train"`):
            Tasks: `"train"`, `"dev"` or `"test"` of the retailer; the airline has only `"test"`.
        user_model (`str`, *optional*, defaults to `"gpt-4.1"`):
            Model that plays the user.
        user_base_url (`str`, *optional*):
            Address of an OpenAI-compatible server for this model, such as `"http://localhost:8000/v1"`. If `None`, the
            provider's.
        user_provider (`str`, *optional*):
            Provider of the model, as litellm names it. If `None`, `"hosted_vllm"` (any OpenAI-compatible server,
            without a key) if `user_base_url` is given, otherwise `"openai"` (with the key in `OPENAI_API_KEY`).
        user_kwargs (`dict[str, Any]`, *optional*):
            Further keyword arguments of `litellm.completion`, such as `temperature` or `api_key`. The defaults are
            `timeout=60` (seconds) and `num_retries=2`.
        respond_tool (`bool`, *optional*, defaults to `True`):
            Whether messages to the user are listed as a tool, as needed for `action_format="react"`. With
            `action_format="tool_call"`, models write to the user in plain text and do not need it.

    Raises:
        ImportError: If tau_bench is not installed.
        ValueError: If tau_bench has no such company or tasks.
    """

    def __init__(
        self,
        env_name: str = "retail",
        task_split: str = "train",
        user_model: str = "gpt-4.1",
        user_base_url: str | None = None,
        user_provider: str | None = None,
        user_kwargs: dict[str, Any] | None = None,
        respond_tool: bool = True,
    ):
        self._env = _load(env_name, task_split)
        self._env.user = _make_user(
            model=user_model,
            custom_llm_provider=user_provider or ("hosted_vllm" if user_base_url else "openai"),
            base_url=user_base_url,
            **{"timeout": 60, "num_retries": 2, **(user_kwargs or {})},
        )
        self.tool_schemas = [*self._env.tools_info, *([RESPOND_TOOL] if respond_tool else [])]

    def reset(self, task_index: int, **task) -> list[Message]:
        """
        Start a task by its index in the split, see [`make_tasks`], and return the company's policy and the user's
        first message. Other columns of the dataset are not used.
        """
        first_words = self._env.reset(task_index=task_index).observation
        return [{"role": "system", "content": self._env.wiki}, {"role": "user", "content": first_words}]

    def step(self, action: str) -> StepResult:
        """Call a tool or write to the user. The observation is the tool's result or the user's answer."""
        from tau_bench.types import Action

        call = parse_tool_call(action)
        if call is None and action.lstrip().startswith(("{", "[{")):
            # A malformed call is not meant for the user.
            expected = '{"name": <tool>, "arguments": <JSON object>}'
            return StepResult(f"Error: a tool call is written {expected}, one at a time")
        name, arguments = call or ("respond", {"content": action})
        # Calls to which τ-bench itself gives no text answer. It evaluates powers, and 9**9**9 never ends.
        if name == "respond" and not isinstance(arguments.get("content"), str):
            return StepResult("Error: respond takes the argument `content`, a string")
        if name == "calculate" and "**" in str(arguments.get("expression")):
            return StepResult("Error: powers are not allowed in expression")
        try:
            response = self._env.step(Action(name=name, kwargs=arguments))
        except ValueError:  # from a tool that returns nothing, as one does if it cannot do what is asked
            if name == "respond":
                raise
            return StepResult(f"Error: {name} could not do this")
        info = response.info.model_dump(exclude={"task"}, exclude_none=True)
        return StepResult(response.observation, float(response.reward), terminated=response.done, info=info)


def make_tasks(env_name: str = "retail", task_split: str = "train") -> Dataset:
    """
    Return all tasks of one company and split in the installed tau_bench.

    Args:
        env_name (`str`, *optional*, defaults to `"retail"`):
            Company, see [`TauBenchEnvironment`].
        task_split (`str`, *optional*, defaults to `"train"`):
            Tasks of the company.

    Returns:
        [`~datasets.Dataset`]: With the columns `environment`, such as `"retail_train"`, which can name an entry in a
        dict of factories, and `task_index`.

    Raises:
        ImportError: If tau_bench is not installed.
        ValueError: If tau_bench has no such company or tasks.
    """
    number = len(_load(env_name, task_split).tasks)
    return Dataset.from_dict({"environment": [f"{env_name}_{task_split}"] * number, "task_index": list(range(number))})


def _load(env_name: str, task_split: str) -> Any:
    """Load a `tau_bench.envs.base.Env` whose user will be replaced: only "human" makes no call immediately."""
    try:
        from tau_bench.envs import get_env
    except ImportError as error:
        raise ImportError(
            "TauBenchEnvironment needs tau_bench: `pip install git+https://github.com/sierra-research/tau-bench`."
        ) from error
    try:
        return get_env(env_name, user_strategy="human", user_model="", task_split=task_split, task_index=0)
    except ValueError as error:
        raise ValueError(
            f"τ-bench has no tasks for `env_name={env_name!r}` and `task_split={task_split!r}` ({error}). Use "
            "'retail' with 'train', 'dev' or 'test', or 'airline' with 'test'."
        ) from error


def _make_user(**completion_kwargs) -> Any:
    """Make τ-bench's simulated user, with its prompt, but with its own endpoint and no call before the first task."""
    from litellm import completion
    from tau_bench.envs.user import LLMUserSimulationEnv

    class User(LLMUserSimulationEnv):
        def __init__(self):
            self.messages, self.total_cost = [], None

        def generate_next_message(self, messages: list[Message]) -> str:
            words = completion(messages=messages, **completion_kwargs).choices[0].message.content
            if not words:
                raise RuntimeError(f"The user's model {completion_kwargs['model']!r} returned no text.")
            self.messages.append({"role": "assistant", "content": words})
            return words

    return User()
