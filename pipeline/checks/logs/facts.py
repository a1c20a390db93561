"""Turn what a tool has logged into the rows that the rules of a diagnosis read."""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from verizero.pipeline.checks.logs.logged import Logged, LoggedResponse, Tool, numbers, weights_of, whole_reward
from verizero.pipeline.checks.run_facts import EvaluationLine, RunFacts, Sample
from verizero.pipeline.report.row_types import EvaluationRow, RolloutRow, StepRow
from verizero.pipeline.types import Attempt
from verizero.verifiers.answer import final_answer

EVALUATION = "evaluation/"
"""Our names of held-out numbers begin with it: evaluation/<domain>/<measure>, and /size for the number of responses."""
UNKNOWN_SIZE = 64
"""Held-out responses that an evaluation is taken to have if nothing says how many there are."""
MOST_PARTIAL = 0.99
"""Score of the highest reward where no reward says which response is right."""
MAX_READ, MAX_CHARACTERS = 4000, 4000
"""Responses whose final answer is read, and characters of each."""
FORM_WORDS = ("format", "length", "len", "tag", "style", "box", "penal", "cosine", "repetition", "think", "count")
RL = "rl"


@dataclass(frozen=True)
class Reading:
    """A run of another tool: the facts, and where each line of them is written."""

    tool: Tool
    facts: RunFacts
    logged: Logged
    metric_places: tuple[Mapping[str, tuple[str, int]], ...]
    """For each row of the facts, whose lines are numbered from 1: our name of a number -> its file and line."""
    response_places: tuple[tuple[str, int], ...]


def reading_of(logged: Logged, tool: Tool) -> Reading:
    """Return the facts of what was logged, in the order of the steps."""
    places: list[dict[str, tuple[str, int]]] = []
    steps: list[tuple[int, StepRow]] = []
    evaluations: list[EvaluationLine] = []
    by_step: dict[int, list[LoggedResponse]] = defaultdict(list)
    weights = logged.settings.get("reward_weights")
    if weights is not None:
        logged.responses = [replace(r, reward=whole_reward(r.parts, weights)) for r in logged.responses]
    judge = _log_only(logged.responses, weights)
    scored = list(zip(logged.responses, scores(logged.responses, judge), strict=True))
    for response in logged.responses:
        if not response.is_held_out:
            by_step[response.step].append(response)
    score_of = {id(r): s for r, s in scored}
    seen: set[str] = set()
    logged_steps = {row.step for row in logged.rows}
    # Prompts can be counted where nearly every logged step has responses.
    complete = len(logged_steps & set(by_step)) >= 0.8 * max(1, len(logged_steps))
    for step, values in _numbers_by_step(logged, tool, places):
        tool.derive(values, logged)
        if (lag := values.get("lag")) is not None:
            values |= {"policy/version": float(step), "rollout/version": step - lag}
        held_out = {k: v for k, v in values.items() if k.startswith(EVALUATION)}
        line = len(places)
        metrics = {k: v for k, v in values.items() if k not in held_out}
        metrics |= _settings_as_numbers(logged, tool)
        if own := by_step.get(step):
            metrics |= (groups := of_groups(own, score_of))
            places[-1] |= dict.fromkeys(groups, (own[0].file, own[0].line))
            seen |= {r.prompt for r in own}
            if complete:
                metrics["prompts/distinct"] = float(len(seen))
        else:
            metrics |= _guessed_groups(metrics)
        if len(metrics) > 1:
            steps.append((line, StepRow(stage=RL, stage_kind=RL, round=1, step=step, metrics=metrics, time={})))
        if held_out:
            evaluations.append(EvaluationLine(line, _evaluation(step, held_out)))
    samples = [_sample(i, r, s) for i, (r, s) in enumerate(scored, 1)]
    held_out_prompts = {r.prompt for r in logged.responses if r.is_held_out}
    shared = held_out_prompts & {r.prompt for r in logged.responses if not r.is_held_out}
    note = f"{len(shared)} of {len(held_out_prompts)} evaluation prompts occur in training"
    facts = RunFacts(
        recipe_of(logged, tool),
        tuple(steps),
        tuple(evaluations),
        tuple(s for s, (r, _) in zip(samples, scored, strict=True) if not r.is_held_out),
        tuple(s for s, (r, _) in zip(samples, scored, strict=True) if r.is_held_out),
        info=logged.model | ({"data_notes": [note]} if shared else {}) | ({"log_only": judge} if judge else {}),
    )
    return Reading(tool, facts, logged, tuple(places), tuple((r.file, r.line) for r in logged.responses))


