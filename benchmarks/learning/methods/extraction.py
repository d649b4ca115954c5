# SPDX-License-Identifier: Apache-2.0

"""Ways to get a policy from critiques that are no options of the trainer."""

import random
from collections import deque
from dataclasses import replace
from itertools import count
from math import exp
from statistics import mean
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.learning.methods.roles import advised
from trl_nlac import NLACTrainer
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.episodes.rounds import Rollouts
from trl_nlac.method.critic import critiques, judge_actions, judge_critiques
from trl_nlac.method.refinement import Attempt, refinement_rounds
from trl_nlac.types import Answer, Episode, Refinement, Sample, TrainingExample, Transition


class VerdictWeightedTrainer(NLACTrainer):
    """
    NLAC whose policy learns a refined action by how much the critic prefers it to the fresh one: with the weight
    2 / (1 + exp(q(s, a) - q(s, a^r))), of verdict scores q, which is 1 where it prefers neither. There is one round of
    refinement.
    """

    def _refine(self, transitions, targets=None, criticise=critiques):
        roles = self.roles
        actions = roles.ask("policy", [transition.state for transition in transitions])
        attempts = {i: Attempt.of(roles, a.prompt, a) for i, a in enumerate(actions) if a.parsed is not None}
        rounds = refinement_rounds(roles, attempts, num_rounds=1, criticise=criticise)
        found = {i: only for i, [only] in rounds.items() if only.refined is not None}
        fresh = judge_critiques(roles, [only.critique for only in found.values()])
        refined = judge_actions(
            roles, [roles.builder.continued(transitions[i].state, only.refined) for i, only in found.items()]
        )
        refinements: list[Refinement | None] = [None] * len(transitions)
        self.preferences = [1.0] * len(transitions)
        for (i, only), before, after in zip(found.items(), fresh, refined, strict=True):
            refinements[i] = Refinement(only.attempt, only.attempt, only.critique.parsed, only.refined)
            if after is not None:
                self.preferences[i] = preference(before.verdict_score, after.verdict_score)
        roles.tally.note("policy/preference", [self.preferences[i] for i in found])
        return refinements

    def _make_batches(self, samples, targets, refinements):
        preferences = {
            (sample.transition_id, refinement.refined_action.token_ids): factor
            for sample, refinement, factor in zip(samples, refinements, self.preferences, strict=True)
            if refinement is not None
        }

        def weighted(example: TrainingExample) -> TrainingExample:
            factor = preferences.get((example.transition_id, example.completion_ids), 1.0)
            return replace(example, weight=factor * example.weight) if example.loss == "policy" else example

        batches = super()._make_batches(samples, targets, refinements)
        return [[weighted(example) for example in batch] for batch in batches]


def preference(before: float, after: float) -> float:
    """Return the weight of an action with the verdict score `after`, in place of one with `before`, in nats."""
    return 2 / (1 + exp(min(before - after, 50.0)))


def reverse_divergences(logits: torch.Tensor, teacher_logits: torch.Tensor) -> torch.Tensor:
    """
    Compute the divergence from the model to the teacher at every token, KL(model || teacher), in nats. The arguments
    are those of [`~method.losses.token_divergences`], which computes KL(teacher || model). Over several teachers that
    one is least at their mean, and this one where all of them agree.
    """
    logps, teacher_logps = logits.float().log_softmax(-1), teacher_logits.float().log_softmax(-1)
    return (logps.exp() * (logps - teacher_logps)).sum(-1)


class ReverseTrainer(NLACTrainer):
    """NLAC whose distilled policy learns by the reverse divergence, as TRL's self-distillation does by default."""

    divergence = staticmethod(reverse_divergences)


class StoredActionsTrainer(NLACTrainer):
    """
    NLAC that refines the stored action of each transition in place of a fresh one, with its Bellman target, which has
    seen the next observation, as the critique: two generations less.
    """

    def _refine(self, transitions, targets=None, criticise=critiques):
        if targets is None:
            return None
        for _ in targets:
            torch.rand(())  # as all figures were measured
        return super()._refine(transitions, targets, criticise)


