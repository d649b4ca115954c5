# SPDX-License-Identifier: Apache-2.0

# /// script
# dependencies = ["torch", "transformers", "trl"]
# ///
"""
Natural Language Actor-Critic in one file: algorithm 1 of the paper, from top to bottom, on a CPU in minutes.

    python examples/nlac_in_one_file.py
    python examples/nlac_in_one_file.py --seed 1 --iterations 80

One language model plays four roles, which differ only in what it is asked:

    policy       pi(a | s)         acts
    critic       Q_L(s, a)         foresees the end of an action and judges it, in words
    backup       B_L M(. | s, a)   writes the critic's target from what was observed
    refinement   pi^r(a | s, a, Q) rewrites an action after reading its critique; the policy learns what it writes

Policy and critic are trained. Backup and refinement are operators: they have the initial weights.

The task is a support desk with 4,096 calls, one of which is right for each kind of request. A reward tells nothing
before the first success; a refusal says in words what was wrong. The critic learns to foresee it, the refinement
policy follows the critic, and the policy learns from the refinement policy.

The file is what `trl_nlac` computes, without all that a real run needs: several processes, vLLM, checkpoints, tools,
chains of thought, long histories, other chat templates and text of strangers. A test gives both the same weights and
the same transitions, and compares targets, refined actions, losses, gradients, draws and target weights.

It departs from the paper as the package's defaults do: no loss trains backup and refinement, so they have the initial
weights; an action that its critique calls the best is its own refined action; Bellman targets are greedy; unlikely
tokens are left out (`min_p`). It leaves out what the defaults have for the sake of tokens and of a policy that stays
near the initial one: here `num_updates_per_generation` is 1, and `target_max_age` and `policy_kl_coef` are 0. Its
`target_update_rate` is the paper's. The learning rate is larger, because the model has 0.7 million parameters.
"""

import copy
import random
import re
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn.utils import clip_grad_norm_
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from trl import TrlParser
from trl.trainer.utils import pad, selective_log_softmax


# Settings, with the names of `NLACConfig` where it has them

SUPPORT_MODEL = str(Path(__file__).parents[1] / "trl_nlac" / "support_model")


@dataclass
class Settings:
    model: str = field(default=SUPPORT_MODEL, metadata={"help": "Folder of the desk's model."})
    seed: int = field(default=0, metadata={"help": "Seed of the desk's rules, and of everything random."})
    iterations: int = field(default=50, metadata={"help": "Iterations of algorithm 1."})
    episodes_per_iteration: int = field(default=4, metadata={"help": "Episodes played in an iteration."})
    samples_per_iteration: int = field(default=128, metadata={"help": "Transitions drawn from the replay buffer."})
    batch_size: int = field(default=32, metadata={"help": "Transitions of a gradient step."})
    learning_rate: float = field(default=1e-3, metadata={"help": "It decays to 0 over the last fifth."})
    replay_buffer_size: int = field(default=10_000, metadata={"help": "Transitions that are kept."})
    priority_exponent: float = field(default=0.1, metadata={"help": "Alpha of prioritized replay; 0 is uniform."})
    target_update_rate: float = field(default=0.005, metadata={"help": "Tau, for each training sample."})
    temperature: float = field(default=1.0, metadata={"help": "Of actions, critiques and refined actions."})
    min_p: float = field(default=0.05, metadata={"help": "Least probability of a token, relative to the likeliest."})
    max_completion_length: int = field(default=64, metadata={"help": "Longest answer, in tokens."})
    eval_iterations: int = field(default=5, metadata={"help": "Iterations from one evaluation to the next."})
    eval_episodes: int = field(default=48, metadata={"help": "Episodes of an evaluation."})


# Environment: s' ~ P(. | s, a), r(s_T) in [0, 1]

