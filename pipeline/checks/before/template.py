"""A template that is not the model's own, text that is written twice, and the tokens that end a response."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verizero.pipeline.checks.before.parts import LocalParts
from verizero.pipeline.checks.cause import CAUSES
from verizero.pipeline.checks.finding import RECIPE, Checked, Evidence, Finding, Level
from verizero.pipeline.checks.run_facts import RunFacts
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.chat_text import ChatText
from verizero.pipeline.data.prompts import spread
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.errors import DataError
from verizero.pipeline.run.saving import TEMPLATE_FILE, template_of
from verizero.pipeline.types import Message, Prompt

MARK = re.compile(r"<\|[^<>|\s]{1,40}\|>|<(?:start|end)_of_\w{1,20}>|<\uff5c[^<>\uff5c]{1,40}\uff5c>")
"""The names of marks in published templates: <|im_end|>, <end_of_turn>, and the wide bars of DeepSeek's."""
WORDS = ("word 0", "term 1", "word 2")
MOST_PROMPTS, MOST_DEMONSTRATIONS = 200, 100
"""Prompts that are written, and demonstrations whose end is looked at."""
MANY_WRAPPED, MANY_SPELLED = 0.05, 0.1
"""Shares of prompts with marks of the template in their own text, and of demonstrations that spell an end token."""
SHORTEST_SYSTEM = 8
"""Letters of a system message: a shorter one may occur in a template by chance."""
PLAIN = "--set data.template=plain"


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a chat template."""

    all: tuple[str, ...]
    ends: tuple[str, ...]
    """Tokens in the text that the template writes behind an assistant's words."""
    unknown: tuple[str, ...]
    """Marks that the tokenizer has no token for: it writes them in letters."""

    @property
    def of_turns(self) -> tuple[str, ...]:
        """The marks around turns. Tags of thinking and calls are none: many questions ask for them by name."""
        return tuple(name for name in self.all if name in self.ends or MARK.fullmatch(name))


def marks_of(tokenizer: Any, template: Template) -> Marks:
    """Return the marks of the tokenizer's chat template. Raises: DataError if it refuses a conversation."""
    chat = ChatText(Renderer(tokenizer, template if template.name == "chat" else Template(name="chat")))
    question, answer, again = WORDS
    talk = [Message("user", question), Message("assistant", answer), Message("user", again)]
    text, known = chat.write(talk, (), asks=True), chat.foreign_text.added
    written = {*MARK.findall(text), *(name for name in known if len(name) > 1 and name in text and not name.isspace())}

    def is_token(name: str) -> bool:
        ids = tokenizer(name, add_special_tokens=False)["input_ids"]
        return len(ids) == 1 and ids[0] != tokenizer.unk_token_id

    return Marks(
        tuple(sorted(written)),
        tuple(n for n in sorted(known) if n.strip() and n in chat.close),
        tuple(sorted(name for name in written if not is_token(name))),
    )


def look(recipe: LocalParts) -> Checked:
    """Look at the recipe's template, the model's own, and the prompts that are made with it."""
    how, tokenizer = recipe.config.data.template, recipe.model.tokenizer
    findings, result = _recorded(recipe), str(how.name)
    if tokenizer is None:
        return Checked("template", False, recipe.model.no_tokenizer, tuple(findings))
    if how.name != "chat":
        findings += [] if findings else _not_chat(recipe)
    elif not tokenizer.chat_template:
        findings.append(
            _finding(recipe, "problem", 1.0, "data.template is chat, and the tokenizer has no chat template.")
        )
    else:
        try:
            marks = marks_of(tokenizer, how)
        except DataError as exc:
            sentence = f"The chat template refuses a conversation of users and the assistant: {_flat(exc)}."
            return Checked("template", True, result, (*findings, _finding(recipe, "problem", 1.0, sentence)))
        result += f", with the marks {' '.join(marks.all)}" if marks.all else ", without marks"
        findings += [*_unknown(recipe, marks), *_twice(recipe, marks)]
    prompts = spread(recipe.train, MOST_PROMPTS)
    if prompts and not any(f.level == "problem" for f in findings):
        findings += _written(recipe, prompts)
        result += f"; {len(prompts)} prompts were written"
    return Checked("template", True, result, tuple(findings))


def _recorded(recipe: LocalParts) -> list[Finding]:
    """Find that the model's folder names another template than the recipe, by the rule for runs."""
    model_template = template_of(recipe.config.model.path)
    if model_template is None or recipe.config.begins_with_texts:
        return []
    tree = recipe.config.model_dump(mode="json")
    finding = CAUSES["other_template"].look(RunFacts(tree, (), (), (), info={"model_template": model_template}))
    if finding is None:
        return []
    file = Path(recipe.config.model.path or "") / TEMPLATE_FILE
    return [replace(finding, evidence=(Evidence(str(file), 1, f"name: {model_template.get('name')!r}"),))]


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
    remedy = f"{PLAIN}, or put the model's own chat_template into its tokenizer_config.json"
    return [_finding(recipe, "warning" if recipe.config.begins_with_texts else "problem", 0.9, sentence, remedy)]


def _twice(recipe: LocalParts, marks: Marks) -> list[Finding]:
    """Find prompts whose own text has the template's marks: they were written with a template before."""
    prompts = spread(recipe.train, MOST_PROMPTS)
    wrapped = [p for p in prompts if any(name in p.question for name in marks.of_turns)]
    if len(wrapped) < max(1.0, MANY_WRAPPED * len(prompts)):
        return []
    sentence = (
        f"{len(wrapped)} of {len(prompts)} prompts have marks of the chat template in their own text, which the "
        "template writes around them again."
    )
    shown = [recipe.evidence(p, f"{p.question!r:.60}") for p in wrapped[:3]]
    remedy = f"{PLAIN}, or map mapping.question to a column without marks"
    return [_finding(recipe, "problem", 0.9, sentence, remedy, shown)]