class RehearsedRefinementsTrainer(NLACTrainer):
    """
    NLAC that also trains the refinement policy, on those of its own refined actions that do as their critiques say. No
    other loss trains it, and the policy's habits, which the same weights learn, can make it repeat what it should
    change. But an action that is only changed, and no better, does as told, too.
    """

    def _make_batches(self, samples, targets, refinements):
        answers = [r.refined_action if r and r.complies and not r.is_kept else None for r in refinements]
        opened = self.roles.builder.opened
        own = [a and TrainingExample("rehearsal", opened(a.prompt), a.token_ids) for a in answers]
        draw, starts = self.rehearsal.draw, count()

        def draw_with_own(number: int) -> list[TrainingExample]:  # of each gradient step, in order
            start = next(starts) * number % len(own)
            return [*draw(number), *filter(None, own[start : start + number])]

        with patch.object(self.rehearsal, "draw", draw_with_own):
            return super()._make_batches(samples, targets, refinements)


class RehearsedStoredActionsTrainer(RehearsedRefinementsTrainer, StoredActionsTrainer):
    """NLAC that rehearses refinements of stored actions."""


class ReverseStoredActionsTrainer(ReverseTrainer, StoredActionsTrainer):
    """Self-distillation by the reverse divergence, where the policy is distilled."""


class AdvisedRollouts(Rollouts):
    """
    Play every other round with one critique and refinement of each action, and keep the critiques of episodes that end
    better than those of the policy alone do on average.

    Args:
        rollouts ([`~episodes.rounds.Rollouts`]):
            What plays otherwise.
        seed (`int`):
            Seed of what is drawn.
    """

    NUM_SCORES, NUM_KEPT = 64, 512

    def __init__(self, rollouts: Rollouts, seed: int):
        super().__init__(rollouts.pool, rollouts.roles, rollouts.rewards)
        self.rng = random.Random(seed)
        self.plays_alone = False
        self.scores: deque[float] = deque(maxlen=self.NUM_SCORES)  # of the policy alone
        self.useful: deque[TrainingExample] = deque(maxlen=self.NUM_KEPT)

    def play(self, tasks: list[dict[str, Any]], step: int, waits: bool, is_last: bool) -> list[Episode]:
        self.plays_alone = not self.plays_alone
        if self.plays_alone:
            episodes = super().play(tasks, step, waits, is_last)
            self.scores.extend(episode.score for episode in episodes if episode.turns)
            return episodes
        advice: dict[tuple, Answer] = {}

        def act(prompts, seeds):
            answers, found = advised(self.roles, prompts, seeds)
            for prompt, answer, critique in zip(prompts, answers, found, strict=True):
                if critique is not None:
                    advice[tuple(prompt.ids), answer.parsed] = critique
            return answers

        episodes = play_episodes(self.pool, tasks, self.roles, act, self.rewards)
        for episode in episodes:
            self._keep(episode, advice)
        return episodes

    def _keep(self, episode: Episode, advice: dict[tuple, Answer]) -> None:
        advantage = episode.score - mean(self.scores)
        if advantage <= 0:
            return
        for index, turn in enumerate(episode.turns):
            critique = advice.get((tuple(Transition(episode, index).state.ids), turn.action))
            if critique is not None:
                prompt = self.roles.builder.opened(critique.prompt)
                self.useful.append(TrainingExample("critic", prompt, critique.token_ids, advantage))

    def draw(self, number: int) -> list[TrainingExample]:
        """Draw examples of useful critiques, each as often as any other."""
        return self.rng.choices(self.useful, k=number) if self.useful else []


class UsefulCriticTrainer(NLACTrainer):
    """
    NLAC whose critic is also trained for usefulness, after the claim of Bi-NAC
    (https://huggingface.co/papers/2605.24547), of which this is no port: of the episodes in which each action was
    refined once, it learns the critiques of those that end better than the policy alone does, by how much better.
    There is one such critique for every four Bellman targets.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.rollouts = AdvisedRollouts(self.rollouts, self.args.seed)

    def _make_batches(
        self, samples: list[Sample], targets: list[Answer], refinements: list[Refinement | None]
    ) -> list[list[TrainingExample]]:
        batches = super()._make_batches(samples, targets, refinements)
        for place, example in enumerate(self.rollouts.draw(len(samples) // 4)):
            batches[place % len(batches)].append(example)
        self.records.metrics["critic/num_useful"].append(float(len(self.rollouts.useful)))
        return batches
