"""Data that a run refuses when it starts: files that are missing, rows and pairs that are not of the form wanted."""

from __future__ import annotations

import re
from collections.abc import Sequence

from verizero.pipeline.commands.preflight.checked import RECIPE, Checked, evidence_at, not_tried, spread
from verizero.pipeline.commands.preflight.demonstrations import judge
from verizero.pipeline.commands.preflight.graders import grader_of, is_cheap
from verizero.pipeline.commands.preflight.local_parts import MOST_ROWS, LocalParts
from verizero.pipeline.config.pairs import PairSource
from verizero.pipeline.config.preference import PreferenceConfig
from verizero.pipeline.config.reward_model import RewardModelConfig
from verizero.pipeline.config.stages import PretrainConfig
from verizero.pipeline.data.overlap import check_overlap
from verizero.pipeline.data.pairs import Pair, PairsRead, check_verdicts, read_pairs
from verizero.pipeline.data.prompts import load_text
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.texts import read_texts
from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.errors import ConfigError, DataError, IsolationError
from verizero.pipeline.preferences.base import load_preference
from verizero.pipeline.run.data import check_pairs
from verizero.pipeline.scoring.score import Grader
from verizero.pipeline.types import Attempt, Prompt, Verdict

NAME = "data"
REFUSED = "data_refused"
"""The cause of data that a run does not start with. No rule of runs has it."""
PLACE = re.compile(r"^(?:row )?(?P<place>\S.*? (?:line|row) \d+)(?=[:, ])")
MOST_PAIRS, FEW_LINES = 60, 100
"""Chosen sides that are graded, and lines of text that generators are asked for."""


def look(recipe: LocalParts) -> Checked:
    """Read all rows, texts and pairs that the recipe names, and tell what a run would refuse."""
    config = recipe.config
    demonstrations_field = "data.demonstrations" if config.data.demonstrations else "data.train"
    parts = (
        ("data.train", recipe.train),
        ("data.evaluation", recipe.evaluation),
        (demonstrations_field, recipe.demonstrations),
    )
    parts_read = [f"{len(rows.prompts)} rows of {field}" for field, rows in parts[:2] if rows.prompts]
    findings = [refused(field, text) for field, rows in parts for text in rows.refused.values()]
    absent = [text for _, rows in parts for text in rows.absent.values()]
    for stage, section in config.sections_of(PretrainConfig).items():
        findings += _texts(recipe, stage, section)
    for stage, on_pairs in config.sections_on_pairs.items():
        text, more = _pairs(recipe, stage, on_pairs)
        findings += more
        parts_read += [text] if text else []
    if not parts_read and not findings:
        return not_tried(NAME, next(iter(absent), "the recipe names no rows"))
    return Checked(
        NAME, True, "; ".join(dict.fromkeys([*parts_read, *absent])) or "nothing could be read", tuple(findings)
    )


def refused(field: str, text: str) -> Finding:
    """Return the finding for an error of data, whose text ends with its remedy behind the last semicolon.

    `field`: the part of the recipe that names the data.
    """
    what, _, remedy = text.rpartition("; ")
    what, remedy = (what, remedy) if what else (text, f"correct {field}")
    row_match = PLACE.match(what)
    shown = (
        Evidence(RECIPE, 1, field)
        if row_match is None
        else evidence_at(row_match["place"], f"{what[row_match.end() + 1 :]:.90}")
    )
    return Finding(REFUSED, "problem", 1.0, f"A run refuses {field}: {what.rstrip('.')}.", (shown,), remedy)


def _texts(recipe: LocalParts, stage: str, section: PretrainConfig) -> list[Finding]:
    bounded = [s.model_copy(update={"limit": min(s.limit or MOST_ROWS, MOST_ROWS)}) for s in section.text]
    findings: list[Finding] = []
    for source in bounded:
        try:
            read_texts([source], recipe.base_dir)
        except DataError as exc:
            findings.append(refused(f"{stage}.text", str(exc)))
    if not bounded:
        try:
            load_text(recipe.config.data.train, recipe.config.seed, min(section.num_lines, FEW_LINES))
        except DataError as exc:
            findings.append(refused("data.train", str(exc)))
    return findings


def _pairs(recipe: LocalParts, stage: str, section: PreferenceConfig | RewardModelConfig) -> tuple[str, list[Finding]]:
    """Return a line about the pairs of files of a stage, and what a run would refuse in them."""
    if not section.pairs:
        return "", []
    field, places = f"{stage}.pairs", dict[str, str]()
    try:
        read = read_pairs([_bounded(s) for s in section.pairs], recipe.config.seed, recipe.base_dir, places)
        check_overlap([p.prompt for p in read.pairs], recipe.evaluation.prompts, recipe.config.data.overlap)
        renderer = None if recipe.tokenizer is None else Renderer(recipe.tokenizer, recipe.config.data.template)
        check_pairs(stage, section, read, renderer, recipe.context)
        _check_enough(section, read)
        findings = _graded(recipe, section, read.pairs, places)
    except DataError as exc:
        return "", [refused(field, str(exc))]
    return f"{len(read.pairs)} pairs of {field}", findings


def _bounded(source: PairSource) -> PairSource:
    return source.model_copy(update={"limit": min(source.limit or MOST_ROWS, MOST_ROWS), "shuffle": False})


def _check_enough(section: PreferenceConfig | RewardModelConfig, read: PairsRead) -> None:
    """Raise DataError for fewer pairs, or prompts, than the stage needs."""
    num_prompts = len({(p.prompt.system, p.prompt.asked) for p in read.pairs})
    if isinstance(section, RewardModelConfig):
        if num_prompts < 2:
            raise DataError(f"all {len(read.pairs)} pairs have one prompt, and some are held out; give other prompts")
        return
    if len(read.pairs) < section.parts:
        raise DataError(f"{len(read.pairs)} pairs for {section.parts} parts; give more pairs, or lower parts")
    params = dict(section.loss)
    if load_preference(params.pop("name"), params)[0].needs_divergence and num_prompts < 2:
        raise DataError(
            f"all {len(read.pairs)} rows have one prompt, and the loss compares responses to different ones; give more "
            "prompts, or use dpo"
        )


def _graded(
    recipe: LocalParts, section: PreferenceConfig | RewardModelConfig, pairs: Sequence[Pair], places: dict[str, str]
) -> list[Finding]:
    """Return what verifiers show of the chosen sides of pairs that name one. Raise DataError as a run would."""
    by_key: dict[str, list[Pair]] = {}
    for pair in pairs:
        if pair.prompt.verifier and pair.chosen is not None:
            by_key.setdefault(pair.prompt.verifier, []).append(pair)
    findings: list[Finding] = []
    for key, pairs_of_key in by_key.items():
        if not is_cheap(recipe, key, [pairs_of_key[0].prompt]):
            continue
        some = spread(pairs_of_key, MOST_PAIRS)
        try:
            grader = grader_of(recipe, key, [pairs_of_key[0].prompt])
        except (IsolationError, ConfigError):
            continue  # a machine without walls says nothing of the pairs

        def grade(responses: Sequence[tuple[Prompt, str]], grader: Grader = grader) -> list[Verdict]:
            return grader.score([Attempt(text, p.reference, p.question) for p, text in responses])

        if len(pairs_of_key) == len(pairs):  # else other pairs are left, whatever this verifier says
            check_verdicts(PairsRead(list(some)), grade, section.on_wrong_chosen)
        shown = [(p.prompt, str(p.chosen)) for p in some]
        findings += judge(key, shown, grade(shown), places, "chosen sides of pairs")
    return findings
