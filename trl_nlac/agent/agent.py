# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""A trained model at work: it acts, criticises and refines as it learned to."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import PreTrainedModel

from ..chat.encoder import ChatEncoder
from ..environments.base import Message
from ..environments.pool import EnvironmentPool
from ..episodes.conversations import problem_of, read_action, record_conversation
from ..episodes.rewards import EpisodeRewards
from ..evaluation.evaluation import Evaluation, evaluate_policy
from ..generation.base import Generator
from ..method.critic import Judgement, judge_actions, predict_futures
from ..nlac_config import NLACConfig
from ..options.saved_roles import ROLE_OPTIONS, load_roles
from ..prompts import NLACPrompts, react_thought
from ..training.loading import make_roles
from ..types import Answer, Prompt
from .backends import load_backend
from .improvement import Choice, ImprovedRoles, choose_actions, judge_choices, refine_choices


@dataclass(frozen=True)
class AgentAction:
    """
    What an agent does.

    Args:
        action (`str` or `None`):
            The action as an environment takes it; a tool call as JSON. `None` if what was said is no action.
        text (`str`):
            What the model said, without a chain of thought.
        thought (`str`):
            What it thought before: its chain of thought, or the thought of a ReAct answer.
        message (`dict[str, Any]`):
            The same as a message, with which the conversation goes on.
        token_ids (`tuple[int, ...]`):
            The same as it was sampled.
        judgement ([`~method.critic.Judgement`], *optional*):
            What the critic says about the action: of candidates, of an action after which refinement ended, or on request.
        attempts (`list[tuple[str, Judgement]]`):
            Actions that were refined, with what the critic said about each.
        candidates (`list[tuple[str, Judgement | None]]`):
            Actions among which it was chosen.
    """

    action: str | None
    text: str
    thought: str
    message: Message
    token_ids: tuple[int, ...]
    judgement: Judgement | None = None
    attempts: list[tuple[str, Judgement]] = field(default_factory=list)
    candidates: list[tuple[str, Judgement | None]] = field(default_factory=list)


@dataclass(frozen=True)
class Check:
    """
    Whether an action may be done.

    Args:
        passed (`bool`):
            Whether the score is above the threshold. What the critic could not judge does not pass.
        verdict (`bool` or `None`):
            Whether the critic calls the action optimal; `None` if its answer could not be read.
        reason (`str`):
            What the critic says.
        score (`float` or `None`):
            log P(Yes) - log P(No) of the verdict.
    """

    passed: bool
    verdict: bool | None
    reason: str
    score: float | None

    @classmethod
    def of(cls, judgement: Judgement | None, threshold: float) -> "Check":
        """By what the critic says, if its answer could be read."""
        if judgement is None:
            return cls(False, None, "The critic's answer could not be read.", None)
        passed = judgement.verdict_score > threshold
        return cls(passed, judgement.verdict, judgement.critique, judgement.verdict_score)


