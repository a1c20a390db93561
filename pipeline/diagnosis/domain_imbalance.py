"""One domain has nearly all places in the batches, and the others hardly learn."""

from __future__ import annotations

from collections import Counter

from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.diagnosis.run_facts import ROLLOUTS, RunFacts

RARE_SHARE = 0.05
MIN_RESPONSES = 100


def look(run: RunFacts) -> Finding | None:
    """Find a held-out domain that hardly any training response belongs to."""
    domains = list(run.before_and_after())
    if len(domains) < 2 or len(run.samples) < MIN_RESPONSES:
        return None
    counts = Counter(s.row.domain for s in run.samples)
    rare = min(domains, key=lambda d: counts[d])
    share = counts[rare] / len(run.samples)
    if share >= RARE_SHARE / (len(domains) / 2):
        return None
    return Finding(
        "domain_imbalance",
        "warning",
        1 - share,
        f"{share:.0%} of the training responses are of the domain {rare}, of {len(domains)} that are evaluated.",
        tuple(Evidence(ROLLOUTS, s.line, f"domain {s.row.domain}") for s in run.samples[-2:]),
        " ".join(f"--set data.sampling.weights.{domain}=1" for domain in sorted(domains)),
    )
