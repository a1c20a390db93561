"""One domain has nearly all places in the batches, and the others hardly learn."""

from __future__ import annotations

from collections import Counter

from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.diagnosis.reading import ROLLOUTS, Reading

RARE = 0.05
FEWEST = 100


def look(run: Reading) -> Finding | None:
    """Find a held-out domain that hardly any training response belongs to."""
    domains = list(run.before_and_after())
    if len(domains) < 2 or len(run.samples) < FEWEST:
        return None
    counts = Counter(s.row.domain for s in run.samples)
    rare = min(domains, key=lambda d: counts[d])
    share = counts[rare] / len(run.samples)
    if share >= RARE / (len(domains) / 2):
        return None
    return Finding(
        "domain_imbalance",
        "warning",
        1 - share,
        f"{share:.0%} of the training responses are of the domain {rare}, of {len(domains)} that are evaluated.",
        tuple(Evidence(ROLLOUTS, s.line, f"domain {s.row.domain}") for s in run.samples[-2:]),
        " ".join(f"--set data.sampling.weights.{domain}=1" for domain in sorted(domains)),
    )
