"""Ten public reports of runs that did not learn: the posted numbers or options, and what the diagnosis says of them.

    python -m benchmarks.diagnose.reports

Numbers are those that the reports show, without names. Where a report shows one line and says that the others are like
it, that line counts for ten steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from verizero.pipeline.diagnosis.any_run import diagnosed_rows
from verizero.pipeline.diagnosis.logs.before import check

GITHUB = "https://github.com/"


@dataclass(frozen=True, slots=True)
class Report:
    """A report: where it is, what was posted, and what was answered."""

    source: str
    complaint: str
    answer: str
    """The cause that was answered there, or that the person found; none: no answer."""
    rows: tuple[dict[str, float], ...] = ()
    steps: int = 1
    """Steps that each row stands for."""
    options: tuple[str, ...] = ()
    tool: str | None = None
    right: frozenset[str] = field(default_factory=frozenset)
    """Causes that agree with the answer, "nothing" if nothing was wrong; empty: there was no answer."""


ZERO = {"loss": 0.0, "grad_norm": 0.0, "reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0}
CUT = {"completions/mean_length": 256.0, "completions/clipped_ratio": 1.0}


def old_rows(*columns: tuple[float, float, float, float, float, float]) -> tuple[dict[str, float], ...]:
    """Return rows of an older TRL: gradient's norm, rate, length, reward, its deviation, KL."""
    names = ("grad_norm", "learning_rate", "completion_length", "reward", "reward_std", "kl")
    return tuple(dict(zip(names, column, strict=True)) for column in columns)


