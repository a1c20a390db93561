"""Write report.html: a self-contained page about a run, made from its files only."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from verizero.pipeline.files import write_atomic
from verizero.pipeline.report.alarms import alarms_section
from verizero.pipeline.report.curves import Chart, build_charts
from verizero.pipeline.report.diagnosis_section import Card, diagnosis_section
from verizero.pipeline.report.files import RunFiles, read_run
from verizero.pipeline.report.opinions import opinions_section
from verizero.pipeline.report.plots import Plot, draw
from verizero.pipeline.report.samples import MAX_SAMPLES, SampleChoice, choose_samples
from verizero.pipeline.report.summary import RL_PHASES, gives_part, summarize
from verizero.pipeline.shown import in_html, visible

HERE = Path(__file__).parent
MEASURE_LABELS = {
    "pass@1": "pass@1",
    "score": "mean score",
    "pass@k": "pass@{k}",
    "maj@k": "maj@{k}",
    "greedy": "greedy",
    "reward": "mean reward",
    "length": "length, tokens",
    "truncated": "truncated",
}
PAIRED = {"pass@1": "interval", "score": "score_interval"}
"""Measure -> the key of the interval of its change."""
EXPLANATION = """<details><summary>What these numbers are</summary>
<p>pass@1 is the share of right answers among {k} samples a prompt, and the mean score, where credit is partial, what
the verifier gave them on average; greedy is the share right at temperature 0. Brackets are 95% intervals over prompts;
those of a change pair the same prompts. They speak of prompts alone: a run with another seed may differ by more.</p>
{of_k}</details>"""
EXPLANATION_OF_K = """<p>pass@{k} is the unbiased chance that one of {k} samples is right, maj@{k} the chance that the
most frequent extracted answer is (a tie is shared, no answer has no vote).</p>
<p>The gain of pass@1 has two parts that sum to it. Call pass@{k} the reach of the model, and pass@1 / pass@{k} its
sharpness: how much of its reach one try gets. <b>Sharpening</b> is the reach it began with times the change of
sharpness: it moves pass@1 towards the pass@{k} it began with and never beyond. <b>New</b> is the change of reach times
the sharpness it ended with: what pass@{k} itself brings, below zero where it fell.</p>"""


def build_page(run_dir: Path, cards: Sequence[Card] | None = None) -> Path:
    """The path of `report.html` in `run_dir`, written from the run's files; the same files give the same bytes.

    The page asks nothing of any network and says so to the browser (its content policy allows this one script only).
    Text of a model is data to it: escaped in the markup, and set as text nodes by the script. `cards`: the causes that
    a diagnosis of the same files has found; None: nobody looked.

    Raises: RunError if `run_dir` is no run, or cannot be written.
    """
    folder = Path(run_dir)
    run = read_run(folder)
    summary = summarize(run)
    drawn = [(chart, draw(chart)) for chart in build_charts(run)]
    causes = [(card.chart, draw(card.chart)) if card.chart else None for card in cards or ()]
    chosen = choose_samples(folder)
    script = (HERE / "report.js").read_text(encoding="utf-8")
    page = Template((HERE / "report.html").read_text(encoding="utf-8")).substitute(
        title=in_html(run.name),
        style=(HERE / "report.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=_script_hash(script),
        # Template fills each place once, so that a "$" in a model's text is never read as another place.
        result=in_html(result_line(summary)),
        sharpening=in_html(_first_upper(summary["sharpening"]) + "."),
        start=_start(run.info.get("start")),
        facts=_facts(run, summary),
        alarms=alarms_section(run),
        diagnosis_link="" if cards is None else '<a href="#diagnosis">Diagnosis</a> ',
        diagnosis=diagnosis_section(cards, [_plot(*pair) if pair else None for pair in causes]),
        results=_results(summary),
        charts="\n".join(_figure(chart, plot) for chart, plot in drawn) or _note("No step has been recorded yet."),
        sample_note=_sample_note(chosen),
        second_opinions=opinions_section(run),
        time=_time(summary),
        recipe=_recipe(run.recipe),
        environment=_environment(run.info),
        data=embed({"charts": [_hover(*pair) for pair in (*drawn, *causes) if pair], "groups": chosen.groups}),
    )
    return write_atomic(folder / "report.html", page.encode("utf-8", "replace"))


def embed(value: object) -> str:
    """Return `value` as JSON for a script element: no character in it can end or open markup."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # JSON reads these escapes as the same characters, and HTML sees no tag or entity.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def result_line(summary: Mapping[str, Any]) -> str:
    """Return the result of the run in one line: pass@1, and the mean reward where nothing tells what is right."""
    both = {d: row for d, row in summary["domains"].items() if "pass@1" in row["before"]}
    rewarded = {d: row for d, row in summary["domains"].items() if "reward" in row["before"] and d not in both}
    if not both and not rewarded:
        return "No held-out evaluation yet"
    labels = " → ".join(str(summary[side]) for side in ("before_label", "after_label") if summary[side])
    lines = []
    for name, digits, rows in (("pass@1", 2, both), ("mean reward", 3, rewarded)):
        measure = "reward" if rows is rewarded else name
        rates = []
        for domain, row in rows.items():
            sides = [row["before"], *([row.get("after", {})] if summary["after"] else [])]
            if all(measure in side for side in sides):
                numbers = " → ".join(f"{side[measure]:.{digits}f}" for side in sides)
                rates.append(f"{numbers} on {domain}{_score(*sides)}")
        lines += [f"{name} {', '.join(rates)}"] if rows else []
    return f"Held-out {'; '.join(lines)} ({labels})"


