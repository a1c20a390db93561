"""summary.json: what a run reached, in one small file."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline import seeds
from pipeline.errors import DataError
from pipeline.files import write_atomic
from pipeline.report.estimates import Gain, decompose_gain, paired_difference
from pipeline.report.files import RunFiles, read_run
from pipeline.report.rows import EvaluationRow, Numbers, StepRow, kind_of

MEASURES = ("pass@1", "pass@k", "maj@k", "greedy", "length", "truncated")
RL_PHASES = ("generate", "verify", "select", "update", "publish", "prefect")
"""The last is what tasks take beyond the phases that they show; where there are none, no line has it."""
GRADERS = ("graders", "evaluate/graders")
"""Keys of a row's "time" with the seconds in which graders worked, during the phases; "verify" is the wait for them."""


def build_summary(run_dir: Path) -> dict[str, Any]:
    """Return the results of the run in `run_dir`, and write them to its summary.json.

    before, after: domain -> {measure: value, "intervals": {measure: [low, high]}, "num_responses", and of how many the
        grader failed: "grader_failures"}; before is the evaluation that RL
        started from, after the last one ({} while there is none after it).
    domains: domain -> {"before", "after", and of pass@1 "gain", "sharpening", "new", "interval" (paired)}.
    gain: the same parts, as means over domains. sharpening: one line of them for people. k: of pass@k.
    distinct_prompts_seen: prompts that RL sampled from. steps: RL steps.
    seconds: of each RL phase, "other" (the loop around them), "rl" (all of them), and of each other stage and
        "evaluate"; and "graders", in which responses of RL were graded, also while others were generated.
    shares: of the RL seconds, by phase; they sum to 1.

    Raises: RunError if `run_dir` is no run, or cannot be written.
    """
    summary = summarize(read_run(Path(run_dir)))
    text = json.dumps(summary, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomic(Path(run_dir) / "summary.json", text.encode("utf-8", "surrogatepass") + b"\n")
    return summary


def summarize(run: RunFiles) -> dict[str, Any]:
    """Return the summary of files already read, as `build_summary` does, without writing it."""
    before_row = run.evaluations[run.base_evaluation] if run.base_evaluation is not None else None
    # Without an evaluation after learning began there is nothing to compare.
    is_later = run.base_evaluation is not None and len(run.evaluations) > run.base_evaluation + 1
    after_row = run.evaluations[-1] if is_later else None
    last_row = after_row or before_row
    before, after = _flatten(before_row), _flatten(after_row)
    seconds = count_seconds(run.steps, run.evaluations)
    rl_rows = run.rl_steps
    summary: dict[str, Any] = {
        "name": run.name,
        "before": before,
        "after": after,
        "before_label": before_row and before_row.label,
        "after_label": after_row and after_row.label,
        "domains": {
            domain: {"before": before[domain]}
            | ({"after": after[domain]} if domain in after else {})
            | _gain_of(domain, before_row, after_row, int(run.info.get("seed") or 0))
            for domain in before
        },
        "k": 1 if last_row is None else last_row.k,
        "distinct_prompts_seen": int(max((r.metrics.get("prompts/distinct", 0) for r in rl_rows), default=0)),
        "steps": len(rl_rows),
        "seconds": seconds,
        "shares": {
            phase: round(seconds[phase] / seconds["rl"], 4)
            for phase in (*RL_PHASES, "other")
            if seconds.get("rl") and phase in seconds
        },
    }
    summary["gain"] = _mean_gain(summary["domains"])
    summary["sharpening"] = sharpening_line(summary)
    return summary


def count_seconds(steps: list[StepRow], evaluations: list[EvaluationRow]) -> dict[str, float]:
    """Seconds by RL phase, "other", "rl" (their sum), by other stage, and "evaluate"; only what took place."""
    seconds: dict[str, float] = {}

    def add(name: str, value: float) -> None:
        seconds[name] = seconds.get(name, 0.0) + value

    for row in steps:
        parts = phases_of(row.time)
        # Phases are shown for RL alone; other stages are one number.
        if kind_of(row) != "rl":
            add(row.stage, sum(parts.values()))
            continue
        for phase, value in parts.items():
            add(phase, value)
        # Rounded parts can exceed a rounded total by their last digit.
        total = max(row.time.get("total", 0.0), sum(parts.values()))
        add("other", total - sum(parts.values()))
        add("rl", total)
        if "graders" in row.time:
            add("graders", row.time["graders"])
    for evaluation in evaluations:
        add("evaluate", sum(phases_of(evaluation.time).values()))
    return {name: round(value, 3) for name, value in seconds.items()}


def phases_of(time: Numbers) -> dict[str, float]:
    """Seconds of the phases that followed each other, of a line's "time"."""
    return {name: float(value) for name, value in time.items() if name != "total" and name not in GRADERS}


def sharpening_line(summary: dict[str, Any]) -> str:
    """Return one line about the parts of the rise of pass@1: sharpening and new; see `decompose_gain`."""
    gain: dict[str, float] | None = summary["gain"]
    if gain is None:
        return "no gain to divide: RL has no evaluation both before and after it"
    k, domains = summary["k"], summary["domains"]
    named = [d for d in domains.values() if "gain" in d]
    before_k, after_k = (fmean(d[side]["pass@k"] for d in named) for side in ("before", "after"))
    line = f"pass@1 {gain['total']:+.3f}: {_parts(gain)} (pass@{k} {before_k:.3f} → {after_k:.3f})"
    return line + (f", mean of {len(named)} domains" if len(named) > 1 else "")


def _parts(gain: dict[str, float]) -> str:
    texts = []
    for name in ("sharpening", "new"):
        share = ""
        # A percentage of a gain means something only where both parts push the same way.
        if gain["total"] > 0 and min(gain["sharpening"], gain["new"]) >= 0:
            share = f" ({gain[name] / gain['total']:.0%})"
        texts.append(f"{gain[name]:+.3f} {name}{share}")
    return ", ".join(texts)


def _flatten(row: EvaluationRow | None) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    for domain, measures in (row.domains if row else {}).items():
        estimates = {name: measures[name] for name in MEASURES if isinstance(measures.get(name), dict)}
        out[domain] = {name: estimate["value"] for name, estimate in estimates.items()}
        out[domain]["num_prompts"] = measures.get("num_prompts")
        out[domain] |= {name: measures[name] for name in ("num_responses", "grader_failures") if name in measures}
        out[domain]["intervals"] = {name: [e["low"], e["high"]] for name, e in estimates.items()}
    return out


def _gain_of(
    domain: str, before_row: EvaluationRow | None, after_row: EvaluationRow | None, seed: int
) -> dict[str, Any]:
    before, after = (row.domains.get(domain, {}) if row else {} for row in (before_row, after_row))
    if not all(name in side for side in (before, after) for name in ("pass@1", "pass@k")):
        return {}
    rates = [side[name]["value"] for side in (before, after) for name in ("pass@1", "pass@k")]
    try:
        gain = _as_dict(decompose_gain(*rates))
    except DataError:
        # pass@k is over fewer prompts than pass@1 where graders failed on some samples, and then may lie below it.
        return {}
    out: dict[str, Any] = {"gain": gain["total"], "sharpening": gain["sharpening"], "new": gain["new"]}
    pair = [{str(p): float(v) for p, v in side.get("by_prompt", [])} for side in (before, after)]
    # Graders may have failed for all samples of a prompt on one side; then there is no pair.
    if pair[0] and pair[0].keys() == pair[1].keys():
        paired = paired_difference(pair[0], pair[1], seeds.derive(seed, "paired", domain))
        out["interval"] = [round(paired.low, 6), round(paired.high, 6)]
    return out


def _mean_gain(domains: dict[str, dict[str, Any]]) -> dict[str, float] | None:
    named = [d for d in domains.values() if "gain" in d]
    if not named:
        return None
    parts = [Gain(d["gain"], d["sharpening"], d["new"]) for d in named]
    return _as_dict(Gain(*(fmean(getattr(g, f) for g in parts) for f in ("total", "sharpening", "new"))))


def _as_dict(gain: Gain) -> dict[str, float]:
    return {name: round(getattr(gain, name), 6) for name in ("total", "sharpening", "new")}
