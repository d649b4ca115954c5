# SPDX-License-Identifier: Apache-2.0

"""
The scalar ablation of NLAC: an actor-critic with numbers instead of text (for "SAC" in section 6.2 of the paper).

A linear head on the same model replaces the language critic. All else is that of [`NLACTrainer`], but refinement needs
text, so the policy is fitted to actions that are weighted by their values:

- Critic: Q(s, a) is read at the last token of the action, one value for the whole turn, as in ArCHer
  (https://huggingface.co/papers/2402.19446). Targets are the score where the task ended and otherwise the value of a
  fresh action, `Q(s', a')` with `a' ~ pi(. | s')`, both of the target weights, without a bonus for entropy.
- Policy: as in maximum a posteriori policy optimisation (https://huggingface.co/papers/1806.06920), the log-likelihood
  of candidate actions with the weights `softmax(Q / alpha)`. These are fresh actions of the policy and the stored one,
  so that it is fitted to `pi exp(Q / alpha)`: nothing but rehearsal holds it near the base model.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import chain, islice

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from benchmarks.learning.methods.rehearsal import Rehearsal
from benchmarks.learning.playing import LearningCurve, Player, max_gradient_steps, train_until_spent
from benchmarks.learning.tasks import LearningTask
from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.method.batches import MicroBatch, NLACCollator
from trl_nlac.method.losses import batch_losses, row_means, token_logps
from trl_nlac.training.model import load_model
from trl_nlac.types import LOSSES, Prompt, Sample, TrainingExample


@dataclass(frozen=True, eq=False)
class ValueExample(TrainingExample):
    """An action whose value is trained, with its Bellman target in [0, 1]."""

    target: float = 0.0


def add_value_head(model: PreTrainedModel, initial_value: float) -> None:
    """Add the submodule `value_head` to a model. Before training it gives every action the value `initial_value`."""
    model.value_head = nn.Linear(model.config.hidden_size, 1, device=model.device, dtype=model.dtype)
    nn.init.zeros_(model.value_head.weight)
    nn.init.constant_(model.value_head.bias, math.log(initial_value / (1 - initial_value)))


def logits_and_values(model: PreTrainedModel, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the logits of the completions, `(M, V)`, and the logit of Q at each last token, `(B,)`, in one pass."""
    tokens = batch.tokens
    outputs = model(**tokens.inputs, use_cache=False, output_hidden_states=True)
    lengths = tokens.inputs["attention_mask"].sum(1)
    rows = torch.arange(len(lengths), device=lengths.device)
    last_hidden_states = outputs.hidden_states[-1][rows, lengths - 1]  # (B, H)
    return tokens.select(outputs.logits), model.value_head(last_hidden_states)[:, 0].float()