def _score(*sides: Mapping[str, Any]) -> str:
    """Return the mean score where credit is partial."""
    scores = " → ".join(f"{side['score']:.2f}" for side in sides if "score" in side)
    return f" (mean score {scores})" if gives_part(*sides) else ""


def _start(start: Any) -> str:
    """Return a line about the file that the policy was made from, where it is a GGUF file."""
    if not isinstance(start, Mapping) or not start.get("file"):
        return ""
    types = ", ".join(f"{share:.1%} {name}" for name, share in start["types"].items())
    kind = "A quantised start" if start["is_quantized"] else "The start"
    named = ", ".join(str(start[key]) for key in ("model", "architecture") if start[key])
    licence = f"licence as the file says: {start['licence']}" if start["licence"] else "the file names no licence"
    return _note(
        f"{kind}: {start['file']} ({named}; weights {types}, made float32 to be trained; {licence}; "
        f"sha256 {start['sha256'][:16]}…)."
    )


def _facts(run: RunFiles, summary: Mapping[str, Any]) -> str:
    seconds = summary["seconds"]
    # "rl" is already the sum of the phases of RL.
    total = sum(v for name, v in seconds.items() if name not in (*RL_PHASES, "other", "graders"))
    facts = {
        "RL steps": f"{summary['steps']:,}",
        "distinct prompts seen in RL": f"{summary['distinct_prompts_seen']:,}",
        "parameters": f"{run.info['num_parameters']:,}" if isinstance(run.info.get("num_parameters"), int) else "",
        "recorded time": _duration(total) if total else "",
        "seed": str(run.info.get("seed", "")),
    }
    return "".join(f"<li><b>{in_html(value)}</b> {in_html(name)}</li>" for name, value in facts.items() if value)


def _results(summary: Mapping[str, Any]) -> str:
    if not summary["domains"]:
        return _note("This run holds no evaluation: its recipe has no held-out data, or it has not come that far.")
    cards = "".join(_domain_card(name, row, summary) for name, row in summary["domains"].items())
    k = summary["k"]
    explanation = EXPLANATION.format(k=k, of_k=EXPLANATION_OF_K.format(k=k) if k > 1 else "")
    return f'<div class="domains">{cards}</div>{explanation}'


