"""Grade the answers of suites, measure them, and write the results as files of a run, whose two ends are two models."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from verizero.pipeline.commands.suites.asking import TOO_LONG, Answers, Loaded, Question
from verizero.pipeline.commands.suites.models import Measured
from verizero.pipeline.config.data import Source
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.suites import Suite
from verizero.pipeline.data.overlap import Overlap, find_overlap
from verizero.pipeline.data.prompts import read_demonstrations, read_prompts
from verizero.pipeline.errors import DataError, RunError
from verizero.pipeline.host.disk import disk_errors, write_atomic
from verizero.pipeline.loop.metrics import require_verdicts, sample_rows
from verizero.pipeline.report.estimates import summarize_domain
from verizero.pipeline.report.intervals import rate_interval
from verizero.pipeline.report.page import build_page
from verizero.pipeline.report.row_types import EvaluationRow, RolloutRow, to_json
from verizero.pipeline.report.summary import build_summary
from verizero.pipeline.run.saving import recipe_folder
from verizero.pipeline.scoring.sandbox_setup import close_sandbox, open_sandbox
from verizero.pipeline.scoring.score import Scorer, bind_verifiers
from verizero.pipeline.scoring.select import form_groups
from verizero.pipeline.shown import show
from verizero.pipeline.stages.evaluate import count_failures, prompt_samples
from verizero.pipeline.types import FinishReason, Group, Prompt, Rollout
from verizero.verifiers import _verifier_process

STAGE = "suites"


@dataclass(frozen=True)
class Measurement:
    """The results of one model."""

    model: Measured
    row: EvaluationRow
    groups: list[Group]


def grade(config: RunConfig, loaded: Sequence[Loaded], questions: Sequence[Question], answers: Answers) -> list[Group]:
    """Return a group of graded answers to each prompt. Raises: DataError for an unknown verifier; IsolationError."""
    prompts = [p for own in loaded for p in own.prompts]
    bound = bind_verifiers(prompts, config.verifiers, Path.cwd())
    open_sandbox(config.sandbox, list(bound.values()), show)
    scorer = Scorer(config.scoring, bound)
    try:
        rollouts = [r for q in questions for r in _rollouts(q, answers)]
        scored, _ = scorer.score({p.id: p for p in prompts}, rollouts)
    finally:
        _verifier_process.close()
        scorer.close()
        close_sandbox()
    groups: list[Group] = []
    begin = 0
    for own in loaded:
        end = begin + len(own.prompts) * own.suite.samples
        groups += form_groups(own.prompts, scored[begin:end], own.suite.samples)
        begin = end
    return groups


def _rollouts(question: Question, answers: Answers) -> Iterator[Rollout]:
    for number in range(question.samples):
        answer = TOO_LONG if question.is_too_long else answers.known[question.key, number]
        # No log-probs, and tokens by their number alone: nothing trains on them.
        end: FinishReason = "length" if answer.was_cut else "stop"
        yield Rollout(question.prompt.id, number, (), range(answer.tokens), (), answer.text, end, -1)


def measure(
    model: Measured,
    loaded: Sequence[Loaded],
    questions: Sequence[Question],
    groups: Sequence[Group],
    seconds: Mapping[str, float],
) -> Measurement:
    """Return the measures of each suite, with notes. Raises: GradersFailed if graders failed on all of a suite."""
    domains: dict[str, Any] = {}
    trained = None if model.run is None else trained_on(model.run)
    for own in loaded:
        suite, ids = own.suite, {p.id for p in own.prompts}
        of_suite = [g for g in groups if g.prompt.id in ids]
        require_verdicts(f"suite {suite.name}", of_suite)
        k = max(len(g.members) for g in of_suite)
        measures = {**summarize_domain([prompt_samples(g) for g in of_suite], k), **count_failures(of_suite), "k": k}
        if model.served is not None:
            measures.pop("length", None)  # an endpoint's tokens are not counted
        of_questions = [q for q in questions if q.prompt.id in ids]
        notes = [*_notes(suite, of_questions), *_published(suite, model, measures)]
        if trained is not None:
            notes.append(overlap_note(find_overlap(trained[0], own.prompts), trained[1], measures))
        domains[suite.name] = {**measures, "notes": notes}
    samples = {row["k"] for row in domains.values()}
    row = EvaluationRow(
        stage=STAGE,
        round=0,
        step=0,
        label=model.label,
        k=samples.pop() if len(samples) == 1 else 1,
        domains=domains,
        verdicts=dict(sorted(Counter(m.verdict.status for g in groups for m in g.members).items())),
        time=dict(seconds),
    )
    return Measurement(model, row, list(groups))


def _notes(suite: Suite, questions: Sequence[Question]) -> list[str]:
    how = "greedy" if suite.temperature == 0 else f"temperature {suite.temperature:g}, top-p {suite.top_p:g}"
    limit = questions[0].sampling.max_tokens
    cut = f" (the suite's limit is {suite.max_tokens:,}; the context is short)" if limit < suite.max_tokens else ""
    sampled = f"{suite.samples} answers a row, " if suite.samples > 1 else ""
    notes = [f"{suite.title}: {sampled}{how}, at most {limit:,} tokens{cut}"]
    if too_long := sum(q.is_too_long for q in questions):
        notes.append(f"{too_long} rows leave no room in the model's context; they were not asked, and count as wrong")
    if suite.rows.limit is not None:
        notes.append(f"{len(questions)} rows of the suite were drawn; figures that others publish are of all")
    return notes


def _published(suite: Suite, model: Measured, measures: Mapping[str, Any]) -> list[str]:
    """Return what is published on the suite, and for this model how far its own figure is from that."""
    notes = []
    for entry in suite.published:
        text = f"published: {entry.model} {entry.value:.3f} ({entry.source})"
        if entry.model in (model.model, model.label) and "pass@1" in measures:
            own = measures["pass@1"]
            side = "inside" if own["low"] <= entry.value <= own["high"] else "outside"
            text += f"; measured here {own['value']:.3f}, and the published figure is {side} its interval"
        notes.append(text)
    return notes


def write_page(folder: Path, measurements: Sequence[Measurement], suites: Sequence[Suite]) -> Path:
    """Write the files of the measurements into the folder, and return the path of the page. Raises: RunError."""
    rows = [r for m in measurements for g in m.groups for r in sample_rows(g, f"evaluation/{m.row.label}", 0, 0)]
    info = {"name": " and ".join(m.model.label for m in measurements), "models": [m.model.model for m in measurements]}
    settings = {s.name: s.model_dump(mode="json", exclude_unset=True) for s in suites}
    with disk_errors(f"writing into {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "recipe.yaml", yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).encode())
    write_atomic(folder / "run.json", json.dumps(info, indent=1).encode())
    write_atomic(folder / "metrics.jsonl", _lines([m.row for m in measurements]))
    write_atomic(folder / "rollouts.jsonl", _lines(rows))
    build_summary(folder)
    return build_page(folder)


def _lines(rows: Sequence[EvaluationRow | RolloutRow]) -> bytes:
    return "".join(json.dumps(to_json(row)) + "\n" for row in rows).encode()


def text_lines(measurements: Sequence[Measurement], summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the results for a terminal: each suite's measures with intervals, of two models their paired change."""
    for suite in sorted(summary["domains"]):
        for m in measurements:
            row = m.row.domains[suite]
            shown = [
                f"{name.replace('@k', '@' + str(row['k']))} {row[name]['value']:.3f} "
                f"[{row[name]['low']:.3f}, {row[name]['high']:.3f}]"
                for name in ("pass@1", "pass@k", "maj@k", *(["score"] if "score_by_prompt" in row else []))
                if name in row
            ]
            lost = f", graders failed on {row['grader_failures']}" if row["grader_failures"] else ""
            count = f"{row['num_prompts']} rows, {row['num_responses']} answers{lost}"
            yield f"{suite:<14} {m.model.label}: {'  '.join(shown)}  ({count})"
        change = summary["domains"][suite]
        if "interval" in change:
            low, high = change["interval"]
            yield f"{suite:<14} change of pass@1 {change['gain']:+.3f} [{low:+.3f}, {high:+.3f}], paired by row"
        for note in dict.fromkeys(n for m in measurements for n in m.row.domains[suite]["notes"]):
            yield f"{'':<14} {note}"


