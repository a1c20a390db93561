"""Labels of the steps of a response, as files have them: lists, PRM800K's objects, or Math-Shepherd's marked texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from verizero.pipeline.config.pairs import PairSource
from verizero.pipeline.errors import DataError
from verizero.verifiers._steps import split_steps, step_ends


class LabelledText(NamedTuple):
    """A response and those of its steps that have a label."""

    response: str
    steps: tuple[tuple[str, float], ...]
    """(text, 1 for right or 0 for wrong), in order, without steps that have no label."""


def read_steps(steps: Any, labels: Any, prompt: str, source: PairSource) -> LabelledText:
    """Return the response that the steps make, with their labels, from the values of a row's two columns.

    `labels` is None where objects hold them. A text with marks may begin with the prompt, which is taken off.
    Raises: DataError naming the column, the step and the remedy.
    """
    names = f"column {source.mapping.steps.column!r}", f"column {source.mapping.step_labels.column!r}"
    if isinstance(steps, str):
        texts, values = _marked(steps, labels, prompt, source, names)
        response = "".join(texts)
    else:
        texts, values = _listed(steps, labels, names)
        response = source.step_separator.join(texts)
    named = names[0] if labels is None else names[1]
    rewards = [_reward(value, number, source, named) for number, value in enumerate(values, 1)]
    labelled = [(text.strip(), r) for text, r in zip(texts, rewards, strict=True) if r is not None]
    if not labelled:
        raise DataError(f"{names[0]}: none of {len(texts)} steps has a label; leave the row out")
    return LabelledText(response, tuple(labelled))


def check_pieces(name: str, response: str, steps: Sequence[tuple[str, float]], step_end: str) -> None:
    """Raise DataError for two labelled steps in one piece of the response, which the model would score once."""
    stops, stop = [], 0
    for piece in split_steps(response, step_end):
        stop += len(piece)
        stops.append(stop)
    taken: dict[int, int] = {}
    for number, (end, _) in enumerate(step_ends(response, steps), 1):
        piece_number = next(i for i, stop in enumerate(stops) if end <= stop)
        if piece_number in taken:
            raise DataError(
                f"row {name!r}: labelled steps {taken[piece_number]} and {number} are one piece, as "
                f"reward_model.step_end={step_end!r} has no match between them; set step_end to what ends a step, or "
                "step_separator of the source"
            )
        taken[piece_number] = number


def _listed(steps: Any, labels: Any, names: tuple[str, str]) -> tuple[list[str], list[Any]]:
    """Return texts and labels of a list of texts, or of PRM800K's objects."""
    if not isinstance(steps, Sequence) or not steps:
        raise DataError(f"{names[0]} must be a list of steps or a text with marks, got {steps!r:.80}")
    if all(isinstance(step, Mapping) for step in steps):
        pairs = [_object(step, number, names[0]) for number, step in enumerate(steps, 1)]
        return [text for text, _ in pairs], [label for _, label in pairs]
    for number, text in enumerate(steps, 1):
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{names[0]}, step {number}: a step is a text, got {text!r:.80}")
    if not isinstance(labels, Sequence) or isinstance(labels, str):
        raise DataError(f"{names[1]} must be a list with a label for each step, got {labels!r:.80}")
    if len(labels) != len(steps):
        raise DataError(f"{names[1]} has {len(labels)} labels for the {len(steps)} steps of {names[0]}")
    return list(steps), list(labels)


def _object(step: Mapping[str, Any], number: int, name: str) -> tuple[str, Any]:
    """Return text and label of one object: {text, rating}, or PRM800K's step with several completions.

    Of these the chosen one is the step, else what a person wrote, else the first, at which the labelling ended.
    """
    item: Any = step
    if "completions" in step:
        chosen, written = step.get("chosen_completion"), step.get("human_completion")
        if chosen is None and isinstance(written, Mapping):
            item = written
        else:
            completions = step["completions"]
            at = 0 if chosen is None else chosen
            if not isinstance(completions, Sequence) or not isinstance(at, int) or not 0 <= at < len(completions):
                raise DataError(f"{name}, step {number}: there is no completion {at!r}, got {completions!r:.80}")
            item = completions[at]
    if not isinstance(item, Mapping) or not isinstance(item.get("text"), str) or not item["text"].strip():
        raise DataError(f"{name}, step {number}: a step is {{text, rating}}, got {item!r:.80}")
    return item["text"], item.get("rating")


def _marked(
    steps: str, labels: Any, prompt: str, source: PairSource, names: tuple[str, str]
) -> tuple[list[str], list[Any]]:
    """Return texts and labels of two texts that are equal but for the mark of each step, + or - in the second."""
    mark = source.step_mark
    if mark is None:
        raise DataError(f"{names[0]} is a text, not a list of steps; set step_mark to what ends each step in it")
    if not isinstance(labels, str):
        raise DataError(f"{names[1]} must be the text of {names[0]} with + or - for each {mark!r}, got {labels!r:.80}")
    pieces, values, at = steps.split(mark), list[str](), 0
    for number, piece in enumerate(pieces[:-1], 1):
        start, at = at, at + len(piece)
        if labels[start:at] == piece and labels[at : at + 1] in ("+", "-"):
            values.append(labels[at])
            at += 1
            continue
        raise DataError(
            f"{names[1]} must be the text of {names[0]} with + or - for each {mark!r}; at step {number} it has "
            f"{labels[max(0, at - 20) : at + 1]!r}"
        )
    if not values:
        raise DataError(f"{names[0]} has no {mark!r}, got {steps!r:.80}; set step_mark to what ends each step")
    texts = pieces[:-1]
    texts[0] = texts[0].lstrip().removeprefix(prompt).lstrip()
    blank = next((number for number, text in enumerate(texts, 1) if not text.strip()), None)
    if blank is not None:
        raise DataError(f"{names[0]}, step {blank}: there is no text before {mark!r}")
    return texts, values


def _reward(value: Any, number: int, source: PairSource, name: str) -> float | None:
    """Return 1 for a right step, 0 for a wrong one, None for one without a label."""
    if value is None:
        return None
    if isinstance(value, bool) or value in ("+", "-"):
        return float(value in (True, "+"))
    if not isinstance(value, str) and value in (1, 0, -1):
        if source.neutral is None:
            if value == -1:
                raise DataError(
                    f"{name}, step {number}: the label is -1, and labels are true or false, 1 or 0; where they are 1, "
                    "0 and -1, set neutral to what 0 is: right, wrong or unlabelled"
                )
            return float(value)
        if value != 0:
            return float(value == 1)
        return {"right": 1.0, "wrong": 0.0, "unlabelled": None}[source.neutral]
    raise DataError(f"{name}, step {number}: the label must be true or false, 1, 0 or -1, + or -, got {value!r:.80}")