def _domain_card(domain: str, row: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    before, after = row["before"], row.get("after", {})
    k = before.get("k", summary["k"])
    lines = []
    for name, label in MEASURE_LABELS.items():
        if (name not in before and name not in after) or (name == "score" and not gives_part(before, after)):
            continue
        if name in ("pass@k", "maj@k") and k == 1:
            continue  # rows of older runs have pass@1 once more
        paired = row.get(PAIRED.get(name, ""))
        lines.append(
            f"<tr><th scope='row'>{label.format(k=k)}</th>{_cell(before, name)}{_cell(after, name)}"
            f"{_change(before, after, name, paired)}</tr>"
        )
    heads = [summary["before_label"] or "before", summary["after_label"] or "after", "change"]
    columns = "".join(f"<th scope='col'>{in_html(str(head))}</th>" for head in heads)
    num_prompts = before.get("num_prompts")
    title = in_html(domain) + (f" <small>({num_prompts:,} held-out prompts)</small>" if num_prompts else "")
    lost = [
        f"{side['grader_failures']:,} of {side['num_responses']:,} answers ({head})"
        for side, head in zip((before, after), heads, strict=False)
        if side.get("grader_failures")
    ]
    note = _note(f"Graders failed on {' and '.join(lost)}; those count in no measure.") if lost else ""
    note += "".join(map(_note, dict.fromkeys([*before.get("notes", []), *after.get("notes", [])])))
    return (
        f'<div class="card"><table><caption>{title}</caption><thead><tr><th></th>{columns}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table>{note}{_gain_bar(row, k)}</div>"
    )


def _cell(side: Mapping[str, Any], name: str) -> str:
    if name not in side:
        return "<td>–</td>"
    # Two digits at the ends of an interval: with hundreds of prompts the third is noise.
    digits, end_digits = (1, 1) if name == "length" else (3, 2)
    ends = side["intervals"].get(name)
    interval = f"<small>[{ends[0]:.{end_digits}f}, {ends[1]:.{end_digits}f}]</small>" if ends else ""
    return f"<td>{side[name]:.{digits}f}{interval}</td>"


def _change(before: Mapping[str, Any], after: Mapping[str, Any], name: str, paired: Sequence[float] | None) -> str:
    if name not in before or name not in after:
        return "<td>–</td>"
    digits = 1 if name == "length" else 3
    change = round(after[name] - before[name], digits) + 0.0  # never "-0.0"
    tone = ""
    if name not in ("length", "truncated") and abs(change) >= 0.0005:
        tone = " class='up'" if change > 0 else " class='down'"
    interval = f"<small>[{paired[0]:+.2f}, {paired[1]:+.2f}]</small>" if paired else ""
    return f"<td{tone}>{change:+.{digits}f}{interval}</td>"


def _gain_bar(row: Mapping[str, Any], k: int) -> str:
    if "new" not in row:
        return ""
    start, reach = row["before"]["pass@1"], row["before"]["pass@k"]
    sharper, newer = row["sharpening"], row["new"]
    bar = ""
    if sharper >= 0 and newer >= 0:
        parts = (("was", start), ("sharper", sharper), ("newer", newer))
        pieces = "".join(f'<i class="{name}" style="width:{100 * value:.2f}%"></i>' for name, value in parts)
        bar = (
            f'<div class="bar" aria-hidden="true" title="The upright line is pass@{k} before.">{pieces}'
            f'<span class="reach" style="left:calc({100 * reach:.2f}% - 2px)"></span></div>'
        )
    return (
        f'<div class="gain">Gain of pass@1: <span class="key sharper"></span>{sharper:+.3f} sharpening, '
        f'<span class="key newer"></span>{newer:+.3f} new{bar}</div>'
    )


def _figure(chart: Chart, plot: Plot) -> str:
    unit = f" <span>{in_html(chart.unit)}</span>" if chart.unit else ""
    caption = f"<figcaption>{in_html(chart.caption)}</figcaption>" if chart.caption else ""
    return f"<figure><h3>{in_html(chart.title)}{unit}</h3>{_plot(chart, plot)}{caption}</figure>"


def _plot(chart: Chart, plot: Plot) -> str:
    return f'<div class="plot" data-chart="{in_html(chart.name)}">{plot.svg}</div>'


def _hover(chart: Chart, plot: Plot) -> dict[str, Any]:
    def short(values: Sequence[float | None] | None) -> list[float | None] | None:
        return None if values is None else [None if v is None else float(f"{v:.5g}") for v in values]

    return {
        "name": visible(chart.name),
        "x": short(chart.x),
        "x_label": chart.x_label,
        "ticks": chart.ticks,
        "x_limits": plot.x_limits,
        "box": plot.box,
        "series": [
            {"label": s.label, "color": s.color, "y": short(s.y), "low": short(s.low), "high": short(s.high)}
            for s in chart.series
        ],
    }


def _sample_note(chosen: SampleChoice) -> str:
    if not chosen.num_samples:
        return "No sampled answer is recorded in this run."
    if chosen.num_shown == chosen.num_samples:
        return f"All {chosen.num_samples:,} answers recorded in rollouts.jsonl are on this page."
    return (
        f"{chosen.num_shown:,} of the {chosen.num_samples:,} answers recorded in rollouts.jsonl are on this page: "
        f"{len(chosen.groups):,} of {chosen.num_groups:,} groups, evenly spaced over each stage, "
        f"at most {MAX_SAMPLES:,} answers."
    )


def _time(summary: Mapping[str, Any]) -> str:
    seconds, shares = summary["seconds"], summary["shares"]
    if not seconds:
        return _note("No time has been recorded.")
    phases = [name for name in (*RL_PHASES, "other") if name in seconds]
    colors = {name: f"var(--series-{i})" for i, name in enumerate(phases, start=1)}
    rows = [(in_html(name), seconds[name], "") for name in seconds if name not in (*phases, "rl", "graders")]
    if "rl" in seconds:
        rows.append(("RL, all steps", seconds["rl"], "100%" if shares else ""))
    for name in phases:
        key = f'<span class="key" style="background:{colors[name]}"></span>{name}'
        rows.append((key, seconds[name], f"{shares[name]:.1%}" if name in shares else ""))
        if name == "verify" and "graders" in seconds:
            rows.append(("graders at work (beside generate too)", seconds["graders"], ""))
    body = "".join(
        f"<tr><th scope='row'>{name}</th><td>{value:,.1f} s</td><td>{share}</td></tr>" for name, value, share in rows
    )
    pieces = "".join(
        f'<i style="width:{100 * shares.get(name, 0):.2f}%;background:{color}" title="{name}"></i>'
        for name, color in colors.items()
    )
    bar = f'<div class="bar" aria-hidden="true">{pieces}</div>' if shares else ""
    return (
        f'<div class="card narrow">{bar}<table><thead><tr><th>Phase</th><th>Time</th><th>Share of RL</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _recipe(text: str) -> str:
    if not text:
        return _note("recipe.yaml is not in the run's folder.")
    return f'<pre class="card recipe" tabindex="0">{in_html(text)}</pre>'


def _environment(info: Mapping[str, Any]) -> str:
    if not info:
        return _note("run.json is not in the run's folder.")
    isolation = info.get("isolation")
    level = isolation.get("level") if isinstance(isolation, Mapping) else isolation
    lead = {"isolation level": "no program is run by this recipe" if level is None else level}
    rest = {name: value for name, value in info.items() if name != "isolation"}
    if isinstance(isolation, Mapping):
        rest["isolation"] = {name: value for name, value in isolation.items() if name != "level"}
    return f'<div class="card"><dl>{_entries({**lead, **rest})}</dl></div>'


def _entries(values: Mapping[str, Any], prefix: str = "") -> str:
    out = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            out.append(_entries(value, f"{prefix}{name} · "))
        elif value not in (None, "", []):
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            out.append(f"<dt>{in_html(prefix + str(name).replace('_', ' '))}</dt><dd>{in_html(text)}</dd>")
    return "".join(out)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _script_hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _first_upper(text: str) -> str:
    # "pass@1 …" keeps its lower case: it is a name.
    return text if text.startswith("pass@") else text[:1].upper() + text[1:]


def _note(text: str) -> str:
    return f'<p class="note">{in_html(text)}</p>'