def _not_chat(recipe: LocalParts) -> list[Finding]:
    """Find that the model was trained to end turns of a chat, and is asked in another form."""
    how, tokenizer = recipe.config.data.template, recipe.model.tokenizer
    if not tokenizer.chat_template or recipe.config.begins_with_texts:
        return []
    try:
        marks = marks_of(tokenizer, how)
    except DataError:
        return []
    ids = tokenizer.convert_tokens_to_ids(list(marks.ends))
    has_own = any(name in (how.text or "") for name in marks.ends)
    in_rows = any(name in p.question for p in recipe.train[:1] for name in marks.of_turns)
    if not {tokenizer.eos_token_id, *recipe.model.stops}.intersection(ids) or has_own or in_rows:
        return []
    sentence = (
        f"The model has a chat template and stops at the end of its turns, {marks.ends[0]}, and the recipe asks in the "
        f"form {how.name}."
    )
    # r1_zero is chosen on purpose: it asks for the thinking that a plain question does not.
    return [_finding(recipe, "note" if how.name == "r1_zero" else "warning", 0.6, sentence, "--set data.template=chat")]


def _written(recipe: LocalParts, prompts: Sequence[Prompt]) -> list[Finding]:
    """Find a system message or question that the template leaves out or writes twice, and two start tokens."""
    how, tokenizer = recipe.config.data.template, recipe.model.tokenizer
    renderer = Renderer(tokenizer, how)
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
        shown = (recipe.evidence(prompt, f"{text!r:.90}"),)
        if times != 1:
            does = "leaves the system message out" if not times else f"has the system message {times} times"
            return [_finding(recipe, "warning", 0.8, f"The prompt {does}: {system!r:.60}.", without, shown)]
        if prompt.asked.strip() not in text:
            sentence = "The template does not write the question as it is."
            return [_finding(recipe, "problem", 0.9, sentence, PLAIN, shown)]
    start = tokenizer.bos_token_id
    if start is not None and list(ids[:2]) == [start, start]:
        sentence, remedy = f"Prompts begin with two start tokens, {tokenizer.bos_token}.", "out of the template"
        return [_finding(recipe, "warning", 0.8, sentence, f"take {tokenizer.bos_token} {remedy}")]
    return []


def _finding(
    recipe: LocalParts,
    level: Level,
    confidence: float,
    sentence: str,
    remedy: str = PLAIN,
    shown: Sequence[Evidence] = (),
    cause: str = "other_template",
) -> Finding:
    field = f"data.template: {recipe.config.data.template.name}"
    if cause == "end_token_missing":
        field = f"model: {recipe.config.model.path or 'made by the recipe'}"
    evidence = tuple(shown) or (Evidence(RECIPE, 1, field),)
    return Finding(confidence, sentence, evidence, remedy, CAUSES[cause].explains, cause=cause, level=level)


def _flat(exc: DataError) -> str:
    return " ".join(str(exc).split()).rstrip(".")[:200]


def stop_token(recipe: LocalParts) -> Checked:
    """Compare the tokens that end a response: those that generation stops at, the template's, the demonstrations'."""
    tokenizer, template, name = recipe.model.tokenizer, recipe.config.data.template, "stop token"
    of_end = "end_token_missing"
    if tokenizer is None:
        return Checked(name, False, recipe.model.no_tokenizer)
    end, size, findings = int(tokenizer.eos_token_id), recipe.model.vocabulary, list[Finding]()
    if size is not None and end >= size:
        sentence = (
            f"The end token {tokenizer.eos_token!r} has the number {end}, and the model has {size} tokens: the "
            "tokenizer is that of another model."
        )
        remedy = "put the model's own tokenizer into its folder"
        findings.append(_finding(recipe, "problem", 1.0, sentence, remedy, cause=of_end))
    stops = {end, *recipe.model.stops}
    if template.name == "chat" and tokenizer.chat_template:
        stops.add(end := Renderer(tokenizer, template).closing[1])
    result = f"generation stops at {' '.join(map(str, tokenizer.convert_ids_to_tokens(sorted(stops))))}"
    own = str(tokenizer.convert_ids_to_tokens(end))
    prompts = spread([p for p in recipe.demonstrations if isinstance(p.demonstration, str)], MOST_DEMONSTRATIONS)
    ends = [(p, word) for p in prompts if (word := _end_of(str(p.demonstration), own)) is not None]
    if len(ends) > MANY_SPELLED * len(prompts):
        sentence = (
            f"{len(ends)} of {len(prompts)} demonstrations end with the text {ends[0][1]}, and the end token {own} is "
            "added behind it: the policy learns to write it before it stops."
        )
        remedy = "take it out of the demonstrations, or of what mapping.demonstration names"
        shown = [recipe.evidence(p, f"{str(p.demonstration)[-40:]!r}") for p, _ in ends[:3]]
        findings.append(_finding(recipe, "warning", 0.8, sentence, remedy, shown, of_end))
    return Checked(name, True, result, tuple(findings))


def _end_of(text: str, name: str) -> str | None:
    """Return the mark, or the name of the end token, with which a text ends."""
    text = text.rstrip()
    marks = MARK.findall(text[-60:])
    return name if text.endswith(name) else marks[-1] if marks and text.endswith(marks[-1]) else None
