"""Causes that one number past a limit shows: the rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from verizero.pipeline.checks.cause import CAUSES, Cause
from verizero.pipeline.checks.finding import Evidence, Finding, Level
from verizero.pipeline.checks.run_facts import NUM_COMPARED, RunFacts

MISMATCH = "mismatch/k3 mismatch/abs"
MIN_FAILED, MANY_FAILED = 0.03, 0.06
"""Shares of the responses on which the grader fails: a warning, and a problem."""
FAILED = ("verdict/timeout", "verdict/verifier_error", "verdict/sandbox_error")
MIN_DIFFERENCE = 0.03
"""Mean of |log p - log q| of a token; bfloat16 alone makes about 0.01."""
MIN_RATIO = 4.0
"""Times that another component of the reward varies more than the verifier's part."""
NO_GRADIENT, MOST_CUT = 1e-8, 0.9
"""Norm of a gradient that is none; share of cut responses above which their mask may leave no token."""
CONFIDENCE = 0.8


@dataclass(frozen=True, slots=True)
class Limit:
    """A cause, the number that shows it, and from where on it does."""

    cause: str
    text: str
    """A description, which docs/diagnose.md has."""
    number: Callable[[RunFacts], float | None]
    """None: the run does not have it."""
    warning: float
    problem: float
    sentence: str
    """With the number in braces."""
    shown: tuple[str, ...]
    """Metrics whose first and last values are the evidence."""
    remedy: str
    """With `{section}` where a field of the stage's section is named."""
    elsewhere: str = ""
    """The remedy in words of no trainer; empty: the same."""
    explains: str = ""
    needs: str = ""
    excused: Callable[[RunFacts], bool] = lambda run: False
    """True if it did a run no harm: the finding is then a note."""

    def rule(self, run: RunFacts) -> Finding | None:
        """Return a finding if the number is past its limit."""
        number = self.number(run)
        if number is None or number < self.warning:
            return None
        evidence: tuple[Evidence, ...] = sum((run.evidence(name) for name in self.shown), ())
        level: Level = "note" if self.excused(run) else "problem" if number >= self.problem else "warning"
        remedy = self.remedy.format(section=run.section)
        return Finding(CONFIDENCE, self.sentence.format(number), evidence, remedy, level=level)


def _difference(run: RunFacts) -> float | None:
    return None if run.series("mismatch/k3") else run.mean_at_start("mismatch/abs")


def _lag(run: RunFacts) -> float | None:
    versions = run.mean_at_end("policy/version"), run.mean_at_end("rollout/version")
    return None if versions[0] is None or versions[1] is None else versions[0] - versions[1]


def _unclipped_ratio(run: RunFacts) -> float | None:
    clipped = (run.mean_at_end("clip_fraction/high") or 0.0) + (run.mean_at_end("clip_fraction/low") or 0.0)
    first, last = run.mean_at_start("ratio/p99"), run.mean_at_end("ratio/p99")
    return None if first is None or last is None or clipped > 0.01 else max(first, last)


def _failed(run: RunFacts) -> float:
    return sum(run.mean_at_end(name) or 0.0 for name in FAILED)


def _larger_component(run: RunFacts) -> float | None:
    verdict, others = run.mean_at_start("reward/verdict_std"), run.mean_at_start("reward/others_std")
    return None if not verdict or others is None else others / verdict


def _not_finite(run: RunFacts) -> float | None:
    """Return the share of steps without finite numbers: of all, or of the last if it is larger."""
    lost = {row.step for _, row in run.steps if "not_finite" in row.metrics}
    last = [row.step in lost for _, row in run.steps[-NUM_COMPARED:]]
    return max(len(lost) / len(run.steps), sum(last) / len(last)) if lost else None


def _gradient_zero(run: RunFacts) -> float | None:
    """Return the share of steps whose gradient is 0, of those in whose groups rewards differ."""
    rows = [row.metrics for _, row in run.steps if "grad_norm" in row.metrics]
    norms = [m["grad_norm"] for m in rows if m.get("groups/without_signal", float(not m.get("reward/std"))) < 1]
    if len(norms) < NUM_COMPARED or (run.mean_at_end("truncated") or 0.0) > MOST_CUT:
        return None
    return sum(norm < NO_GRADIENT for norm in norms) / len(norms)