class NLACAgent:
    """
    A model in its roles: policy, critic and refinement policy. Any chat model can play them, also one that was never
    trained for it. [`from_pretrained`] makes one.

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
        generator ([`~generation.base.Generator`]):
            What samples tokens.
        chat ([`~chat.encoder.ChatEncoder`]):
            What turns messages into tokens.
        args ([`NLACConfig`]):
            How the roles speak.
        prompts ([`NLACPrompts`], *optional*):
            Words of the roles. If `None`, the defaults.
        tools (`list[dict[str, Any]]`, *optional*):
            JSON schemas of tools that may be called, by which the arguments of calls are read. Those that a conversation
            comes with are added.
        model ([`~transformers.PreTrainedModel`], *optional*):
            The model, if the generator is to sample from one in this process.
    """

    def __init__(
        self,
        generator: Generator,
        chat: ChatEncoder,
        args: NLACConfig,
        prompts: NLACPrompts | None = None,
        tools: list[dict[str, Any]] | None = None,
        model: PreTrainedModel | None = None,
    ):
        self.model = model
        self.args = args
        self.roles = make_roles(generator, chat, prompts, args, tools)

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
        **options,
    ) -> "NLACAgent":
        """
        Load what a trainer saved, with the words and options of its roles, or any chat model.

        Args:
            model (`str`):
                Folder or repository on the Hub, of a whole model or of an adapter. Of one that is on a server only the
                tokenizer and the roles are loaded from there.
            backend (`str`, *optional*, defaults to `"transformers"`):
                `"transformers"` or `"vllm"`, both in this process, or the URL of a server with OpenAI's interface that takes
                prompts in tokens, as `vllm serve` gives: `"http://localhost:8000/v1"`.
            prompts ([`NLACPrompts`] or `str` or `Path`, *optional*):
                Words of the roles, or a file of them, in place of those that were saved.
            tools (`list[dict[str, Any]]`, *optional*):
                JSON schemas of tools that may be called. Those that a conversation comes with are added.
            device (`str` or [`torch.device`], *optional*):
                Where transformers run. If `None`, on an accelerator if there is one.
            revision (`str`, *optional*):
                Branch, tag or commit on the Hub.
            trust_remote_code (`bool`, *optional*, defaults to `False`):
                Whether code from the Hub may run.
            backend_kwargs (`dict[str, Any]`, *optional*):
                Further arguments: of [`~transformers.AutoModelForCausalLM.from_pretrained`], of `vllm.LLM`, or, for a server, of
                `openai.AsyncOpenAI` (`api_key`, `timeout`) and `served_model_name`.
            **options:
                Options of [`NLACConfig`] that tell how the roles speak, as `temperature`, in place of those that were saved.

        Raises:
            ValueError: If an option is none of those, there is no such backend, or it does not serve the model.
            ImportError: If what the backend needs is not installed.
            ConnectionError: If no server answers.
        """
        unknown = sorted(set(options) - set(ROLE_OPTIONS))
        if unknown:
            raise ValueError(
                f"`{unknown[0]}` is no option of how the roles speak. These are: {', '.join(ROLE_OPTIONS)}."
            )
        saved, saved_prompts = load_roles(model, revision)
        if isinstance(prompts, (str, Path)):
            prompts = NLACPrompts.from_file(prompts)
        if device is not None and backend != "transformers":
            raise ValueError(f"`device={str(device)!r}` is for `backend='transformers'`, got `backend={backend!r}`.")
        device = torch.device(device or torch.accelerator.current_accelerator() or "cpu")
        PartialState(cpu=device.type == "cpu")  # an existing one stays as it is: a trainer may be running here
        args = NLACConfig(
            output_dir="",
            report_to="none",
            bf16=False,
            use_cpu=device.type == "cpu",
            accelerator_config={"use_configured_state": True},
            **{**saved, **options},
        )
        generator, chat, loaded = load_backend(
            *(backend, model, args, device, revision, trust_remote_code), backend_kwargs or {}
        )
        return cls(generator, chat, args, prompts or saved_prompts, tools, loaded)

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
                The conversation, as chat messages: an optional `system`, then `user`, `assistant` and `tool` in turns. It ends
                with what the agent is to answer.
            tools (`list[dict[str, Any]]`, *optional*):
                JSON schemas of the tools at hand.
            refine (`int`, *optional*, defaults to `0`):
                Rounds of critique and refinement. They end at an action that the critic calls the best.
            num_candidates (`int`, *optional*, defaults to `1`):
                Number of actions to sample, of which one is chosen with pi(a|s) proportional to exp(alpha Q(s, a)), Q being
                the verdict score (LAC, https://huggingface.co/papers/2506.06376).
            alpha (`float`, *optional*, defaults to `1.0`):
                How much verdict scores count among candidates. `0` chooses any.
            judge (`bool`, *optional*, defaults to `False`):
                Whether the critic judges the action that was chosen in the end, if it has not.

        Raises:
            ValueError: If the messages are no conversation, or a number is out of range.
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
        """The same in several conversations at once, which costs less than one after the other."""
        prompts = [self.encode(messages, tools) for messages in conversations]
        return self.act_on(prompts, refine, num_candidates, alpha, judge)

    def act_on(
        self,
        prompts: list[Prompt],
        refine: int = 0,
        num_candidates: int = 1,
        alpha: float = 1.0,
        judge: bool = False,
    ) -> list[AgentAction]:
        """The same for conversations in tokens."""
        sampling = self.roles.samplings["evaluation"]
        with self.speaking():
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
        Improve an action, whoever proposes it, by rounds of critique and refinement.

        Args:
            messages (`list[dict[str, Any]]`):
                The conversation up to the action.
            action (`str` or `dict[str, Any]`, *optional*):
                What the agent would say, in words or as a message, which may call tools. If `None`, the last message is it.
            rounds (`int`, *optional*, defaults to `1`):
                Largest number of rounds. They end at an action that the critic calls the best.
            tools (`list[dict[str, Any]]`, *optional*):
                JSON schemas of the tools at hand.

        Raises:
            ValueError: If there is no action, or `rounds` is less than 1.
        """
        return self.refine_on([self.proposed(messages, action, tools)], rounds)[0]

    def refine_on(self, proposed: list[Answer], rounds: int = 1) -> list[AgentAction]:
        """The same for actions in tokens, see [`proposed`]."""
        if rounds < 1:
            raise ValueError(f"`rounds` must be at least 1, got {rounds}.")
        choices = [Choice(answer) for answer in proposed]
        with self.speaking():
            refine_choices(self.roles, [answer.prompt for answer in proposed], choices, rounds)
        return [self._action(choice) for choice in choices]

    def critique(
        self,
        messages: list[Message],
        action: str | Message | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> Judgement | None:
        """
        What the critic says about an action, whoever proposes it.

        Args:
            messages (`list[dict[str, Any]]`):
                The conversation up to the action.
            action (`str` or `dict[str, Any]`, *optional*):
                What the agent would say, in words or as a message, which may call tools. If `None`, the last message is it.
            tools (`list[dict[str, Any]]`, *optional*):
                JSON schemas of the tools at hand.

        Returns:
            [`~method.critic.Judgement`]: critique, verdict and verdict score; `None` if the critic breaks its format.

        Raises:
            ValueError: If there is no action.
        """
        return self.critique_on([self.proposed(messages, action, tools)])[0]

    def critique_all(
        self, conversations: list[list[Message]], tools: list[dict[str, Any]] | None = None
    ) -> list[Judgement | None]:
        """The same for the last messages of several conversations at once."""
        return self.critique_on([self.proposed(messages, None, tools) for messages in conversations])

    def critique_on(self, proposed: list[Answer]) -> list[Judgement | None]:
        """The same for actions in tokens, see [`proposed`]."""
        with self.speaking():
            return judge_actions(self.roles, [self.roles.continued(answer.prompt, answer) for answer in proposed])

    def check(
        self,
        messages: list[Message],
        proposed_action: str | Message,
        tools: list[dict[str, Any]] | None = None,
        threshold: float = 0.0,
    ) -> Check:
        """
        Guard another agent: whether what it proposes may be done.

        Args:
            messages (`list[dict[str, Any]]`):
                The conversation up to the action.
            proposed_action (`str` or `dict[str, Any]`):
                What the agent would say, in words or as a message, which may call tools.
            tools (`list[dict[str, Any]]`, *optional*):
                JSON schemas of the tools at hand.
            threshold (`float`, *optional*, defaults to `0.0`):
                Verdict score above which an action passes. At 0 it passes if "Yes" is likelier than "No".

        Returns:
            [`~agent.agent.Check`]

        Raises:
            ValueError: If the messages are no conversation with the action.
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
        Sample k futures of an action, d ~ M(. | s, a), see [`critic.predict_futures`].

        Args:
            messages (`list[dict[str, Any]]`):
                The conversation up to the action.
            action (`str` or `dict[str, Any]`, *optional*):
                What the agent would say, in words or as a message, which may call tools. If `None`, the last message is it.
            k (`int`, *optional*, defaults to `4`):
                Number of futures.
            tools (`list[dict[str, Any]]`, *optional*):
                JSON schemas of the tools at hand.

        Returns:
            `list[str]`: those that could be read.

        Raises:
            ValueError: If there is no action, or the agent was trained for tasks of a single step, which have no future.
        """
        return self.predict_futures_on([self.proposed(messages, action, tools)], k)[0]

    def predict_futures_on(self, proposed: list[Answer], k: int = 4) -> list[list[str]]:
        """The same for actions in tokens, see [`proposed`]."""
        with self.speaking():
            state_actions = [self.roles.continued(answer.prompt, answer) for answer in proposed]
            return predict_futures(self.roles, state_actions, k)

    def evaluate(
        self,
        environments: EnvironmentPool,
        tasks: list[dict[str, Any]],
        refine: int = 0,
        num_candidates: int = 1,
        alpha: float = 1.0,
        rewards: EpisodeRewards | None = None,
    ) -> Evaluation:
        """
        Play `num_eval_episodes` of each task and let the critic judge, as [`NLACTrainer.evaluate`] does; with actions that are
        improved as [`act`] improves them, and episodes scored by `rewards` besides the environment.
        """
        torch.manual_seed(self.args.seed)
        improves = refine or num_candidates > 1
        roles = ImprovedRoles(self.roles, refine, num_candidates, alpha) if improves else self.roles
        with self.speaking():
            return evaluate_policy(environments, dict(enumerate(tasks)), roles, self.args, rewards)

    def encode(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> Prompt:
        """
        The tokens of a conversation, as a trainer would have played it.

        Raises:
            ValueError: If the messages are no conversation that waits for an answer, or too long though their history is cut.
        """
        problem = problem_of(messages)
        if problem is None and messages[-1]["role"] == "assistant":
            problem = "the last message is the assistant's, so that there is nothing to answer"
        if problem is not None:
            raise ValueError(f"The `messages` are no conversation that waits for an answer: {problem}.")
        return self._encode(messages, tools)

    def proposed(
        self,
        messages: list[Message],
        action: str | Message | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> Answer:
        """
        The tokens of an action, whoever proposes it, as if the policy had sampled it.

        Raises:
            ValueError: If there is no action, or the messages are no conversation with it, or too long.
        """
        if action is None:
            if not messages or messages[-1]["role"] != "assistant":
                raise ValueError(
                    "There is no `action` to judge, and the last of the `messages` is not the assistant's."
                )
            *messages, action = messages
        said = {"role": "assistant", "content": action} if isinstance(action, str) else action
        problem = problem_of([*messages, said])
        if problem is not None:
            raise ValueError(f"The `messages` with the action are no conversation: {problem}.")
        message, parsed = read_action(said, self.roles)
        token_ids = self.roles.chat.completion(message)
        return Answer(self._encode(messages, tools), tuple(token_ids), self.roles.chat.decode(token_ids), parsed)

    def add_tools(self, tools: list[dict[str, Any]]) -> None:
        """Read the arguments of calls by the JSON schemas of these tools, too, from now on."""
        known = self.roles.tools or []
        self.roles.tools = known + [tool for tool in tools if tool not in known] or None

    def _encode(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> Prompt:
        """Of messages that are a conversation."""
        self.add_tools(tools or [])
        return record_conversation(messages, self.roles, tools, self.args.max_prompt_length, waits=True).prompt

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Within it, the roles can be asked."""
        with self.roles.generator.session(self.model):
            yield

    def _action(self, choice: Choice) -> AgentAction:
        roles, answer = self.roles, choice.answer
        thought = roles.chat.reasoning(list(answer.token_ids))
        if roles.shows_thoughts and answer.parsed is not None:
            thought = thought or react_thought(answer.text)
        message = roles.said(answer.parsed, answer.text, list(answer.token_ids))
        judged = (choice.judgement, choice.attempts, choice.candidates)
        return AgentAction(answer.parsed, answer.text, thought, message, answer.token_ids, *judged)
