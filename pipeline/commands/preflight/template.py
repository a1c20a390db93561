"""A template that is not the model's own: unknown marks, another form than it was trained in, text written twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from verizero.pipeline.commands.preflight.checked import RECIPE, Checked, evidence_of, not_tried, spread
from verizero.pipeline.commands.preflight.local_parts import LocalParts
from verizero.pipeline.commands.preflight.marks import Marks, marks_of, try_marks
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.diagnosis import other_template
from verizero.pipeline.diagnosis.finding import Evidence, Finding, Level
from verizero.pipeline.diagnosis.run_facts import RunFacts
from verizero.pipeline.errors import DataError
from verizero.pipeline.run.info import template_of
from verizero.pipeline.run.saving import TEMPLATE_FILE
from verizero.pipeline.types import Prompt

NAME = "template"
MOST = 200
"""Prompts that are written."""
MANY = 0.05
"""Share of prompts with marks of the template in their own text."""
SETTINGS = "tokenizer_config.json"
SHORTEST_SYSTEM = 8
"""Letters of a system message: a shorter one may occur in a template by chance."""
PLAIN = "--set data.template=plain"


def look(recipe: LocalParts) -> Checked:
    """Look at the recipe's template, the model's own, and the prompts that are made with it."""
    how = recipe.config.data.template
    recorded = _recorded(recipe)
    if recipe.tokenizer is None:
        reason = recipe.no_tokenizer
        return replace(not_tried(NAME, reason), findings=tuple(recorded)) if recorded else not_tried(NAME, reason)
    findings, result = [*recorded], f"{how.name}"
    if how.name != "chat":
        findings += [] if recorded else _not_chat(recipe)
    elif not recipe.tokenizer.chat_template:
        sentence = "data.template is chat, and the tokenizer has no chat template."
        findings.append(_finding(recipe, "problem", 1.0, sentence, PLAIN))
    else:
        try:
            marks = marks_of(recipe)
        except DataError as exc:
            sentence = f"The chat template refuses a conversation of users and the assistant: {_flat(exc)}."
            return Checked(NAME, True, result, (*findings, _finding(recipe, "problem", 1.0, sentence, PLAIN)))
        result += f", with the marks {' '.join(marks.all)}" if marks.all else ", without marks"
        findings += [*_unknown(recipe, marks), *_twice(recipe, marks)]
    prompts = spread(recipe.train.prompts, MOST)
    if prompts and not any(f.level == "problem" for f in findings):
        more = _written(recipe, prompts)
        findings += more
        result += f"; {len(prompts)} prompts were written"
    return Checked(NAME, True, result, tuple(findings))


def _recorded(recipe: LocalParts) -> list[Finding]:
    """Find that the model's folder names another template than the recipe, by the rule for runs."""
    model_template = template_of(recipe.config.model.path)
    if model_template is None or recipe.config.begins_with_texts:
        return []
    tree = recipe.config.model_dump(mode="json")
    finding = other_template.look(RunFacts(tree, (), (), (), info={"model_template": model_template}))
    if finding is None:
        return []
    shown = Evidence(
        str(Path(recipe.config.model.path or "") / TEMPLATE_FILE), 1, f"name: {model_template.get('name')!r}"
    )
    return [replace(finding, evidence=(shown,))]


def _unknown(recipe: LocalParts, marks: Marks) -> list[Finding]:
    if not marks.unknown:
        return []
    names = ", ".join(marks.unknown)
    if marks.ends:
        # Published templates of some models spell roles in letters and end each turn with a token.
        sentence = f"The chat template writes {names}, for which the tokenizer has no tokens, and ends turns with one."
        return [_finding(recipe, "note", 0.3, sentence, "compare it with the template of the model's authors")]
    sentence = (
        f"The chat template writes {names}, for which the tokenizer has no tokens, and no token ends a turn: it is the "
        "template of another model."
    )
    remedy = f"{PLAIN}, or put the model's own chat_template into its {SETTINGS}"
    return [_finding(recipe, "warning" if recipe.config.begins_with_texts else "problem", 0.9, sentence, remedy)]


