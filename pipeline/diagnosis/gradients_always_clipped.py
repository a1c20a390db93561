"""Every gradient is cut to the same small norm, so that the step size no longer depends on what was learned.

`max_grad_norm` is meant for outliers. Adam divides by the gradient's size, so that a norm a few times too low changes
little. One that is far below the usual norm leaves gradients near Adam's epsilon, or makes all steps weigh the same.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

EXPLAINS = frozenset({"learning_rate_low"})
FAR_ABOVE, MIN_SHARE = 50.0, 0.95


def look(run: RunFacts) -> Finding | None:
    """Find gradients that are nearly always several times longer than allowed."""
    max_norm = run.setting(run.section, "optimizer", "max_grad_norm")
    norms = run.series("grad_norm")
    if not max_norm or len(norms) < 5:
        return None
    share = sum(p.value > FAR_ABOVE * float(max_norm) for p in norms) / len(norms)
    if share < MIN_SHARE:
        return None
    usual_norm = sorted(p.value for p in norms)[len(norms) // 2]
    return Finding(
        "gradients_always_clipped",
        "warning" if usual_norm < 200 * float(max_norm) else "problem",
        share,
        f"In {share:.0%} of the steps the gradient is more than {FAR_ABOVE:.0f} times longer than the {max_norm:g} "
        f"that is allowed; its usual norm is {usual_norm:.2g}.",
        run.evidence("grad_norm"),
        f"--set {run.section}.optimizer.max_grad_norm={max(1.0, round(2 * usual_norm, 1)):g}",
        EXPLAINS,
    )