def overlap_note(overlap: Overlap, unread: str, measures: Mapping[str, Any]) -> str:
    """Return the overlap of a suite with a run's training data in words, with pass@1 of the rows that it leaves.

    `unread`: the part of the training data that could not be read; "" if all was.
    """
    text = f"contamination: {overlap}"
    matching = {m.evaluation_id for m in overlap.matches}
    rest = [value for prompt_id, value in measures.get("by_prompt", []) if prompt_id not in matching]
    if matching and rest:
        clean = rate_interval(rest)
        text += f"; without them pass@1 is {clean.value:.3f} [{clean.low:.3f}, {clean.high:.3f}]"
    return text + (f"; {unread}" if unread else "")


def trained_on(run: Path) -> tuple[list[Prompt], str]:
    """Return what the run trained on: its rows, and demonstrations of its own sources; and what could not be read."""
    rows = run / "data" / "train.jsonl"
    train: list[Prompt] = []
    if rows.is_file() and rows.stat().st_size:
        train = read_prompts([Source(file=str(rows.resolve()), graded=False)], 0)[0]
    recipe = load_recipe(run / "recipe.yaml")
    if not recipe.data.demonstrations:
        return train, ""
    try:
        base = recipe_folder(run) or run
        shown = read_demonstrations(recipe.data.demonstrations, (), recipe.seed, base, {})
    except (DataError, RunError) as exc:
        return train, f"its demonstrations could not be read ({exc})"
    return [*train, *(replace(p, id=f"demonstrations/{p.id}") for p in shown.prompts)], ""
