# SPDX-License-Identifier: Apache-2.0

"""What is trained, and on what: the loop, replay, targets and losses."""

from dataclasses import dataclass, field
from typing import Any

from .documented import documented


@documented
@dataclass
class TrainingOptions:
    r"""
    Options of [`NLACConfig`] for the loop of algorithm 1, replay, targets, losses and evaluation.

    Parameters:
        > Parameters that control the model

        model_init_kwargs (`str`, `dict[str, Any]`, *optional*):
            Keyword arguments for [`~transformers.AutoModelForCausalLM.from_pretrained`], used when the `model`
            argument of the [`NLACTrainer`] is provided as a string, and for reward models that are.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to allow loading models whose code is on the Hub, reward models and their tokenizers included.
        router_aux_loss_coef (`float`, *optional*):
            Coefficient of the loss that balances the experts of a model with a mixture of them, added to the training
            loss with this weight as in [`~trl.GRPOTrainer`]. If `None`, that of the model's configuration. `0.0`
            disables it.
        disable_dropout (`bool`, *optional*, defaults to `False`):
            Whether to disable dropout in the model.

        > Parameters that control the loop

        episodes_per_iteration (`int`, *optional*):
            Number of episodes played in each iteration of algorithm 1, over all processes. If `None`, few enough
            that each step of an episode of `max_turns` is trained on at least eight times, and one for each process
            at least.
        samples_per_iteration (`int`, *optional*):
            Number of transitions trained on in each iteration, over all processes. Must be divisible by the global
            batch size. If `None`, the smallest such number that is at least eight batches, and eight for each step of
            `episodes_per_iteration` episodes of `max_turns` (of one episode for each process, if that is `None`, too);
            while the buffer has less than an eighth of that, eight of each transition, trained on more often.
        num_updates_per_generation (`int`, *optional*, defaults to `3`):
            Number of gradient steps on each transition of an iteration, with the same target and refined action: the
            steps of the iteration are taken again, in their order, and set priorities again. `num_iterations` of
            [`~trl.GRPOConfig`]. `1` is the paper.
        max_tokens_per_batch (`int`, *optional*):
            Number of tokens that the model reads in one pass. One that several samples share is counted once, padding
            only where the model cannot read trees. A micro-batch with more is computed in several passes, filled
            evenly, as many on every process. Losses and gradients are the same. A longer example has a pass of its
            own. If `None`, a micro-batch is one pass, however long it is.
        learning_rate (`float`, *optional*, defaults to `5e-6`):
            Initial learning rate for the [`~torch.optim.AdamW`] optimizer (paper, appendix A.4).
        async_rollouts (`bool`, *optional*, defaults to `False`):
            Whether episodes are played with the engine of a vLLM server while the model trains. An iteration trains on
            the buffer, and gets the episodes that have ended. If not, training waits for them, and a run with the same
            seed is the same.
        shuffle_dataset (`bool`, *optional*, defaults to `True`):
            Whether to shuffle the tasks.
        remove_unused_columns (`bool`, *optional*, defaults to `False`):
            Must be `False`: columns of the dataset are keyword arguments of `reset`, and all are kept.
        reward_weights (`list[float]`, *optional*):
            Weights of the reward functions. If `None`, 1 each.

        > Parameters that control replay

        replay_buffer_size (`int`, *optional*, defaults to `100000`):
            Number of transitions that each process keeps.
        priority_exponent (`float`, *optional*, defaults to `0.1`):
            Alpha of prioritized replay. `0` samples uniformly.

        > Parameters that control targets

        target_update_rate (`float`, *optional*, defaults to `0.002`):
            Tau: weight of the trained weights in the target weights after each sample that they were trained on. Line
            10 of algorithm 1 stands inside the loop over samples; after a gradient step on B of them the rate is
            `1 - (1 - tau) ** B`. With `1` the target weights are a copy. The paper has `0.005`.
        target_max_age (`int`, *optional*):
            Number of iterations for which a Bellman target is used: each time that its transition is drawn in the
            iteration that wrote it, and in the next ones if it is more than 1. With `0` every draw gets a target of
            its own (the paper), unless the same weights would write the same one again, because every role that took
            part is greedy. If it is `None`, 8, or fewer in a run of fewer than `8 * max_turns` iterations, in which a
            success could not reach the first step of an episode.
        bootstrap (`str`, *optional*, defaults to `"explicit"`):
            Source of the bootstrapped future of a Bellman target. `"explicit"` samples the next action from the policy
            and its future from the critic, which are both trained (the paper's equation 1), `"implicit"` asks the
            successor model, whose prompt is not trained, for both in one answer (the paper's implementation, one
            generation less), `"monte_carlo"` takes what followed in the episode, under the policy of that time. Where
            an episode was cut, the successor model says how it would have gone on.

        > Parameters that control the losses

        critic_loss_coef (`float`, *optional*, defaults to `1.0`):
            Coefficient of the critic loss, lambda_1 in algorithm 1. With 0 the critic is not trained, and nothing sets
            priorities. Bellman targets are written all the same, for the health metrics. With
            `bootstrap="monte_carlo"`, too, they take the place of critiques: stored actions are refined in hindsight.
        policy_loss_coef (`float`, *optional*, defaults to `1.0`):
            Coefficient of the policy loss, lambda_2 in algorithm 1. With 0 the policy is not trained. Actions are
            refined all the same, for the health metrics.
        policy_loss_type (`str`, *optional*, defaults to `"sampled"`):
            What the policy learns: a refined action (`"sampled"`, the paper), or along its own action the refinement
            policy's distribution (`"distill"`). `"sampled"` is the negative log-likelihood of a sampled refined action
            (equation 6); one that its critique calls the best is its own. `"distill"` is the Kullback-Leibler
            divergence at each token, as in self-distillation with feedback (https://huggingface.co/papers/2601.20802),
            but with a critique as the feedback. It is KL(refined || policy), TRL's `distillation_alpha=0`, which is
            least at the mean of what different critiques advise; where outcomes are partly luck, act at a lower
            temperature than 1 afterwards. No refined action is generated; the teacher has the initial weights. Not for
            models with chains of thought, whose thoughts would be taught by one that has read the critique.
        policy_kl_coef (`float`, *optional*, defaults to `0.03`):
            Coefficient of KL(policy || initial policy), exact at each token of a refined action, in the policy loss:
            without it a policy can settle on what a critic that still errs advises. It takes a pass over these tokens
            with the initial weights; with `0` there is none. `policy_loss_type="distill"` has a teacher instead.

        > Parameters that control watching

        examples (`str`, *optional*, defaults to `"auto"`):
            Whether to look before training: `"auto"` asks each role about the first transitions. If less than 0.8 of
            the answers of one can be read and say more than the prompt, it begins again with worked examples, and
            keeps them if they help; it ends a run with a role below 0.2. `"given"` takes the prompts as they are.
        max_environment_failure_rate (`float`, *optional*, defaults to `0.5`):
            Share of failed environments above which training stops, with a checkpoint. The last 100 episodes count. An
            evaluation with more is not compared with others.

        > Parameters that control evaluation

        num_eval_episodes (`int`, *optional*, defaults to `1`):
            Number of episodes of each task of the `eval_dataset`.
        num_eval_critiques (`int`, *optional*, defaults to `64`):
            Number of actions that the critic judges in each evaluation, on each process, to compare its verdict scores
            with the outcomes; and, where the environment has an oracle, of critiques that are compared with the truth.
    """

    # Parameters that control the model
    model_init_kwargs: dict[str, Any] | str | None = None
    trust_remote_code: bool = False
    router_aux_loss_coef: float | None = None
    disable_dropout: bool = False

    # Parameters that control the loop
    episodes_per_iteration: int | None = None
    samples_per_iteration: int | None = None
    num_updates_per_generation: int = 3
    max_tokens_per_batch: int | None = None
    learning_rate: float = 5e-6
    async_rollouts: bool = False
    shuffle_dataset: bool = True
    remove_unused_columns: bool | None = False
    reward_weights: list[float] | None = None

    # Parameters that control replay
    replay_buffer_size: int = 100_000
    priority_exponent: float = 0.1

    # Parameters that control targets
    target_update_rate: float = 0.002
    target_max_age: int | None = None
    bootstrap: str = field(default="explicit", metadata={"choices": ["implicit", "explicit", "monte_carlo"]})

    # Parameters that control the losses
    critic_loss_coef: float = 1.0
    policy_loss_coef: float = 1.0
    policy_loss_type: str = field(default="sampled", metadata={"choices": ["sampled", "distill"]})
    policy_kl_coef: float = 0.03

    # Parameters that control watching
    examples: str = field(default="auto", metadata={"choices": ["auto", "given"]})
    max_environment_failure_rate: float = 0.5

    # Parameters that control evaluation
    num_eval_episodes: int = 1
    num_eval_critiques: int = 64
