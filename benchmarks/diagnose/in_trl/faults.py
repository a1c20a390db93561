"""Mistakes in scripts of TRL, and scripts without one. They were planted before any rule looked at logs of TRL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.diagnose.in_trl import rewards, tasks
from benchmarks.diagnose.rows import Row
from verizero.pipeline.seeds import stream

Rows = Callable[[list[Row], int], list[Row]]
"""(training rows, seed) -> the rows that the script trains on."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script of TRL: what it changes in the healthy one."""

    name: str
    cause: str = "none"
    """The cause that a diagnosis must name; none: the script has no fault."""
    complaint: str = ""
    """The fault in the words of a person who sees only the run."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of GRPOConfig."""
    rewards: tuple[Callable[..., list[float]], ...] = (rewards.correctness,)
    data: Rows | None = None
    evaluates_on: Rows | None = None
    """Rows of `eval_dataset`; None: the script has none, as most have."""
    loaded: Callable[[Any, Any], None] | None = None
    """Changes model and tokenizer, as a script does after it has loaded them."""
    server: Mapping[str, Any] | None = None
    """Arguments of the rollout server; None: the trainer samples by itself."""


def next_answers(share: float) -> Rows:
    """Return a change of the rows: a share of them has the answer of the next row."""

    def change(rows: list[Row], seed: int) -> list[Row]:
        draw = stream(seed, "diagnose", "trl answers")
        return [
            {**r, "answer": following["answer"] if draw.random() < share else r["answer"]}
            for r, following in zip(rows, [*rows[1:], rows[0]], strict=True)
        ]

    return change


def end_of_text(model: Any, tokenizer: Any) -> None:
    """Let the text's end be the end token, as base models have it, where a turn ends with another one."""
    tokenizer.eos_token = tasks.PAD
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id


def chatml(model: Any, tokenizer: Any) -> None:
    """Write turns as another family of models does."""
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


