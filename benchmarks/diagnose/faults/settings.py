"""Faults of the recipe: numbers of the optimiser, the objective, sampling and evaluation."""

from __future__ import annotations

from benchmarks.diagnose.fault import Fault

SEVERAL_UPDATES = ("rl.algorithm.num_epochs=4", "rl.algorithm.num_minibatches=2")

OPTIMISER = (
    Fault(
        name="rate_times_ten",
        cause="learning_rate_high",
        complaint="The reward falls within a few steps and never comes back; the responses are nonsense.",
        overrides=("rl.optimizer.learning_rate=3e-3",),
    ),
    Fault(
        name="rate_without_warmup",
        cause="learning_rate_high",
        complaint="The first updates destroy what SFT has taught.",
        overrides=("rl.optimizer.learning_rate=1.5e-3", "rl.optimizer.warmup_steps=0"),
    ),
    Fault(
        name="rate_of_a_large_model",
        cause="learning_rate_low",
        complaint="All curves are flat. I took the learning rate from a paper on a 7B model.",
        overrides=("rl.optimizer.learning_rate=1e-6",),
    ),
    Fault(
        name="warmup_longer_than_the_run",
        cause="learning_rate_low",
        complaint="The learning rate in the recipe is the usual one, and nothing moves.",
        overrides=("rl.optimizer.warmup_steps=2000",),
    ),
    Fault(
        name="norm_far_below_the_gradient",
        cause="gradients_always_clipped",
        complaint="The run learns at a crawl, and a larger learning rate changes little.",
        overrides=("rl.optimizer.max_grad_norm=1e-6", "rl.optimizer.eps=1e-6"),
    ),
    Fault(
        name="eight_passes_without_clip",
        cause="ratios_explode",
        complaint="I wanted more updates from each batch and opened the clip. The ratios reach the hundreds.",
        overrides=(
            "rl.algorithm.num_epochs=8",
            "rl.algorithm.num_minibatches=4",
            "rl.algorithm.clip_low=0.99",
            "rl.algorithm.clip_high=1000.0",
            "rl.optimizer.learning_rate=1e-3",
        ),
    ),
    Fault(
        name="clip_for_sequences",
        cause="clip_stops_learning",
        complaint="I took the clip of a paper on GSPO. Many tokens are clipped from the first step on.",
        overrides=(
            *SEVERAL_UPDATES,
            "rl.algorithm.clip_low=0.0003",
            "rl.algorithm.clip_high=0.0004",
            "rl.algorithm.allow=[narrow_token_clip]",
        ),
    ),
)

OBJECTIVE = (
    Fault(
        name="kl_of_two",
        cause="kl_too_strong",
        complaint="The KL to the reference stays at zero, and so does the gain.",
        overrides=("rl.algorithm.kl_coef=2.0",),
    ),
    Fault(
        name="kl_in_the_reward",
        cause="kl_too_strong",
        complaint="The reward goes up a little at first, and then the policy returns to where it was.",
        overrides=("rl.algorithm.kl_coef=1.0", "rl.algorithm.kl_in=reward", "rl.algorithm.kl_form=k1"),
    ),
    Fault(
        name="reference_of_the_start",
        cause="reference_never_moves",
        complaint="The policy improves, then stops, held by the KL to a reference that is the SFT model for ever.",
        overrides=("rl.reference={schedule: frozen}", "rl.algorithm.kl_coef=0.3"),
    ),
    Fault(
        name="reference_each_step",
        cause="reference_moves_too_often",
        complaint="The KL in the log is close to zero all the time. Even so the policy has left what SFT taught.",
        overrides=(
            "rl.reference={schedule: every_n_steps, every: 1}",
            "rl.algorithm.kl_coef=0.3",
            "rl.optimizer.learning_rate=1e-3",
        ),
    ),
    Fault(
        name="entropy_of_the_wrong_sign",
        cause="entropy_collapse",
        complaint="All responses to a prompt are the same after a few steps, right or wrong.",
        overrides=("rl.algorithm.entropy_coef=-2.0",),
    ),
    Fault(
        name="penalty_from_the_tenth_token",
        cause="overlong_penalty",
        complaint="The responses become shorter and worse. The limit is far above what a good response needs.",
        overrides=("rl.algorithm.overlong_buffer=0.6", "rl.algorithm.overlong_factor=3.0"),
    ),
    Fault(
        name="nearly_greedy_samples",
        cause="advantages_vanish",
        complaint="The loss is zero in most steps. All responses of a group have the same reward.",
        overrides=("rollout.temperature=0.05",),
    ),
    Fault(
        name="limit_below_the_answer",
        cause="length_cap",
        complaint="Most responses are cut before the answer, and what is left are guesses.",
        overrides=("rollout.max_response_tokens=14",),
    ),
    Fault(
        name="limit_at_the_last_token",
        cause="length_cap",
        complaint="The right answers are in the samples, and they count as cut.",
        overrides=("rollout.max_response_tokens=15",),
    ),
    Fault(
        name="two_tokens_to_choose_from",
        cause="sampling_differs",
        complaint="I set top-p to avoid nonsense in the samples. The log-probs of engine and trainer no longer agree.",
        overrides=("rollout.top_p=0.5", "rl.algorithm.allow=[cut_sampling]"),
    ),
    Fault(
        name="weights_published_rarely",
        cause="policy_lag",
        complaint="To save time the engine gets weights every fifteenth update. The reward goes up and down in waves.",
        overrides=("rollout.publish_every=15", "rl.optimizer.learning_rate=6e-4"),
    ),
)

MEASURED = (
    Fault(
        name="six_held_out_tasks",
        cause="evaluation_too_small",
        complaint="The held-out accuracy jumps by twenty points from one evaluation to the next.",
        overrides=("evaluation.limit=6", "evaluation.k=1"),
        hurts=False,
    ),
    Fault(
        name="gain_of_three_steps",
        cause="seed_noise",
        complaint="The new setting is better by a point. With another seed it is worse by a point.",
        overrides=("rl.rounds=1", "rl.steps_per_round=3", "evaluation.limit=40", "rl.optimizer.learning_rate=1e-4"),
        hurts=False,
    ),
)

CRITIC = (
    Fault(
        name="critic_that_crawls",
        cause="critic_not_learning",
        complaint="The value loss does not fall, and the critic explains nothing of the returns.",
        healthy="healthy_ppo",
        overrides=("rl.algorithm.critic_learning_rate=1e-8",),
        hurts=False,
    ),
    Fault(
        name="critic_that_jumps",
        cause="critic_not_learning",
        complaint="The values in the log are far from every return.",
        healthy="healthy_ppo",
        overrides=("rl.algorithm.critic_learning_rate=0.05",),
        hurts=False,
    ),
)

FAULTS = (*OPTIMISER, *OBJECTIVE, *MEASURED, *CRITIC)