ARGUMENTS = {
    "team": ("billing", "shipping", "returns", "repairs", "legal", "sales", "warehouse", "insurance"),
    "proof": ("invoice", "receipt", "passport", "photo", "warranty", "contract", "ticket", "label"),
    "remedy": ("refund", "replacement", "repair", "discount", "voucher", "callback", "visit", "loan"),
    "day": ("today", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
}
REFUSALS = {
    "team": "Refused: the {} team handles this.",
    "proof": "Refused: this customer needs the {} first.",
    "remedy": "Refused: this customer wants a {}.",
    "day": "Refused: it must be done by {}.",
}
REQUESTS = (
    "My saw has the wrong colour.",
    "My guitar has a missing part.",
    "My bowl went to a neighbour.",
    "My couch was charged twice.",
)


class SupportDesk:
    """
    A desk whose rules nobody has seen: each kind of request has one right call. The agent has two calls.

        My saw has the wrong colour. Two calls left.
        route(team="sales", proof="photo", remedy="refund", day="Monday")
        Refused: the repairs team handles this. One call left.
        route(team="repairs", proof="photo", remedy="refund", day="Monday")
        Refused: this customer needs the invoice first. The customer gave up.
    """

    def __init__(self, seed: int):
        rng = random.Random(seed)
        self.rules = {request: {name: rng.choice(ARGUMENTS[name]) for name in ARGUMENTS} for request in REQUESTS}

    def reset(self, request: str) -> str:
        self.request, self.calls_left = request, 2
        return f"{request} Two calls left."

    def step(self, action: str) -> tuple[str, float, bool]:
        """Return the observation, the reward, and whether the task has ended."""
        self.calls_left -= 1
        rule = self.rules[self.request]
        rest = "One call left." if self.calls_left else "The customer gave up."
        call = re.fullmatch(r'route\(team="(\w+)", proof="(\w+)", remedy="(\w+)", day="(\w+)"\)', action)
        if call is None or not all(map(tuple.__contains__, ARGUMENTS.values(), call.groups())):
            return f"Refused: this is not a call of route. {rest}", 0.0, not self.calls_left
        for (name, right), value in zip(rule.items(), call.groups(), strict=True):
            if value != right:
                return f"{REFUSALS[name].format(right)} {rest}", 0.0, not self.calls_left
        return "Closed: the customer is happy.", 1.0, True


# Prompts of the roles. The desk's model was trained on these few words; for a large model see appendix A, or
# `trl_nlac/prompts.py`. The policy has none: it answers an observation.

CRITIC = "How will this end, and was it the best call?"  # p_eval: future and verdict in one, k = 1
SUCCESSOR = "{observation} How will this end?"  # p_pred(s')
BACKUP = "So was it the best call?"  # p_tpred, after a bootstrapped future
BACKUP_TERMINATED = "{observation} The score is {score:g}. So was it the best call?"  # p_tpred, at the end of the task
REFINE = "Which call is best?"  # p_refine

# The forms of answers. One that breaks its form is not trained on.
ACTION = re.compile(r".+", re.DOTALL)
CRITIQUE = re.compile(r"Future:(?P<future>.+)Optimality:\s*(?P<verdict>Yes|No)\b.*", re.DOTALL)


# The language model M_theta

Tokens = list[int]


class Example(NamedTuple):
    """What a role read, and what it wrote."""

    prompt: Tokens
    answer: Tokens


def join(*parts: Tokens | None) -> Tokens | None:
    """Append tokens to a conversation; `None` if any are missing."""
    return None if None in parts else [token for part in parts for token in part]


class LanguageModel:
    """
    M_theta(. | prompt). A prompt is a conversation as token ids that only grows at its end: what was sampled is never
    tokenized again, so the tokens that are trained on are those that were sampled.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: Settings):
        self.model = model.eval()  # also in training: the desk's model has no dropout
        self.tokenizer = tokenizer
        self.settings = settings

    def ask(self, text: str) -> Tokens:
        """Encode a turn of the user, and the opening of the assistant's answer."""
        messages = [{"role": "user", "content": text}]
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    def say(self, text: str) -> Tokens:
        """Encode a turn of the assistant."""
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]

    def read(self, answer: Tokens) -> str:
        """Decode an answer."""
        return self.tokenizer.decode(answer, skip_special_tokens=True).strip()

    def batch(self, sequences: list[Tokens], padding_side: str) -> dict[str, torch.Tensor]:
        """Pad sequences: (B, T) each."""
        rows = [torch.tensor(sequence) for sequence in sequences]
        return {
            "input_ids": pad(rows, self.tokenizer.pad_token_id, padding_side),
            "attention_mask": pad([torch.ones_like(row) for row in rows], 0, padding_side),
        }

    @torch.no_grad()
    def sample(self, prompts: list[Tokens], temperature: float) -> list[Tokens]:
        """Sample an answer to each prompt, up to the token that ends its turn; greedily at temperature 0."""
        if not prompts:
            return []
        eos, inputs = self.tokenizer.eos_token_id, self.batch(prompts, "left")
        config = GenerationConfig(
            max_new_tokens=self.settings.max_completion_length,
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=eos,
            do_sample=temperature > 0,
            **({"temperature": temperature, "min_p": self.settings.min_p, "top_k": 0} if temperature else {}),
        )
        output = self.model.generate(**inputs, generation_config=config)
        answers = output[:, inputs["input_ids"].shape[1] :].tolist()
        return [answer[: answer.index(eos) + 1] if eos in answer else answer for answer in answers]

    def answer(self, prompts: list[Tokens | None], temperature: float, form: re.Pattern) -> list[Tokens | None]:
        """Sample answers; `None` where there is no prompt, or where an answer was cut off or breaks its form."""
        sampled = iter(self.sample([prompt for prompt in prompts if prompt], temperature))
        answers = [next(sampled) if prompt else None for prompt in prompts]
        return [answer if answer and self.keeps(answer, form) else None for answer in answers]

    def keeps(self, answer: Tokens, form: re.Pattern) -> bool:
        """Whether an answer is whole and keeps to a form."""
        return answer[-1] == self.tokenizer.eos_token_id and form.fullmatch(self.read(answer)) is not None

    def losses(self, examples: list[Example]) -> torch.Tensor:
        """Compute -log M_theta(answer | prompt) of each example, averaged over the tokens of its answer: (B,)."""
        inputs = self.batch([prompt + answer for prompt, answer in examples], "right")
        masks = [torch.tensor([0] * len(prompt) + [1] * len(answer)) for prompt, answer in examples]
        is_answer = pad(masks, 0)[:, 1:]  # (B, T - 1)
        logits = self.model(**inputs).logits[:, :-1]  # (B, T - 1, V)
        logps = selective_log_softmax(logits, inputs["input_ids"][:, 1:])  # (B, T - 1)
        return -(logps * is_answer).sum(1) / is_answer.sum(1)