def recipe_of(logged: Logged, tool: Tool) -> dict[str, Any]:
    """Return the options as the recipe that they mean, as far as the rules ask for it."""
    recipe: dict[str, Any] = {}
    for name, field in tool.options.items():
        value = logged.settings.get(name)
        if value is None:
            continue
        if (number := numbers({name: value}).get(name)) is None:
            logged.skipped.append(f"the option {name}={value!r:.40}, which is no number")
            continue
        *path, last = field.split(".")
        section = recipe
        for part in path:
            section = section.setdefault(part, {})
        section[last] = number if isinstance(value, str) else value
    if "algorithm" in recipe.get(RL, {}):
        recipe[RL]["algorithm"]["name"] = "gspo" if logged.settings.get(tool.ratio_level) == "sequence" else "grpo"
    return recipe


def _log_only(responses: Sequence[LoggedResponse], weights: Any) -> str:
    """Return the reward function of weight 0 that gives two values, next to one that trains; empty: there is none."""
    names = list(responses[0].parts) if responses else []
    own = weights_of(weights, len(names))
    idle = [name for name, weight in zip(names, own, strict=True) if weight == 0]
    is_graded = len(idle) == 1 and len({r.parts.get(idle[0]) for r in responses} - {None}) == 2
    return idle[0] if is_graded and len(names) == 2 else ""


def scores(responses: Sequence[LoggedResponse], judge: str = "") -> list[float]:
    """Return the score of each response: 1 if it is right, 0 if it is wrong, between for partial credit.

    Of several reward functions `judge`, or the one that gives two values, one of them 1 if there is such, and whose
    name is not of a form or a length. Two values other than 0 and 1, as -1 and 1, count as those.
    """
    names = sorted({name for r in responses for name in r.parts})
    values = {name: [v for r in responses if (v := r.parts.get(name)) is not None] for name in names}
    named = [n for n in names if not is_form(n)]
    graded = sorted((n for n in named if 0 < len(set(values[n])) <= 2), key=lambda n: max(values[n]) != 1)
    several = [judge] if judge else graded or named
    chosen = several[0] if len(names) > 1 and several else None
    own = [r.reward if chosen is None else r.parts.get(chosen) for r in responses]
    distinct = sorted({v for v in own if v is not None})
    if len(distinct) == 2 and distinct != [0.0, 1.0]:
        return [float(v == distinct[1]) for v in own]
    low, high = (distinct[0], distinct[-1]) if distinct else (0.0, 1.0)
    if low < 0 or high > 1:
        # No reward says what is right: none is 1.
        return [0.0 if v is None else MOST_PARTIAL * (v - low) / (high - low or 1.0) for v in own]
    return [0.0 if v is None else v for v in own]


def of_groups(responses: Iterable[LoggedResponse], score_of: dict[int, float]) -> dict[str, float]:
    """Return the counts of a step's groups by their rewards."""
    groups: dict[str, list[LoggedResponse]] = defaultdict(list)
    for response in responses:
        groups[response.prompt].append(response)
    sizes = [len(g) for g in groups.values()]
    if max(sizes) < 2:
        return {}
    equal = [g for g in groups.values() if len({r.reward for r in g}) == 1]
    right, wrong = (sum(all(score_of[id(r)] == v for r in g) for g in equal) for v in (1.0, 0.0))
    return {
        "groups/sampled": float(len(groups)),
        "groups/all_right": float(right),
        "groups/all_wrong": float(wrong),
        "groups/equal": float(len(equal) - right - wrong),
        "groups/without_signal": len(equal) / len(groups),
    }