class ScalarActorCriticTrainer(NLACTrainer):
    """
    [`NLACTrainer`] with scalar values. Q is the sigmoid of a linear head, a probability of success, with the binary
    cross-entropy as its loss: it is smallest at the mean of random targets, and unlike that of a squared error after a
    sigmoid, its gradient does not vanish where Q is far off. Options of refinement and of the language critic have no
    effect; for the others see [`train`].
    """

    _name = "Scalar actor-critic"

    def __init__(
        self,
        task: LearningTask,
        args: NLACConfig,
        num_candidates: int,
        entropy_temperature: float,
        initial_value: float,
        rehearsal_ratio: float,
    ):
        model = load_model(task.model, args, task.peft_config)
        add_value_head(model, initial_value)
        super().__init__(model=model, args=args, **task.trainer_arguments)
        self.acting_player = Player(task, self.args, self.model, self.roles)
        self.num_candidates = num_candidates
        self.entropy_temperature = entropy_temperature
        self._collate = NLACCollator(self.roles.chat.tokenizer.pad_token_id, device=args.device)
        self.rehearsal = Rehearsal(task.rehearsal, rehearsal_ratio, self.roles.chat, seed=args.seed)

    def _iteration(self, tasks):
        if self.environments:
            self.replay.add(self.acting_player.play(tasks))
        self.records.num_environment_steps = self.acting_player.num_environment_steps
        samples = self.replay.sample(self.args.samples_per_iteration)
        with self._generating():
            policy_examples = self._policy_examples(samples)
        with self.target_weights.swapped_into(self.model), self._generating():
            critic_examples = self._critic_examples(samples)
        for name, value in self.roles.take_metrics().items():
            self.records.metrics[name].append(value)
        examples = [critic + policy for critic, policy in zip(critic_examples, policy_examples, strict=True)]
        size = self.args.per_device_train_batch_size
        return [list(chain(*examples[start : start + size])) for start in range(0, len(examples), size)]

    def _critic_examples(self, samples: list[Sample]) -> list[list[TrainingExample]]:
        """
        Return stored actions with their targets, by the target weights; nothing where the next action breaks its
        format.
        """
        going_on = {i: s.transition for i, s in enumerate(samples) if not s.transition.terminated}
        states = [self.roles.builder.observe(t) for t in going_on.values()]
        actions = self.roles.ask("policy", states)
        acted = {i: action for i, action in zip(going_on, actions, strict=True) if action.parsed is not None}
        values = self._values([self.roles.builder.continued(action.prompt, action) for action in acted.values()])
        targets = dict(zip(acted, values, strict=True))
        examples: list[list[TrainingExample]] = [[] for _ in samples]
        for i, sample in enumerate(samples):
            t, rest = sample.transition, (1.0, sample.transition_id)
            if t.terminated or i in targets:
                target = t.episode.score if t.terminated else targets[i]
                examples[i].append(ValueExample("critic", t.state, t.action_ids, *rest, target=target))
        return examples

    def _policy_examples(self, samples: list[Sample]) -> list[list[TrainingExample]]:
        """Return the distinct candidates in the state of each sample, weighted by softmax(Q / alpha)."""
        states = [sample.transition.state for sample in samples]
        repeated = [state for state in states for _ in range(self.num_candidates)]
        answers = iter(self.roles.ask("policy", repeated))
        candidates: list[list[tuple[Prompt, tuple[int, ...]]]] = []
        for sample in samples:
            stored = (sample.transition.state_action, sample.transition.action_ids)
            fresh = [answer for answer in islice(answers, self.num_candidates) if answer.parsed is not None]
            candidates.append([stored, *((self.roles.builder.continued(a.prompt, a), a.token_ids) for a in fresh)])
        values = iter(self._values([state_action for actions in candidates for state_action, _ in actions]))
        examples = []
        for sample, state, actions in zip(samples, states, candidates, strict=True):
            logits = torch.tensor(list(islice(values, len(actions)))) / self.entropy_temperature
            weights: dict[tuple[int, ...], float] = defaultdict(float)
            for (_, token_ids), weight in zip(actions, logits.softmax(0).tolist(), strict=True):
                weights[token_ids] += weight
            prompt, number = self.roles.builder.opened(state), sample.transition_id
            examples.append([TrainingExample("policy", prompt, ids, w, number) for ids, w in weights.items()])
        return examples

    @torch.no_grad()
    def _values(self, state_actions: list[Prompt]) -> list[float]:
        """Compute Q of each action with the current weights of the model."""
        values, size = [], self.args.max_generation_batch_size
        for start in range(0, len(state_actions), size):
            batch = self._collate([TrainingExample("critic", p, ()) for p in state_actions[start : start + size]])
            values += logits_and_values(self.model, batch)[1].sigmoid().tolist()
        return values

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        logits, values = logits_and_values(model, inputs)
        likelihood_losses = row_means(
            -token_logps(logits, inputs.tokens.labels), inputs.tokens.rows, len(inputs.examples)
        )
        is_critic = inputs.loss_ids == LOSSES.index("critic")
        targets = [example.target for example in inputs.examples if isinstance(example, ValueExample)]
        td_losses = F.binary_cross_entropy_with_logits(
            values[is_critic], torch.tensor(targets, device=values.device), reduction="none"
        )
        self.replay.update_priorities(inputs.transition_ids[is_critic].tolist(), td_losses.tolist())
        losses = {
            "critic": (inputs.weights[is_critic] * td_losses).sum(),
            "policy": (inputs.weights * likelihood_losses)[~is_critic].sum(),
        }
        size = self.args.per_device_train_batch_size
        rehearsed = self.rehearsal.draw(size)
        if rehearsed:  # a separate pass: the other examples would be padded to its length
            losses["rehearsal"] = batch_losses(model, self._collate(rehearsed))[0].sum()
        for name, loss in losses.items():
            self.records.metrics[f"{name}/loss"].append(loss.item() / size)
        coefficients = {"critic": self.args.critic_loss_coef, "policy": self.args.policy_loss_coef, "rehearsal": 1.0}
        return sum(coefficients[name] * loss for name, loss in losses.items()) / size


def train(
    task: LearningTask,
    acting: NLACConfig,
    budget: int,
    interval: int,
    num_candidates: int = 4,
    entropy_temperature: float = 0.1,
    initial_value: float = 0.02,
    learning_rate: float = 1e-3,
    critic_loss_coef: float = 1.0,
    policy_loss_coef: float = 1.0,
    target_update_rate: float = 0.0016,
    episodes_per_iteration: int = 4,
    samples_per_iteration: int = 128,
    batch_size: int = 32,
    micro_batch_size: int | None = None,
    rehearsal_ratio: float = 0.5,
) -> LearningCurve:
    """
    Train the scalar ablation until the budget of environment steps is spent. Settings that it shares with NLAC have
    NLAC's values in the benchmark as defaults. In each replayed state the policy is fitted to `num_candidates` fresh
    actions and the stored one; an action whose value is higher by `entropy_temperature` counts e times as much.
    `initial_value` is Q of every action before training: success is rare, and targets propagate a higher value until
    it is unlearned.
    """
    updates_per_iteration = samples_per_iteration // batch_size
    args = replace(
        acting,
        max_steps=max_gradient_steps(budget, episodes_per_iteration, updates_per_iteration),
        lr_scheduler_type="constant",
        learning_rate=learning_rate,
        weight_decay=0.0,
        adam_beta2=0.95,
        critic_loss_coef=critic_loss_coef,
        policy_loss_coef=policy_loss_coef,
        target_update_rate=target_update_rate,
        episodes_per_iteration=episodes_per_iteration,
        samples_per_iteration=samples_per_iteration,
        per_device_train_batch_size=micro_batch_size or batch_size,
        gradient_accumulation_steps=batch_size // (micro_batch_size or batch_size),
    )
    trainer = ScalarActorCriticTrainer(task, args, num_candidates, entropy_temperature, initial_value, rehearsal_ratio)
    return train_until_spent(trainer, trainer.acting_player, budget, interval)
