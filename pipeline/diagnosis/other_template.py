"""The prompt is written in another form than the policy was trained on, so it does not answer.

Responses end by themselves and hold no final answer. A system prompt, a chat template of another model, or one more
line break can do this: what the model saw in its training has to be written letter by letter.
"""

from __future__ import annotations

import json
from shlex import quote

from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.diagnosis.run_facts import INFO, METRICS, NUM_COMPARED, ROLLOUTS, RunFacts

EXPLAINS = frozenset({"too_hard", "false_negatives", "wrong_references", "learning_rate_low"})
MIN_UNANSWERED, MAX_CUT = 0.5, 0.3
TEMPLATE_FIELDS = ("name", "text", "system", "chat_arguments")
"""Fields of a template that decide the prompt."""
MIN_DIFFERENCE = 0.5
"""Spaces or line breaks at the end of a prompt: the mean over prompts of one template is a whole number."""


def look(run: RunFacts) -> Finding | None:
    """Find the model's own template to be another, or the ends of prompts, or that few responses have an answer."""
    return _of_missing_marks(run) or _of_model_folder(run) or _of_prompt_ends(run) or _of_unread_answers(run)


def _of_missing_marks(run: RunFacts) -> Finding | None:
    """Find marks of the chat template that the model has no tokens for: the template is another model's."""
    missing = run.info.get("marks_missing")
    if not missing:
        return None
    return Finding(
        "other_template",
        "problem",
        0.95,
        f"The chat template writes {', '.join(missing)}, which the tokenizer has no tokens for: it is that of another "
        "model.",
        (Evidence(INFO, 1, f"marks of the template: {', '.join(run.info.get('marks') or missing)}"),),
        "use the chat template that the model was trained with",
        EXPLAINS | {"end_token_missing", "length_cap", "constant_reward"},
    )


def _of_model_folder(run: RunFacts) -> Finding | None:
    """Find that the model's folder names another template, where no stage trains it on texts in the new one."""
    model_template, recipe_template = run.info.get("model_template"), run.setting("data", "template")
    if not isinstance(model_template, dict) or not isinstance(recipe_template, dict) or run.imitation:
        return None
    fields = [key for key in TEMPLATE_FIELDS if (model_template.get(key) or None) != (recipe_template.get(key) or None)]
    if not fields:
        return None
    differences = ", ".join(
        f"{key} was {model_template.get(key)!r} and is {recipe_template.get(key)!r}" for key in fields
    )
    return Finding(
        "other_template",
        "problem",
        0.9,
        f"The model was trained with another template: {differences}.",
        (Evidence(INFO, 1, f"model_template: {model_template.get('name')!r}"),),
        "--set "
        + quote(
            "data.template={"
            + ", ".join(f"{k}: {json.dumps(model_template[k])}" for k in TEMPLATE_FIELDS if model_template.get(k))
            + "}"
        ),
        EXPLAINS,
    )


def _of_prompt_ends(run: RunFacts) -> Finding | None:
    """Find that prompts end with more or fewer line breaks than those of the demonstrations did."""
    name = "prompt/spaces_at_end"
    demonstrations = [(line, row) for line, row in run.imitation if name in row.metrics][-NUM_COMPARED:]
    prompts = run.series(name)[:NUM_COMPARED]
    if not demonstrations or not prompts:
        return None
    spaces_in_sft, spaces_in_rl = (
        sum(values) / len(values)
        for values in ([r.metrics[name] for _, r in demonstrations], [p.value for p in prompts])
    )
    if abs(spaces_in_sft - spaces_in_rl) < MIN_DIFFERENCE:
        return None
    return Finding(
        "other_template",
        "problem",
        0.8,
        f"Prompts of demonstrations ended with {spaces_in_sft:.0f} spaces or line breaks, and those of RL end with "
        f"{spaces_in_rl:.0f}.",
        (
            Evidence(
                METRICS, demonstrations[-1][0], f"step {demonstrations[-1][1].step}: {name}={spaces_in_sft:.3g}", name
            ),
            *run.evidence(name, 0),
        ),
        "make both prompts the same: data.template and the questions of data.train and data.demonstrations",
        EXPLAINS,
    )


def _of_unread_answers(run: RunFacts) -> Finding | None:
    unanswered, cut = run.mean_at_start("verdict/no_answer"), run.mean_at_start("truncated")
    if unanswered is None or cut is None or unanswered < MIN_UNANSWERED or cut > MAX_CUT or run.has_learned:
        return None
    samples = run.samples[:3]
    return Finding(
        "other_template",
        "problem",
        unanswered,
        f"{unanswered:.0%} of the first responses end without an answer that the verifier can read.",
        (
            *run.evidence("verdict/no_answer", 0),
            *(Evidence(ROLLOUTS, s.line, f"{s.row.prompt!r:.60} -> {s.row.response!r:.40}") for s in samples),
        ),
        "compare a prompt of rollouts.jsonl with the model's training text: --set data.template.name=chat, or plain",
        EXPLAINS,
    )