def _guessed_groups(metrics: dict[str, float]) -> dict[str, float]:
    """Return shares of groups for a step without responses, where the mean reward leaves no doubt which they are."""
    equal, reward = metrics.get("groups/without_signal"), metrics.get("correct/sampled")
    if equal is None or reward is None or 0.05 < reward < 0.95:
        return {}
    right = equal if reward >= 0.95 else 0.0
    return {"groups/sampled": 1.0, "groups/all_right": right, "groups/all_wrong": equal - right, "groups/equal": 0.0}


def _numbers_by_step(
    logged: Logged, tool: Tool, places: list[dict[str, tuple[str, int]]]
) -> Iterable[tuple[int, dict[str, float]]]:
    """Yield each step and its numbers under our names, those we have none for with a leading "?"; adds its place."""
    merged: dict[int, dict[str, float]] = {}
    places_of: dict[int, dict[str, tuple[str, int]]] = {}
    for row in logged.rows:
        own: dict[str, float] = {}
        for name, value in row.values.items():
            own.setdefault(tool.ours(name) or f"?{tool.plain(name)}", value)
        merged.setdefault(row.step, {}).update(own)
        places_of.setdefault(row.step, {}).update(dict.fromkeys(own, (row.file, row.line)))
    for step in sorted(merged):
        places.append(places_of.get(step, {}))
        yield step, merged[step]


def _settings_as_numbers(logged: Logged, tool: Tool) -> dict[str, float]:
    """Return the options that our runs write into every step."""
    values: dict[str, float] = {}
    for name, field in tool.options.items():
        ours = {"rl.algorithm.kl_coef": "kl/coef", "rollout.temperature": "temperature"}.get(field)
        value = logged.settings.get(name)
        if ours is not None and isinstance(value, int | float) and not isinstance(value, bool):
            values[ours] = float(value)
    return values


def _evaluation(step: int, held_out: dict[str, float]) -> EvaluationRow:
    """Return the evaluation of a step, with an interval for each measure."""
    domains: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, value in held_out.items():
        domain, measure = name.removeprefix(EVALUATION).rsplit("/", 1)
        if measure == "num_prompts":
            domains[domain][measure] = int(value)
        elif measure != "size":
            size = held_out.get(f"{EVALUATION}{domain}/size", UNKNOWN_SIZE)
            half = 2 * math.sqrt(max(value * (1 - value), 0.25 / size) / size) if 0 <= value <= 1 else 0.0
            domains[domain][measure] = {"value": value, "low": value - half, "high": value + half}
    return EvaluationRow(
        stage=RL, stage_kind=RL, round=1, step=step, label=f"step {step}", k=1, domains=domains, time={}
    )


def _sample(line: int, response: LoggedResponse, score: float) -> Sample:
    text = response.response[-MAX_CHARACTERS:]
    answer = final_answer(Attempt(text, None)).text if line <= MAX_READ else None
    prompt_id = hashlib.sha256(response.prompt.encode("utf-8", "replace")).hexdigest()[:12]
    return Sample(
        line,
        RolloutRow(
            stage="evaluation/held out" if response.is_held_out else RL,
            round=1,
            step=response.step,
            prompt_id=prompt_id,
            domain="all",
            prompt=response.prompt,
            response=response.response,
            sample=0,
            reward=response.reward,
            status="graded" if response.reward is not None else "verifier_error",
            score=score,
            reason="",
            extracted=answer,
            finish_reason="stop",
            length=len(response.response),
            kept=True,
        ),
    )


def is_form(name: str) -> bool:
    """True if a reward function of that name is about a form or a length, and not about what is right."""
    own = name.lower()
    return "form" in re.split(r"[^a-z]+", own) or any(word in own for word in FORM_WORDS)


def is_share(mean: float, deviation: float | None, size: float) -> bool:
    """Return True if rewards of this mean and standard deviation are all 0 or 1, so that the mean is a share."""
    if mean in (0.0, 1.0):
        return True
    if deviation is None or not 0 < mean < 1:
        return False
    return math.isclose(deviation**2, mean * (1 - mean) * size / max(1.0, size - 1), rel_tol=0.02)
