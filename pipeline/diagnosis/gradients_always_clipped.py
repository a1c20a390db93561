"""Every gradient is cut to the same small norm, so that the step size no longer depends on what was learned.

`max_grad_norm` is meant for outliers. Adam divides by the gradient's size, so that a norm a few times too low changes
little. One that is far below the usual norm leaves gradients near Adam's epsilon, or makes all steps weigh the same.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.reading import Reading

EXPLAINS = frozenset({"learning_rate_low"})
FAR, ALWAYS = 50.0, 0.95


def look(run: Reading) -> Finding | None:
    """Find gradients that are nearly always several times longer than allowed."""
    most = run.setting(run.section, "optimizer", "max_grad_norm")
    norms = run.series("grad_norm")
    if not most or len(norms) < 5:
        return None
    share = sum(p.value > FAR * float(most) for p in norms) / len(norms)
    if share < ALWAYS:
        return None
    usual = sorted(p.value for p in norms)[len(norms) // 2]
    return Finding(
        "gradients_always_clipped",
        "warning" if usual < 200 * float(most) else "problem",
        share,
        f"In {share:.0%} of the steps the gradient is more than {FAR:.0f} times longer than the {most:g} that is "
        f"allowed; its usual norm is {usual:.2g}.",
        run.shown("grad_norm"),
        f"--set {run.section}.optimizer.max_grad_norm={max(1.0, round(2 * usual, 1)):g}",
        EXPLAINS,
    )