# Acting: lines 3 to 6 of algorithm 1


@dataclass
class Transition:
    """(s_t, a_t, r_t, s_{t+1}), and its priority in the replay buffer."""

    state: Tokens  # s_t, the conversation so far
    action: Tokens  # a_t, as it was sampled
    observation: str  # s_{t+1} is s_t, a_t and this
    reward: float  # r_t
    terminated: bool  # whether the task has ended, so that nothing is bootstrapped
    priority: float = 0.0


def play(policy: LanguageModel, desk: SupportDesk, requests: list[str]) -> list[Transition]:
    """Play an episode of each request: a_t ~ pi_theta(. | s_t), s_{t+1} ~ P(. | s_t, a_t) (line 4)."""
    transitions: list[Transition] = []
    desks = [copy.copy(desk) for _ in requests]
    running = [(desk, policy.ask(desk.reset(request))) for desk, request in zip(desks, requests, strict=True)]
    while running:
        actions = policy.sample([state for _, state in running], policy.settings.temperature)
        episodes, running = running, []
        for (desk, state), action in zip(episodes, actions, strict=True):
            if action[-1] != policy.tokenizer.eos_token_id:  # it was cut off
                action = [*action, policy.tokenizer.eos_token_id]
            observation, reward, terminated = desk.step(policy.read(action))
            transitions.append(Transition(state, action, observation, reward, terminated))
            if not terminated:
                running.append((desk, state + action + policy.ask(observation)))
    return transitions


class ReplayBuffer:
    """D, prioritized by the critic's loss: P(i) is proportional to priority_i^alpha (section 5.2)."""

    def __init__(self, size: int, alpha: float):
        self.transitions: deque[Transition] = deque(maxlen=size)
        self.alpha = alpha

    def add(self, transitions: list[Transition]) -> None:
        largest = max((transition.priority for transition in self.transitions), default=1.0)
        for transition in transitions:
            transition.priority = largest
        self.transitions += transitions

    def probabilities(self) -> torch.Tensor:
        weights = torch.tensor([t.priority for t in self.transitions], dtype=torch.float64) ** self.alpha
        return weights / weights.sum()

    def sample(self, number: int) -> list[Transition]:
        return [self.transitions[i] for i in self.probabilities().multinomial(number, replacement=True)]

    def update(self, transitions: list[Transition], losses: list[float]) -> None:
        for transition, loss in zip(transitions, losses, strict=True):
            transition.priority = max(loss, 1e-6)  # one of zero would never be drawn again


# Policy evaluation: section 4.1


def critic_prompt(model: LanguageModel, state_action: Tokens | None) -> Tokens | None:
    """p_eval(s_t, a_t), which knows neither s_{t+1} nor the score."""
    return join(state_action, model.ask(CRITIC))


