# SPDX-License-Identifier: Apache-2.0

"""What a role reads: prompts that go on with an answer, a question or an observation, and fit the context."""

from dataclasses import replace

from ..chat.actions import ActionFormat
from ..options.role_options import RoleOptions
from ..prompts import NLACPrompts
from ..types import Answer, Message, Prompt, Transition
from .states import forgetful_task, opening_ids


class PromptBuilder:
    """Extend prompts, token by token as the model has read and written them, within `max_prompt_length`."""

    def __init__(self, actions: ActionFormat, prompts: NLACPrompts, options: RoleOptions):
        self.chat = actions.chat
        self.actions = actions
        self.prompts = prompts
        self.options = options

    def follow_up(self, prompt: Prompt, question: list[Message]) -> Prompt:
        """Append a question, see [`NLACPrompts.question`], to `prompt`, which ends with an assistant's turn."""
        for message in question:
            if message["role"] == "user":
                prompt = prompt.extended(self.chat.reply(prompt.last_id, message["content"]))
            else:
                prompt = prompt.extended(self.chat.past_turn(message))
        return self.fitted(prompt)

    def observe(self, transition: Transition) -> Prompt:
        """Return s_{t+1}: (s_t, a_t) and the observation after it or, without history, the observation alone."""
        episode, turn, prompt = transition.episode, transition.turn, transition.state_action
        if not self.actions.keeps_history:
            task = forgetful_task(list(episode.opening), turn.next_observation)
            state = opening_ids(self.actions, self.prompts, task, list(episode.tools))
            return Prompt.of(state, episode.tools, len(state))
        observed = self.actions.observation_ids(prompt.last_id, turn.action, turn.next_observation, turn.words)
        return self.fitted(prompt.extended(observed))

    def continued(self, prompt: Prompt, answer: Answer, keeps_reasoning: bool | None = None) -> Prompt:
        """Append `answer` to `prompt`, as it stays in the conversation."""
        return prompt.extended(self.actions.remembered(list(answer.token_ids), answer.parsed, keeps_reasoning))

    def opened(self, prompt: Prompt) -> Prompt:
        """Append the prefill of the chat template: `prompt` as the model sees it when it answers."""
        return prompt.extended(self.chat.prefill)

    def fits(self, prompt: Prompt) -> bool:
        """Whether a prompt keeps to `max_prompt_length`. One that does not is never answered."""
        limit = self.options.max_prompt_length
        return limit is None or prompt.num_tokens <= limit

    def fitted(self, prompt: Prompt) -> Prompt:
        """
        Leave the oldest turns of a prompt out if it is longer than `max_prompt_length`: the opening with a mark, the
        newest turns that fit, and what follows the state stay. A prompt that cannot be cut so far stays as it is.
        """
        if self.fits(prompt):
            return prompt
        trunk = prompt.trunk[prompt.trunk_start : prompt.trunk_end].tolist()
        starts = [start for start in self.chat.answer_starts(trunk) if start >= prompt.opening_length]
        if not starts:
            return prompt
        kept = self.chat.marked(trunk[: starts[0]], self.prompts.history_cut)
        room = self.options.max_prompt_length - len(kept) - len(prompt.branch)
        newest = next((start for start in starts[1:] if len(trunk) - start <= room), None)
        if newest is None:
            return prompt
        return replace(Prompt.of(kept + trunk[newest:], prompt.tools, prompt.opening_length), branch=prompt.branch)
