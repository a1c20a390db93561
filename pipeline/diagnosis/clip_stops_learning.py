"""The clip cuts off a good part of the tokens, so that most of each update is lost.

Clip ranges belong to a kind of ratio. Those of sequences (GSPO) are a thousand times smaller than those of tokens,
and either is wrong for the other. GSPO clips about 15% of the tokens and learns well (arXiv:2507.18071, section 5.2):
whole responses are clipped there, not the tokens of each that changed most.
"""

from __future__ import annotations

from verizero.pipeline.algorithms.base import chosen, load_algorithm
from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

EXPLAINS = frozenset({"learning_rate_low"})
MIN_CLIPPED, MIN_CLIPPED_OF_SEQUENCES = 0.08, 0.5
GRPO = {"name": "grpo"}
CLIP_FIELDS = ("clip_low", "clip_high")


def look(run: RunFacts) -> Finding | None:
    """Find many clipped tokens, most of them at ratios near 1."""
    clipped = (run.mean_at_end("clip_fraction/high") or 0.0) + (run.mean_at_end("clip_fraction/low") or 0.0)
    usual = "30%" if (of_sequences := _of_sequences(run)) else "2%"
    if clipped < (MIN_CLIPPED_OF_SEQUENCES if of_sequences else MIN_CLIPPED):
        return None
    return Finding(
        "clip_stops_learning",
        "problem",
        min(1.0, 0.6 + clipped),
        f"{clipped:.0%} of the tokens are clipped and have no gradient; usual are less than {usual}.",
        run.evidence("clip_fraction/high") + run.evidence("clip_fraction/low", -1) + run.evidence("ratio/p99", -1),
        _published_clip(run),
        EXPLAINS,
    )


def _of_sequences(run: RunFacts) -> bool:
    """Return True if the ratio that is clipped is one of whole responses."""
    _, parts = load_algorithm(*chosen(run.setting(run.section, "algorithm", default=GRPO)))
    return parts.ratio_entry.of in ("mean", "sum")


def _published_clip(run: RunFacts) -> str:
    """Return the clip range of the algorithm's publication, or one update a batch where the recipe has that range."""
    choice = {k: v for k, v in run.setting(run.section, "algorithm", default=GRPO).items() if k not in CLIP_FIELDS}
    params, _ = load_algorithm(*chosen(choice))
    options = [
        f"--set {run.section}.algorithm.{k}={v:g}" for k in CLIP_FIELDS if (v := getattr(params, k, None)) is not None
    ]
    is_set = any(run.setting(run.section, "algorithm", k) is not None for k in CLIP_FIELDS)
    return " ".join(options) if options and is_set else f"--set {run.section}.algorithm.num_epochs=1"