def critiques(model: LanguageModel, state_actions: list[Tokens | None], temperature: float) -> list[Tokens | None]:
    """Sample Q_L(s_t, a_t): a future and its evaluation in one answer (equation 3 with k = 1)."""
    return model.answer([critic_prompt(model, state_action) for state_action in state_actions], temperature, CRITIQUE)


def backup_prompt(
    model: LanguageModel, transition: Transition, next_action: Tokens | None, next_critique: Tokens | None
) -> Tokens | None:
    """p_tpred(r_t, s_{t+1}, d_{t+1}): what was observed, and the score or else the future from there."""
    state_action, observation = transition.state + transition.action, transition.observation
    if transition.terminated:
        return state_action + model.ask(BACKUP_TERMINATED.format(observation=observation, score=transition.reward))
    if next_critique is None:
        return None
    future = CRITIQUE.fullmatch(model.read(next_critique))["future"].strip()
    foreseen = model.say(f"{model.read(next_action)} {future}")
    return state_action + model.ask(SUCCESSOR.format(observation=observation)) + foreseen + model.ask(BACKUP)


def bellman_targets(
    target: LanguageModel, initial: LanguageModel, transitions: list[Transition]
) -> list[Example | None]:
    """
    Sample d_t = B(r_t, s_{t+1}, a_{t+1}, d_{t+1}) of the language Bellman backup (equation 1; section 5.1 leaves
    a_{t+1} to the successor model). theta_bar foresees what follows, the initial weights write the target. Returns
    what the backup read and wrote, where all answers keep to their form.
    """
    temperature = target.settings.temperature
    # a_{t+1} ~ pi(. | s_{t+1})
    states = [None if t.terminated else t.state + t.action + target.ask(t.observation) for t in transitions]
    actions = target.answer(states, temperature, ACTION)
    # d_{t+1} ~ M(. | s_{t+1}, a_{t+1}): the critic's future, without its verdict
    judged = critiques(target, [join(*pair) for pair in zip(states, actions, strict=True)], temperature)
    # d_t ~ B_L M(. | s_t, a_t)
    prompts = [backup_prompt(initial, *parts) for parts in zip(transitions, actions, judged, strict=True)]
    answers = initial.answer(prompts, 0.0, CRITIQUE)
    return [answer and Example(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]


# Policy improvement: section 4.2


def refinement_prompt(model: LanguageModel, state_action: Tokens | None, critique: Tokens | None) -> Tokens | None:
    """p_refine(s_t, a_t, Q_L(s_t, a_t))."""
    return join(critic_prompt(model, state_action), critique, model.ask(REFINE))


def refine_actions(
    policy: LanguageModel, initial: LanguageModel, states: list[Tokens], temperature: float
) -> list[Example | None]:
    """
    Sample a_t ~ pi(. | s_t) and Q_L(s_t, a_t) with theta, and a_t^r ~ pi^r(. | s_t, a_t, Q_L(s_t, a_t)) with the
    initial weights, one round of refinement (m = 1, equation 6). An action that its critique calls the best is its own
    refined action. Returns what was read and written, where all answers keep to their form.
    """
    actions = policy.answer(states, temperature, ACTION)
    state_actions = [join(*pair) for pair in zip(states, actions, strict=True)]
    judged = critiques(policy, state_actions, temperature)
    best = [bool(d) and CRITIQUE.fullmatch(policy.read(d))["verdict"] == "Yes" for d in judged]
    prompts = [refinement_prompt(initial, *pair) for pair in zip(state_actions, judged, strict=True)]
    prompts = [None if is_best else prompt for prompt, is_best in zip(prompts, best, strict=True)]
    answers = initial.answer(prompts, temperature, ACTION)
    parts = zip(states, actions, best, prompts, answers, strict=True)
    return [
        # What repeats an action that its critique calls wrong is not learned.
        Example(state, action) if is_best else answer and answer != action and Example(prompt, answer) or None
        for state, action, is_best, prompt, answer in parts
    ]


# Training


def critic_examples(
    model: LanguageModel, transitions: list[Transition], targets: list[Example | None]
) -> tuple[list[Transition], list[Example]]:
    """
    Make the examples of L1, and return the transitions that have one. The log-likelihood of a sampled target is the
    cross-entropy part of the divergence (equation 5).
    """
    judged = [(t, target.answer) for t, target in zip(transitions, targets, strict=True) if target]
    return [t for t, _ in judged], [Example(critic_prompt(model, t.state + t.action), answer) for t, answer in judged]


def policy_examples(transitions: list[Transition], refinements: list[Example | None]) -> list[Example]:
    """Make the examples of L2 (equation 6)."""
    return [Example(t.state, refined.answer) for t, refined in zip(transitions, refinements, strict=True) if refined]


@torch.no_grad()
def update_target(target: LanguageModel, policy: LanguageModel, tau: float) -> None:
    """theta_bar <- tau theta + (1 - tau) theta_bar (line 10)."""
    for average, parameter in zip(target.model.parameters(), policy.model.parameters(), strict=True):
        average.lerp_(parameter, tau)


# Algorithm 1


def evaluate(policy: LanguageModel, desk: SupportDesk) -> float:
    """Return the share of episodes that the sampled policy solves."""
    requests = [REQUESTS[i % len(REQUESTS)] for i in range(policy.settings.eval_episodes)]
    return sum(t.reward for t in play(policy, desk, requests)) / len(requests)


def show(title: str, model: LanguageModel, examples: list[Example | None]) -> None:
    """Print conversations, one turn a line."""
    for example in filter(None, examples):
        print(f"\n{title}:\n")
        print(model.tokenizer.decode(join(*example)).replace(model.tokenizer.eos_token, "\n"), end="")


def train(settings: Settings) -> None:
    set_seed(settings.seed)
    desk = SupportDesk(settings.seed)
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    # Line 1: theta and theta_bar begin with the pretrained model, whose weights the operators keep.
    policy = LanguageModel(AutoModelForCausalLM.from_pretrained(settings.model), tokenizer, settings)
    target, initial = copy.deepcopy(policy), copy.deepcopy(policy)
    replay = ReplayBuffer(settings.replay_buffer_size, settings.priority_exponent)
    optimizer = torch.optim.AdamW(policy.model.parameters(), settings.learning_rate, (0.9, 0.95), weight_decay=0.0)
    num_updates = settings.samples_per_iteration // settings.batch_size  # gradient steps of an iteration
    last = settings.iterations * num_updates
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 5 * (1 - step / last)))
    tau = 1 - (1 - settings.target_update_rate) ** settings.batch_size  # line 10 for all samples of a gradient step
    environment_steps, start = 0, time.perf_counter()
    print(f"iteration   0  environment steps    0  success {evaluate(policy, desk):.2f}", flush=True)

    for iteration in range(1, settings.iterations + 1):  # line 2
        # Lines 3 to 6: act with theta, and store.
        played = play(policy, desk, random.choices(REQUESTS, k=settings.episodes_per_iteration))
        environment_steps += len(played)
        replay.add(played)

        # What to train on: Bellman targets of theta_bar's futures, refined actions of theta's critiques.
        samples = replay.sample(settings.samples_per_iteration)
        targets = bellman_targets(target, initial, samples)
        refinements = refine_actions(policy, initial, [t.state for t in samples], settings.temperature)
        missed = [t for t, written in zip(samples, targets, strict=True) if not written]
        replay.update(missed, [0.0] * len(missed))  # no loss will lower their priority

        for i in range(num_updates):  # line 7
            batch = slice(i, None, num_updates)
            judged, of_critic = critic_examples(policy, samples[batch], targets[batch])
            of_policy = policy_examples(samples[batch], refinements[batch])
            losses = policy.losses(of_critic + of_policy)
            (losses.sum() / settings.batch_size).backward()  # lines 8 and 9, in one gradient step
            clip_grad_norm_(policy.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            update_target(target, policy, tau)  # line 10
            critic_losses, policy_losses = losses.split([len(of_critic), len(of_policy)])
            replay.update(judged, critic_losses.tolist())

        if iteration % settings.eval_iterations == 0 or iteration == settings.iterations:
            print(
                f"iteration {iteration:3d}  environment steps {environment_steps:4d}  "
                f"success {evaluate(policy, desk):.2f}  critic loss {critic_losses.mean():.3f}  "
                f"policy loss {policy_losses.mean():.3f}  {time.perf_counter() - start:.0f} s",
                flush=True,
            )

    first = replay.transitions[0]
    targets = bellman_targets(target, initial, [first])
    show("The backup knows what followed, and writes what the critic learns", initial, targets)
    state_action = first.state + first.action
    (critique,) = critiques(policy, [state_action], temperature=0.0)
    prompt = refinement_prompt(initial, state_action, critique)
    (refined,) = initial.answer([prompt], 0.0, ACTION)
    lesson = refined and Example(prompt, refined)
    show("The critic foresees it, and the refinement policy writes what the policy learns", initial, [lesson])


if __name__ == "__main__":
    (settings,) = TrlParser(Settings).parse_args_and_config()
    train(settings)
