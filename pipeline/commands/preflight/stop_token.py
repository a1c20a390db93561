"""The tokens that end a response: those that generation stops at, those of the template and of demonstrations."""

from __future__ import annotations

import re
from dataclasses import replace

from verizero.pipeline.commands.preflight.checked import RECIPE, Checked, evidence_of, not_tried, spread
from verizero.pipeline.commands.preflight.local_parts import LocalParts, is_local
from verizero.pipeline.commands.preflight.marks import MARK, try_marks
from verizero.pipeline.diagnosis import end_token_missing
from verizero.pipeline.diagnosis.finding import Evidence, Finding, Level

NAME = "stop token"
MOST = 100
"""Demonstrations whose end is looked at."""
MANY = 0.1
CHATS = re.compile(r"instruct|chat|[-_]it\b|sft|dpo|rlhf", re.IGNORECASE)
"""Names of models that were trained to answer in turns. A base may have a template too, and never end a turn by it."""


def look(recipe: LocalParts) -> Checked:
    """Compare the tokens that end a response."""
    if recipe.lacks_end:
        sentence = "The tokenizer names no end token, so no response can end."
        remedy = "set eos_token in the tokenizer_config.json of the model's folder"
        return Checked(NAME, True, recipe.no_tokenizer, (_finding(recipe, "problem", 1.0, sentence, remedy),))
    if recipe.tokenizer is None:
        return not_tried(NAME, recipe.no_tokenizer)
    tokenizer = recipe.tokenizer
    stops = sorted({int(tokenizer.eos_token_id), *recipe.stops})
    result = f"generation stops at {' '.join(map(str, tokenizer.convert_ids_to_tokens(stops)))}"
    findings = [*_outside(recipe, stops), *_turns(recipe, stops), *_demonstrated(recipe)]
    return Checked(NAME, True, result, tuple(findings))


def _outside(recipe: LocalParts, stops: list[int]) -> list[Finding]:
    """Find a tokenizer with an end token that the model has no place for."""
    size, end = recipe.vocabulary, recipe.tokenizer.eos_token_id
    if size is None or end < size:
        return []
    sentence = (
        f"The end token {recipe.tokenizer.eos_token!r} has the number {end}, and the model has {size} tokens: the "
        "tokenizer is that of another model."
    )
    return [_finding(recipe, "problem", 1.0, sentence, "put the model's own tokenizer into its folder")]


def _turns(recipe: LocalParts, stops: list[int]) -> list[Finding]:
    """Find a chat template whose turns end with a token that generation does not stop at."""
    marks = try_marks(recipe) if recipe.config.data.template.name == "chat" else None
    if marks is None or not marks.ends:
        return []
    ids = recipe.tokenizer.convert_tokens_to_ids(list(marks.ends))
    if set(ids) & set(stops):
        return []
    names = " ".join(map(str, recipe.tokenizer.convert_ids_to_tokens(stops)))
    sentence = (
        f"The chat template ends a turn with {' '.join(marks.ends)}, and generation stops at {names} only: a model "
        "that was trained in this form does not end before the length limit."
    )
    answers = is_local(recipe.config) or CHATS.search(recipe.config.model.path or "") is not None
    # Demonstrations end with the tokenizer's own end token, so a model that learns from them first will stop.
    level: Level = "note" if recipe.config.begins_with_texts or not answers else "warning"
    remedy = f"add {ids} to eos_token_id in the generation_config.json of the model's folder"
    return [_finding(recipe, level, 0.7, sentence, remedy)]


def _demonstrated(recipe: LocalParts) -> list[Finding]:
    """Find demonstrations whose text ends with the name of an end token; the token itself is added to each."""
    prompts = spread([p for p in recipe.demonstrations.prompts if isinstance(p.demonstration, str)], MOST)
    name = str(recipe.tokenizer.eos_token)
    ends = [(p, end) for p in prompts if (end := _end_of(str(p.demonstration), name)) is not None]
    if len(ends) <= MANY * len(prompts):
        return []
    finding = _finding(
        recipe,
        "warning",
        0.8,
        f"{len(ends)} of {len(prompts)} demonstrations end with the text {ends[0][1]}, and the end token {name} is "
        "added behind it: the policy learns to write it before it stops.",
        "take it out of the demonstrations, or of what mapping.demonstration names",
    )
    shown = [evidence_of(p, recipe.demonstrations.places, f"{str(p.demonstration)[-40:]!r}") for p, _ in ends[:3]]
    return [replace(finding, evidence=tuple(shown))]


def _end_of(text: str, name: str) -> str | None:
    """Return the mark, or the name of the end token, with which a text ends."""
    text = text.rstrip()
    marks = MARK.findall(text[-60:])
    return name if text.endswith(name) else marks[-1] if marks and text.endswith(marks[-1]) else None


def _finding(recipe: LocalParts, level: Level, confidence: float, sentence: str, remedy: str) -> Finding:
    model = recipe.config.model.path or "made by the recipe"
    shown = Evidence(RECIPE, 1, f"model: {model}")
    return Finding("end_token_missing", level, confidence, sentence, (shown,), remedy, end_token_missing.EXPLAINS)
