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
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from .chat import ChatEncoder
from .conversations import encode_conversation, problem_of
from .critic import Judgement, judge_actions
from .environments.base import Message
from .environments.pool import EnvironmentPool
from .evaluation import Evaluation, evaluate_policy
from .generation import TransformersGenerator
from .improvement import Choice, ImprovedRoles, choose_actions
from .loading import ending_token_ids, load_tokenizer
from .nlac_config import NLACConfig
from .prompts import NLACPrompts, react_thought
from .roles import Roles
from .saved_roles import ROLE_OPTIONS, load_roles
from .types import Prompt


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
        judgement ([`~critic.Judgement`], *optional*):
            What the critic says about the action; only of candidates, and of an action after which refinement ended.
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


class NLACAgent:
    """
    A model in its roles: policy, critic and refinement policy. Any chat model can play them, also one that was never
    trained for it.

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
        model ([`~transformers.PreTrainedModel`]):
            The model.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Its tokenizer, with a chat template.
        args ([`NLACConfig`]):
            How the roles speak.
        prompts ([`NLACPrompts`], *optional*):
            Words of the roles. If `None`, the defaults.
        tools (`list[dict[str, Any]]`, *optional*):
            JSON schemas of tools that may be called, by which the arguments of calls are read.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        args: NLACConfig,
        prompts: NLACPrompts | None = None,
        tools: list[dict[str, Any]] | None = None,
    ):
        self.model = model.eval()
        self.args = args
        chat = ChatEncoder(tokenizer, args.chat_template_kwargs)
        generator = TransformersGenerator(
            Accelerator(cpu=args.use_cpu),
            tokenizer,
            ending_token_ids(model, tokenizer, chat.stop_ids),
            batch_size=args.max_generation_batch_size,
        )
        self.roles = Roles(
            *(generator, chat, prompts or NLACPrompts(), args.samplings, args.action_format),
            max_format_retries=args.max_format_retries,
            num_futures=args.num_futures,
            single_step=args.single_step,
            reasoning=args.reasoning,
            tools=tools,
        )

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        prompts: NLACPrompts | str | Path | None = None,
        tools: list[dict[str, Any]] | None = None,
        device: str | torch.device | None = None,
        model_init_kwargs: dict[str, Any] | None = None,
        **options,
    ) -> "NLACAgent":
        """
        Load what a trainer saved, with the words and options of its roles, or any chat model.

        Args:
            model (`str`):
                Folder or repository on the Hub, of a whole model or of an adapter.
            prompts ([`NLACPrompts`] or `str` or `Path`, *optional*):
                Words of the roles, or a file of them, in place of those that were saved.
            tools (`list[dict[str, Any]]`, *optional*):
                JSON schemas of tools that may be called.
            device (`str` or [`torch.device`], *optional*):
                Where to run. If `None`, on an accelerator if there is one.
            model_init_kwargs (`dict[str, Any]`, *optional*):
                Further arguments of [`~transformers.AutoModelForCausalLM.from_pretrained`], as `revision`.
            **options:
                Options of [`NLACConfig`] that tell how the roles speak, as `temperature`, in place of those that were saved.

        Raises:
            ValueError: If an option is none of those.
        """
        unknown = sorted(set(options) - set(ROLE_OPTIONS))
        if unknown:
            raise ValueError(
                f"`{unknown[0]}` is no option of how the roles speak. These are: {', '.join(ROLE_OPTIONS)}."
            )
        model_init_kwargs = {"dtype": "auto", **(model_init_kwargs or {})}
        revision = model_init_kwargs.get("revision")
        saved, saved_prompts = load_roles(model, revision)
        if isinstance(prompts, (str, Path)):
            prompts = NLACPrompts.from_file(prompts)
        device = torch.device(device or torch.accelerator.current_accelerator() or "cpu")
        args = NLACConfig(
            output_dir="", report_to="none", bf16=False, use_cpu=device.type == "cpu", **{**saved, **options}
        )
        loaded = AutoModelForCausalLM.from_pretrained(model, **model_init_kwargs).to(device)
        tokenizer = AutoTokenizer.from_pretrained(model, revision=revision)
        return cls(loaded, load_tokenizer(tokenizer, loaded, args), args, prompts or saved_prompts, tools)

    def act(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        refine: int = 0,
        num_candidates: int = 1,
        alpha: float = 1.0,
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

        Raises:
            ValueError: If the messages are no conversation, or a number is out of range.
        """
        return self.act_on([self.encode(messages, tools)], refine, num_candidates, alpha)[0]

    def act_all(
        self,
        conversations: list[list[Message]],
        tools: list[dict[str, Any]] | None = None,
        refine: int = 0,
        num_candidates: int = 1,
        alpha: float = 1.0,
    ) -> list[AgentAction]:
        """The same in several conversations at once, which costs less than one after the other."""
        return self.act_on([self.encode(messages, tools) for messages in conversations], refine, num_candidates, alpha)

    def act_on(
        self, prompts: list[Prompt], refine: int = 0, num_candidates: int = 1, alpha: float = 1.0
    ) -> list[AgentAction]:
        """The same for conversations in tokens."""
        sampling = self.roles.samplings["evaluation"]
        with self.speaking():
            choices = choose_actions(self.roles, prompts, refine, num_candidates, alpha, sampling)
        return [self._action(choice) for choice in choices]

    def critique(
        self, messages: list[Message], action: str | None = None, tools: list[dict[str, Any]] | None = None
    ) -> Judgement | None:
        """
        What the critic says about an action, whoever proposes it.

        Args:
            messages (`list[dict[str, Any]]`):
                The conversation up to the action.
            action (`str`, *optional*):
                What the agent would say. If `None`, the last message is it.
            tools (`list[dict[str, Any]]`, *optional*):
                JSON schemas of the tools at hand.

        Returns:
            [`~critic.Judgement`]: critique, verdict and verdict score; `None` if the critic breaks its format.

        Raises:
            ValueError: If there is no action.
        """
        if action is None:
            if not messages or messages[-1]["role"] != "assistant":
                raise ValueError(
                    "There is no `action` to judge, and the last of the `messages` is not the assistant's."
                )
            *messages, proposed = messages
        else:
            proposed = {"role": "assistant", "content": action}
        prompt = self.encode(messages, tools)
        with self.speaking():
            return judge_actions(self.roles, [prompt.extended(self.roles.chat.past_turn(proposed))])[0]

    def judge(self, prompt: Prompt, turn: AgentAction) -> Judgement | None:
        """The same for what the agent did after a conversation in tokens."""
        remembered = self.roles.remembered(list(turn.token_ids), turn.action)
        with self.speaking():
            return judge_actions(self.roles, [prompt.extended(remembered)])[0]

    def evaluate(
        self,
        environments: EnvironmentPool,
        tasks: list[dict[str, Any]],
        refine: int = 0,
        num_candidates: int = 1,
        alpha: float = 1.0,
    ) -> Evaluation:
        """
        Play `num_eval_episodes` of each task and let the critic judge, as [`NLACTrainer.evaluate`] does; with actions that are
        improved as [`act`] improves them.
        """
        torch.manual_seed(self.args.seed)
        roles = (
            ImprovedRoles(self.roles, refine, num_candidates, alpha) if refine or num_candidates > 1 else self.roles
        )
        with self.speaking():
            return evaluate_policy(environments, dict(enumerate(tasks)), roles, self.args)

    def encode(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> Prompt:
        """
        The tokens of a conversation, as a trainer would have played it.

        Raises:
            ValueError: If the messages are no conversation that waits for an answer.
        """
        problem = problem_of(messages)
        if problem is None and messages[-1]["role"] == "assistant":
            problem = "the last message is the assistant's, so that there is nothing to answer"
        if problem is not None:
            raise ValueError(f"The `messages` are no conversation that waits for an answer: {problem}.")
        return Prompt.of(encode_conversation(messages, self.roles, tools).token_ids)

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
        message = roles.said(answer.parsed, answer.text)
        judged = (choice.judgement, choice.attempts, choice.candidates)
        return AgentAction(answer.parsed, answer.text, thought, message, answer.token_ids, *judged)
