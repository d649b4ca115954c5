# SPDX-License-Identifier: Apache-2.0

"""A trained model at work: it acts, criticises and refines in the roles that it was trained in."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import PreTrainedModel

from ..chat.actions import choose_format
from ..chat.encoder import ChatEncoder
from ..chat.message_reader import read_conversation, read_message, read_question
from ..episodes.conversations import read_action, record_conversation
from ..episodes.pool import EnvironmentPool
from ..episodes.rewards import EpisodeRewards
from ..evaluation.evaluation import Evaluation, evaluate_policy
from ..generation.generator import Generator
from ..method.context import context_of, fit_to_context
from ..method.critic import critic_prompt, judge_actions
from ..method.roles import Roles
from ..options.role_options import RoleOptions
from ..prompts import NLACPrompts
from ..types import Answer, Judgement, Message, Prompt
from .agent_action import AgentAction, Check
from .backends import load_backend, present_device
from .better_actions import (
    Choice,
    act_better,
    act_guarded,
    choose_actions,
    judge_choices,
    predict_futures,
    refine_choices,
)
from .guard import Guard


class NLACAgent:
    """
    A model in its roles: policy, critic and refinement policy. Any chat model can be an agent, also one that was not
    trained for it. Load one with [`from_pretrained`].

    Example:

    ```python
    from trl_nlac import NLACAgent

    agent = NLACAgent.from_pretrained("my-org/my-agent")
    messages = [{"role": "user", "content": "Guess a number from 1 to 100."}]
    turn = agent.act(messages, refine=1)
    print(turn.action, turn.attempts)
    messages += [turn.message, {"role": "user", "content": "Higher."}]
    print(agent.critique(messages, "50").critique)
    ```

    Args:
        generator ([`~generation.generator.Generator`]):
            Samples tokens.
        chat ([`~chat.encoder.ChatEncoder`]):
            Encodes messages.
        options ([`~options.role_options.RoleOptions`], *optional*):
            How the roles act and generate. If `None`, the defaults. Without an `action_format`, `tools` and the chat
            template decide.
        prompts ([`NLACPrompts`], *optional*):
            Prompts of the roles. If `None`, the defaults.
        tools (`list[dict[str, Any]]`, *optional*):
            JSON schemas of tools by which the calls in actions are parsed, beside those that a conversation comes
            with. They are not shown to the model: give the tools that it shall know to each call, as in
            `act(messages, tools)`.
        model ([`~transformers.PreTrainedModel`], *optional*):
            The model, if the generator samples from a model in this process.
        brings_tools (`bool`, *optional*, defaults to `False`):
            Whether conversations bring their tools and their own words about answers, as the requests of a program do.
            Without an `action_format`, actions are then tool calls, or `"text"` where the chat template has none.
        is_single_step (`bool`, *optional*, defaults to `False`):
            Whether tasks are prompts, whose answers are taken as they are. Without an `action_format`, it is `"text"`.
    """

    def __init__(
        self,
        generator: Generator,
        chat: ChatEncoder,
        options: RoleOptions | None = None,
        prompts: NLACPrompts | None = None,
        tools: list[dict[str, Any]] | None = None,
        model: PreTrainedModel | None = None,
        brings_tools: bool = False,
        is_single_step: bool = False,
    ):
        self.model = model
        self.tools = tools or []
        options = options or RoleOptions()
        action_format = choose_format(options.action_format, chat, self.tools, brings_tools, is_single_step)
        self.options = replace(options, action_format=action_format)
        self.roles = Roles(generator, chat, prompts or NLACPrompts(), self.options)
        self._lock = threading.RLock()

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        backend: str = "transformers",
        prompts: NLACPrompts | str | Path | None = None,
        tools: list[dict[str, Any]] | None = None,
        device: str | torch.device | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        backend_kwargs: dict[str, Any] | None = None,
        brings_tools: bool = False,
        is_single_step: bool = False,
        **options,
    ) -> "NLACAgent":
        """
        Load a model that a trainer saved, with the prompts and options of its roles, or any chat model. `tools`,
        `brings_tools` and `is_single_step` are those of the class.

        Args:
            model (`str`):
                Folder or repository on the Hub, of a whole model or of an adapter. For a model on a server, only the
                tokenizer and the roles are loaded from there.
            backend (`str`, *optional*, defaults to `"transformers"`):
                `"transformers"` or `"vllm"`, both in this process, or the URL of a server with OpenAI's interface that
                takes prompts in tokens, as `vllm serve` does: `"http://localhost:8000/v1"`.
            prompts ([`NLACPrompts`] or `str` or `Path`, *optional*):
                Prompts of the roles, or a file of them, in place of those that were saved.
            device (`str` or [`torch.device`], *optional*):
                Device of the model. If `None`, an accelerator if there is one. A `device_map` in `backend_kwargs`
                decides in its place.
            revision (`str`, *optional*):
                Branch, tag or commit on the Hub.
            trust_remote_code (`bool`, *optional*, defaults to `False`):
                Whether code from the Hub can run.
            backend_kwargs (`dict[str, Any]`, *optional*):
                Additional arguments: of [`~transformers.AutoModelForCausalLM.from_pretrained`], of `vllm.LLM`, or, for
                a server, of `openai.AsyncOpenAI` (`api_key`, `timeout`) and `served_model_name`.
            **options:
                Options of [`~options.role_options.RoleOptions`], such as `temperature`, in place of those that were
                saved.

        Raises:
            ValueError: If there is no such option or backend, the backend does not serve the model, or its context has
                no room for more than an answer.
            ImportError: If a package of the backend is not installed.
            ConnectionError: If no server answers.
        """
        role_options = RoleOptions.from_pretrained(model, revision, **options)
        if prompts is None:
            prompts = NLACPrompts.from_pretrained(model, revision)
        elif not isinstance(prompts, NLACPrompts):
            prompts = NLACPrompts.from_file(prompts)
        if device is not None and backend != "transformers":
            raise ValueError(f"`device={str(device)!r}` is for `backend='transformers'`, got `backend={backend!r}`.")
        device = torch.device(device) if device else present_device()
        PartialState(cpu=device.type == "cpu")  # an existing one stays: a trainer can be running here
        how = (role_options.chat_template_kwargs, device, revision, trust_remote_code, backend_kwargs or {})
        generator, chat, loaded = load_backend(backend, model, *how)
        fit_to_context(role_options, context_of(generator, loaded))
        return cls(generator, chat, role_options, prompts, tools, loaded, brings_tools, is_single_step)

    def act(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        refine: int = 0,
        num_candidates: int = 1,
        alpha: float = 1.0,
        judge: bool = False,
    ) -> AgentAction:
        """
        Choose the next action.

        Args:
            messages (`list[dict[str, Any]]`):
                The conversation, as chat messages: an optional `system`, then `user`, `assistant` and `tool` in turns.
                It ends with the message to answer.
            tools (`list[dict[str, Any]]`, *optional*):
                JSON schemas of the available tools.
            refine (`int`, *optional*, defaults to `0`):
                Rounds of critique and refinement. They end at an action that the critic calls the best.
            num_candidates (`int`, *optional*, defaults to `1`):
                Number of actions to sample, of which one is chosen with pi(a|s) proportional to exp(alpha Q(s, a)),
                where Q is the verdict score (LAC, https://huggingface.co/papers/2506.06376).
            alpha (`float`, *optional*, defaults to `1.0`):
                Weight of the verdict scores among candidates. `0` chooses any.
            judge (`bool`, *optional*, defaults to `False`):
                Whether the critic judges the final action, if it has not yet.

        Raises:
            ValueError: If the messages are not a conversation, or a number is out of range.
        """
        return self.act_on([self.encode(messages, tools)], refine, num_candidates, alpha, judge)[0]

    def act_all(
        self,
        conversations: list[list[Message]],
        tools: list[dict[str, Any]] | None = None,
        refine: int = 0,
        num_candidates: int = 1,
        alpha: float = 1.0,
        judge: bool = False,
    ) -> list[AgentAction]:
        """Choose the next action in several conversations at once, which costs less than one after the other."""
        prompts = [self.encode(messages, tools) for messages in conversations]
        return self.act_on(prompts, refine, num_candidates, alpha, judge)

    def act_on(
        self, prompts: list[Prompt], refine: int = 0, num_candidates: int = 1, alpha: float = 1.0, judge: bool = False
    ) -> list[AgentAction]:
        """Choose the next action for conversations in tokens, see [`encode`]."""
        sampling = self.roles.samplings["evaluation"]
        with self.generating():
            choices = choose_actions(self.roles, prompts, refine, num_candidates, alpha, sampling)
            if judge:
                judge_choices(self.roles, prompts, choices)
        return [self._action(choice) for choice in choices]

    def refine(
        self,
        messages: list[Message],
        action: str | Message | None = None,
        rounds: int = 1,
        tools: list[dict[str, Any]] | None = None,
    ) -> AgentAction:
        """
        Improve any proposed action by rounds of critique and refinement. `messages`, `action` and `tools` are as in
        [`critique`].

        Args:
            rounds (`int`, *optional*, defaults to `1`):
                Largest number of rounds. They end at an action that the critic calls the best.

        Raises:
            ValueError: If there is no action, it is too long, or `rounds` is less than 1.
        """
        return self.refine_on([self.proposed(messages, action, tools)], rounds)[0]

    def refine_on(self, proposed: list[Answer], rounds: int = 1) -> list[AgentAction]:
        """Improve actions in tokens, see [`proposed`]."""
        if rounds < 1:
            raise ValueError(f"`rounds` must be at least 1, got {rounds}.")
        choices = [Choice(answer) for answer in proposed]
        with self.generating():
            refine_choices(self.roles, [answer.prompt for answer in proposed], choices, rounds)
        return [self._action(choice) for choice in choices]

    def critique(
        self, messages: list[Message], action: str | Message | None = None, tools: list[dict[str, Any]] | None = None
    ) -> Judgement | None:
        """
        Judge any proposed action.

        Args:
            messages (`list[dict[str, Any]]`):
                The conversation up to the action.
            action (`str` or `dict[str, Any]`, *optional*):
                The proposed action, as text or as a message, which can call tools. If `None`, the last message.
            tools (`list[dict[str, Any]]`, *optional*):
                JSON schemas of the available tools.

        Returns:
            [`~types.Judgement`]: critique, verdict and verdict score; `None` if the critique breaks its format.

        Raises:
            ValueError: If there is no action, or it is too long.
        """
        return self.critique_on([self.proposed(messages, action, tools)])[0]

    def critique_all(
        self, conversations: list[list[Message]], tools: list[dict[str, Any]] | None = None
    ) -> list[Judgement | None]:
        """Judge the last messages of several conversations at once."""
        return self.critique_on([self.proposed(messages, None, tools) for messages in conversations])

    def critique_on(self, proposed: list[Answer]) -> list[Judgement | None]:
        """Judge actions in tokens, see [`proposed`]."""
        with self.generating():
            return judge_actions(
                self.roles, [self.roles.builder.continued(answer.prompt, answer) for answer in proposed]
            )

    def check(
        self,
        messages: list[Message],
        proposed_action: str | Message,
        tools: list[dict[str, Any]] | None = None,
        threshold: float = 0.0,
    ) -> Check:
        """
        Guard another agent: check an action that it proposes. `messages` and `tools` are as in [`critique`].

        Args:
            threshold (`float`, *optional*, defaults to `0.0`):
                Verdict score above which an action passes. At 0 it passes if "Yes" is more likely than "No".

        Returns:
            [`~agent.agent_action.Check`]

        Raises:
            ValueError: If the messages with the action are not a conversation, or are too long.
        """
        return Check.of(self.critique(messages, proposed_action, tools), threshold)

    def predict_futures(
        self,
        messages: list[Message],
        action: str | Message | None = None,
        k: int = 4,
        tools: list[dict[str, Any]] | None = None,
    ) -> list[str]:
        """
        Sample k futures of an action, d ~ M(. | s, a), see [`better_actions.predict_futures`]. `messages`, `action`,
        `tools` are as in [`critique`].

        Args:
            k (`int`, *optional*, defaults to `4`):
                Number of futures.

        Returns:
            `list[str]`: those that could be parsed.

        Raises:
            ValueError: If there is no action, it is too long, or tasks are single steps, which have no future.
        """
        return self.predict_futures_on([self.proposed(messages, action, tools)], k)[0]

    def predict_futures_on(self, proposed: list[Answer], k: int = 4) -> list[list[str]]:
        """Sample k futures of actions in tokens, see [`proposed`]."""
        with self.generating():
            state_actions = [self.roles.builder.continued(answer.prompt, answer) for answer in proposed]
            return predict_futures(self.roles, state_actions, k)

    def evaluate(
        self,
        environments: EnvironmentPool,
        tasks: list[dict[str, Any]],
        num_episodes: int = 1,
        num_critiques: int = 64,
        seed: int = 42,
        refine: int = 0,
        num_candidates: int = 1,
        alpha: float = 1.0,
        rewards: EpisodeRewards | None = None,
        guard: Guard | None = None,
    ) -> Evaluation:
        """
        Play episodes of each task, a row of a dataset, and let the critic judge `num_critiques` of the actions, as
        [`NLACTrainer.evaluate`] does. Where the environment has an oracle, as many are compared with the truth.
        `refine`, `num_candidates` and `alpha` improve actions, see [`act`]; in their place a `guard` can refuse
        actions, see [`~agent.better_actions.act_guarded`]. `rewards` are in addition to those of the environment.
        """
        torch.manual_seed(seed)
        act, sampling = None, self.roles.samplings["evaluation"]
        if guard is not None:
            act = partial(act_guarded, self.roles, guard=guard, sampling=sampling)
        elif refine or num_candidates > 1:
            act = partial(
                act_better, self.roles, refine=refine, num_candidates=num_candidates, alpha=alpha, sampling=sampling
            )
        with self.generating():
            played = (environments, dict(enumerate(tasks)), self.roles, num_episodes)
            return evaluate_policy(*played, num_critiques, seed, act=act, rewards=rewards)

    def encode(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> Prompt:
        """
        Encode a conversation as if a trainer had played it.

        Raises:
            ValueError: If the messages are not a conversation that waits for an answer, or are too long although their
                history is cut.
        """
        try:
            read = read_question(messages)
        except ValueError as error:
            raise ValueError(f"The `messages` are not a conversation that waits for an answer: {error}.") from error
        return self._encode(read, tools)

    def proposed(
        self, messages: list[Message], action: str | Message | None = None, tools: list[dict[str, Any]] | None = None
    ) -> Answer:
        """
        Encode any proposed action as if the policy had sampled it.

        Raises:
            ValueError: If there is no action, or the messages with it are not a conversation, or are too long for the
                critic.
        """
        try:
            if action is None:
                *read, message = read_conversation(messages)[0]
                if message["role"] != "assistant":
                    raise ValueError("there is no `action`, and the last message is not the assistant's")
            else:
                message = {"role": "assistant", "content": action} if isinstance(action, str) else action
                read, message = read_question(messages), read_message(message)
        except ValueError as error:
            raise ValueError(f"The `messages` with the action are not a conversation: {error}.") from error
        message, parsed = read_action(message, self.roles.actions, [*self.tools, *(tools or [])])
        token_ids = self.roles.chat.completion(message)
        answer = Answer(self._encode(read, tools), tuple(token_ids), self.roles.chat.decode(token_ids), parsed)
        builder = self.roles.builder
        if not builder.fits(critic_prompt(self.roles, builder.continued(answer.prompt, answer))):
            raise ValueError(
                f"The action of {len(token_ids)} tokens is too long: with the critic's question it does not fit into "
                f"`max_prompt_length={self.options.max_prompt_length}`. Shorten it, or raise the option."
            )
        return answer

    def _encode(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> Prompt:
        """Encode messages that are a conversation."""
        recorder = record_conversation(
            messages, self.roles.actions, self.roles.prompts, tools, self.options.max_prompt_length, is_open=True
        )
        return replace(recorder.prompt, tools=(*self.tools, *(tools or [])))

    @contextmanager
    def generating(self) -> Iterator[None]:
        """
        Open a session of the generator, in which the roles can answer.

        Raises:
            RuntimeError: If a model in this process answers in another thread already.
        """
        with ExitStack() as stack:
            if not self.roles.generator.is_concurrent:
                if not self._lock.acquire(blocking=False):
                    raise RuntimeError(
                        "This agent answers in another thread already, and a model in this process serves one at a "
                        "time. Use `AsyncNLACAgent`, which collects questions, or `trl-nlac serve`."
                    )
                stack.callback(self._lock.release)
            # Nobody reads the metrics of roles here; they would grow as long as the agent lives.
            stack.enter_context(self.roles.tally.unrecorded())
            stack.enter_context(self.roles.generator.session(self.model))
            yield

    def _action(self, choice: Choice) -> AgentAction:
        actions, answer = self.roles.actions, choice.answer
        message = actions.message(answer.parsed, answer.text, list(answer.token_ids))
        judged = (choice.judgement, choice.attempts, choice.candidates)
        said = (answer.parsed, answer.text, actions.thought(answer), message, answer.token_ids)
        return AgentAction(*said, *judged, finished=answer.finished)
