"""The prompt is written in another form than the policy was trained on, so it does not answer.

Responses end by themselves and hold no final answer. A system prompt, a chat template of another model, or one more
line break can do this: what the model saw in its training has to be written letter by letter.
"""

from __future__ import annotations

import json
from shlex import quote

from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.diagnosis.reading import FEW, INFO, METRICS, ROLLOUTS, Reading

EXPLAINS = frozenset({"too_hard", "false_negatives", "wrong_references", "learning_rate_low"})
MANY, CUT = 0.5, 0.3
KEYS = ("name", "text", "system", "chat_arguments")
"""Fields of a template that decide the prompt."""
HALF = 0.5
"""Spaces or line breaks at the end of a prompt: the mean over prompts of one template is a whole number."""


def look(run: Reading) -> Finding | None:
    """Find the model's own template to be another, or the ends of prompts, or that few responses have an answer."""
    return _recorded(run) or _ends(run) or _unread(run)


def _recorded(run: Reading) -> Finding | None:
    """Find that the model's folder names another template, where no stage trains it on texts in the new one."""
    own, present = run.info.get("model_template"), run.setting("data", "template")
    if not isinstance(own, dict) or not isinstance(present, dict) or run.imitation:
        return None
    fields = [key for key in KEYS if (own.get(key) or None) != (present.get(key) or None)]
    if not fields:
        return None
    was = ", ".join(f"{key} was {own.get(key)!r} and is {present.get(key)!r}" for key in fields)
    return Finding(
        "other_template",
        "problem",
        0.9,
        f"The model was trained with another template: {was}.",
        (Evidence(INFO, 1, f"model_template: {own.get('name')!r}"),),
        "--set " + quote("data.template={" + ", ".join(f"{k}: {json.dumps(own[k])}" for k in KEYS if own.get(k)) + "}"),
        EXPLAINS,
    )


def _ends(run: Reading) -> Finding | None:
    """Find that prompts end with more or fewer line breaks than those of the demonstrations did."""
    name = "prompt/spaces_at_end"
    taught = [(line, row) for line, row in run.imitation if name in row.metrics][-FEW:]
    asked = run.series(name)[:FEW]
    if not taught or not asked:
        return None
    before, now = (
        sum(values) / len(values) for values in ([r.metrics[name] for _, r in taught], [p.value for p in asked])
    )
    if abs(before - now) < HALF:
        return None
    return Finding(
        "other_template",
        "problem",
        0.8,
        f"Prompts of demonstrations ended with {before:.0f} spaces or line breaks, and those of RL end with {now:.0f}.",
        (
            Evidence(METRICS, taught[-1][0], f"step {taught[-1][1].step}: {name}={before:.3g}", name),
            *run.shown(name, 0),
        ),
        "make both prompts the same: data.template and the questions of data.train and data.demonstrations",
        EXPLAINS,
    )


def _unread(run: Reading) -> Finding | None:
    silent, cut = run.early("verdict/no_answer"), run.early("truncated")
    if silent is None or cut is None or silent < MANY or cut > CUT or run.has_learned:
        return None
    samples = run.samples[:3]
    return Finding(
        "other_template",
        "problem",
        silent,
        f"{silent:.0%} of the first responses end without an answer that the verifier can read.",
        (
            *run.shown("verdict/no_answer", 0),
            *(Evidence(ROLLOUTS, s.line, f"{s.row.prompt!r:.60} -> {s.row.response!r:.40}") for s in samples),
        ),
        "compare a prompt of rollouts.jsonl with the model's training text: --set data.template.name=chat, or plain",
        EXPLAINS,
    )