FAULTS = (
    Script(
        name="rate_of_pretraining",
        cause="learning_rate_high",
        complaint="The reward goes to 0 within a few steps and never comes back.",
        arguments={"learning_rate": 5e-3},
    ),
    Script(
        name="default_rate",
        cause="learning_rate_low",
        complaint="The reward is the same after forty steps.",
        arguments={"learning_rate": 1e-6},
    ),
    Script(
        name="warmup_longer_than_the_run",
        cause="learning_rate_low",
        complaint="Nothing happens, with the rate that works for others.",
        arguments={"warmup_steps": 20_000},
    ),
    Script(
        name="beta_of_five",
        cause="kl_too_strong",
        complaint="The reward rises by nothing, and the loss is all KL.",
        arguments={"beta": 5.0},
    ),
    Script(
        name="end_of_text_for_end_of_turn",
        cause="end_token_missing",
        complaint="Every completion has the full length.",
        loaded=end_of_text,
    ),
    Script(
        name="template_of_another_family",
        cause="other_template",
        complaint="The model answered well before, and now it writes nonsense.",
        loaded=chatml,
    ),
    Script(
        name="pattern_that_matches_everything",
        cause="constant_reward",
        complaint="The reward is 1.0 from the first step, and the answers are wrong.",
        rewards=(rewards.matches_any,),
    ),
    Script(
        name="tags_that_nobody_writes",
        cause="constant_reward",
        complaint="The reward is 0 at every step.",
        rewards=(rewards.wants_tags,),
    ),
    Script(
        name="likeness_in_tens",
        cause="reward_scales",
        complaint="The sum of my rewards rises, and correctness does not.",
        rewards=(rewards.correctness, rewards.likeness),
    ),
    Script(
        name="cut_and_masked",
        cause="length_cap",
        complaint="The loss is 0 and so is the gradient.",
        arguments={"max_completion_length": 8, "mask_truncated_completions": True},
    ),
    Script(
        name="limit_below_the_answer",
        cause="length_cap",
        complaint="Completions get shorter, and the reward is low.",
        arguments={"max_completion_length": 14},
    ),
    Script(
        name="temperature_near_zero",
        cause="advantages_vanish",
        complaint="frac_reward_zero_std is near 1.",
        arguments={"temperature": 0.05},
    ),
    Script(
        name="products_for_a_model_of_sums",
        cause="too_hard",
        complaint="The reward stays at 0.01.",
        data=lambda rows, seed: tasks.hard_rows(seed),
    ),
    Script(
        name="answers_of_the_next_row",
        cause="wrong_references",
        complaint="A model that solves these sums gets no reward for them.",
        data=next_answers(1.0),
    ),
    Script(
        name="half_of_the_answers_moved",
        cause="wrong_references",
        complaint="The reward stops at a half.",
        data=next_answers(0.5),
    ),
    Script(
        name="evaluates_on_training_rows",
        cause="evaluation_leak",
        complaint="eval_reward is as high as the reward, and the benchmark is not.",
        evaluates_on=lambda rows, seed: rows[:24],
        data=lambda rows, seed: rows[:96],
    ),
    Script(
        name="clip_of_sequences",
        cause="clip_stops_learning",
        complaint="The clip ratios are huge.",
        arguments={"epsilon": 3e-4, "num_iterations": 4},
    ),
    Script(
        name="gradients_cut_to_nothing",
        cause="gradients_always_clipped",
        complaint="The run does not learn with the rate that works for others.",
        arguments={"max_grad_norm": 1e-9},
    ),
    Script(
        name="service_errors_as_zeros",
        cause="infrastructure_zeros",
        complaint="The same text is right once and wrong the next time.",
        rewards=(rewards.through_a_service,),
    ),
    Script(
        name="anything_near_is_right",
        cause="false_positives",
        complaint="The reward is near 1 and the answers are wrong.",
        rewards=(rewards.near,),
    ),
    Script(
        name="only_the_box_is_read",
        cause="false_negatives",
        complaint="Right answers with their steps get no reward.",
        rewards=(rewards.whole_text,),
    ),
    Script(
        name="paid_by_the_character",
        cause="length_drift",
        complaint="Completions grow to the limit.",
        rewards=(rewards.per_character,),
        arguments={"max_completion_length": 64},
    ),
    Script(
        name="eight_prompts",
        cause="prompts_repeat",
        complaint="The reward reaches 1 and new prompts are not solved.",
        data=lambda rows, seed: rows[:8],
        arguments={"max_steps": 36},
    ),
    Script(
        name="entropy_of_the_wrong_sign",
        cause="entropy_collapse",
        complaint="The entropy falls to 0 and the reward stays.",
        arguments={"entropy_coef": -0.3},
    ),
    Script(
        name="server_keeps_old_weights",
        cause="stale_engine_weights",
        complaint="It begins well, and then the ratios leave 1.",
        server={"is_synced": False},
    ),
    Script(
        name="server_samples_cold",
        cause="sampling_differs",
        complaint="The difference of log-probs is large at the first step.",
        server={"temperature": 0.6},
    ),
    Script(
        name="server_in_few_bits",
        cause="engine_mismatch",
        complaint="The difference of log-probs is never small.",
        server={"levels": 7},
    ),
)

HEALTHY = (
    Script(name="healthy"),
    Script(name="healthy_with_kl", arguments={"beta": 0.02, "temperature": 0.9}),
    Script(
        name="healthy_two_rewards",
        rewards=(rewards.correctness, rewards.has_box),
        arguments={"reward_weights": [1.0, 0.2], "scale_rewards": "none", "loss_type": "dr_grpo"},
    ),
    Script(name="healthy_partial_credit", rewards=(rewards.partly_right,), arguments={"loss_type": "grpo"}),
    Script(
        name="healthy_evaluated",
        evaluates_on=lambda rows, seed: tasks.rows(seed % 2)[1][:24],
        arguments={"num_iterations": 2, "logging_steps": 2, "max_steps": 36},
    ),
    Script(name="healthy_with_a_server", server={}),
)
BY_NAME = {s.name: s for s in (*HEALTHY, *FAULTS)}