REPORTS = (
    Report(
        "huggingface/trl/issues/5697",
        "The quickstart's reward is 0 at most steps.",
        "the default of 256 tokens cuts 97 to 99% of the completions",
        ({**ZERO, **CUT},),
        10,
        right=frozenset({"length_cap"}),
    ),
    Report(
        "greyhaven-ai/autocontext/pull/1067",
        "The arm with GRPO learns nothing.",
        "every completion is cut at 256 tokens before its answer",
        ({**ZERO, **CUT, "completions/mean_terminated_length": 0.0},),
        10,
        right=frozenset({"length_cap"}),
    ),
    Report(
        "huggingface/trl/issues/3857",
        "A reward function has a standard deviation of 5, and the loss is 0.",
        "rewards are equal within each group, and differ between groups",
        (
            {
                "loss": 0.0,
                "grad_norm": 0.0,
                "learning_rate": 1.7e-6,
                "reward": 3.0,
                "reward_std": 0.0,
                "rewards/if_rewrite_reward/mean": -3.0,
                "rewards/if_rewrite_reward/std": 5.08,
                "rewards/json_format_reward/mean": 2.0,
                "rewards/json_format_reward/std": 0.0,
                "completions/mean_length": 701.8,
                "completions/clipped_ratio": 0.0,
                "frac_reward_zero_std": 1.0,
            },
        ),
        10,
        right=frozenset({"advantages_vanish"}),
    ),
    Report(
        "huggingface/trl/issues/3452",
        "The reward does not rise, and the loss is 0.",
        "a loss of 0 is meant with beta 0 and one iteration; the gradient is not 0, and the reward is what to watch",
        old_rows(
            (0.0866, 6.92e-6, 232.8, 1.717, 0.570, 5.37e-4),
            (0.0967, 6.71e-6, 237.0, 1.884, 0.749, 5.39e-4),
            (0.1059, 6.50e-6, 233.5, 1.680, 0.631, 5.34e-4),
            (0.1036, 6.29e-6, 235.6, 1.969, 0.787, 5.28e-4),
            (0.0957, 2.96e-6, 237.3, 1.872, 0.748, 5.60e-4),
            (0.1002, 2.75e-6, 236.7, 1.775, 0.637, 5.50e-4),
            (0.1163, 2.54e-6, 241.0, 1.799, 0.713, 5.32e-4),
            (0.1091, 2.33e-6, 242.4, 1.702, 0.543, 5.52e-4),
        ),
        2,
        right=frozenset({"nothing"}),
    ),
    Report(
        "rllm-org/rllm/issues/54",
        "The score is always 0.",
        "none",
        (
            {
                "critic/score/mean": 0.0,
                "critic/score/max": 0.0,
                "critic/score/min": 0.0,
                "actor/pg_loss": 0.0,
                "actor/kl_loss": 0.041,
                "actor/entropy_loss": 0.33,
                "actor/grad_norm": 0.004,
                "actor/lr": 1e-6,
                "response_length/mean": 469.2,
                "response_length/clip_ratio": 0.031,
                "actor/pg_clipfrac": 0.0,
            },
        ),
        10,
    ),
    Report(
        "modelscope/ms-swift/issues/4789",
        "The reward stays at 0.",
        "none",
        options=(
            *("--max_completion_length", "16", "--learning_rate", "1e-5", "--beta", "0.01"),
            *("--num_generations", "3", "--temperature", "0.1"),
        ),
        tool="trl",
    ),
    Report(
        "modelscope/ms-swift/issues/5890",
        "The gradient is 0, and rewards differ.",
        "none by the maintainers; on one machine the gradient is not 0, on several it is",
        tuple(
            {"loss": 0.0, "grad_norm": 0.0, "kl": 0.0, "completions/mean_length": 2400.0, **row}
            for row in (
                {
                    "reward": 0.707,
                    "reward_std": 0.131,
                    "frac_reward_zero_std": 0.516,
                    "completions/clipped_ratio": 0.516,
                },
                {
                    "reward": 0.765,
                    "reward_std": 0.125,
                    "frac_reward_zero_std": 0.547,
                    "completions/clipped_ratio": 0.555,
                },
                {
                    "reward": 0.643,
                    "reward_std": 0.156,
                    "frac_reward_zero_std": 0.391,
                    "completions/clipped_ratio": 0.438,
                },
                {
                    "reward": 0.690,
                    "reward_std": 0.140,
                    "frac_reward_zero_std": 0.500,
                    "completions/clipped_ratio": 0.508,
                },
            )
        ),
        2,
    ),
    Report(
        "XueZeyue/DanceGRPO/issues/45",
        "The reward does not rise, and collapses after 1500 steps.",
        "the learning rate of 1e-6 is too low there; 5e-6 to 2e-5 works",
        options=("learning_rate=1e-6", "epsilon=1e-2", "num_generations=16"),
        tool="trl",
        right=frozenset({"learning_rate_low"}),
    ),
    Report(
        "huggingface/open-r1/issues/436",
        "The reward is low and does not rise.",
        "none",
        options=("learning_rate=2e-5", "max_completion_length=1024", "num_generations=6"),
        tool="trl",
    ),
    Report(
        "huggingface/open-r1/issues/255",
        "The accuracy reward becomes 0.",
        "none by the maintainers; with a distilled model the accuracy does not fall",
        old_rows(
            (0.798, 1.54e-6, 387.5, 0.711, 0.531, 1.54e-4),
            (0.848, 3.08e-6, 378.2, 0.694, 0.525, 3.95e-3),
            (1.893, 4.62e-6, 190.5, 0.887, 0.343, 2e-2),
        ),
    ),
)


def causes_of(report: Report) -> list[str]:
    """Return the causes that are found in what was posted, the most likely first."""
    if report.options:
        joined: tuple[str, ...] = report.options
        if joined[0].startswith("--"):
            joined = tuple(f"{a}={b}" for a, b in zip(joined[::2], joined[1::2], strict=True))
        return [f.cause for f in check(list(joined), report.tool)[0]]
    rows: list[tuple[int, dict[str, Any]]] = []
    for row in report.rows:
        rows += [(len(rows) + 1 + i, row) for i in range(report.steps)]
    return [f.cause for f in diagnosed_rows(rows, report.tool).findings]


def main() -> None:
    """Print a line for each report."""
    for report in REPORTS:
        causes = causes_of(report) or ["nothing"]
        agrees = "agrees" if report.right & set(causes[:1]) else "differs" if report.right else "no answer"
        print(f"{GITHUB}{report.source}: {report.complaint}\n    found {', '.join(causes)}")
        print(f"    answered: {report.answer} ({agrees})")


if __name__ == "__main__":
    main()