LIMITS = (
    Limit(
        "not_finite",
        """The loss or the gradient is NaN or infinite, and what was learned is lost.

        One such update makes every weight NaN, and all that follows is noise: rewards of 0, no entropy, no distance. A
        few such steps are usual in float16, where the scaler of the loss leaves their updates out.
        """,
        _not_finite, 0.05, 0.5,
        "In {:.0%} of all or of the last steps the loss or the gradient is NaN or infinite.",
        ("not_finite", "reward/sampled"),
        "go back to a checkpoint before these steps, with a tenth of the learning rate, and in bfloat16 or float32",
        explains="too_hard too_easy entropy_collapse learning_rate_low learning_rate_high advantages_vanish length_cap "
        "length_drift end_token_missing infrastructure_zeros wrong_references engine_mismatch sampling_differs",
    ),
    Limit(
        "gradient_zero",
        """The gradient is 0 although rewards differ within groups, so that no weight moves.

        The model is frozen, a copy of it is trained, or its loss is detached from its weights. Where all rewards of a
        group are equal, a gradient of 0 is right.
        """,
        _gradient_zero, 0.9, 0.9,
        "In {:.0%} of the steps in which rewards differ within groups the gradient is 0: nothing is trained.",
        ("grad_norm", "groups/without_signal", "reward/sampled"),
        "count the parameters with requires_grad, and look for what detaches the loss from them: a frozen model, "
        "adapters that are not trained, an empty mask of the responses, torch.no_grad()",
        explains="learning_rate_low too_hard length_cap prompts_repeat kl_too_strong other_template", needs="grad_norm",
    ),
    Limit(
        "too_hard",
        """Nearly every group is all wrong, so that no response is better than another and nothing can be learned.

        Group-relative advantages are zero where all rewards of a group are equal. A policy learns from RL what it
        already does sometimes; what it never does has to come from demonstrations or from easier prompts.
        """,
        lambda run: run.share("groups/all_wrong", "groups/sampled"), 0.85, 0.85,
        "In {:.0%} of the first groups every response is wrong, so the policy has nothing to learn from.",
        ("groups/all_wrong",),
        "train on easier prompts first, longer by SFT (sft.steps), or with larger groups (group_size)",
        "use easier prompts first, demonstrations before RL, or more responses to a prompt",
        explains="learning_rate_low", needs="groups/sampled", excused=lambda run: run.has_learned,
    ),
    Limit(
        "engine_mismatch",
        """Engine and trainer compute different probabilities for the same tokens, from the first step on.

        Number types are the usual reason: an engine in 8 bits or bfloat16, a trainer in float32. Ratios to the engine's
        log-probs then carry noise, and a correction or the same type is needed (arXiv 2510.26788).
        """,
        lambda run: run.mean_at_start("mismatch/k3"), 1e-3, 1e-2,
        "Engine and trainer differ by {:.3f} nats a token for the same weights, from the first steps on.",
        ("mismatch/k3", "mismatch/p99"),
        "give engine and trainer one number type; algorithm.mismatch_level weighs out small distances only",
        "give engine and trainer one number type", needs=MISMATCH,
    ),
    Limit(
        "engine_mismatch", "", _difference, MIN_DIFFERENCE, 0.1,
        "Log-probs of engine and trainer differ by {:.3f} nats a token for the same weights, from the first steps on.",
        ("mismatch/abs",), "give engine and trainer one number type",
    ),
    Limit(
        "policy_lag",
        """Responses are many updates older than the policy that learns from them.

        Asynchronous rollouts save time, and each update of lag makes the data less the policy's own. Small lags are
        harmless with a clip; large ones hold learning back.
        """,
        _lag, 4, 8,
        "The responses of the last steps were sampled by weights that are {:.0f} updates old.",
        ("policy/version", "rollout/version"),
        "--set rollout.max_staleness=1",
        "update the rollout engine's weights more often",
        explains="ratios_explode learning_rate_low clip_stops_learning", needs="policy/version",
    ),
    Limit(
        "ratios_explode",
        """The policy that is updated is far from the one that sampled, and nothing limits the ratios.

        Many updates on the same responses, without a clip, move single tokens to many times their probability. The
        importance ratios then say little, and a few tokens decide the update. A clip of 0.2 holds the 99th percentile
        below about 1.3.
        """,
        _unclipped_ratio, 1.8, 1.8,
        "One token in a hundred has more than {:.1f} times the probability that it was sampled with, and no clip holds "
        "it.",
        ("ratio/p99",),
        "--set {section}.algorithm.num_epochs=1 --set {section}.algorithm.num_minibatches=1",
        "update once on each batch, with a clip",
        explains="learning_rate_high entropy_collapse length_cap length_drift", needs="ratio/p99",
    ),
    Limit(
        "infrastructure_zeros",
        """Graders, sandboxes or services fail, and the failure looks like a wrong answer.

        A verdict of the status timeout counts as the recipe says, which is a reward of 0 by default. A verifier that
        catches its own errors and returns 0 hides them: then equal responses to one prompt are right and wrong. The
        policy is punished for what the machine did. A grader that fails for good shows as a reward that falls in one
        step, while responses stay as they were.
        """,
        _failed, MIN_FAILED, MANY_FAILED,
        "{:.0%} of the responses were not graded but failed: their verifier or the sandbox was late, or broke.",
        FAILED,
        "read the reasons in rollouts.jsonl, and run `verizero doctor`; a verifier that waits for a service raises an "
        "error where it is late, so that the response leaves its group",
        "let the reward function raise or retry where its service fails, in place of returning 0",
        explains="too_hard false_negatives wrong_references", needs="responses",
    ),
    Limit(
        "reward_scales",
        "One component of the reward is so much larger than the others that the policy learns it alone.",
        _larger_component, MIN_RATIO, MIN_RATIO,
        "A component of the reward varies {:.1f} times more than the one that says what is right: the first decides.",
        ("reward/others_std", "reward/verdict_std", "correct/sampled"),
        "bring all components to one scale",
        "bring all reward functions to one scale, or give each a weight",
        explains="length_drift wrong_references false_positives", needs="reward/verdict_std",
    ),
)  # fmt: skip
"""In this order: of a cause with two rows the first that finds something counts."""

for row in LIMITS:
    if row.cause in CAUSES:
        CAUSES[row.cause] = CAUSES[row.cause].with_rule(row.rule)
    else:
        explains, needs = frozenset(row.explains.split()), tuple(row.needs.split())
        CAUSES[row.cause] = Cause(row.cause, row.text, (row.rule,), explains, needs, row.elsewhere or row.remedy)
