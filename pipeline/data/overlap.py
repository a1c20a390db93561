"""Find evaluation prompts that occur in training: equal, equal after normalisation, or mostly equal."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from verizero.pipeline.errors import DataError
from verizero.pipeline.host.disk import json_text
from verizero.pipeline.types import Prompt

log = logging.getLogger(__name__)
Gram = tuple[str, ...]

IGNORED_PUNCTUATION = re.compile(r"(?<!\w)[.,;:?\"`]+|[.,;:?\"`]+(?!\w)")
"""Punctuation that is no part of a number or a word, as in "1.5" and "3:4". Operators stay, with the ! of a factorial
and the ' of a derivative."""
MIN_SHARE = 0.8
"""Share of a prompt's n-grams that makes it one of training."""
MAX_SHARE_OF_TASK_WORDS = 0.01
"""An n-gram in a larger share of the training prompts (and more than 5) is an instruction, not a task."""


@dataclass(frozen=True, slots=True)
class Match:
    """An evaluation prompt and the training prompts that overlap with it."""

    evaluation_id: str
    train_ids: tuple[str, ...]
    kind: str
    """"exact", "normalised", or "ngram"."""
    share: float
    """Share of the evaluation prompt's n-grams that are in training; 1 for equal prompts."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """All evaluation prompts that occur in training, each with its strongest kind of match."""

    matches: tuple[Match, ...]
    num_evaluation: int
    num_train: int

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of matching evaluation prompts by kind."""
        number = Counter(m.kind for m in self.matches)
        return {kind: number[kind] for kind in ("exact", "normalised", "ngram")}

    def __str__(self) -> str:
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.counts.items())
        text = f"{len(self.matches)} of {self.num_evaluation} evaluation prompts occur in training ({kinds})"
        pairs = "; ".join(f"{m.evaluation_id!r} in {m.train_ids[0]!r}" for m in self.matches[:3])
        return text + (f": {pairs}" if pairs else "")


def normalise(text: str) -> str:
    """Return the text in NFKC, case-folded, without punctuation between words, with single spaces."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(IGNORED_PUNCTUATION.sub(" ", folded).split())


def find_overlap(train: Sequence[Prompt], evaluation: Sequence[Prompt], ngram: int = 13) -> Overlap:
    """Return the evaluation prompts that occur in training.

    Equal questions; else equal after `normalise`; else those of whose distinct word n-grams a share of
    at least MIN_SHARE is found in training prompts (any of them). N-grams that very many training prompts share are
    instructions and do not count. Nor does the question of an episode that several answers belong to: what tells its
    tasks apart is in the environment. Time and memory are linear in the text.

    Source: word 13-grams as in 2005.14165, appendix C; there one shared n-gram is a hit, here a share of them.
    """
    exact = _by_text(train, lambda text: text)
    normal = _by_text(train, normalise)
    hidden = _hidden(train)
    distinct = {p.id: set(_ngrams(p.question, ngram)) for p in evaluation}
    # N-grams that no evaluation prompt has are not stored: training data may be large.
    holders = _prompts_with(train, set().union(*distinct.values()), ngram)
    common = {g for g, ids in holders.items() if len(ids) > max(5, MAX_SHARE_OF_TASK_WORDS * len(train))}
    matches = []
    for prompt in evaluation:
        if prompt.environment is not None and normalise(prompt.question) in hidden:
            continue
        # Without this, two tasks under the same long instruction would count as equal.
        grams = distinct[prompt.id] - common
        shared = [g for g in grams if g in holders]
        if prompt.question in exact:
            matches.append(Match(prompt.id, tuple(exact[prompt.question]), "exact", 1.0))
        elif normalise(prompt.question) in normal:
            matches.append(Match(prompt.id, tuple(normal[normalise(prompt.question)]), "normalised", 1.0))
        elif grams and len(shared) / len(grams) >= MIN_SHARE:
            matches_of = Counter(i for g in shared for i in holders[g])
            ids = tuple(i for i, _ in sorted(matches_of.items(), key=lambda item: (-item[1], item[0])))
            matches.append(Match(prompt.id, ids, "ngram", len(shared) / len(grams)))
    return Overlap(tuple(matches), len(evaluation), len(train))


def check_overlap(
    train: Sequence[Prompt], evaluation: Sequence[Prompt], on_overlap: Literal["error", "drop", "report"]
) -> tuple[list[Prompt], Overlap]:
    """Return the training prompts to use, and the overlap. Raises: DataError by `on_overlap`, or if none is left."""
    overlap = find_overlap(train, evaluation)
    if not overlap.matches:
        return list(train), overlap
    if on_overlap == "error":
        raise DataError(f"{overlap}. Take them out of one of the two, or set data.on_overlap: drop (or report)")
    if on_overlap == "report":
        log.warning("%s", overlap)
        return list(train), overlap
    kept, remaining = list(train), overlap
    while remaining.matches:  # a match hides weaker matches of the same prompt
        # With these gone, weaker matches show at the next turn; each turn drops a prompt, so it ends.
        leaked = {i for m in remaining.matches for i in m.train_ids}
        kept = [p for p in kept if p.id not in leaked]
        remaining = find_overlap(kept, evaluation)
    log.warning("%s; dropped %d training prompts", overlap, len(train) - len(kept))
    if not kept:
        raise DataError(f"{overlap}, and dropping those leaves no training prompt; use other data for one of the two")
    return kept, overlap


def _hidden(train: Sequence[Prompt]) -> frozenset[str]:
    """Return the normalised questions with several answers: the task is not in such a text alone."""
    answers: dict[str, set[str]] = {}
    for prompt in train:
        answers.setdefault(normalise(prompt.question), set()).add(json_text(prompt.reference))
    return frozenset(text for text, known in answers.items() if len(known) > 1)


def _by_text(prompts: Sequence[Prompt], write: Callable[[str], str]) -> dict[str, list[str]]:
    """Return the ids of prompts by question, as `write` writes it."""
    ids: dict[str, list[str]] = {}
    for prompt in prompts:
        ids.setdefault(write(prompt.question), []).append(prompt.id)
    return ids


def _prompts_with(train: Sequence[Prompt], wanted: set[Gram], ngram: int) -> dict[Gram, list[str]]:
    """Return the ids of the training prompts that contain each wanted n-gram."""
    ids: dict[Gram, list[str]] = {}
    for prompt in train if wanted else ():
        # A set: a prompt that repeats an n-gram holds it once.
        for gram in set(_ngrams(prompt.question, ngram)) & wanted:
            ids.setdefault(gram, []).append(prompt.id)
    return ids


def _ngrams(text: str, ngram: int) -> Iterator[Gram]:
    words = normalise(text).split()
    for i in range(len(words) - ngram + 1):
        yield tuple(words[i : i + ngram])
