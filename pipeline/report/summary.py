"""summary.json: what a run reached, in one small file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.errors import DataError
from verizero.pipeline.host.disk import write_atomic
from verizero.pipeline.report.estimates import decompose_gain
from verizero.pipeline.report.intervals import paired_difference
from verizero.pipeline.report.row_types import EvaluationRow, Numbers, StepRow, section_of
from verizero.pipeline.report.run_files import RunFiles, read_run

MEASURES = ("pass@1", "score", "pass@k", "maj@k", "greedy", "reward", "length", "truncated")
RL_PHASES = ("generate", "verify", "select", "update", "publish", "prefect")
"""The last is what tasks take beyond the phases that they show; where there are none, no line has it."""
GRADERS = ("graders", "evaluate/graders")
"""Keys of a row's "time" with the seconds in which graders worked, during the phases; "verify" is the wait for them."""


def build_summary(run_dir: Path) -> dict[str, Any]:
    """Return the results of the run in `run_dir`, and write them to its summary.json.

    before, after: domain -> {measure: value, "intervals": {measure: [low, high]}, "num_responses", and of how many the
        grader failed: "grader_failures"}; before is the evaluation that RL
        started from, after the last one ({} while there is none after it).
    domains: domain -> {"before", "after", and of pass@1 "gain", "interval" (paired), and where evaluation.k is above 1
        its parts "sharpening" and "new"; where credit is partial, "score_gain" and "score_interval" of the mean score}.
    gain: the same of pass@1, as means over domains. sharpening: one line of them for people. k: of pass@k.
    distinct_prompts_seen: prompts that RL sampled from. steps: RL steps.
    seconds: of each RL phase, "other" (the loop around them), "rl" (all of them), and of each other stage and
        "evaluate"; and "graders", in which responses of RL were graded, also while others were generated.
    shares: of the RL seconds, by phase; they sum to 1.
    ended: how the run ended (`report/ended.py`); null while it is under way, and if it was killed.

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
            | _gain_of(domain, before_row, after_row)
            for domain in before
        },
        "k": 1 if last_row is None else last_row.k,
        "distinct_prompts_seen": int(max((r.metrics.get("prompts/distinct", 0) for r in rl_rows), default=0)),
        "steps": len(rl_rows),
        "ended": run.info.get("ended"),
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
        if not issubclass(section_of(row), RlConfig):
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


def gives_part(*sides: Mapping[str, Any]) -> bool:
    """True if the mean score of a domain is not its pass@1 on a side: answers get credit that are not wholly right."""
    return any(abs(side["score"] - side["pass@1"]) > 1e-9 for side in sides if "score" in side)


def sharpening_line(summary: dict[str, Any]) -> str:
    """Return one line about the rise of pass@1 and its parts, sharpening and new; see `decompose_gain`."""
    gain: dict[str, float] | None = summary["gain"]
    if gain is None and any("notes" in d["before"] for d in summary["domains"].values()):
        return "the results of one model: name a second one to compare them"
    if gain is None:
        if any("reward" in d["before"] and "pass@1" not in d["before"] for d in summary["domains"].values()):
            return "no pass@1: nothing says from which reward on a response is right (the verifier's params: success)"
        return "no gain to divide: RL has no evaluation both before and after it"
    k, domains = summary["k"], summary["domains"]
    named = [d for d in domains.values() if "gain" in d]
    line = f"pass@1 {gain['total']:+.3f}"
    if "new" in gain:
        before_k, after_k = (fmean(d[side]["pass@k"] for d in named) for side in ("before", "after"))
        line += f": {_parts(gain)} (pass@{k} {before_k:.3f} → {after_k:.3f})"
    line += f", mean of {len(named)} domains" if len(named) > 1 else ""
    for name, domain in domains.items():
        if "score_gain" in domain:
            scores = f"{domain['before']['score']:.3f} → {domain['after']['score']:.3f}"
            line += f"; mean score {domain['score_gain']:+.3f} ({scores}) on {name}"
    is_run = not any(
        "notes" in d["before"] for d in domains.values()
    )  # else of suites, which have samples of their own
    return line + ("; evaluation.k above 1 tells how much of a gain is new" if k == 1 and is_run else "")


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
        out[domain] |= {
            name: measures[name] for name in ("num_responses", "grader_failures", "k", "notes") if name in measures
        }
        out[domain]["intervals"] = {name: [e["low"], e["high"]] for name, e in estimates.items()}
    return out


def _gain_of(domain: str, before_row: EvaluationRow | None, after_row: EvaluationRow | None) -> dict[str, Any]:
    before, after = (row.domains.get(domain, {}) if row else {} for row in (before_row, after_row))
    if "pass@1" not in before or "pass@1" not in after:
        return {}
    out = _change_of("gain", "interval", [(side["pass@1"], side.get("by_prompt", [])) for side in (before, after)])
    if before_row and after_row and min(before_row.k, after_row.k) > 1 and "pass@k" in before and "pass@k" in after:
        rates = [side[name]["value"] for side in (before, after) for name in ("pass@1", "pass@k")]
        # pass@k is over fewer prompts than pass@1 where graders failed on some samples, and then may lie below it.
        with suppress(DataError):
            gain = decompose_gain(*rates)
            out |= {"sharpening": round(gain.sharpening, 6), "new": round(gain.new, 6)}
    if "score" in before and "score" in after and ("score_by_prompt" in before or "score_by_prompt" in after):
        # Without scores of their own, prompts have them equal to pass@1.
        scores = [(side["score"], side.get("score_by_prompt", side.get("by_prompt", []))) for side in (before, after)]
        out |= _change_of("score_gain", "score_interval", scores)
    return out


def _change_of(
    name: str, interval: str, sides: Sequence[tuple[Mapping[str, float], Sequence[Sequence[Any]]]]
) -> dict[str, Any]:
    """The change of a measure, and its paired interval where both sides are of the same prompts."""
    out: dict[str, Any] = {name: round(sides[1][0]["value"] - sides[0][0]["value"], 6)}
    before, after = ({str(p): float(v) for p, v in by_prompt} for _, by_prompt in sides)
    # Graders may have failed for all samples of a prompt on one side; then there is no pair.
    if before and before.keys() == after.keys():
        paired = paired_difference(before, after)
        out[interval] = [round(paired.low, 6), round(paired.high, 6)]
    return out


def _mean_gain(domains: dict[str, dict[str, Any]]) -> dict[str, float] | None:
    """The gain as a mean over domains, with its parts where every domain has them."""
    changes = [d for d in domains.values() if "gain" in d]
    if not changes:
        return None
    keys = {"total": "gain"} | ({n: n for n in ("sharpening", "new")} if all("new" in d for d in changes) else {})
    return {name: round(fmean(d[key] for d in changes), 6) for name, key in keys.items()}
