"""Learning rates that are far from those that models of this size are trained with."""

from __future__ import annotations

from verizero.pipeline.commands.preflight.checked import Checked, not_tried
from verizero.pipeline.commands.preflight.local_parts import LocalParts
from verizero.pipeline.config.auto_rates import FAR, far_rates
from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.errors import ConfigError

NAME = "rates"


def look(recipe: LocalParts) -> Checked:
    """Compare the learning rate of each stage with the table of `pipeline/config/rates.py`."""
    from verizero.pipeline.run.build import num_parameters_of

    try:
        num = num_parameters_of(recipe.config)
    except ConfigError as exc:
        return not_tried(NAME, str(exc))
    findings = []
    for stage, field, rate, near in far_rates(recipe.config, num):
        is_high = rate > near
        findings.append(
            Finding(
                "learning_rate_high" if is_high else "learning_rate_low",
                "warning",
                0.5,
                f"Stage {stage} has a learning rate of {rate:g}, and models of {num / 1e6:.3g} million parameters are "
                f"trained with about {near:g}: more than {FAR:g} times {'less' if is_high else 'more'}.",
                (),
                f"--set {field}={near:g}, or null, which takes that rate",
            )
        )
    return Checked(NAME, True, f"{len(findings)} learning rates are far from the table's", tuple(findings))