def _twice(recipe: LocalParts, marks: Marks) -> list[Finding]:
    """Find prompts whose own text has the template's marks: they were written with a template before."""
    prompts = spread(recipe.train.prompts, MOST)
    wrapped = [p for p in prompts if any(name in p.question for name in marks.of_turns)]
    if len(wrapped) < max(1.0, MANY * len(prompts)):
        return []
    finding = _finding(
        recipe,
        "problem",
        0.9,
        f"{len(wrapped)} of {len(prompts)} prompts have marks of the chat template in their own text, which the "
        "template writes around them again.",
        f"{PLAIN}, or map mapping.question to a column without marks",
    )
    shown = tuple(evidence_of(p, recipe.train.places, f"{p.question!r:.60}") for p in wrapped[:3])
    return [replace(finding, evidence=shown)]


def _not_chat(recipe: LocalParts) -> list[Finding]:
    """Find that the model was trained to end turns of a chat, and is asked in another form."""
    how = recipe.config.data.template
    marks = try_marks(recipe)
    if marks is None or recipe.config.begins_with_texts:
        return []
    ids = recipe.tokenizer.convert_tokens_to_ids(list(marks.ends))
    has_own = any(name in (how.text or "") for name in marks.ends)
    in_rows = any(name in p.question for p in recipe.train.prompts[:1] for name in marks.of_turns)
    if not {recipe.tokenizer.eos_token_id, *recipe.stops}.intersection(ids) or has_own or in_rows:
        return []
    sentence = (
        f"The model has a chat template and stops at the end of its turns, {marks.ends[0]}, and the recipe asks in the "
        f"form {how.name}."
    )
    # r1_zero is chosen on purpose: it asks for the thinking that a plain question does not.
    return [_finding(recipe, "note" if how.name == "r1_zero" else "warning", 0.6, sentence, "--set data.template=chat")]


def _written(recipe: LocalParts, prompts: list[Prompt]) -> list[Finding]:
    """Find a system message or question that the template leaves out or writes twice, and two start tokens."""
    renderer, how = Renderer(recipe.tokenizer, recipe.config.data.template), recipe.config.data.template
    without = "--set data.template.system=null" if how.system is not None else "leave system out of the mapping"
    try:
        texts = [renderer.text(p) for p in prompts]
        ids = renderer.prompt_ids(prompts[0])
    except DataError as exc:
        remedy = without if how.system is not None or prompts[0].system is not None else PLAIN
        return [_finding(recipe, "problem", 1.0, f"The template cannot write the prompts: {_flat(exc)}.", remedy)]
    for prompt, text in zip(prompts, texts, strict=True):
        system = (prompt.system if prompt.system is not None else how.system or "").strip()
        times = 1 if len(system) < SHORTEST_SYSTEM else text.count(system)
        shown = (evidence_of(prompt, recipe.train.places, f"{text!r:.90}"),)
        if times != 1:
            does = "leaves the system message out" if not times else f"has the system message {times} times"
            finding = _finding(recipe, "warning", 0.8, f"The prompt {does}: {system!r:.60}.", without)
            return [replace(finding, evidence=shown)]
        if prompt.asked.strip() not in text:
            finding = _finding(recipe, "problem", 0.9, "The template does not write the question as it is.", PLAIN)
            return [replace(finding, evidence=shown)]
    start = recipe.tokenizer.bos_token_id
    if start is not None and list(ids[:2]) == [start, start]:
        sentence = f"Prompts begin with two start tokens, {recipe.tokenizer.bos_token}."
        return [_finding(recipe, "warning", 0.8, sentence, f"take {recipe.tokenizer.bos_token} out of the template")]
    return []


def _finding(recipe: LocalParts, level: Level, confidence: float, sentence: str, remedy: str) -> Finding:
    shown = Evidence(RECIPE, 1, f"data.template: {recipe.config.data.template.name}")
    return Finding("other_template", level, confidence, sentence, (shown,), remedy, other_template.EXPLAINS)


def _flat(exc: DataError) -> str:
    return " ".join(str(exc).split()).rstrip(".")[:200]
